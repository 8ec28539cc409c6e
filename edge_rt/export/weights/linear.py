"""Linear layers: the tensors of the checkpoint that each matrix of the package consists of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from edge_rt.export.sources.gguf_types import TensorInfo
from edge_rt.export.sources.model_file import TensorReader
from edge_rt.export.weights.blocks import Array, iter_rows, read_rows
from edge_rt.export.weights.tile_formats import TileFormat, tile_format


@dataclass(frozen=True)
class Part:
    """One tensor of the checkpoint and, for rotated projections, the order in which its rows are read.

    Attributes:
        row_order: int64 ``[out_features]``, or None for the file's order.
        quantised_to: type in the package of a tensor of floats that is quantised; None: the tensor's own type.
    """

    tensor: TensorInfo
    row_order: npt.NDArray[Any] | None = None
    quantised_to: str | None = None

    @property
    def type_name(self) -> str:
        """Type in the package, for example ``"Q4_1"``."""
        return self.quantised_to or self.tensor.type_name

    def pieces(self, source: TensorReader, *, multiple: int = 1) -> Iterator[Array]:
        """Yield the raw rows in that order, uint8 ``[rows, bytes per row]``; all at once if they are reordered."""
        if self.row_order is None:
            yield from iter_rows(source, self.tensor, multiple=multiple)
        else:
            yield read_rows(source, self.tensor)[self.row_order]


@dataclass(frozen=True)
class Linear:
    """One matrix of the graph: parts stacked along the output axis.

    Attributes:
        interleaved: parts are pairs of equal shape, those of a pair alternate every 16 rows instead of following each
            other; the pairs follow each other.
    """

    name: str
    parts: tuple[Part, ...]
    interleaved: bool = False

    @property
    def type_name(self) -> str:
        """Type of the parts, for example ``"Q4_1"``; of the first one, if each has its own."""
        return self.parts[0].type_name

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
        """True for block types, False for floats."""
        return not self.form.is_float

    @property
    def form(self) -> TileFormat:
        """The format of its codes; of the first part's, if each has one of its own."""
        return tile_format(self.type_name)

    @property
    def alternates(self) -> bool:
        """Whether the tiles of the two parts of a pair take turns."""
        return self.interleaved and not self.is_mixed

    @property
    def is_mixed(self) -> bool:
        """Whether parts have types of their own; they then lie one behind the other, whatever ``interleaved`` says."""
        return len({part.type_name for part in self.parts}) > 1


def stack(name: str, parts: Sequence[Part], *, ends: Callable[[Part], bool] | None = None) -> tuple[Linear, ...]:
    """Return the fewest matrices that hold ``parts``: neighbours of one type become one, unless a part ends there."""
    groups: list[list[Part]] = []
    for part in parts:
        last = groups[-1][-1] if groups else None
        if last is not None and last.type_name == part.type_name and not (ends is not None and ends(last)):
            groups[-1].append(part)
        else:
            groups.append([part])
    if len(groups) == 1:
        return (Linear(name, tuple(groups[0])),)
    return tuple(Linear(f"{name}.{index}", tuple(group)) for index, group in enumerate(groups))
