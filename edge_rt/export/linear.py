"""Linear layers between checkpoint and package: which tensors one is made of, where it lies, how it gets there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from edge_rt.export.blocks import BLOCK, CODE_BITS, FLOAT_TYPES, convert_rows, float_rows, iter_rows, read_rows
from edge_rt.export.gguf_types import TensorInfo
from edge_rt.export.weights import WeightsFile, WeightsLayout


@dataclass(frozen=True)
class Part:
    """One tensor of the checkpoint and, for rotated projections, the order its rows are taken in.

    Attributes:
        tensor: a matrix, ggml shape ``(in_features, out_features)``.
        row_order: int64 ``[out_features]``, or None for the file's order.
    """

    tensor: TensorInfo
    row_order: npt.NDArray[Any] | None = None


@dataclass(frozen=True)
class Linear:
    """One matrix of the graph: parts of one type, stacked along the output axis.

    Attributes:
        name: prefix of its tensors in ``weights.bin``.
        parts: tensors of the checkpoint, first output rows first.
    """

    name: str
    parts: tuple[Part, ...]

    @property
    def type_name(self) -> str:
        """Type of the checkpoint's tensors, for example ``"Q4_1"``."""
        return self.parts[0].tensor.type_name

    @property
    def in_features(self) -> int:
        """Length of an input row."""
        return self.parts[0].tensor.shape[0]

    @property
    def out_features(self) -> int:
        """Length of an output row."""
        return sum(part.tensor.shape[1] for part in self.parts)

    @property
    def is_quantised(self) -> bool:
        """True for block types, False for F16 and F32."""
        return self.type_name in CODE_BITS

    @property
    def has_minimum(self) -> bool:
        """True if blocks have a minimum beside their scale."""
        return self.type_name == "Q4_1"

    @property
    def codes(self) -> str:
        """Name of the tensor of codes."""
        return f"{self.name}.codes"

    @property
    def scale(self) -> str:
        """Name of the tensor of scales."""
        return f"{self.name}.scale"

    @property
    def minimum(self) -> str:
        """Name of the tensor of minima."""
        return f"{self.name}.minimum"

    @property
    def weight(self) -> str:
        """Name of the tensor of a matrix that is not quantised."""
        return f"{self.name}.weight"

    def place(self, layout: WeightsLayout) -> None:
        """Add this layer's tensors to the layout."""
        rows, blocks = self.out_features, self.in_features // BLOCK
        if not self.is_quantised:
            layout.add(self.weight, FLOAT_TYPES[self.type_name], (rows, self.in_features))
            return
        layout.add(self.codes, np.uint8, (rows, blocks, BLOCK * CODE_BITS[self.type_name] // 8))
        layout.add(self.scale, np.float32, (rows, blocks))
        if self.has_minimum:
            layout.add(self.minimum, np.float32, (rows, blocks))

    def fill(self, source: BinaryIO, layout: WeightsLayout, out: WeightsFile, on_bytes: Callable[[int], None]) -> None:
        """Read the parts, convert them and write them to their slots.

        Args:
            source: the open checkpoint.
            layout: where this layer was placed.
            out: the open ``weights.bin``.
            on_bytes: called with the number of bytes read from the checkpoint.

        Raises:
            InvalidModelFile: a value is not finite.
            StorageError: reading or writing failed.
        """
        row = 0
        for part in self.parts:
            for raw in _pieces(source, part):
                if self.is_quantised:
                    rows = convert_rows(part.tensor, raw)
                    out.write(layout.slots[self.codes], row, rows.codes)
                    out.write(layout.slots[self.scale], row, rows.scale)
                    if rows.minimum is not None:
                        out.write(layout.slots[self.minimum], row, rows.minimum)
                else:
                    out.write(layout.slots[self.weight], row, float_rows(part.tensor, raw))
                row += raw.shape[0]
                on_bytes(raw.nbytes)


def _pieces(source: BinaryIO, part: Part) -> Iterator[npt.NDArray[Any]]:
    if part.row_order is None:
        yield from iter_rows(source, part.tensor)
    else:
        yield read_rows(source, part.tensor)[part.row_order]


def stack(name: str, parts: Sequence[Part]) -> tuple[Linear, ...]:
    """Return the fewest matrices that compute ``parts`` side by side: neighbours of one type become one."""
    groups: list[list[Part]] = []
    for part in parts:
        if groups and groups[-1][0].tensor.type_name == part.tensor.type_name:
            groups[-1].append(part)
        else:
            groups.append([part])
    if len(groups) == 1:
        return (Linear(name, tuple(groups[0])),)
    return tuple(Linear(f"{name}.{index}", tuple(group)) for index, group in enumerate(groups))
