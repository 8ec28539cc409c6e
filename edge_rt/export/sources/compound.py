"""Matrices that several stored tensors of a folder make together: what all ways to store them have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from edge_rt.export.sources.gguf_types import TensorInfo
from edge_rt.export.sources.packed_arrays import Array
from edge_rt.export.sources.safetensors_folder import StoredTensor
from edge_rt.export.sources.tensor_reader import TensorReader


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


class MatrixLayout(ABC):
    """One way to store matrices in several tensors."""

    required: ClassVar[tuple[str, ...]]
    """What follows the layer's name in the names of the tensors that every matrix has; the first one is its codes."""
    optional: ClassVar[tuple[str, ...]]
    ignored: ClassVar[tuple[str, ...]] = ()
    """Ends of names of tensors that say nothing of weights."""

    @abstractmethod
    def tensor(self, name: str, parts: Mapping[str, StoredTensor], source: TensorReader) -> CompoundTensor:
        """Return a matrix whose tensors were checked against each other."""
