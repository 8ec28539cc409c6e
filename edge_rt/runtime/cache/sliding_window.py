"""Rows of layers with a sliding window, or a short convolution: a ring, of which the last ones are kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from edge_rt.runtime.cache.checkpoints import Array


class SlidingWindow:
    """A ring buffer of cache rows, kept as a map from position to row.

    The first ``capacity`` positions have rows of their own. Every later position takes the row of the position
    ``capacity`` before it, so that the last ``capacity`` positions with rows never share one. A position is assigned
    its row once: it keeps the row when it is rolled back.

    Args:
        row_bytes: bytes of one row in all layers that have the window.
        first: its first row in memory, where several slots have one each.

    Attributes:
        row_map: int32 ``[positions]``, position -> row in memory, which the graph reads; committing a path through a
            tree permutes it (see ``KVCache``). Positions that have no row yet hold the first one.
        memory: returns that of the rows, of every layer uint8 ``[rows, ...]``; None: they are not taken elsewhere.
        most_kept: how many copies of what is seen behind a text are kept where the cache is told to.
    """

    memory: Callable[[], Sequence[Array]] | None = None
    most_kept = 0

    def __init__(self, window: int, capacity: int, positions: int, *, row_bytes: int = 0, first: int = 0) -> None:
        assert window > 0, window
        assert min(window, positions) <= capacity <= positions, (window, capacity, positions)
        self.window = window
        self.capacity = capacity
        self.row_bytes = row_bytes
        self._rows = np.arange(first, first + capacity, dtype=np.int32)
        self.row_map: Array = np.full(positions, first, np.int32)
        self.assigned = 0
        # Rows before it are those of another text: what is seen behind a text was taken from elsewhere.
        self._begin = 0
        self._spare: list[Array] = []
        self.reset()

    @property
    def largest_pass(self) -> int:
        """Rows of the largest pass that leaves room for everything its first row sees."""
        positions = len(self.row_map)
        return positions if self.capacity == positions else self.capacity - self.window + 1

    def reset(self) -> None:
        """Start again: only the first positions have rows."""
        self.row_map[: self.capacity] = self._rows
        self.assigned = self.capacity
        self._begin = 0

    def assign(self, end: int) -> None:
        """Give rows to the positions below ``end``."""
        while self.assigned < end:
            begin, stop = self.assigned, min(end, self.assigned + self.capacity)
            self.row_map[begin:stop] = self.row_map[begin - self.capacity : stop - self.capacity]
            self.assigned = stop

    def holds(self, length: int) -> bool:
        """Return whether everything that the token at position ``length`` sees is still in the cache."""
        return max(length + 1 - self.window, 0) >= max(self._begin, self.assigned - self.capacity)

    def seen(self, length: int) -> list[Array]:
        """Return copies of the rows that the token at position ``length`` sees, layer by layer; ``memory`` is set."""
        assert self.memory is not None, "nobody told where the rows are"
        which = self.seen_rows(length)
        return [layer[which] for layer in self.memory()]

    def seen_rows(self, length: int) -> Array:
        """Return where in memory the rows lie that the token at position ``length`` sees, int32."""
        assert self.holds(length), (length, self.assigned)
        return self.row_map[max(length + 1 - self.window, 0) : length]

    def spare(self, length: int) -> list[Array]:
        """Return memory for rows as of ``seen``, to ``take``."""
        assert self.memory is not None, "nobody told where the rows are"
        rows = min(length, self.window - 1)
        self._spare = [np.empty((rows, *layer.shape[1:]), np.uint8) for layer in self.memory()]
        return self._spare

    def take(self, length: int) -> None:
        """Take the rows that were written into the spare memory for those before position ``length``."""
        assert self.memory is not None, "nobody told where the rows are"
        which = self.begin(length)
        for layer, rows in zip(self.memory(), self._spare, strict=True):
            layer[which] = rows
        self._spare = []

    def begin(self, length: int) -> Array:
        """Go on at a position with rows from elsewhere; return where they belong, as of ``seen_rows``."""
        self.assign(length)
        self._begin = max(length + 1 - self.window, 0)
        return self.seen_rows(length)

    def check(self, length: int, end: int) -> None:
        """Assert the invariants for ``length`` committed positions and reserved ones up to ``end``."""
        positions, last = len(self.row_map), self.row_map[self.assigned - self.capacity : self.assigned]
        assert end <= self.assigned <= positions, (end, self.assigned, positions)
        assert self.holds(length), f"rows that are seen behind {length} are gone: {self.assigned} were given out"
        assert np.array_equal(np.sort(last), self._rows), "a row of the window is mapped twice"
        # Attention reads the map's entries before the window as well, but not the rows they point to.
        assert np.isin(self.row_map, last).all(), "there is no such row"
