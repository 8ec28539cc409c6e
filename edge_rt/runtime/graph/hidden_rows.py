"""Hidden states between the segments of a package, and the memory that they are handed over in."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.runtime.graph.outputs import untouched

Array = npt.NDArray[Any]

FEW_ROWS: Final = 64
"""Rows of a pass for which there is always room to leave them behind every segment until the pass is over; plans count
them (``edge_rt.memory.terms``)."""


class HiddenRows:
    """Rows of float32 behind all segments of a package but the last.

    Each of them has a place of its own for passes of few rows, so that what a draft has computed stays there for the
    pass that goes on with it. Larger passes use two places in turn: what a segment reads is never where it writes.

    Args:
        segments: number of these segments, at least 1.
        hidden_size: elements of a row.
        largest_pass: rows of the largest pass that is planned; larger ones get more memory when they come.

    Attributes:
        segments: the argument.
    """

    def __init__(self, segments: int, hidden_size: int, largest_pass: int) -> None:
        assert segments > 0, segments
        self.segments = segments
        self._hidden_size = hidden_size
        self._largest = 0
        self.reserve(largest_pass)

    @property
    def few_rows(self) -> int:
        """Rows of the largest pass that leaves the rows behind every segment where they are."""
        return len(self._memory) // self.segments

    def reserve(self, rows: int) -> bool:
        """Make room for passes of ``rows`` rows.

        Returns:
            True if there was too little room, and new memory was taken; views of before keep the old memory.
        """
        if rows <= self._largest:
            return False
        self._largest = rows
        # Pages that no pass has written take no memory.
        self._memory = untouched((max(2 * rows, self.segments * FEW_ROWS), self._hidden_size), np.float32)
        return True

    def view(self, segment: int, begin: int, end: int, *, is_few: bool) -> Array:
        """Return rows ``[begin, end)`` behind a segment, in a pass of few rows or of any number."""
        assert 0 <= begin < end <= (self.few_rows if is_few else self._largest), (begin, end, is_few)
        first = segment * self.few_rows if is_few else segment % 2 * self._largest
        rows: Array = self._memory[first + begin : first + end]
        return rows

    def release(self) -> None:
        """Release the memory; afterwards there is no room for any row."""
        self._largest = 0
        self._memory = np.empty((0, self._hidden_size), np.float32)
