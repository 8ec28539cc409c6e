"""Matrices that are made of the rows of a stored one: some of them, in another order, or times factors.

Factors are applied in float32, one after the other, as converters to GGUF apply them: both kinds of files then have the
same bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from edge_rt.export.sources.compound import ConvertedMatrix, ConvertedTensor
from edge_rt.export.sources.gguf_types import COMPOUND_TYPE_ID, TensorInfo
from edge_rt.export.sources.model_file import TensorReader
from edge_rt.export.weights.blocks import FLOAT_TYPES, Array
from edge_rt.export.weights.merged import rows_of

Factors = Sequence[tuple[int, tuple[float, ...]]]
"""Neighbouring rows, and the factors on them; all rows of a matrix in turn."""

REORDERED: Final = "The rows of fused matrices are taken apart and reordered."
SCALED: Final = "The checkpoint's multipliers are folded into its matrices."


def reordered_tensor(name: str, base: TensorInfo, rows: Array) -> ConvertedTensor:
    """Return a matrix of rows of another one, by their numbers there, int64; floats keep their type."""
    type_name = base.type_name if base.type_name in FLOAT_TYPES else "F32"
    return _derived(name, base, len(rows), type_name, REORDERED, functools.partial(_Reordered, base=base, rows=rows))


def scaled_tensor(base: TensorInfo, factors: Factors) -> TensorInfo:
    """Return a matrix whose rows have factors; itself if these are all 1."""
    if all(factor == 1.0 for _, some in factors for factor in some):
        return base
    read = functools.partial(_Scaled, base=base, factors=factors)
    return _derived(base.name, base, base.shape[1], "F32", SCALED, read)


def _derived(
    name: str,
    base: TensorInfo,
    rows: int,
    type_name: str,
    remark: str,
    read: Callable[[ConvertedTensor, TensorReader], ConvertedMatrix],
) -> ConvertedTensor:
    return ConvertedTensor(
        name=name,
        shape=(base.shape[0], rows),
        type_id=COMPOUND_TYPE_ID,
        type_name=type_name,
        offset=base.offset,
        nbytes=base.nbytes // base.shape[1] * rows,
        file=base.file,
        stored_name=base.stored_name,
        parts={},
        remark=remark,
        read=read,
    )


class _Reordered(ConvertedMatrix):
    def __init__(self, tensor: ConvertedTensor, source: TensorReader, *, base: TensorInfo, rows: Array) -> None:
        super().__init__(tensor, source)
        self._base = rows_of(source, base)
        self._rows = rows

    def products(self, rows: Array) -> Array:
        """Return weights; see ``ConvertedMatrix``."""
        return self._base.values(self._rows[rows])


class _Scaled(ConvertedMatrix):
    def __init__(self, tensor: ConvertedTensor, source: TensorReader, *, base: TensorInfo, factors: Factors) -> None:
        super().__init__(tensor, source)
        self._base = rows_of(source, base)
        most = max(len(some) for _, some in factors)
        # Float32 [factors, rows]; rows with fewer of them have 1 in the place of the others.
        filled = [(count, (*some, *(1.0,) * (most - len(some)))) for count, some in factors]
        self._factors = np.concatenate(
            [np.repeat(np.array(some, np.float32)[:, None], count, axis=1) for count, some in filled], axis=1
        )

    def products(self, rows: Array) -> Array:
        """Return weights; see ``ConvertedMatrix``."""
        values = np.array(self._base.values(rows), np.float32)
        for factors in self._factors:
            values *= factors[rows, None]
        return values
