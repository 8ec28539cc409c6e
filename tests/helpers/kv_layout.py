"""Where the bytes of a row lie in a layer's cache, written from the table of ``docs/package-format.md``."""

from __future__ import annotations

import numpy as np


def parts_of_rows(kv_format, head_dim):
    """Return the parts of a row of keys, and of one of values, in bytes."""
    groups = -(-head_dim // 32)
    int8, int4 = (head_dim, 2 * groups), (16 * groups, 4 * groups)
    return {
        "f32": ((4 * head_dim,), (4 * head_dim,)),
        "f16": ((2 * head_dim,), (2 * head_dim,)),
        "int8": (int8, int8),
        "k8v4": (int8, int4),
        "int4": (int4, int4),
        "int4x2": ((16 * groups, *int4), (16 * groups, *int4)),
    }[kv_format]


def marked_rows(kv_format, shape, head_dim, rows):
    """Return which bytes of a layer's cache belong to some of its rows.

    Args:
        kv_format: its format.
        shape: ``(2, kv_heads, capacity, bytes per row)``.
        head_dim: elements of a row.
        rows: numbers of rows in memory.

    Returns:
        bool of ``shape``.
    """
    marks, begin = np.zeros(np.prod(shape), bool), 0
    for parts in parts_of_rows(kv_format, head_dim):
        for _ in range(shape[1]):
            for size in parts:
                piece = marks[begin : begin + shape[2] * size].reshape(shape[2], size)
                piece[list(rows)] = True
                begin += piece.size
    return marks.reshape(shape)
