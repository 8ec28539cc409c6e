"""What ``config.json`` says of matrices that are stored in fewer bits and converted through float.

Standard library only: a model that is refused is refused before numpy is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from edge_rt.export.sources.config_object import MAX_GROUP, ConfigObject

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
    """Return the settings of the method ``fp8``.

    Raises:
        UnsupportedModel: another kind of FP8.
        InvalidModelFile: a setting has the wrong type.
    """
    kind = settings.text("fmt", "e4m3")
    if kind != "e4m3":
        raise settings.refused("fmt", kind, "e4m3")
    ignores = settings.values.get("activation_scheme") is not None
    if settings.values.get("weight_block_size") is None:
        return Float8Settings(("tensor", "channel"), None, ignores)
    return Float8Settings(("block",), _block(settings, "weight_block_size"), ignores)


def float8_scheme(weights: ConfigObject, *, ignores_activations: bool) -> Float8Settings:
    """Return the settings of a scheme of compressed-tensors.

    Args:
        weights: the scheme's settings of weights.
        ignores_activations: as in ``Float8Settings``.

    Raises:
        UnsupportedModel: its weights are not FP8, or scaled in a way that is not read.
        InvalidModelFile: a setting is missing or has the wrong type.
    """
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
class BitsAndBytesSettings:
    """How bitsandbytes stored a folder's matrices.

    Attributes:
        kind: ``"nf4"`` or ``"fp4"``.
    """

    kind: str


def read_bitsandbytes(settings: ConfigObject) -> BitsAndBytesSettings:
    """Return the settings of the method ``bitsandbytes``.

    Raises:
        UnsupportedModel: codes of 8 bits, or a way to store those of 4 bits that is not read.
        InvalidModelFile: a setting has the wrong type.
    """
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
