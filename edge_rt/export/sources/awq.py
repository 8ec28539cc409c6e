"""Matrices as AutoAWQ stores them, in its version ``gemm``, and AutoRound in the formats named after it.

======= ======================== ==============================================================================
tensor  type and shape           contents
======= ======================== ==============================================================================
qweight I32 [inputs, rows / 8]   bits 4 j to 4 j + 3 of word [i, c]: the code of input i and row 8 c + order[j]
qzeros  I32 [groups, rows / 8]   the same of zero points
scales  float [groups, rows]
======= ======================== ==============================================================================

The order is 0, 2, 4, 6, 1, 3, 5, 7. A weight is ``(code - zero) * scale``. Groups are in the order of inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from edge_rt.export.sources.model_file import TensorReader
from edge_rt.export.sources.packed import PackedLayout, PackedTensor, StoredMatrix
from edge_rt.export.sources.packed_arrays import (
    NIBBLES,
    Array,
    nibbles_of,
    read_scales,
    read_words,
    require_matrix,
    require_scales,
    require_words,
)
from edge_rt.export.sources.safetensors_folder import StoredTensor

ORDER: Final = (0, 2, 4, 6, 1, 3, 5, 7)
"""Row within eight, by its place in a word."""


class AWQLayout(PackedLayout):
    """AWQ, version gemm."""

    required = ("qweight", "qzeros", "scales")
    optional = ()

    def tensor(
        self,
        name: str,
        parts: Mapping[str, StoredTensor],
        source: TensorReader,  # noqa: ARG002 - inputs have no order of their own
    ) -> PackedTensor:
        """Return a matrix; see ``MatrixLayout``."""
        inputs, words = require_matrix(parts["qweight"])
        groups = -(-inputs // self.group_of(inputs))
        require_words(parts["qzeros"], (groups, words))
        require_scales(parts["scales"], (groups, NIBBLES * words))
        return self.make(name, parts, (inputs, NIBBLES * words), AWQMatrix)


class AWQMatrix(StoredMatrix):
    """The tensors of one matrix, in memory."""

    def __init__(self, tensor: PackedTensor, source: TensorReader) -> None:
        self._tensor = tensor
        self._words = read_words(source, tensor.parts["qweight"])
        self._zero_words = read_words(source, tensor.parts["qzeros"])
        self._scales, self._halves = read_scales(source, tensor.parts["scales"])

    def codes(self, rows: Array) -> Array:
        """Return codes; see ``StoredMatrix``."""
        return _columns(self._words, rows)

    def zeros(self, rows: Array) -> Array:
        """Return zero points."""
        return _columns(self._zero_words, rows)

    def scales(self, rows: Array) -> Array:
        """Return scales."""
        return self._halves[:, rows].T

    def values(self, rows: Array) -> Array:
        """Return weights, by shifts of whole words."""
        places = np.array([ORDER.index(row) for row in range(NIBBLES)])
        shifts = (4 * places[rows % NIBBLES]).astype(np.uint32)
        # `take` gives rows of inputs that lie together; an index of columns would not, and be slower.
        codes = np.take(self._words, rows // NIBBLES, axis=1) >> shifts & 15
        zeros = np.take(self._zero_words, rows // NIBBLES, axis=1) >> shifts & 15
        groups = np.arange(len(codes)) // self._tensor.group
        less = codes.astype(np.int32) - zeros.astype(np.int32)[groups]
        values: Array = (less.astype(np.float32) * np.take(self._scales, rows, axis=1)[groups]).T
        return values


def _columns(words: Array, rows: Array) -> Array:
    """Return the codes of some rows, uint8 ``[rows, len(words)]``."""
    first, last = int(rows.min()) // NIBBLES, int(rows.max()) // NIBBLES + 1
    # Only words that hold one of the rows are taken apart.
    apart = nibbles_of(words[:, first:last]).reshape(len(words), -1, NIBBLES)
    in_order = np.empty_like(apart)
    in_order[:, :, ORDER] = apart
    return np.ascontiguousarray(in_order.reshape(len(words), -1)[:, rows - NIBBLES * first].T)
