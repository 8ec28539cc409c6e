"""Bytes that the tiles of packed matrices take, by format: the layout ``tile16`` of ``docs/package-format.md``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TILE_ROWS: Final = 16

TILE_UNITS: Final[Mapping[str, tuple[int, int]]] = {
    "w4m": (32, 320),
    "w4": (32, 288),
    "w8": (32, 544),
    "f16": (32, 1024),
    "f32": (32, 2048),
    "w5m": (32, 384),
    "w5": (32, 352),
    "w4k": (256, 2368),
    "w5k": (256, 2880),
    "w6k": (256, 3360),
    "w3k": (256, 1824),
    "w2k": (256, 1344),
    "t4": (32, 288),
    "t4k": (256, 2208),
    "mx4": (32, 272),
    "bf16": (32, 1024),
    "w4z32": (32, 304),
    "w4z64": (64, 560),
    "w4z128": (128, 1072),
    "w8n": (32, 576),
}
"""Format -> inputs of a unit, and bytes of a unit of 16 rows."""
FLOAT_TILES: Final = frozenset({"f16", "f32", "bf16"})
"""Formats whose rows need not have a multiple of a unit's inputs."""
NESTED_TILES: Final = frozenset({"w8n"})
"""Formats whose finer codes lie behind all units of a matrix, so that its tiles cannot be taken out one by one."""

FORMAT_OF_TYPE: Final[Mapping[str, str]] = {
    "Q4_1": "w4m", "Q4_0": "w4", "Q8_0": "w8", "F16": "f16", "F32": "f32", "Q5_1": "w5m", "Q5_0": "w5", "Q4_K": "w4k",
    "Q5_K": "w5k", "Q6_K": "w6k", "Q3_K": "w3k", "Q2_K": "w2k", "IQ4_NL": "t4", "IQ4_XS": "t4k", "MXFP4": "mx4",
    "BF16": "bf16", "W4Z32": "w4z32", "W4Z64": "w4z64", "W4Z128": "w4z128", "W8N": "w8n",
}  # fmt: skip
"""Type of a matrix, as in ``quantisation`` of a manifest -> format of its tiles."""


def tiles_shape(rows: int, inputs: int, form: str) -> tuple[int, int, int]:
    """Return the shape of the tiles of a matrix, uint8 ``[tiles, units, bytes of a unit]``.

    Args:
        rows: outputs of the matrix.
        inputs: of the matrix.
        form: name of the format.

    Raises:
        ValueError: rows of the format cannot have so many inputs.
    """
    unit_inputs, unit_bytes = TILE_UNITS[form]
    if form not in FLOAT_TILES and inputs % unit_inputs:
        raise ValueError(f"{inputs} inputs are no multiple of the {unit_inputs} that {form} needs")
    return -(-rows // TILE_ROWS), -(-inputs // unit_inputs), unit_bytes


def row_bytes(inputs: int, types: str) -> int:
    """Return the bytes that a row of a matrix takes in tiles, rounded up: the most of several types.

    Args:
        inputs: of the matrix.
        types: as in ``quantisation`` of a manifest: one type, or several joined by ``+``; a type that is not known
            counts as floats.
    """
    forms = [FORMAT_OF_TYPE.get(name, "f32") for name in types.split("+")]
    return max(-(-(-(-inputs // TILE_UNITS[form][0]) * TILE_UNITS[form][1]) // TILE_ROWS) for form in forms)
