"""GGUF quantisation blocks, and the layout in which ONNX Runtime's MatMulNBits reads the same numbers.

Every weight keeps its exact value. A block of 32 weights of one output row becomes

==== ==================================== =========================================================
type weight                               codes, scale, minimum
==== ==================================== =========================================================
Q4_0 ``d * (q - 8)``                      4-bit codes ``q``, scale ``d``
Q4_1 ``d * q + m``                        4-bit codes ``q``, scale ``d``, minimum ``m + 8 d``
Q8_0 ``d * q``                            8-bit codes ``q + 128``, scale ``d``
==== ==================================== =========================================================

MatMulNBits subtracts the zero point 8 (or 128) unless one is given. Centred codes also lose less precision by rounding
activations to int8 than codes from 0. The minimum is added as ``blocksum(x) @ minimum``: it is not a multiple of the
scale, and rounding it to a zero point would change the weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from edge_rt.errors import InvalidModelFile, StorageError
from edge_rt.export.sources.gguf_types import FETCH_AGAIN, TensorInfo

BLOCK: Final = 32
BLOCK_BYTES: Final = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}
CODE_BITS: Final = {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8}
FLOAT_TYPES: Final[dict[str, np.dtype[Any]]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2")}
PIECE_BYTES: Final = 16 << 20
"""Bytes of a tensor that are read at a time if its rows keep their order."""

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class BlockRows:
    """Rows of a quantised matrix in MatMulNBits' layout.

    Attributes:
        codes: uint8 ``[rows, blocks, 16]`` (4-bit: element 2j in the low nibble of byte j) or ``[rows, blocks, 32]``.
        scale: float32 ``[rows, blocks]``.
        minimum: float32 ``[rows, blocks]``, or None for types without one.
    """

    codes: Array
    scale: Array
    minimum: Array | None


def read_rows(stream: BinaryIO, tensor: TensorInfo) -> Array:
    """Return the raw bytes of a matrix or vector, uint8 ``[rows, bytes per row]``.

    Raises:
        StorageError: the file ended early.
    """
    return np.concatenate(list(iter_rows(stream, tensor, whole=True)))


def iter_rows(stream: BinaryIO, tensor: TensorInfo, *, whole: bool = False, multiple: int = 1) -> Iterator[Array]:
    """Yield the raw bytes of a tensor in pieces of whole rows, uint8 ``[rows, bytes per row]``.

    Args:
        stream: the open checkpoint.
        tensor: what to read.
        whole: yield everything at once, instead of about ``PIECE_BYTES`` at a time.
        multiple: every piece but the last has a multiple of this many rows.

    Raises:
        StorageError: the file ended early.
    """
    rows = tensor.shape[1] if len(tensor.shape) > 1 else 1
    row_bytes = tensor.nbytes // rows
    step = rows if whole else max(1, PIECE_BYTES // row_bytes // multiple) * multiple
    for first in range(0, rows, step):
        count = min(step, rows - first)
        stream.seek(tensor.offset + first * row_bytes)
        data = stream.read(count * row_bytes)
        if len(data) != count * row_bytes:
            raise StorageError(
                f"The tensor '{tensor.name}' could not be read.",
                f"At byte {tensor.offset}: {len(data)} of {count * row_bytes} bytes came; the file changed meanwhile.",
                "Run the command again when the file is complete.",
            )
        yield np.frombuffer(data, np.uint8).reshape(count, row_bytes)


def convert_rows(tensor: TensorInfo, raw: Array) -> BlockRows:
    """Convert raw rows of a quantised tensor.

    Args:
        tensor: its name and type (Q4_0, Q4_1 or Q8_0).
        raw: uint8 ``[rows, bytes per row]``.

    Raises:
        InvalidModelFile: a scale or minimum is NaN or infinite.
    """
    blocks = raw.reshape(raw.shape[0], -1, BLOCK_BYTES[tensor.type_name])
    scale = _halves(tensor, blocks[:, :, 0:2])
    if tensor.type_name == "Q8_0":
        # q + 128 in two's complement is a flip of the sign bit.
        return BlockRows(codes=blocks[:, :, 2:] ^ np.uint8(128), scale=scale, minimum=None)
    minimum = None
    if tensor.type_name == "Q4_1":
        minimum = _halves(tensor, blocks[:, :, 2:4]) + np.float32(8) * scale
    return BlockRows(codes=_interleave(blocks[:, :, -16:]), scale=scale, minimum=minimum)


def _halves(tensor: TensorInfo, raw: Array) -> Array:
    check_finite(tensor, raw)
    values: Array = np.ascontiguousarray(raw).view("<f2")[:, :, 0].astype(np.float32)
    return values


def check_finite(tensor: TensorInfo, raw: Array) -> None:
    """Refuse scales and minima that are NaN or infinite; ``raw`` holds their fp16 bytes.

    Raises:
        InvalidModelFile: one is NaN or infinite.
    """
    if not np.isfinite(np.ascontiguousarray(raw).view("<f2")).all():
        raise InvalidModelFile(
            f"The tensor '{tensor.name}' holds a scale that is not finite.",
            f"It begins at byte {tensor.offset} of the file.",
            FETCH_AGAIN,
        )


def _interleave(raw: Array) -> Array:
    """GGUF's byte j holds elements j and j + 16; MatMulNBits' byte j holds elements 2j and 2j + 1."""
    low, high = raw & np.uint8(15), raw >> np.uint8(4)
    elements = np.concatenate([low, high], axis=2)
    packed: Array = elements[:, :, 0::2] | (elements[:, :, 1::2] << np.uint8(4))
    return packed


def float_rows(tensor: TensorInfo, raw: Array) -> Array:
    """Return rows of an F32 or F16 tensor as they are stored, ``[rows, elements]``.

    Raises:
        InvalidModelFile: a value is NaN or infinite.
    """
    values: Array = raw.view(FLOAT_TYPES[tensor.type_name])
    if not np.isfinite(values).all():
        raise InvalidModelFile(
            f"The tensor '{tensor.name}' holds a value that is not finite.",
            f"It begins at byte {tensor.offset} of the file.",
            FETCH_AGAIN,
        )
    return values


def rope_factors(tensor: TensorInfo, raw: Array) -> Array:
    """Return the divisors of the rope frequencies, float32 or float16 ``[head_dim / 2]``.

    Raises:
        InvalidModelFile: one is not finite, or not above 0.
    """
    factors: Array = float_rows(tensor, raw)[0]
    if not (factors > 0).all():
        raise InvalidModelFile(
            f"The tensor '{tensor.name}' holds a frequency factor that is not positive.",
            f"The least is {factors.min()}; it begins at byte {tensor.offset} of the file.",
            FETCH_AGAIN,
        )
    return factors


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
