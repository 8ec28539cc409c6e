"""Matrices as MLX stores them in its mode ``affine``, with 4 or 8 bits.

====== ========================= ================================================================================
tensor type and shape            contents
====== ========================= ================================================================================
weight U32 [rows, inputs bits/32] the codes, low bits first: with 4 bits, bits 4 j to 4 j + 3 of word [r, i] are the
                                 code of input 8 i + j; with 8 bits a byte is a code
scales float [rows, groups]
biases float [rows, groups]      what is added, in spite of its name no bias of the layer
====== ========================= ================================================================================

A weight is ``scale * code + bias``. With 4 bits that is what GGUF's Q4_1 is, which shares a scale and a minimum in 32
inputs: larger groups are stored as several, and nothing is lost if both numbers are exact in float16. Where they are
not, and with 8 bits, the matrix is converted through float. Embedding and head are stored like all other matrices.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from edge_rt.export.sources.compound import CompoundTensor, ConvertedMatrix, ConvertedTensor, MatrixLayout
from edge_rt.export.sources.gguf_types import COMPOUND_TYPE_ID
from edge_rt.export.sources.model_file import TensorReader
from edge_rt.export.sources.packed_arrays import (
    Array,
    as_halves,
    misfit,
    nibbles_of,
    read_byte_rows,
    read_finite,
    require_matrix,
    require_scales,
)
from edge_rt.export.sources.packed_config import MLXSettings
from edge_rt.export.sources.safetensors_folder import StoredTensor

CODES: Final = "weight"
BLOCK: Final = 32
"""Inputs that share a scale in a package."""
TYPE: Final = "Q4_1"

_REMARKS: Final = {
    4: "Some of the checkpoint's MLX matrices have numbers that are not exact in float16: these matrices are converted "
    "through float.",
    8: "The checkpoint's MLX weights of 8 bits are converted through float.",
}
_WORD: Final = np.dtype("<u4")


@dataclass(frozen=True)
class AffineRows:
    """Rows of a matrix.

    Attributes:
        codes: uint8 ``[rows, inputs]``, 0 to 15.
        scales: float16 ``[rows, blocks]``.
        minima: float16 ``[rows, blocks]``.
    """

    codes: Array
    scales: Array
    minima: Array


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class AffineTensor(CompoundTensor):
    """A matrix of 4-bit codes with minima, whose scales and minima are exact in float16."""

    group: int

    def open(self, source: TensorReader) -> AffineMatrix:
        """Bring scales and minima into memory; see ``CompoundTensor``."""
        return AffineMatrix(self, source)


class MLXLayout(MatrixLayout):
    """MLX, mode affine."""

    required = (CODES, "scales", "biases")
    optional = ()

    def __init__(self, settings: MLXSettings) -> None:
        self.settings = settings

    def tensor(self, name: str, parts: Mapping[str, StoredTensor], source: TensorReader) -> CompoundTensor:
        """Return a matrix; see ``MatrixLayout``."""
        codes = parts[CODES]
        rows, words = require_matrix(codes, ("U32",))
        bits, group = self.settings.of(codes.name.removesuffix(f".{CODES}"))
        inputs = 32 // bits * words
        if inputs % group:
            raise misfit(codes, f"it has {inputs} inputs of {bits} bits, no multiple of {group}")
        shape = (rows, inputs // group)
        numbers = [parts[suffix] for suffix in ("scales", "biases")]
        for stored in numbers:
            require_scales(stored, shape)
        # Both are read, so that numbers that are not finite are refused whatever the matrix becomes.
        scales, biases = (_is_exact(read_finite(source, stored)) for stored in numbers)
        if bits == 4 and scales and biases:
            return AffineTensor(
                name=name, shape=(inputs, rows), type_id=COMPOUND_TYPE_ID, type_name=TYPE, offset=codes.offset,
                nbytes=codes.nbytes, file=codes.file, parts=parts, group=group,
            )  # fmt: skip
        return ConvertedTensor(
            name=name, shape=(inputs, rows), type_id=COMPOUND_TYPE_ID, type_name="F32", offset=codes.offset,
            nbytes=codes.nbytes, file=codes.file, parts=parts, remark=_REMARKS[bits],
            read=functools.partial(WideMatrix, bits=bits, group=group),
        )  # fmt: skip


def _is_exact(numbers: Array) -> bool:
    return np.array_equal(as_halves(numbers).astype(np.float32), numbers)


class AffineMatrix:
    """A matrix whose codes are read as they are asked for, and packed as in the file."""

    def __init__(self, tensor: AffineTensor, source: TensorReader) -> None:
        self._repeats = tensor.group // BLOCK
        self._words = _Words(tensor, source, 4, tensor.group)

    def rows(self, rows: Array) -> AffineRows:
        """Return some rows for packing; ``rows`` is int64, and not empty."""
        words = self._words
        scales, minima = (
            np.repeat(as_halves(numbers[rows]), self._repeats, axis=1) for numbers in (words.scales, words.minima)
        )
        return AffineRows(nibbles_of(words.words(rows)), scales, minima)

    def values(self, rows: Array) -> Array:
        """Return the weights of some rows, float32 ``[rows, inputs]``; see ``MatrixValues``."""
        return self._words.values(rows)


class WideMatrix(ConvertedMatrix):
    """The weights of a matrix that a package cannot hold as it is."""

    def __init__(self, tensor: ConvertedTensor, source: TensorReader, bits: int, group: int) -> None:
        super().__init__(tensor, source)
        self._words = _Words(tensor, source, bits, group)

    def products(self, rows: Array) -> Array:
        """Return weights; see ``ConvertedMatrix``."""
        return self._words.values(rows)


class _Words:
    """Codes in words, with their scales and minima: float32 ``[rows, groups]``."""

    def __init__(self, tensor: CompoundTensor, source: TensorReader, bits: int, group: int) -> None:
        self._stored = tensor.parts[CODES]
        self._source = source
        self._bits = bits
        self._group = group
        self.scales = read_finite(source, tensor.parts["scales"])
        self.minima = read_finite(source, tensor.parts["biases"])

    def words(self, rows: Array) -> Array:
        """Return the words of some rows, uint32 ``[rows, words]``."""
        found: Array = read_byte_rows(self._source, self._stored, 4 * self._stored.shape[1], rows).view(_WORD)
        return found

    def values(self, rows: Array) -> Array:
        """Return weights, float32 ``[rows, inputs]``, by shifts of whole words.

        With numbers that are exact in float16 the product is exact, and only the sum is rounded.
        """
        words = self.words(rows)
        values = np.empty((*words.shape, 32 // self._bits), np.float32)
        for place in range(values.shape[2]):
            values[:, :, place] = words >> np.uint32(place * self._bits) & np.uint32((1 << self._bits) - 1)
        weights: Array = values.reshape(len(rows), -1)
        weights *= np.repeat(self.scales[rows], self._group, axis=1)
        weights += np.repeat(self.minima[rows], self._group, axis=1)
        return weights
