"""Matrices as compressed-tensors stores them, in its format ``pack-quantized`` with 4 bits.

================= ========================== ================================================================
tensor            type and shape             contents
================= ========================== ================================================================
weight_packed     I32 [rows, inputs / 8]     bits 4 j to 4 j + 3 of word [r, i]: the code of input 8 i + j
weight_scale      float [rows, groups]
weight_zero_point I32 [rows / 8, groups]     bits 4 j to 4 j + 3 of word [i, g]: the zero point of row 8 i + j; 8
                                             where the tensor is missing, as weights are symmetric
weight_shape      I64 [2]                    rows and inputs
weight_g_idx      I32 [inputs]               the group of an input; -1 or missing: input // group size
================= ========================== ================================================================

Codes and zero points are stored as signed numbers plus 8, so a weight is ``(code - zero) * scale``. With the strategy
``channel`` there is one group.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edge_rt.errors import InvalidModelFile
from edge_rt.export.sources.gguf_types import FETCH_AGAIN
from edge_rt.export.sources.model_file import TensorReader
from edge_rt.export.sources.packed import PackedLayout, PackedTensor, StoredMatrix
from edge_rt.export.sources.packed_arrays import (
    NIBBLES,
    Array,
    misfit,
    nibbles_of,
    read_groups,
    read_pair,
    read_scales,
    read_words,
    require_matrix,
    require_scales,
    require_words,
)
from edge_rt.export.sources.safetensors_folder import StoredTensor

_MIDDLE = 8


class CompressedTensorsLayout(PackedLayout):
    """compressed-tensors, 4 bits, weights alone."""

    required = ("weight_packed", "weight_scale", "weight_shape")
    optional = ("weight_zero_point", "weight_g_idx")

    def tensor(self, name: str, parts: Mapping[str, StoredTensor], source: TensorReader) -> PackedTensor:
        """Return a matrix; see ``MatrixLayout``."""
        packed_rows, words = require_matrix(parts["weight_packed"])
        rows, inputs = read_pair(source, parts["weight_shape"])
        if rows != packed_rows or inputs < 1 or -(-inputs // NIBBLES) != words:
            raise misfit(
                parts["weight_shape"], f"it says {rows} x {inputs}, the codes are {packed_rows} x {words} words"
            )
        groups = -(-inputs // self.group_of(inputs))
        require_scales(parts["weight_scale"], (rows, groups))
        has_zeros = "weight_zero_point" in parts
        if has_zeros is not self.settings.has_zeros:
            raise misfit(
                parts["weight_packed"],
                f"zero points are {'there' if has_zeros else 'missing'}, config.json says that weights are "
                f"{'not symmetric' if self.settings.has_zeros else 'symmetric'}",
            )
        if has_zeros:
            require_words(parts["weight_zero_point"], (-(-rows // NIBBLES), groups))
        order = read_groups(source, parts["weight_g_idx"], inputs) if "weight_g_idx" in parts else None
        if order is None and self.settings.needs_order:
            raise InvalidModelFile(
                f"The groups of '{parts['weight_packed'].name}' are not known.",
                "'actorder' is group, but the layer has no tensor weight_g_idx.",
                FETCH_AGAIN,
            )
        return self.make(name, parts, (inputs, rows), CompressedTensorsMatrix, order)


class CompressedTensorsMatrix(StoredMatrix):
    """The tensors of one matrix, in memory."""

    def __init__(self, tensor: PackedTensor, source: TensorReader) -> None:
        self._tensor = tensor
        self._words = read_words(source, tensor.parts["weight_packed"])
        stored = tensor.parts.get("weight_zero_point")
        self._zero_words = None if stored is None else read_words(source, stored)
        self._scales, self._halves = read_scales(source, tensor.parts["weight_scale"])

    def codes(self, rows: Array) -> Array:
        """Return codes; see ``StoredMatrix``."""
        return nibbles_of(self._words[rows])[:, : self._tensor.shape[0]]

    def zeros(self, rows: Array) -> Array:
        """Return zero points."""
        if self._zero_words is None:
            return np.full((len(rows), self._scales.shape[1]), _MIDDLE, np.uint8)
        return nibbles_of(self._zero_words.T)[:, rows].T

    def scales(self, rows: Array) -> Array:
        """Return scales."""
        return self._halves[rows]

    def values(self, rows: Array) -> Array:
        """Return weights, by shifts of whole words, as signed numbers."""
        inputs = np.arange(self._tensor.shape[0])
        groups = inputs // self._tensor.group if self._tensor.groups_of is None else self._tensor.groups_of
        shifts = (4 * (inputs % NIBBLES)).astype(np.uint32)
        less = (self._words[rows][:, inputs // NIBBLES] >> shifts & 15).astype(np.int32) - _MIDDLE
        if self._zero_words is not None:
            shifts = (4 * (rows % NIBBLES)).astype(np.uint32)[:, None]
            zeros = (self._zero_words[rows // NIBBLES] >> shifts & 15).astype(np.int32) - _MIDDLE
            less = less - zeros[:, groups]
        values: Array = less.astype(np.float32) * self._scales[rows][:, groups]
        return values
