"""Where the rows of a package's matrices come from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from edge_rt.export.sources.compound import BlockTensor, ConvertedTensor
from edge_rt.export.sources.gguf_types import TensorInfo
from edge_rt.export.sources.mlx import AffineTensor
from edge_rt.export.sources.model_file import TensorReader
from edge_rt.export.sources.packed import PackedTensor
from edge_rt.export.weights.blocks import FLOAT_TYPES, Array, float_rows, piece_rows, stored_floats
from edge_rt.export.weights.codes import Codes, scaled
from edge_rt.export.weights.gguf_blocks import read_codes
from edge_rt.export.weights.linear import Part

Rows = Codes | Array
"""Rows of a matrix: integers with their scales, or floats as they are stored, ``[rows, inputs]``."""


class RowReader(Protocol):
    """Gives the rows of matrices, in the type and the order that the package stores them in."""

    def rows(self, part: Part, *, multiple: int = 1) -> Iterator[tuple[Rows, int]]:
        """Yield the rows of a part, all but the last piece a multiple of ``multiple``, and how many bytes they took."""


class CheckpointRows:
    """The rows of a checkpoint, as they are."""

    def __init__(self, source: TensorReader) -> None:
        self._source = source

    def rows(self, part: Part, *, multiple: int = 1) -> Iterator[tuple[Rows, int]]:
        """Yield the rows of a part; see ``RowReader``."""
        if isinstance(part.tensor, PackedTensor):
            yield from packed_rows(part.tensor, self._source, part.row_order, multiple)
            return
        if isinstance(part.tensor, AffineTensor):
            yield from affine_rows(part.tensor, self._source, part.row_order, multiple)
            return
        if isinstance(part.tensor, BlockTensor):
            yield from block_rows(part.tensor, self._source, part.row_order, multiple)
            return
        if isinstance(part.tensor, ConvertedTensor):
            yield from converted_rows(part.tensor, self._source, part.row_order, multiple)
            return
        for raw in part.pieces(self._source, multiple=multiple):
            yield stored_rows(part.tensor, raw), raw.nbytes


def packed_rows(
    tensor: PackedTensor, source: TensorReader, row_order: Array | None, multiple: int
) -> Iterator[tuple[Codes, int]]:
    """Yield the rows of a packed matrix, and their share of its bytes; arguments as in ``Part``, ``RowReader``."""
    matrix = tensor.open(source)
    # The codes of a piece take twice their bytes in the file.
    for rows, read in _in_pieces(tensor, row_order, piece_rows(tensor, multiple=2 * multiple) // 2):
        found = matrix.rows(rows)
        yield Codes(found.codes, zeros=found.zeros, d=found.scales), read


def affine_rows(
    tensor: AffineTensor, source: TensorReader, row_order: Array | None, multiple: int
) -> Iterator[tuple[Codes, int]]:
    """Yield the rows of a matrix with minima, and their share of its bytes; see ``packed_rows``."""
    matrix = tensor.open(source)
    for rows, read in _in_pieces(tensor, row_order, piece_rows(tensor, multiple=2 * multiple) // 2):
        found = matrix.rows(rows)
        yield Codes(found.codes, d=found.scales, m=found.minima), read


def block_rows(
    tensor: BlockTensor, source: TensorReader, row_order: Array | None, multiple: int
) -> Iterator[tuple[Codes, int]]:
    """Yield the rows of a matrix of GGUF's blocks, and their share of its bytes; see ``packed_rows``."""
    matrix = tensor.open(source)
    for rows, read in _in_pieces(tensor, row_order, piece_rows(tensor, multiple=multiple)):
        yield scaled(read_codes(tensor, matrix.blocks(rows)), matrix.scale), read


def converted_rows(
    tensor: ConvertedTensor, source: TensorReader, row_order: Array | None, multiple: int
) -> Iterator[tuple[Array, int]]:
    """Yield the rows of a matrix of floats that is stored in fewer bits, in its type, and their share of its bytes."""
    matrix = tensor.open(source)
    for rows, read in _in_pieces(tensor, row_order, piece_rows(tensor, multiple=multiple)):
        yield stored_floats(matrix.values(rows), tensor.type_name), read


def _in_pieces(tensor: TensorInfo, row_order: Array | None, step: int) -> Iterator[tuple[Array, int]]:
    """Yield the numbers of some rows, in the package's order, and their share of the tensor's bytes."""
    count = tensor.shape[1]
    order = np.arange(count) if row_order is None else row_order
    for first in range(0, count, step):
        last = min(first + step, count)
        yield order[first:last], tensor.nbytes * last // count - tensor.nbytes * first // count


def stored_rows(tensor: TensorInfo, raw: Array) -> Rows:
    """Take raw rows of a tensor, uint8 ``[rows, bytes per row]`` as in the checkpoint, apart."""
    return float_rows(tensor, raw) if tensor.type_name in FLOAT_TYPES else read_codes(tensor, raw)
