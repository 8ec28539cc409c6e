"""What ``config.json`` says of matrices that are quantised already: which layout, and everything that is not read.

Standard library only: a model that is refused is refused before numpy is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from edge_rt.export.sources.config_object import BITS, ConfigObject
from edge_rt.export.sources.converted_config import (
    FLOAT8_FORMATS,
    BitsAndBytesSettings,
    Float8Settings,
    float8_scheme,
    read_bitsandbytes,
    read_float8,
)
from edge_rt.export.sources.mlx_config import MLX_KEY, MLXSettings, read_mlx

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
        layout: ``"gptq"``, ``"awq"`` or ``"compressed-tensors"``.
        group: inputs that share a scale and a zero point; 0 for a whole row.
        zero_added: what is added to a stored zero point.
        has_zeros: whether zero points are stored; None: they may be.
        needs_order: whether the group of every input must be stored.
    """

    layout: str
    group: int
    zero_added: int = 0
    has_zeros: bool | None = True
    needs_order: bool = False


QuantisedSettings = PackedSettings | Float8Settings | BitsAndBytesSettings | MLXSettings


def read_packed_settings(where: str, config: Mapping[str, Any]) -> QuantisedSettings | None:
    """Return how matrices are quantised; None if they are floats.

    Args:
        where: name of the folder, for errors.
        config: contents of ``config.json``.

    Raises:
        UnsupportedModel: in a way that is not read.
        InvalidModelFile: a setting is missing or has the wrong type.
    """
    if config.get(MLX_KEY) is not None:
        return read_mlx(where, config)
    key = next((key for key in KEYS if config.get(key) is not None), None)
    if key is None:
        return None
    settings = ConfigObject(where, key, config[key])
    method = settings.text("quant_method", "compressed-tensors" if "config_groups" in settings.values else None)
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
    raise settings.refused("quant_method", method, "gptq, awq, auto-round, compressed-tensors, fp8, bitsandbytes")


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


def _compressed_tensors(settings: ConfigObject) -> PackedSettings | Float8Settings:
    form = settings.text("format")
    if form != "pack-quantized" and form not in FLOAT8_FORMATS:
        raise settings.refused("format", form, ", ".join(("pack-quantized", *FLOAT8_FORMATS)))
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
