"""Cache rows of layers with a sliding window: fewer than positions, reused when no later token can see them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


class SlidingWindow:
    """A ring buffer of cache rows, kept as a map from position to row.

    The first ``capacity`` positions have rows of their own. Every later position takes the row of the position
    ``capacity`` before it, so that the last ``capacity`` positions with rows never share one. A position is assigned
    its row once: it keeps the row when it is rolled back.

    Args:
        window: tokens that a token sees, itself included.
        capacity: rows.
        positions: tokens of the context.
        row_bytes: bytes of one row in all layers that have the window.

    Attributes:
        window, capacity, row_bytes: the arguments.
        row_map: int32 ``[positions]``, position -> row in memory, which the graph reads; committing a path through a
            tree permutes it (see ``KVCache``). Positions that have no row yet hold 0.
        assigned: positions that have rows.
    """

    def __init__(self, window: int, capacity: int, positions: int, *, row_bytes: int = 0) -> None:
        assert window > 0, window
        assert min(window, positions) <= capacity <= positions, (window, capacity, positions)
        self.window = window
        self.capacity = capacity
        self.row_bytes = row_bytes
        self.row_map: npt.NDArray[Any] = np.zeros(positions, np.int32)
        self.assigned = 0
        self.reset()

    @property
    def largest_pass(self) -> int:
        """Rows of the largest pass that leaves room for everything its first row sees."""
        positions = len(self.row_map)
        return positions if self.capacity == positions else self.capacity - self.window + 1

    def reset(self) -> None:
        """Start again: only the first positions have rows."""
        self.row_map[: self.capacity] = np.arange(self.capacity)
        self.assigned = self.capacity

    def assign(self, end: int) -> None:
        """Give rows to the positions below ``end``."""
        while self.assigned < end:
            begin, stop = self.assigned, min(end, self.assigned + self.capacity)
            self.row_map[begin:stop] = self.row_map[begin - self.capacity : stop - self.capacity]
            self.assigned = stop

    def holds(self, length: int) -> bool:
        """Return whether everything that the token at position ``length`` sees is still in the cache."""
        return max(length + 1 - self.window, 0) >= self.assigned - self.capacity

    def check(self, length: int, end: int) -> None:
        """Assert the invariants for ``length`` committed positions and reserved ones up to ``end``."""
        positions, last = len(self.row_map), self.row_map[self.assigned - self.capacity : self.assigned]
        assert end <= self.assigned <= positions, (end, self.assigned, positions)
        assert self.holds(length), f"rows that are seen behind {length} are gone: {self.assigned} were given out"
        assert np.array_equal(np.sort(last), np.arange(self.capacity)), "a row of the window is mapped twice"
        # Attention reads the map's entries before the window as well, but not the rows they point to.
        assert np.isin(self.row_map, last).all(), "there is no such row"
