"""Formats of the KV cache: bytes of a token in each format, for the memory plan and for the bound buffers.

The layout of the bytes, and the arithmetic on them, is described in ``csrc/ops/spec_attention/spec_attention.h``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

GROUP: Final = 32
"""Elements of a row that share one scale."""
ROW_BLOCK: Final = 16
"""Rows of a block that sequences share or not: a tile of keys, as attention reads them."""
RESTING_PER_SLOT: Final = 4
"""Sequences that have ended whose rows are kept, for each slot."""
BLOCK_TOKENS: Final = 64
"""Positions that attention processes at a time. The rows of layers with a sliding window are a multiple of it, and rows
are stored in blocks of it."""


PORTABLE_STEP: Final = 8
"""GroupQueryAttention takes heads whose size is a multiple of it."""


def portable_head_dim(head_dim: int) -> int:
    """Return the elements of a head in a portable package's cache: those of the model, and zeros behind them."""
    return -(-head_dim // PORTABLE_STEP) * PORTABLE_STEP


def pool_rows(ctx: int, slots: int) -> int:
    """Return the rows that slots share unless others are asked for: a whole context each, in whole blocks."""
    return slots * -(-ctx // ROW_BLOCK) * ROW_BLOCK


def window_capacity(window: int, largest_pass: int, positions: int) -> int:
    """Return the rows of a layer with a sliding window: enough for all that a token sees and the largest pass.

    Args:
        largest_pass: rows of the largest pass: the prefill chunk, or a draft and the token before it.
    """
    rows = -(-(window + largest_pass) // BLOCK_TOKENS) * BLOCK_TOKENS
    return min(positions, rows)


@dataclass(frozen=True)
class RowFormat:
    """How one head's key, or value, of one token is stored.

    Attributes:
        bits: of an element that is stored on its own.
        group_code_bytes: bytes of a group's codes, in formats that store whole groups; 0 in the others.
        group_extra_bytes: bytes of a group's scale and minimum.
        code_parts: parts that the codes of a row are split into.
    """

    bits: int = 0
    group_code_bytes: int = 0
    group_extra_bytes: int = 0
    code_parts: int = 1

    def bytes(self, head_dim: int) -> int:
        """Return the bytes of one row of ``head_dim`` elements."""
        groups = -(-head_dim // GROUP)
        return self.bits * head_dim // 8 + groups * (self.group_code_bytes + self.group_extra_bytes)

    def parts(self, head_dim: int) -> tuple[int, ...]:
        """Return the bytes of every part of a row: parts of its codes, then scales and minimums.

        The first parts of all rows are stored together, then all second parts, and so on.
        """
        extra = -(-head_dim // GROUP) * self.group_extra_bytes
        codes = (self.bytes(head_dim) - extra) // self.code_parts
        return (codes,) * self.code_parts + ((extra,) if extra else ())


_INT8: Final = RowFormat(bits=8, group_extra_bytes=2)
_INT4: Final = RowFormat(group_code_bytes=GROUP // 2, group_extra_bytes=4)
_INT4X2: Final = RowFormat(group_code_bytes=GROUP, group_extra_bytes=4, code_parts=2)


@dataclass(frozen=True)
class KvFormat:
    """A format of the cache."""

    name: str
    id: int
    key: RowFormat
    value: RowFormat

    def row_bytes(self, head_dim: int) -> int:
        """Return the bytes of the last axis of a layer's cache, uint8 ``[2, kv_heads, rows, bytes]``.

        Keys and values may differ in size; two rows of their mean size, rounded up, hold both.
        """
        return -(-(self.key.bytes(head_dim) + self.value.bytes(head_dim)) // 2)

    def token_bytes(self, kv_heads: int, head_dim: int) -> int:
        """Return the bytes of one token in one layer."""
        return 2 * kv_heads * self.row_bytes(head_dim)

    def places(self, kv_heads: int, head_dim: int, capacity: int, rows: int) -> Iterator[tuple[int, int]]:
        """Yield the byte ranges of the first rows of every head's keys and values in a layer's cache.

        Yields:
            Begin and end (exclusive) of a range in bytes; ascending.
        """
        begin = 0
        for size in (size for row in (self.key, self.value) for size in row.parts(head_dim) * kv_heads):
            yield begin, begin + rows * size
            begin += capacity * size


UPPER_HALVES: Final[Mapping[str, int]] = {"int4x2": 6}
"""Format -> number in ``kv_formats`` that reads the upper halves of its codes alone; both write the same bytes."""
KV_FORMAT: Final[Mapping[str, KvFormat]] = {
    entry.name: entry
    for entry in (
        KvFormat("f32", 0, RowFormat(bits=32), RowFormat(bits=32)),
        KvFormat("f16", 1, RowFormat(bits=16), RowFormat(bits=16)),
        KvFormat("int8", 2, _INT8, _INT8),
        KvFormat("k8v4", 3, _INT8, _INT4),
        KvFormat("int4", 4, _INT4, _INT4),
        KvFormat("int4x2", 5, _INT4X2, _INT4X2),
    )
}
"""Name -> format."""
