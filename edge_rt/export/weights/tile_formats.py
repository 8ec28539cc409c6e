"""Formats of packed matrices: what a unit of a tile holds, and where. The same facts as in ``weight_format.h``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BLOCK: Final = 32
TILE_ROWS: Final = 16

CODE_LINES: Final = {
    "nibbles": 4, "table": 4, "bytes": 8, "five": 5, "six": 6, "three": 3, "two": 2, "nested": 4
}  # fmt: skip
"""Kind of codes -> lines of 64 bytes that a block of 32 inputs by 16 rows takes; finer codes not included."""
IQ4_TABLE: Final = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
MXFP4_TABLE: Final = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


@dataclass(frozen=True)
class TileFormat:
    """One format.

    Attributes:
        codes: kind of codes, a key of ``CODE_LINES``, or ``"floats"``. ``"nested"`` codes are two nibbles: upper ones
            that are codes of 4 bits with the same scale and minimum, and finer ones, which lie elsewhere.
        scales: how a group's scale is made: ``"half"`` (an fp16 number of its own), ``"byte"`` or ``"signed"`` (fp16 d
            times a byte), ``"nibble"`` (fp16 d times the low half of a byte, whose high half makes the minimum),
            ``"exponent"`` (2^(byte - 128)), ``"zero"`` (fp16 d of the whole unit, whose codes have a zero point, a
            byte), ``"float8"`` (2^-8 times the float of 4 bits of exponent and 3 of fraction that a byte is; d is a
            float32, and the whole row's), or ``"none"``.
        has_minimum: whether a group has a minimum besides its scale.
        offset: what is taken from codes; they are stored without a sign. 0 for a table.
        unit_blocks: blocks of 32 inputs that share d.
        float_bytes: bytes of a weight that is no code.
        table: weights of codes, where they are places in a table.
    """

    name: str
    codes: str
    scales: str
    has_minimum: bool = False
    offset: int = 0
    unit_blocks: int = 1
    groups: int = 1
    float_bytes: int = 0
    table: tuple[int, ...] = ()

    @property
    def is_float(self) -> bool:
        """Whether weights are no codes; activations are not rounded then."""
        return self.codes == "floats"

    @property
    def has_zeros(self) -> bool:
        """Whether codes have a zero point, one a row and unit."""
        return self.scales == "zero"

    @property
    def unit_inputs(self) -> int:
        """Inputs of a unit; a row has a multiple of it, unless weights are floats."""
        return BLOCK * self.unit_blocks

    @property
    def code_bytes(self) -> int:
        """Bytes of a unit's codes."""
        if self.is_float:
            return BLOCK * TILE_ROWS * self.float_bytes
        return 64 * CODE_LINES[self.codes] * self.unit_blocks

    @property
    def is_nested(self) -> bool:
        """Whether the upper halves of codes are codes of their own."""
        return self.codes == "nested"

    @property
    def finer_bytes(self) -> int:
        """Bytes of a unit's finer codes, which lie behind all units of the matrix."""
        return self.code_bytes if self.is_nested else 0

    @property
    def scale_bytes(self) -> int:
        """Bytes of a unit's scales that are bytes, or of its zero points; minima of their own take as many."""
        if self.has_zeros:
            return TILE_ROWS
        return 0 if self.scales in ("half", "none") else TILE_ROWS * self.groups * self.unit_blocks

    @property
    def unit_bytes(self) -> int:
        """Bytes of a unit, finer codes included."""
        halves = (self.scales not in ("exponent", "none")) + (self.scales == "float8") + self.has_minimum
        minima = self.scale_bytes if self.scales == "byte" and self.has_minimum else 0
        return self.code_bytes + self.scale_bytes + minima + 2 * TILE_ROWS * halves + self.finer_bytes


TILE_FORMATS: Final = {
    form.name: form
    for form in (
        TileFormat("w4m", "nibbles", "half", has_minimum=True),
        TileFormat("w4", "nibbles", "half", offset=8),
        TileFormat("w8", "bytes", "half"),
        TileFormat("f16", "floats", "none", float_bytes=2),
        TileFormat("f32", "floats", "none", float_bytes=4),
        TileFormat("w5m", "five", "half", has_minimum=True),
        TileFormat("w5", "five", "half", offset=16),
        TileFormat("w4k", "nibbles", "byte", has_minimum=True, unit_blocks=8),
        TileFormat("w5k", "five", "byte", has_minimum=True, unit_blocks=8),
        TileFormat("w6k", "six", "signed", offset=32, unit_blocks=8, groups=2),
        TileFormat("w3k", "three", "signed", offset=4, unit_blocks=8, groups=2),
        TileFormat("w2k", "two", "nibble", has_minimum=True, unit_blocks=8, groups=2),
        TileFormat("t4", "table", "half", table=IQ4_TABLE),
        TileFormat("t4k", "table", "signed", unit_blocks=8, table=IQ4_TABLE),
        TileFormat("mx4", "table", "exponent", table=MXFP4_TABLE),
        TileFormat("bf16", "floats", "none", float_bytes=2),
        TileFormat("w4z32", "nibbles", "zero"),
        TileFormat("w4z64", "nibbles", "zero", unit_blocks=2),
        TileFormat("w4z128", "nibbles", "zero", unit_blocks=4),
        TileFormat("nv4", "table", "float8", unit_blocks=2, groups=2, table=MXFP4_TABLE),
        TileFormat("w8n", "nested", "half", has_minimum=True),
    )
}
"""Name -> format."""

FORMAT_OF_GGML: Final = {
    "Q4_1": "w4m",
    "Q4_0": "w4",
    "Q8_0": "w8",
    "F16": "f16",
    "F32": "f32",
    "Q5_1": "w5m",
    "Q5_0": "w5",
    "Q4_K": "w4k",
    "Q5_K": "w5k",
    "Q6_K": "w6k",
    "Q3_K": "w3k",
    "Q2_K": "w2k",
    "IQ4_NL": "t4",
    "IQ4_XS": "t4k",
    "MXFP4": "mx4",
    "NVFP4": "nv4",
    "BF16": "bf16",
    "W4Z32": "w4z32",
    "W4Z64": "w4z64",
    "W4Z128": "w4z128",
    "W8N": "w8n",
}
"""ggml type, type of a packed matrix in a folder (``sources.packed``), or ``NESTED`` -> format of its tiles."""

UPPER_FORMAT: Final = {"w8n": "w8n_upper"}
"""Format of nested codes -> the format that reads their upper halves alone."""


def tile_format(type_name: str) -> TileFormat:
    """Return the format of a type's tiles."""
    return TILE_FORMATS[FORMAT_OF_GGML[type_name]]
