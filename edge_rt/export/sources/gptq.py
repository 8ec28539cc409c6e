"""Matrices as GPTQ's tools store them, and AutoRound in most of its packing formats.

======= ==================== =================================================================================
tensor  type and shape       contents
======= ==================== =================================================================================
qweight I32 [inputs / 8, rows]  bits 4 j to 4 j + 3 of word [i, r]: the code of row r and input 8 i + j
qzeros  I32 [groups, rows / 8]  bits 4 j to 4 j + 3 of word [g, i]: the zero point of row 8 i + j, less 1 (in the
                             format ``gptq_v2`` the zero point itself)
scales  float [groups, rows]
g_idx   I32 [inputs]         the group of an input; input // group size where it is missing
======= ==================== =================================================================================

A weight is ``(code - zero) * scale``. With 1 added, zero points are 1 to 16. With ``desc_act`` groups are in any order;
they can still be packed if inputs can be moved (``decoder.packed``).
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
    nibbles_of,
    read_groups,
    read_scales,
    read_words,
    require_matrix,
    require_scales,
    require_words,
)
from edge_rt.export.sources.safetensors_folder import StoredTensor


class GPTQLayout(PackedLayout):
    """GPTQ, in its first and second format."""

    required = ("qweight", "qzeros", "scales")
    optional = ("g_idx",)

    def tensor(self, name: str, parts: Mapping[str, StoredTensor], source: TensorReader) -> PackedTensor:
        """Return a matrix; see ``MatrixLayout``."""
        words, rows = require_matrix(parts["qweight"])
        inputs = NIBBLES * words
        groups = -(-inputs // self.group_of(inputs))
        require_words(parts["qzeros"], (groups, -(-rows // NIBBLES)))
        require_scales(parts["scales"], (groups, rows))
        order = read_groups(source, parts["g_idx"], inputs) if "g_idx" in parts else None
        if order is None and self.settings.needs_order:
            raise InvalidModelFile(
                f"The groups of '{parts['qweight'].name}' are not known.",
                "'desc_act' is set, but the layer has no tensor g_idx.",
                FETCH_AGAIN,
            )
        return self.make(name, parts, (inputs, rows), GPTQMatrix, order)


class GPTQMatrix(StoredMatrix):
    """The tensors of one matrix, in memory."""

    def __init__(self, tensor: PackedTensor, source: TensorReader) -> None:
        self._tensor = tensor
        self._words = read_words(source, tensor.parts["qweight"])
        self._zero_words = read_words(source, tensor.parts["qzeros"])
        self._scales, self._halves = read_scales(source, tensor.parts["scales"])

    def codes(self, rows: Array) -> Array:
        """Return codes; see ``StoredMatrix``."""
        return nibbles_of(self._words[:, rows].T)

    def zeros(self, rows: Array) -> Array:
        """Return zero points."""
        zeros: Array = nibbles_of(self._zero_words)[:, rows].T + np.uint8(self._tensor.zero_added)
        return zeros

    def scales(self, rows: Array) -> Array:
        """Return scales."""
        return self._halves[:, rows].T

    def values(self, rows: Array) -> Array:
        """Return weights, by shifts of whole words."""
        inputs = np.arange(self._tensor.shape[0])
        groups = inputs // self._tensor.group if self._tensor.groups_of is None else self._tensor.groups_of
        # `take` gives rows of inputs that lie together; an index of columns would not, and be slower.
        words = np.take(self._words, rows, axis=1)[inputs // NIBBLES]
        codes = words >> (4 * (inputs % NIBBLES)).astype(np.uint32)[:, None] & 15
        zero_words = np.take(self._zero_words, rows // NIBBLES, axis=1)
        zeros = zero_words >> (4 * (rows % NIBBLES)).astype(np.uint32) & 15
        less = codes.astype(np.int32) - (zeros.astype(np.int32) + self._tensor.zero_added)[groups]
        values: Array = (less.astype(np.float32) * np.take(self._scales, rows, axis=1)[groups]).T
        return values
