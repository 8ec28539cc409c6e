"""Matrices as plain floats: of a checkpoint, independently of what packs them, and of a package.

Blocks are dequantised by the ``gguf`` library, matrices of several tensors (``sources.compound``) by a formula of their
own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from edge_rt.export.sources.compound import CompoundTensor, ConvertedTensor
from edge_rt.export.sources.gguf_types import TensorInfo, not_finite
from edge_rt.export.sources.model_file import TensorReader
from edge_rt.export.weights.blocks import PIECE_BYTES, Array, iter_rows, piece_rows
from edge_rt.export.weights.linear import Linear, Part

PIECE_VALUES: Final = PIECE_BYTES // 4
"""Floats that are yielded at a time."""
MOST_ROUNDING: Final = 0.5
"""Largest squared error of quantised weights over their squares; where a fault mixes weights up it is about 2."""


class Matrices(Protocol):
    """Tensors of a model in float32, by the names that GGUF files have."""

    def pieces(self, name: str) -> Iterator[Array]:
        """Yield the rows of a matrix, ``[rows, inputs]``, in the checkpoint's order; a vector is one row."""

    def rows(self, name: str, numbers: Iterable[int]) -> Array:
        """Return some rows of a matrix, ``[len(numbers), inputs]``."""


def whole_matrix(matrices: Matrices, tensor: TensorInfo, dtype: npt.DTypeLike = np.float32) -> Array:
    """Return a matrix, ``[rows, inputs]``; besides it only one piece is in memory."""
    whole, at = np.empty((tensor.shape[1], tensor.shape[0]), dtype), 0
    for piece in matrices.pieces(tensor.name):
        whole[at : at + len(piece)] = piece
        at += len(piece)
    return whole


def row_groups(pieces: Iterable[Array], rows: int) -> Iterator[Array]:
    """Yield pieces of a matrix in groups of at most ``rows`` rows, for results that are wide for every row."""
    for piece in pieces:
        for begin in range(0, len(piece), rows):
            yield piece[begin : begin + rows]


def is_rounded(found: Array, expected: Array) -> bool:
    """Return whether values differ by no more than rounding to a few bits."""
    return float(np.square(found - expected).sum()) <= MOST_ROUNDING * float(np.square(expected).sum())


class StoredRows(Protocol):
    """Gives rows of a package's matrices as they lie in ``weights.bin``."""

    def rows(self, linear: Linear, part: Part, numbers: Sequence[int]) -> Array:
        """Return rows of a part, in the package's order, float32 ``[len(numbers), inputs]``."""


class CheckpointMatrices:
    """Tensors as the checkpoint defines them; reading raises ``InvalidModelFile`` where a value is not finite."""

    def __init__(self, source: TensorReader, tensors: Mapping[str, TensorInfo]) -> None:
        self._source = source
        self._tensors = tensors

    def pieces(self, name: str) -> Iterator[Array]:
        """Yield the rows of a matrix; see ``Matrices``."""
        tensor = self._tensors[name]
        if isinstance(tensor, CompoundTensor):
            # A vector is one row.
            matrix, rows = tensor.open(self._source), np.arange((*tensor.shape, 1)[1])
            # Taking words apart needs more memory than blocks do: pieces are smaller.
            step = max(1, piece_rows(tensor) // (1 if isinstance(tensor, ConvertedTensor) else 4))
            for some in np.split(rows, rows[::step][1:]):
                yield matrix.values(some)
            return
        step = max(1, PIECE_VALUES // tensor.shape[0])
        for raw in iter_rows(self._source, tensor):
            # Blocks of few bits become many floats.
            for begin in range(0, len(raw), step):
                yield _dequantised(tensor, raw[begin : begin + step])

    def rows(self, name: str, numbers: Iterable[int]) -> Array:
        """Return some rows of a matrix."""
        tensor = self._tensors[name]
        if isinstance(tensor, CompoundTensor):
            return tensor.open(self._source).values(np.asarray(list(numbers)))
        row_bytes, wanted = tensor.nbytes // tensor.shape[1], np.asarray(list(numbers))
        # Neighbours are read together.
        runs = np.split(wanted, np.flatnonzero(np.diff(wanted) != 1) + 1)
        raws = (self._source.read(tensor, int(run[0]) * row_bytes, len(run) * row_bytes) for run in runs)
        return _dequantised(
            tensor, np.concatenate([np.frombuffer(raw, np.uint8).reshape(-1, row_bytes) for raw in raws])
        )


def _dequantised(tensor: TensorInfo, raw: Array) -> Array:
    with np.errstate(invalid="ignore"):
        values: Array = dequantize(raw, GGMLQuantizationType(tensor.type_id))
    values = values.reshape(raw.shape[0], -1).astype(np.float32)
    if not np.isfinite(values).all():
        raise not_finite(tensor)
    return values


class PackageMatrices:
    """Tensors of a checkpoint of which some were quantised for the package: these as they lie there."""

    def __init__(self, checkpoint: Matrices, linears: Iterable[Linear], stored: StoredRows) -> None:
        self._checkpoint = checkpoint
        self._stored = stored
        self._parts: dict[str, tuple[Linear, Part]] = {
            part.tensor.name: (linear, part) for linear in linears for part in linear.parts if part.quantised_to
        }

    def pieces(self, name: str) -> Iterator[Array]:
        """Yield the rows of a matrix; see ``Matrices``."""
        if name not in self._parts:
            yield from self._checkpoint.pieces(name)
            return
        part = self._parts[name][1]
        inputs, rows = part.tensor.shape
        step = max(1, PIECE_VALUES // inputs)
        for begin in range(0, rows, step):
            yield self.rows(name, range(begin, min(begin + step, rows)))

    def rows(self, name: str, numbers: Iterable[int]) -> Array:
        """Return some rows of a matrix."""
        if name not in self._parts:
            return self._checkpoint.rows(name, numbers)
        linear, part = self._parts[name]
        if part.row_order is not None:
            # Row ``row_order[i]`` of the checkpoint is row i of the package.
            places = np.empty(len(part.row_order), np.int64)
            places[part.row_order] = np.arange(len(places))
            numbers = places[list(numbers)].tolist()
        return self._stored.rows(linear, part, list(numbers))
