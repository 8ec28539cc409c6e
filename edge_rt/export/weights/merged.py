"""Matrices that adapters are merged into, in float32, some rows at a time.

What is computed is ``weights + scale * (left @ right)``, one adapter after the other. A row has the same bits whichever
others are read with it: products are computed for blocks of neighbours, always of the same size.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.export.sources.adapters import LowRank, TokenRows
from edge_rt.export.sources.compound import VALUE_BYTES, CompoundTensor, ConvertedMatrix, ConvertedTensor, MatrixValues
from edge_rt.export.sources.gguf_types import COMPOUND_TYPE_ID, TensorInfo
from edge_rt.export.sources.model_file import TensorReader
from edge_rt.export.sources.packed import PackedTensor
from edge_rt.export.weights.matrices import CheckpointMatrices, whole_matrix

Array = npt.NDArray[Any]

BLOCK_ROWS: Final = 256
"""Rows whose products are computed together: more of them are faster, where rows far apart are read fewer."""
PRODUCT_VALUES: Final = 1 << 20
"""Most numbers of a product that are in memory at once."""
REMARK: Final = "Adapters are merged into the checkpoint's weights."


@dataclass(frozen=True)
class Merge:
    """What a matrix becomes.

    Attributes:
        base_order: int64 ``[rows]``: row of ``base`` for every row; None: the same.
        products: what is added, and for each int64 ``[rows]``: its row for every row; None: the same.
    """

    base: TensorInfo
    base_order: Array | None
    products: tuple[tuple[LowRank, Array | None], ...]
    tokens: tuple[TokenRows, ...] = ()


def merged_tensor(name: str, merge: Merge) -> ConvertedTensor:
    """Return the matrix that a merge gives, as floats."""
    base = merge.base
    held = [one for product, _ in merge.products for one in (product.left, product.right)]
    held += [rows.tensor for rows in merge.tokens]
    numbers = sum(tensor.elements for tensor in held)
    if merge.products:
        numbers += 2 * max(PRODUCT_VALUES, BLOCK_ROWS * base.shape[0])
    return ConvertedTensor(
        name=name,
        shape=base.shape,
        type_id=COMPOUND_TYPE_ID,
        type_name="F32",
        offset=base.offset,
        nbytes=base.nbytes,
        file=base.file,
        parts={},
        remark=REMARK,
        read=functools.partial(MergedMatrix, merge=merge),
        # A packed matrix is read whole.
        held_bytes=VALUE_BYTES * numbers + (base.nbytes if isinstance(base, PackedTensor) else 0),
    )


class MergedMatrix(ConvertedMatrix):
    """The weights of a matrix, with what adapters add."""

    def __init__(self, tensor: ConvertedTensor, source: TensorReader, *, merge: Merge) -> None:
        super().__init__(tensor, source)
        self._base = rows_of(source, merge.base)
        self._base_order = merge.base_order
        self._products = [_Product(source, product, order) for product, order in merge.products]
        self._tokens = [
            ({token: place for place, token in enumerate(rows.tokens)}, _matrix(source, rows.tensor, turns=False))
            for rows in merge.tokens
        ]

    def products(self, rows: Array) -> Array:
        """Return weights; see ``ConvertedMatrix``."""
        # What a reader gives may be a view of its bytes.
        values = np.array(self._base.values(rows if self._base_order is None else self._base_order[rows]), np.float32)
        for product in self._products:
            product.add(rows, values)
        for places, replacing in self._tokens:
            for at, row in enumerate(rows.tolist()):
                if row in places:
                    values[at] = replacing[places[row]]
        return values


class _Product:
    """The product of two matrices that are in memory."""

    def __init__(self, source: TensorReader, product: LowRank, order: Array | None) -> None:
        left = _matrix(source, product.left, turns=product.turns_left)
        self._right = np.ascontiguousarray(_matrix(source, product.right, turns=product.turns_right))
        # The last block is filled up with zeros.
        self._blocks = np.zeros((-(-product.rows // BLOCK_ROWS), BLOCK_ROWS, left.shape[1]), np.float32)
        self._blocks.reshape(-1, left.shape[1])[: product.rows] = left
        self._scale = np.float32(product.scale)
        self._order = order

    def add(self, rows: Array, values: Array) -> None:
        """Add the product's rows to values, ``[len(rows), inputs]``."""
        rows = rows if self._order is None else self._order[rows]
        wanted, places = np.unique(rows // BLOCK_ROWS, return_inverse=True)
        step = max(1, PRODUCT_VALUES // (BLOCK_ROWS * self._right.shape[1]))
        for begin in range(0, len(wanted), step):
            found = np.matmul(self._blocks[wanted[begin : begin + step]], self._right)
            found *= self._scale
            at = np.flatnonzero((places >= begin) & (places < begin + step))
            # Pieces of the values, so that no second copy of them is made.
            for some in np.array_split(at, -(-len(at) * self._right.shape[1] // PRODUCT_VALUES)):
                values[some] += found[places[some] - begin, rows[some] % BLOCK_ROWS]


def _matrix(source: TensorReader, tensor: TensorInfo, *, turns: bool) -> Array:
    """Return a stored matrix, float32, or its transpose."""
    found = whole_matrix(CheckpointMatrices(source, {tensor.name: tensor}), tensor)
    return found.T if turns else found


def rows_of(source: TensorReader, tensor: TensorInfo) -> MatrixValues:
    """Return what gives the weights of a matrix, dequantised, in float32."""
    return tensor.open(source) if isinstance(tensor, CompoundTensor) else _StoredRows(source, tensor)


class _StoredRows:
    """The rows of a tensor that is stored as one, dequantised."""

    def __init__(self, source: TensorReader, tensor: TensorInfo) -> None:
        self._name = tensor.name
        self._matrices = CheckpointMatrices(source, {tensor.name: tensor})

    def values(self, rows: Sequence[int] | Array) -> Array:
        """Return the weights of some rows; see ``MatrixValues``."""
        return self._matrices.rows(self._name, rows)
