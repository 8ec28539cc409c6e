"""Matrices of 4-bit codes with integer zero points, as folders of safetensors hold them: what their layouts share.

A weight is ``(code - zero) * scale``, with codes of 0 to 15. A row has a scale and a zero point for each group of
inputs. Each layout is a file of its own: ``gptq``, ``awq``, ``compressed_tensors``. Everything that a file says is
checked against the sizes of its tensors before it is used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from edge_rt.errors import UnsupportedModel
from edge_rt.export.sources.compound import CompoundTensor, MatrixLayout
from edge_rt.export.sources.gguf_types import COMPOUND_TYPE_ID
from edge_rt.export.sources.model_file import TensorReader
from edge_rt.export.sources.packed_arrays import Array, misfit
from edge_rt.export.sources.packed_config import PackedSettings
from edge_rt.export.sources.safetensors_folder import StoredTensor

UNITS: Final = (128, 64, 32)
"""Inputs that can share a scale in a package, largest first."""
PACKED_TYPES: Final = {unit: f"W4Z{unit}" for unit in UNITS}
"""Inputs that share a scale -> name of the type."""


@dataclass(frozen=True)
class PackedRows:
    """Rows of a matrix.

    Attributes:
        codes: uint8 ``[rows, inputs]``, 0 to 15.
        zeros: uint8 ``[rows, units]``, 0 to 16.
        scales: float16 ``[rows, units]``.
    """

    codes: Array
    zeros: Array
    scales: Array


class StoredMatrix(ABC):
    """The stored tensors of one matrix, in memory; rows and inputs count as in the file."""

    @abstractmethod
    def codes(self, rows: Array) -> Array:
        """Return the codes of some rows, uint8 ``[rows, inputs]``; ``rows`` is int64."""

    @abstractmethod
    def zeros(self, rows: Array) -> Array:
        """Return their zero points, uint8 ``[rows, groups]``."""

    @abstractmethod
    def scales(self, rows: Array) -> Array:
        """Return their scales, float16 ``[rows, groups]``."""

    @abstractmethod
    def values(self, rows: Array) -> Array:
        """Return their weights by another way than the above, float32 ``[rows, inputs]``."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PackedTensor(CompoundTensor):
    """A matrix of codes with zero points.

    Attributes:
        group: inputs that share a scale and a zero point.
        unit: inputs that share them in the package, a part of a group.
        groups_of: group of every input of the file, int64 ``[inputs]``; None: in the order of inputs.
        input_order: input of the file for every input of the package, int64; None: the same.
        row_order: row of the file for every row of the package, int64; None: the same.
    """

    group: int
    zero_added: int
    unit: int
    read: Callable[[PackedTensor, TensorReader], StoredMatrix]
    groups_of: Array | None = None
    input_order: Array | None = None
    row_order: Array | None = None

    def open(self, source: TensorReader) -> PackedMatrix:
        """Bring the stored tensors into memory; see ``CompoundTensor``."""
        return PackedMatrix(self, self.read(self, source))


class PackedMatrix:
    """A matrix in memory, packed as in the file; rows and inputs count as in the package."""

    def __init__(self, tensor: PackedTensor, stored: StoredMatrix) -> None:
        self._tensor = tensor
        self._stored = stored

    def rows(self, rows: Array) -> PackedRows:
        """Return some rows for packing; ``rows`` is int64."""
        tensor, stored, rows = self._tensor, self._stored, self._rows_of_file(rows)
        groups = np.arange(0, tensor.shape[0], tensor.unit) // tensor.group
        codes = stored.codes(rows)
        if tensor.input_order is not None:
            codes = codes[:, tensor.input_order]
        return PackedRows(codes, stored.zeros(rows)[:, groups], stored.scales(rows)[:, groups])

    def values(self, rows: Array) -> Array:
        """Return the weights of some rows, float32 ``[rows, inputs]``, by the layout's own formula."""
        values = self._stored.values(self._rows_of_file(rows))
        return values if self._tensor.input_order is None else values[:, self._tensor.input_order]

    def _rows_of_file(self, rows: Array) -> Array:
        return rows if self._tensor.row_order is None else self._tensor.row_order[rows]


class PackedLayout(MatrixLayout):
    """One way to store such matrices."""

    def __init__(self, settings: PackedSettings) -> None:
        self.settings = settings

    @abstractmethod
    def tensor(self, name: str, parts: Mapping[str, StoredTensor], source: TensorReader) -> PackedTensor:
        """Return a matrix; see ``MatrixLayout``."""

    def group_of(self, inputs: int) -> int:
        """Return how many inputs share a scale."""
        return min(self.settings.group or inputs, inputs)

    def make(
        self,
        name: str,
        parts: Mapping[str, StoredTensor],
        shape: tuple[int, int],
        read: Callable[[PackedTensor, TensorReader], StoredMatrix],
        groups_of: Array | None = None,
    ) -> PackedTensor:
        """Return the matrix; ``shape`` is its inputs and rows, the other arguments as in ``PackedTensor``."""
        codes, (inputs, _) = parts[self.required[0]], shape
        group = self.group_of(inputs)
        unit = unit_of(codes, group, inputs)
        order = None if groups_of is None else input_order(codes, groups_of, group)
        return PackedTensor(
            name=name,
            shape=shape,
            type_id=COMPOUND_TYPE_ID,
            type_name=PACKED_TYPES[unit],
            offset=codes.offset,
            nbytes=codes.nbytes,
            file=codes.file,
            parts=parts,
            group=group,
            zero_added=self.settings.zero_added,
            unit=unit,
            read=read,
            groups_of=groups_of,
            input_order=order,
        )


def unit_of(codes: StoredTensor, group: int, inputs: int) -> int:
    """Return how many inputs share a scale in a package."""
    for unit in UNITS:
        # A single group may be cut anywhere.
        if inputs % unit == 0 and (group % unit == 0 or group >= inputs):
            return unit
    raise UnsupportedModel(
        f"The groups of '{codes.name}' cannot be stored in a package.",
        f"It has {inputs} inputs in groups of {group}, both must be multiples of {UNITS[-1]}.",
        "Get the model in another quantisation.",
    )


def input_order(codes: StoredTensor, groups_of: Array, group: int) -> Array | None:
    """Return the order that brings the inputs of a group together, int64 ``[inputs]``; None if they are already."""
    inputs = len(groups_of)
    expected = np.arange(inputs) // group
    if groups_of.min() < 0 or groups_of.max() > expected[-1]:
        raise misfit(
            codes, f"its inputs are of the groups {groups_of.min()} to {groups_of.max()}, it has {expected[-1] + 1}"
        )
    if np.array_equal(groups_of, expected):
        return None
    order = np.argsort(groups_of, kind="stable")
    if not np.array_equal(groups_of[order], expected):
        counts = np.bincount(groups_of)
        raise UnsupportedModel(
            f"The groups of '{codes.name}' differ in size.",
            f"They have {counts.min()} to {counts.max()} inputs, {group} are read.",
            "Get the model in another quantisation.",
        )
    return order
