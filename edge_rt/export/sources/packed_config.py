"""What ``config.json`` says of matrices that are quantised already: which layout, and everything that is not read.

Standard library only: a model that is refused is refused before numpy is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from edge_rt.errors import InvalidModelFile, UnsupportedModel

BITS: Final = 4
GROUP_STEP: Final = 32
"""Groups of inputs are multiples of it."""
MAX_GROUP: Final = 1 << 20
KEYS: Final = ("quantization_config", "compression_config")
"""Keys of ``config.json`` that hold the settings; early versions of compressed-tensors wrote the second one."""

_OTHER_WAY: Final = "Get the model in BF16 or F16, or as a GGUF file, or quantised to 4 bits by GPTQ or AWQ."


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


def read_packed_settings(where: str, config: Mapping[str, Any]) -> PackedSettings | None:
    """Return how matrices are packed; None if they are floats.

    Args:
        where: name of the folder, for errors.
        config: contents of ``config.json``.

    Raises:
        UnsupportedModel: in a way that is not read.
        InvalidModelFile: a setting is missing or has the wrong type.
    """
    key = next((key for key in KEYS if config.get(key) is not None), None)
    if key is None:
        return None
    settings = _Settings(where, key, config[key])
    method = settings.text("quant_method", "compressed-tensors" if "config_groups" in settings.values else None)
    if method == "gptq":
        return _gptq(settings)
    if method == "awq":
        return _awq(settings)
    if method == "compressed-tensors":
        return _compressed_tensors(settings)
    raise settings.refused("quant_method", method, "gptq, awq, compressed-tensors")


def _gptq(settings: _Settings) -> PackedSettings:
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


def _awq(settings: _Settings) -> PackedSettings:
    settings.require_bits(settings.integer("w_bit" if "w_bit" in settings.values else "bits"))
    for key in ("version", "checkpoint_format", "format"):
        version = settings.text(key, "gemm").lower()
        if version != "gemm":
            raise settings.refused(key, version, "gemm")
    if not settings.flag("zero_point", default=True):
        raise settings.refused("zero_point", "false", "true")
    group = settings.integer("q_group_size" if "q_group_size" in settings.values else "group_size")
    return PackedSettings("awq", settings.group(group))


def _compressed_tensors(settings: _Settings) -> PackedSettings:
    form = settings.text("format")
    if form != "pack-quantized":
        raise settings.refused("format", form, "pack-quantized")
    sparsity = settings.values.get("sparsity_config") or {}
    if not isinstance(sparsity, dict) or sparsity.get("format", "dense") != "dense":
        raise settings.refused("sparsity_config", repr(sparsity), "none")
    groups = settings.values.get("config_groups")
    if not isinstance(groups, dict) or not groups or not all(isinstance(one, dict) for one in groups.values()):
        raise settings.wrong("config_groups", groups)
    schemes = list(groups.values())
    for scheme in schemes:
        for key in ("input_activations", "output_activations"):
            if scheme.get(key) is not None:
                raise settings.refused(key, repr(scheme[key]), "none: only weights are quantised")
        if scheme.get("format", form) != form:
            raise settings.refused("format", repr(scheme["format"]), form)
    if any(scheme.get("weights") != schemes[0].get("weights") for scheme in schemes):
        raise settings.refused("config_groups", f"{len(schemes)} different ones", "the same settings for all weights")
    return _weights(_Settings(settings.where, "weights", schemes[0].get("weights")))


def _weights(weights: _Settings) -> PackedSettings:
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


class _Settings:
    """An object of the configuration, read with checks."""

    def __init__(self, where: str, key: str, values: object) -> None:
        self.where = where
        if not isinstance(values, dict):
            raise self.wrong(key, values)
        self.values: Mapping[str, Any] = values

    def text(self, key: str, default: str | None = None) -> str:
        value = self.values.get(key)
        value = default if value is None else value
        if not isinstance(value, str):
            raise self.wrong(key, value)
        return value

    def integer(self, key: str) -> int:
        value = self.values.get(key)
        if type(value) is not int:
            raise self.wrong(key, value)
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.values.get(key)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.wrong(key, value)
        return value

    def require_bits(self, bits: int) -> None:
        if bits != BITS:
            raise self.refused("bits", str(bits), str(BITS))

    def group(self, size: int) -> int:
        """Return the size of a group, 0 for a whole row."""
        if size == -1:
            return 0
        if not 1 <= size <= MAX_GROUP or size % GROUP_STEP:
            raise self.refused("group_size", str(size), f"-1, and multiples of {GROUP_STEP} up to {MAX_GROUP}")
        return size

    def refused(self, key: str, value: str, taken: str) -> UnsupportedModel:
        return UnsupportedModel(
            f"{self.where}: the weights are quantised in a way that edge-rt does not read.",
            f"'{key}' is {value:.60}; read is {taken}.",
            _OTHER_WAY,
        )

    def wrong(self, key: str, value: object) -> InvalidModelFile:
        return InvalidModelFile(
            f"{self.where}: '{key}' of the quantisation in config.json is missing or has the wrong type.",
            f"Found {value!r:.60}.",
            "Fetch the model again.",
        )
