"""Copies of what layers with a window see behind a text, to go on from there in any slot: its own rows move on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Protocol

import numpy as np

from edge_rt.runtime.cache.checkpoints import Array, Copies
from edge_rt.runtime.cache.sliding_window import SlidingWindow


class RowCopies(Protocol):
    """Places for rows of layers with a window."""

    def save(self, place: int, rows: Array, /) -> None:
        """Copy rows of all layers with a window, given where they lie in memory (int32), into a place."""

    def load(self, place: int, rows: Array, /) -> None:
        """Copy what is in a place into so many rows."""

    def parts(self, place: int, /) -> list[Array]:
        """Return the memory of a place, part by part; of this process alone."""

    def release(self) -> None:
        """Release the memory of all places."""


class HostRowCopies:
    """Such places in this process.

    Args:
        memory: returns that of the rows, part by part, uint8 ``[rows, ...]``.
        places: uint8 ``[places, bytes]``.
        most_rows: rows of a place.
    """

    def __init__(self, memory: Callable[[], Sequence[Array]], places: Array, most_rows: int) -> None:
        sizes = [(most_rows, *part.shape[1:]) for part in memory()]
        ends = list(accumulate(math.prod(size) for size in sizes))
        assert places.shape[1] == ends[-1], (places.shape, ends)
        self._memory = memory
        self._places = [
            [part.reshape(size) for part, size in zip(np.split(place, ends[:-1]), sizes, strict=True)]
            for place in places
        ]

    def save(self, place: int, rows: Array) -> None:
        """Copy rows of all layers with a window, given where they lie in memory (int32), into a place."""
        for copy, part in zip(self._places[place], self._memory(), strict=True):
            copy[: len(rows)] = part[rows]

    def load(self, place: int, rows: Array) -> None:
        """Copy what is in a place into so many rows."""
        for part, copy in zip(self._memory(), self._places[place], strict=True):
            part[rows] = copy[: len(rows)]

    def parts(self, place: int) -> list[Array]:
        """Return the memory of a place, part by part."""
        return list(self._places[place])

    def release(self) -> None:
        """Release the memory of all places."""
        self._places = []


class WindowCopies:
    """What one of several slots can begin with, of layers with a sliding window or a short convolution.

    Args:
        window: the slot's own rows.
        copies: which there are, of all slots.
        memory: their places.
    """

    def __init__(self, window: SlidingWindow, copies: Copies, memory: RowCopies) -> None:
        self._window, self._copies, self._memory = window, copies, memory

    @property
    def keeps(self) -> int:
        """How many copies are kept."""
        return self._copies.count

    def keep(self, token_ids: Sequence[int]) -> None:
        """Keep what the token behind a text sees, if the rows still hold it."""
        if self._window.holds(length := len(token_ids)):
            self._copies.put(token_ids, lambda place: self._memory.save(place, self._window.seen_rows(length)))

    def kept(self, token_ids: Sequence[int]) -> dict[int, list[Array]]:
        """Return of how many of a text's first tokens there are copies -> these, part by part."""
        return {length: self._memory.parts(place) for length, place in self._copies.places(token_ids).items()}

    def kept_lengths(self, token_ids: Sequence[int] | Array, most: int) -> list[int]:
        """Return of which beginnings of a text, at most so long, there are copies: their lengths, the longest first."""
        return sorted(self._copies.places(token_ids[:most]), reverse=True)

    def go_on(self, token_ids: Sequence[int]) -> None:
        """Go on behind a text of which a copy is kept, or behind none."""
        self._window.reset()
        if len(token_ids):
            rows = self._window.begin(len(token_ids))
            self._copies.get(token_ids, lambda place: self._memory.load(place, rows))

    def check(self) -> None:
        """Assert the invariants of all copies."""
        self._copies.check()
