"""Hidden states between the segments of a package, and the memory that they are handed over in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.ort.binding import Binding
from edge_rt.ort.compute_device import ComputeDevice, DeviceArray, DeviceRows
from edge_rt.runtime.forward.outputs import untouched

Array = npt.NDArray[Any]

FEW_ROWS: Final = 64
"""Rows of a pass for which there is always room to leave them behind every segment until the pass is over; plans count
them (``edge_rt.memory.terms``)."""

INPUT: Final = "hidden"
OUTPUT: Final = "hidden_out"
"""Names of hidden states as an input and as an output of graphs."""


class HiddenRows:
    """Rows of float32 behind all segments of a package but the last.

    Each of them has a place of its own for passes of few rows, so that what a draft has computed stays there for the
    pass that goes on with it. Larger passes use two places in turn: what a segment reads is never where it writes.

    Args:
        segments: number of these segments, at least 1.
        largest_pass: rows of the largest pass that is planned; larger ones get more memory when they come.
    """

    def __init__(self, segments: int, hidden_size: int, largest_pass: int) -> None:
        assert segments > 0, segments
        self.segments = segments
        self._hidden_size = hidden_size
        self._count = self._largest = 0
        self.reserve(largest_pass)

    @property
    def few_rows(self) -> int:
        """Rows of the largest pass that leaves the rows behind every segment where they are."""
        return self._count // self.segments

    def reserve(self, rows: int) -> bool:
        """Make room for passes of ``rows`` rows.

        Returns:
            True if there was too little room, and new memory was taken; bindings of before keep the old memory.

        Raises:
            MemoryBudgetExceeded: the device has too little memory; all is as before.
        """
        if rows <= self._largest:
            return False
        count = max(2 * rows, self.segments * FEW_ROWS)
        self._allocate(count)
        self._count, self._largest = count, rows
        return True

    def bind_input(self, binding: Binding, segment: int, begin: int, end: int, *, is_few: bool) -> None:
        """Bind rows ``[begin, end)`` behind a segment as what a graph reads, in a pass of few rows or of any number."""
        binding.bind_input(INPUT, self._view(segment, begin, end, is_few=is_few))

    def bind_output(self, binding: Binding, segment: int, begin: int, end: int, *, is_few: bool) -> None:
        """Bind the same as what the segment's graph writes."""
        binding.bind_output(OUTPUT, self._view(segment, begin, end, is_few=is_few))

    def bind_read(self, binding: Binding, segment: int, row: int) -> Callable[[], Array]:
        """Bind a row of a pass of few rows as what the segment's graph writes, to be read in this process, too.

        Returns:
            What returns the row behind a run, float32 ``[1, hidden_size]``; it is overwritten by later passes.
        """
        found = self._view(segment, row, row + 1, is_few=True)
        assert isinstance(found, np.ndarray)
        binding.bind_output(OUTPUT, found)
        return lambda: found

    def release(self) -> None:
        """Release the memory; afterwards there is no room for any row."""
        self._count = self._largest = 0
        self._memory = np.empty((0, self._hidden_size), np.float32)

    def _allocate(self, count: int) -> None:
        # Pages that no pass has written take no memory.
        self._memory = untouched((count, self._hidden_size), np.float32)

    def _view(self, segment: int, begin: int, end: int, *, is_few: bool) -> Array | DeviceRows:
        first = self._first(segment, begin, end, is_few=is_few)
        rows: Array = self._memory[first : first + end - begin]
        return rows

    def _first(self, segment: int, begin: int, end: int, *, is_few: bool) -> int:
        """Return where rows ``[begin, end)`` behind a segment begin in the memory."""
        assert 0 <= begin < end <= (self.few_rows if is_few else self._largest), (begin, end, is_few)
        return begin + (segment * self.few_rows if is_few else segment % 2 * self._largest)


class DeviceHiddenRows(HiddenRows):
    """The same in the memory of a device.

    Args:
        here: segments, the first ones, behind which the CPU computes: rows behind them are in this process.
    """

    def __init__(
        self, device: ComputeDevice, segments: int, hidden_size: int, largest_pass: int, here: int = 0
    ) -> None:
        self._device, self._here = device, here
        self._there: DeviceArray | None = None
        super().__init__(segments, hidden_size, largest_pass)

    def bind_read(self, binding: Binding, segment: int, row: int) -> Callable[[], Array]:
        """Bind a row as an output of which a copy is made in this process; see ``HiddenRows.bind_read``."""
        found = self._view(segment, row, row + 1, is_few=True)
        if not isinstance(found, DeviceRows):
            return super().bind_read(binding, segment, row)
        here = np.zeros((1, self._hidden_size), np.float32)
        binding.bind_fetched(OUTPUT, found, here)

        def read() -> Array:
            binding.fetch([OUTPUT])
            return here

        return read

    def release(self) -> None:
        """Release the memory; afterwards there is no room for any row."""
        super().release()
        self._there = None

    def _allocate(self, count: int) -> None:
        self._there = DeviceArray(self._device, np.zeros((count, self._hidden_size), np.float32))
        if self._here:
            super()._allocate(count)

    def _view(self, segment: int, begin: int, end: int, *, is_few: bool) -> Array | DeviceRows:
        if segment < self._here:
            return super()._view(segment, begin, end, is_few=is_few)
        assert self._there is not None, "the memory was released"
        first = self._first(segment, begin, end, is_few=is_few)
        return DeviceRows(self._there, (end - begin, self._hidden_size), np.float32, first)
