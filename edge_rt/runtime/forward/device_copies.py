"""Places on a device for states and rows of earlier texts, beside the memory that passes read and write there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_rt.ort.compute_device import ComputeDevice, DeviceArray
from edge_rt.package.states import SLOTS

Array = npt.NDArray[Any]
_FLOAT = 4


def _places(device: ComputeDevice, count: int, nbytes: int) -> list[DeviceArray]:
    # One after the other: these zeros are read once, and need no memory of this process.
    return [DeviceArray(device, np.zeros(nbytes, np.uint8)) for _ in range(count)]


class _Elsewhere:
    """What is not in this process, or a part of it only: nobody reads or writes it here."""

    def parts(self, place: int, /) -> list[Array]:
        """Return nothing: no memory of this process alone."""
        del place
        return []

    def state(self, index: int, slot: int, /) -> list[Array]:
        """Return nothing: no memory of this process alone."""
        del index, slot
        return []


class DividedCopies(_Elsewhere):
    """Places of which the CPU has a part, that of the first layers, and a device the other; see ``StateCopies``.

    Args:
        copies: those of either part, ``StateCopies`` or ``RowCopies``, with as many places.
    """

    def __init__(self, copies: Sequence[Any]) -> None:
        self._copies = tuple(copies)

    @property
    def count(self) -> int:
        """How many places there are."""
        return int(self._copies[0].count)

    def save(self, place: int, /, *where: Any) -> None:
        """Copy what ``where`` says into a place."""
        for copies in self._copies:
            copies.save(place, *where)

    def load(self, place: int, /, *where: Any) -> None:
        """Copy what is in a place to where that says."""
        for copies in self._copies:
            copies.load(place, *where)

    def release(self) -> None:
        """Release the memory of all places."""
        for copies in self._copies:
            copies.release()


class DeviceStateCopies(_Elsewhere):
    """Places for states; see ``StateCopies``.

    Args:
        states: name -> float32 ``[sequences, 2, numbers of a slot]``, the memory that passes read and write.
        sizes: name -> numbers of a state, with which a slot begins.
    """

    def __init__(
        self, device: ComputeDevice, states: Mapping[str, DeviceArray], sizes: Mapping[str, int], count: int
    ) -> None:
        self._device = device
        self._bytes = _FLOAT * np.asarray(list(sizes.values()), np.int64)
        self._begins = np.asarray([states[name].address for name in sizes], np.int64)
        # From one slot to the next, in every array.
        self._steps = np.asarray([_FLOAT * states[name].shape[-1] for name in sizes], np.int64)
        self._places = _places(device, count, int(self._bytes.sum()))
        self._offsets = np.cumsum(self._bytes) - self._bytes

    @property
    def count(self) -> int:
        """How many places there are."""
        return len(self._places)

    @property
    def nbytes(self) -> int:
        """Bytes of all places."""
        return sum(place.nbytes for place in self._places)

    def save(self, place: int, index: int, slot: int) -> None:
        """Copy the state of a sequence's slot into a place."""
        self._device.copy(self._of_place(place), self._of_slot(index, slot), self._bytes)

    def load(self, place: int, index: int, slot: int) -> None:
        """Copy what is in a place into a sequence's slot."""
        self._device.copy(self._of_slot(index, slot), self._of_place(place), self._bytes)

    def release(self) -> None:
        """Release the memory of all places."""
        self._places = []

    def _of_place(self, place: int) -> Array:
        return self._places[place].address + self._offsets

    def _of_slot(self, index: int, slot: int) -> Array:
        return self._begins + (SLOTS * index + slot) * self._steps


@dataclass(frozen=True)
class Planes:
    """Where a part of a layer's rows lies in its memory: for each head, all rows of it one behind the other.

    Attributes:
        begin: bytes before the first head's first row.
        step: bytes from one head to the next.
        row_bytes: of a part of a row.
    """

    begin: int
    step: int
    heads: int
    rows: int
    row_bytes: int

    def view(self, layer: Array) -> Array:
        """Return the part, uint8 ``[heads, rows, row_bytes]``, of a layer's memory, uint8 ``[bytes]``."""
        shape, steps = (self.heads, self.rows, self.row_bytes), (self.step, self.row_bytes, 1)
        return np.ndarray(shape, np.uint8, layer, self.begin, steps)


class DeviceRowCopies(_Elsewhere):
    """Places for rows of layers with a window; see ``RowCopies``.

    Args:
        layers: the memory of each layer with a window, and the parts of its rows.
        most_rows: rows of a place.
    """

    def __init__(
        self, device: ComputeDevice, layers: Sequence[tuple[DeviceArray, Sequence[Planes]]], most_rows: int, count: int
    ) -> None:
        self._device = device
        heads = [pair for layer, parts in layers for part in parts for pair in _each_head(layer.address, part)]
        self._begins, self._row_bytes = (np.asarray(column, np.int64) for column in zip(*heads, strict=True))
        sizes = most_rows * self._row_bytes
        self._offsets = np.cumsum(sizes) - sizes
        self._places = _places(device, count, int(sizes.sum()))

    def save(self, place: int, rows: Array) -> None:
        """Copy rows of all layers with a window, given where they lie in memory (int32), into a place."""
        there, kept, sizes = self._pieces(place, rows)
        self._device.copy(kept, there, sizes)

    def load(self, place: int, rows: Array) -> None:
        """Copy what is in a place into so many rows."""
        there, kept, sizes = self._pieces(place, rows)
        self._device.copy(there, kept, sizes)

    def release(self) -> None:
        """Release the memory of all places."""
        self._places = []

    def _pieces(self, place: int, rows: Array) -> tuple[Array, Array, Array]:
        """Return addresses of rows, where each lies in a place, and bytes: neighbouring rows are one piece."""
        begins = np.flatnonzero(np.diff(rows, prepend=rows[:1] - 2) != 1)
        counts = np.diff(begins, append=len(rows))
        each = self._row_bytes[:, None]
        there = self._begins[:, None] + each * rows[begins].astype(np.int64)
        kept = self._places[place].address + self._offsets[:, None] + each * begins
        return there.ravel(), kept.ravel(), (each * counts).ravel()


def _each_head(address: int, part: Planes) -> Iterator[tuple[int, int]]:
    for head in range(part.heads):
        yield address + part.begin + head * part.step, part.row_bytes
