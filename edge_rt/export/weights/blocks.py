"""Reading the rows of a checkpoint's tensors, and floats as they are stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.export.sources.compound import VALUE_BYTES, ConvertedTensor
from edge_rt.export.sources.gguf_types import TensorInfo, not_finite
from edge_rt.export.sources.model_file import TensorReader

FLOAT_TYPES: Final[dict[str, np.dtype[Any]]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}
"""Type -> how numbers are stored; numpy has no bfloat16, whose 16 bits are the first half of a float32."""
PIECE_BYTES: Final = 16 << 20
"""Bytes of a tensor that are read at a time if its rows keep their order."""

Array = npt.NDArray[Any]


def read_rows(source: TensorReader, tensor: TensorInfo) -> Array:
    """Return the raw bytes of a matrix or vector, uint8 ``[rows, bytes per row]``."""
    return np.concatenate(list(iter_rows(source, tensor, whole=True)))


def iter_rows(source: TensorReader, tensor: TensorInfo, *, whole: bool = False, multiple: int = 1) -> Iterator[Array]:
    """Yield raw rows, uint8 ``[rows, bytes per row]``; pieces but the last have a multiple of ``multiple``."""
    rows = tensor.shape[1] if len(tensor.shape) > 1 else 1
    row_bytes = tensor.nbytes // rows
    step = rows if whole else piece_rows(tensor, multiple=multiple)
    for first in range(0, rows, step):
        count = min(step, rows - first)
        data = source.read(tensor, first * row_bytes, count * row_bytes)
        yield np.frombuffer(data, np.uint8).reshape(count, row_bytes)


def piece_rows(tensor: TensorInfo, *, multiple: int = 1) -> int:
    """Return how many rows are read at a time."""
    rows = tensor.shape[1] if len(tensor.shape) > 1 else 1
    return max(1, PIECE_BYTES // (open_bytes(tensor) // rows) // multiple) * multiple


def open_bytes(tensor: TensorInfo) -> int:
    """Return the bytes of a tensor as it is read: those in the file, or those of the floats that it is converted to."""
    return VALUE_BYTES * tensor.elements if isinstance(tensor, ConvertedTensor) else tensor.nbytes


def float_rows(tensor: TensorInfo, raw: Array) -> Array:
    """Return rows of a float tensor as they are stored, ``[rows, elements]``; bfloat16 as uint16."""
    values: Array = raw.view(FLOAT_TYPES[tensor.type_name])
    is_finite = values & 0x7F80 != 0x7F80 if values.dtype == np.uint16 else np.isfinite(values)
    if not is_finite.all():
        raise not_finite(tensor)
    return values


def stored_floats(values: Array, type_name: str) -> Array:
    """Return float32 numbers as they are stored in ``FLOAT_TYPES``; a BF16 type must have them exactly."""
    if type_name == "BF16":
        return (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return values.astype(FLOAT_TYPES[type_name])


def float_values(stored: Array) -> Array:
    """Return numbers that are stored as in ``FLOAT_TYPES``, in float32."""
    if stored.dtype == np.uint16:
        widened: Array = (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return widened
    return stored.astype(np.float32)


def unpermuted_rows(num_heads: int, head_dim: int) -> Array:
    """Return, for every row of a q or k projection in split-half rope order, its row in a llama GGUF.

    Converters to GGUF store the two halves of each head interleaved, as adjacent pairs; GroupQueryAttention
    rotates element j with element ``j + head_dim / 2``.

    Returns:
        int64 ``[num_heads * head_dim]``.
    """
    within = np.concatenate([np.arange(0, head_dim, 2), np.arange(1, head_dim, 2)])
    rows: Array = np.arange(num_heads)[:, None] * head_dim + within[None, :]
    return rows.reshape(-1)
