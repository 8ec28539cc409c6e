"""What ``config.json`` says of matrices that are quantised already: which layout, and everything that is not read.

Standard library only: a model that is refused is refused before numpy is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from edge_rt.export.sources.config_object import BITS, MAX_GROUP, ConfigObject

FLOAT8_FORMATS: Final = ("float-quantized", "naive-quantized")
"""Formats of compressed-tensors that may hold FP8."""
BITSANDBYTES_KINDS: Final = ("nf4", "fp4")

_FLOAT8_BITS: Final = 8


@dataclass(frozen=True)
class Float8Settings:
    """How the FP8 matrices of a folder are scaled.

    Attributes:
        kinds: what has a scale: ``"tensor"``, ``"channel"`` (a row) or ``"block"``; the shape of scales tells which.
        block: rows and inputs of a block; None if there are none.
        ignores_activations: whether the folder says how activations or caches are rounded, which an export ignores.
    """

    kinds: tuple[str, ...]
    block: tuple[int, int] | None = None
    ignores_activations: bool = False


def read_float8(settings: ConfigObject) -> Float8Settings:
    """Return the settings of the method ``fp8``."""
    kind = settings.text("fmt", "e4m3")
    if kind != "e4m3":
        raise settings.refused("fmt", kind, "e4m3")
    ignores = settings.values.get("activation_scheme") is not None
    if settings.values.get("weight_block_size") is None:
        return Float8Settings(("tensor", "channel"), None, ignores)
    return Float8Settings(("block",), _block(settings, "weight_block_size"), ignores)


def float8_scheme(weights: ConfigObject, *, ignores_activations: bool) -> Float8Settings:
    """Return the settings of a scheme of compressed-tensors."""
    kind, bits = weights.text("type", "int"), weights.integer("num_bits")
    if kind != "float":
        raise weights.refused("type", kind, "float")
    if bits != _FLOAT8_BITS:
        raise weights.refused("num_bits", str(bits), str(_FLOAT8_BITS))
    strategy = weights.text("strategy")
    if strategy not in ("tensor", "channel", "block"):
        raise weights.refused("strategy", strategy, "tensor, channel, block")
    if not weights.flag("symmetric", default=True):
        raise weights.refused("symmetric", "false", "true")
    block = _block(weights, "block_structure") if strategy == "block" else None
    return Float8Settings((strategy,), block, ignores_activations)


def _block(settings: ConfigObject, key: str) -> tuple[int, int]:
    """Return the rows and inputs of a block."""
    value = settings.values.get(key)
    if not isinstance(value, list) or len(value) != 2 or any(type(size) is not int for size in value):
        raise settings.wrong(key, value)
    if not all(1 <= size <= MAX_GROUP for size in value):
        raise settings.refused(key, repr(value), f"two sizes from 1 to {MAX_GROUP}")
    return value[0], value[1]


@dataclass(frozen=True)
class Float4Settings:
    """How 4-bit floats of a folder are stored.

    Attributes:
        kind: ``"NVFP4"`` or ``"MXFP4"``.
        tool: ``"modelopt"`` or ``"compressed-tensors"``.
        ignores_activations: whether the folder says how activations are rounded, which an export ignores.
    """

    kind: str
    tool: str
    ignores_activations: bool = False


FLOAT4_FORMATS: Final = {"nvfp4-pack-quantized": ("NVFP4", 16), "mxfp4-pack-quantized": ("MXFP4", 32)}
"""Formats of compressed-tensors -> kind, and inputs that share a scale."""


def read_model_opt(settings: ConfigObject) -> Float4Settings:
    """Return the settings of the method ``modelopt``."""
    # Some versions have these settings a level deeper.
    if isinstance(settings.values.get("quantization"), dict):
        settings = ConfigObject(settings.where, "quantization", settings.values["quantization"])
    algorithm = settings.text("quant_algo")
    if algorithm != "NVFP4":
        raise settings.refused("quant_algo", algorithm, "NVFP4")
    if settings.values.get("group_size") is not None and (size := settings.integer("group_size")) != 16:
        raise settings.refused("group_size", str(size), "16")
    return Float4Settings("NVFP4", "modelopt", ignores_activations=True)


def float4_scheme(weights: ConfigObject, form: str, *, ignores_activations: bool) -> Float4Settings:
    """Return the settings of a scheme of compressed-tensors."""
    kind, group = FLOAT4_FORMATS[form]
    weights.require_bits(weights.integer("num_bits"))
    if (number := weights.text("type", "int")) != "float":
        raise weights.refused("type", number, "float")
    if weights.values.get("group_size") is not None and (size := weights.integer("group_size")) != group:
        raise weights.refused("group_size", str(size), str(group))
    if not weights.flag("symmetric", default=True):
        raise weights.refused("symmetric", "false", "true")
    return Float4Settings(kind, "compressed-tensors", ignores_activations)


@dataclass(frozen=True)
class BitsAndBytesSettings:
    """How bitsandbytes stored a folder's matrices: ``"nf4"`` or ``"fp4"``."""

    kind: str


def read_bitsandbytes(settings: ConfigObject) -> BitsAndBytesSettings:
    """Return the settings of the method ``bitsandbytes``."""
    if settings.flag("load_in_8bit", default=False):
        # Its codes are made for products in which large activations are left out.
        raise settings.refused("load_in_8bit", "true", "load_in_4bit: int8 keeps outliers of activations in 16 bits")
    if not settings.flag("load_in_4bit", default=False):
        raise settings.refused("load_in_4bit", "false", "true")
    kind = settings.text("bnb_4bit_quant_type", "fp4")
    if kind not in BITSANDBYTES_KINDS:
        raise settings.refused("bnb_4bit_quant_type", kind, ", ".join(BITSANDBYTES_KINDS))
    storage = settings.text("bnb_4bit_quant_storage", "uint8")
    if storage != "uint8":
        raise settings.refused("bnb_4bit_quant_storage", storage, "uint8")
    return BitsAndBytesSettings(kind)


MLX_KEY: Final = "quantization"

_BITS: Final = (4, 8)
_GROUPS: Final = (32, 64, 128)
_KEYS: Final = ("bits", "group_size", "mode")


@dataclass(frozen=True)
class MLXSettings:
    """How the matrices of a folder are stored."""

    bits: int
    group: int
    layers: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def of(self, module: str) -> tuple[int, int]:
        """Return the bits and the group of a module's matrix."""
        return self.layers.get(module, (self.bits, self.group))


def read_mlx(where: str, config: Mapping[str, Any]) -> MLXSettings:
    """Return the settings of a folder that MLX wrote."""
    values = ConfigObject(where, MLX_KEY, config[MLX_KEY])
    # MLX writes the same object a second time, for the hub.
    if config.get("quantization_config") not in (None, config[MLX_KEY]):
        raise values.refused("quantization_config", "another object than 'quantization'", "the same object")
    layers = {}
    for key, value in values.values.items():
        if isinstance(value, dict):
            layers[key] = _sizes(ConfigObject(where, key, value))
        # True and False say which layers are quantised, and so do their tensors.
        elif key not in _KEYS and not isinstance(value, bool):
            raise values.refused(key, repr(value), f"{', '.join(_KEYS)} and settings of layers")
    return MLXSettings(*_sizes(values), layers)


def _sizes(values: ConfigObject) -> tuple[int, int]:
    """Return bits and group."""
    mode = values.text("mode", "affine")
    if mode != "affine":
        raise values.refused("mode", mode, "affine")
    bits, group = values.integer("bits"), values.integer("group_size")
    if bits not in _BITS:
        raise values.refused("bits", str(bits), " or ".join(map(str, _BITS)))
    if group not in _GROUPS:
        raise values.refused("group_size", str(group), ", ".join(map(str, _GROUPS)))
    return bits, group


KEYS: Final = ("quantization_config", "compression_config")
"""Keys of ``config.json`` that hold the settings; early versions of compressed-tensors wrote the second one."""

_ACTIVATIONS: Final = ("input_activations", "output_activations")
_AUTO_ROUND: Final = {
    "auto": "gptq",
    "auto_round:auto_gptq": "gptq",
    "auto_round:gptq": "gptq",
    "auto_round": "gptq_v2",
    "auto_round:gptqmodel": "gptq_v2",
    "auto_round:auto_awq": "awq",
    "auto_round:awq": "awq",
}
"""Packing format of AutoRound -> layout; in the second one zero points are stored as they are, in the first less 1."""
_FLOAT_BITS: Final = 16


@dataclass(frozen=True)
class PackedSettings:
    """How the matrices of a folder are packed.

    Attributes:
        group: inputs that share a scale and a zero point; 0 for a whole row.
        has_zeros: whether zero points are stored; None: they may be.
        needs_order: whether the group of every input must be stored.
    """

    layout: str
    group: int
    zero_added: int = 0
    has_zeros: bool | None = True
    needs_order: bool = False


QuantisedSettings = PackedSettings | Float4Settings | Float8Settings | BitsAndBytesSettings | MLXSettings


def read_packed_settings(where: str, config: Mapping[str, Any]) -> QuantisedSettings | None:
    """Return how matrices are quantised; None if they are floats."""
    if config.get(MLX_KEY) is not None:
        return read_mlx(where, config)
    key = next((key for key in KEYS if config.get(key) is not None), None)
    if key is None:
        return None
    settings = ConfigObject(where, key, config[key])
    method = settings.text("quant_method", "compressed-tensors" if "config_groups" in settings.values else None)
    if method == "mxfp4":
        # Of experts alone, whose tensors tell.
        return None
    if method == "gptq":
        return _gptq(settings)
    if method == "awq":
        return _awq(settings)
    if method == "auto-round":
        return _auto_round(settings)
    if method == "compressed-tensors":
        return _compressed_tensors(settings)
    if method == "fp8":
        return read_float8(settings)
    if method == "bitsandbytes":
        return read_bitsandbytes(settings)
    if method in ("modelopt", "modelopt_fp4"):
        return read_model_opt(settings)
    known = "gptq, awq, auto-round, compressed-tensors, fp8, bitsandbytes, modelopt, mxfp4"
    raise settings.refused("quant_method", method, known)


def _gptq(settings: ConfigObject) -> PackedSettings:
    settings.require_bits(settings.integer("bits"))
    # The second key is that of newer versions.
    key = "checkpoint_format" if settings.values.get("checkpoint_format") is not None else "format"
    form = settings.text(key, "gptq")
    if form not in ("gptq", "gptq_v2"):
        raise settings.refused(key, form, "gptq, gptq_v2")
    if settings.flag("is_marlin_format", default=False):
        raise settings.refused("is_marlin_format", "true", "false")
    changes = settings.values.get("dynamic")
    # A key that begins with a minus names layers that stay floats; others give layers settings of their own.
    if changes is not None and not (isinstance(changes, dict) and all(key.startswith("-") for key in changes)):
        raise settings.refused("dynamic", repr(changes), "keys that begin with a minus")
    return PackedSettings(
        "gptq",
        settings.group(settings.integer("group_size")),
        zero_added=1 if form == "gptq" else 0,
        needs_order=settings.flag("desc_act", default=False),
    )


def _awq(settings: ConfigObject) -> PackedSettings:
    settings.require_bits(settings.integer("w_bit" if "w_bit" in settings.values else "bits"))
    for key in ("version", "checkpoint_format", "format"):
        version = settings.text(key, "gemm").lower()
        if version != "gemm":
            raise settings.refused(key, version, "gemm")
    if not settings.flag("zero_point", default=True):
        raise settings.refused("zero_point", "false", "true")
    group = settings.integer("q_group_size" if "q_group_size" in settings.values else "group_size")
    return PackedSettings("awq", settings.group(group))


def _auto_round(settings: ConfigObject) -> PackedSettings:
    settings.require_bits(settings.integer("bits"))
    form = settings.text("packing_format", "auto")
    if form not in _AUTO_ROUND:
        raise settings.refused("packing_format", form, ", ".join(_AUTO_ROUND))
    kind = settings.text("data_type", "int")
    if kind != "int":
        raise settings.refused("data_type", kind, "int")
    if settings.values.get("act_bits") is not None and settings.integer("act_bits") < _FLOAT_BITS:
        raise settings.refused("act_bits", str(settings.values["act_bits"]), "16 and more: only weights are quantised")
    layers = settings.values.get("extra_config") or {}
    if not isinstance(layers, dict) or not all(isinstance(layer, dict) for layer in layers.values()):
        raise settings.wrong("extra_config", layers)
    group = settings.integer("group_size")
    same = {"bits": BITS, "group_size": group, "data_type": kind, "packing_format": form}
    for name, layer in layers.items():
        bits = layer.get("bits", BITS)
        # A layer of 16 bits stays as it is; others must not differ from the model's settings.
        is_float = type(bits) is int and bits >= _FLOAT_BITS
        if not is_float and any(layer.get(key, value) != value for key, value in same.items()):
            raise settings.refused("extra_config", f"{name:.40}: {layer!r}", "the same settings for all layers")
    layout = _AUTO_ROUND[form]
    return PackedSettings(
        layout.removesuffix("_v2"),
        settings.group(group),
        zero_added=1 if layout == "gptq" else 0,
        needs_order=settings.flag("desc_act", default=False),
    )


def _compressed_tensors(settings: ConfigObject) -> PackedSettings | Float4Settings | Float8Settings:
    form = settings.text("format")
    if form != "pack-quantized" and form not in FLOAT8_FORMATS and form not in FLOAT4_FORMATS:
        raise settings.refused("format", form, ", ".join(("pack-quantized", *FLOAT8_FORMATS, *FLOAT4_FORMATS)))
    sparsity = settings.values.get("sparsity_config") or {}
    if not isinstance(sparsity, dict) or sparsity.get("format", "dense") != "dense":
        raise settings.refused("sparsity_config", repr(sparsity), "none")
    groups = settings.values.get("config_groups")
    if not isinstance(groups, dict) or not groups or not all(isinstance(one, dict) for one in groups.values()):
        raise settings.wrong("config_groups", groups)
    schemes = list(groups.values())
    activations = [(key, scheme[key]) for scheme in schemes for key in _ACTIVATIONS if scheme.get(key) is not None]
    for scheme in schemes:
        if scheme.get("format") not in (None, form):
            raise settings.refused("format", repr(scheme["format"]), form)
    if any(scheme.get("weights") != schemes[0].get("weights") for scheme in schemes):
        raise settings.refused("config_groups", f"{len(schemes)} different ones", "the same settings for all weights")
    weights = ConfigObject(settings.where, "weights", schemes[0].get("weights"))
    if form in FLOAT8_FORMATS:
        has_cache = settings.values.get("kv_cache_scheme") is not None
        return float8_scheme(weights, ignores_activations=bool(activations) or has_cache)
    if form in FLOAT4_FORMATS:
        return float4_scheme(weights, form, ignores_activations=bool(activations))
    for key, value in activations:
        raise settings.refused(key, repr(value), "none: only weights are quantised")
    return _weights(weights)


def _weights(weights: ConfigObject) -> PackedSettings:
    """Return the settings of a scheme of compressed-tensors."""
    weights.require_bits(weights.integer("num_bits"))
    kind = weights.text("type", "int")
    if kind != "int":
        raise weights.refused("type", kind, "int")
    strategy = weights.text("strategy")
    if strategy not in ("group", "channel"):
        raise weights.refused("strategy", strategy, "group, channel")
    group = weights.group(weights.integer("group_size")) if strategy == "group" else 0
    has_zeros = not weights.flag("symmetric", default=True)
    return PackedSettings(
        "compressed-tensors", group, has_zeros=has_zeros, needs_order=weights.values.get("actorder") == "group"
    )
