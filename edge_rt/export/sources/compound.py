"""Matrices that several stored tensors of a folder make together, and those of them that are converted through float.

Converted ones count as floats, and may become any type. Their ``type_name`` is the smallest float type that has all
their values exactly. Their layouts: ``float8``, ``bitsandbytes``, and ``mlx`` where it is not exact.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from edge_rt.export.sources.gguf_types import TensorInfo, not_finite
from edge_rt.export.sources.model_file import TensorReader
from edge_rt.export.sources.packed_arrays import Array
from edge_rt.export.sources.safetensors_folder import StoredTensor


class MatrixValues(Protocol):
    """Gives the weights of a matrix."""

    def values(self, rows: Array) -> Array:
        """Return the weights of some rows, float32 ``[rows, inputs]``; ``rows`` is int64, and not empty."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class CompoundTensor(TensorInfo, ABC):
    """A matrix that several stored tensors hold together.

    ``nbytes`` are those of the codes, ``offset`` is where they begin. ``type_id`` is
    ``COMPOUND_TYPE_ID``.

    Attributes:
        parts: the stored tensors, by what follows the layer's name in theirs.
    """

    parts: Mapping[str, StoredTensor]

    @abstractmethod
    def open(self, source: TensorReader) -> MatrixValues:
        """Prepare to read the matrix."""


class BlockMatrix(ABC):
    """A matrix whose codes are those of blocks of a GGUF file.

    Attributes:
        scale: multiplies all of it.
    """

    scale: np.float32 = np.float32(1)

    @abstractmethod
    def values(self, rows: Array) -> Array:
        """Return the weights of some rows; see ``MatrixValues``."""

    @abstractmethod
    def blocks(self, rows: Array) -> Array:
        """Return some rows as GGUF files have them, uint8 ``[rows, bytes]``; ``rows`` is int64, and not empty."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BlockTensor(CompoundTensor):
    """A matrix of blocks in the type of GGUF files that ``type_name`` says.

    Attributes:
        remark: a sentence for the report of an export; empty if there is nothing to say.
    """

    remark: str = ""

    @abstractmethod
    def open(self, source: TensorReader) -> BlockMatrix:
        """Prepare to read the matrix."""


class MatrixLayout(ABC):
    """One way to store matrices in several tensors."""

    required: tuple[str, ...]
    """What follows the layer's name in the names of the tensors that every matrix has; the first one is its codes."""
    optional: tuple[str, ...]
    ignored: tuple[str, ...] = ()
    """Ends of names of tensors that say nothing of weights."""

    @abstractmethod
    def tensor(self, name: str, parts: Mapping[str, StoredTensor], source: TensorReader) -> CompoundTensor:
        """Return a matrix whose tensors were checked against each other."""


VALUE_BYTES: Final = 4
"""Bytes of a weight once it is converted."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ConvertedTensor(CompoundTensor):
    """A matrix of floats that is stored in fewer bits.

    Attributes:
        remark: what the report says of it; may be empty.
        held_bytes: memory that the open matrix takes besides the rows that it gives, where that is worth counting.
    """

    remark: str
    read: Callable[[ConvertedTensor, TensorReader], ConvertedMatrix]
    held_bytes: int = 0

    def open(self, source: TensorReader) -> ConvertedMatrix:
        """Prepare to read the matrix; see ``CompoundTensor``."""
        return self.read(self, source)


class ConvertedMatrix(ABC):
    """A matrix whose codes are read as they are asked for."""

    def __init__(self, tensor: ConvertedTensor, source: TensorReader) -> None:
        self.tensor = tensor
        self.source = source

    def values(self, rows: Array) -> Array:
        """Return the weights of some rows, float32 ``[rows, inputs]``; ``rows`` is int64, and not empty."""
        with np.errstate(over="ignore", invalid="ignore"):
            found = self.products(rows)
        if not np.isfinite(found).all():
            raise not_finite(self.tensor)
        return found

    @abstractmethod
    def products(self, rows: Array) -> Array:
        """Return the same, whatever the values are."""


def conversion_remarks(tensors: Iterable[TensorInfo]) -> tuple[str, ...]:
    """Return what an export's report says of how matrices are read, one sentence or more for each kind."""
    found = (tensor.remark for tensor in tensors if isinstance(tensor, ConvertedTensor | BlockTensor))
    return tuple(dict.fromkeys(remark for remark in found if remark))
