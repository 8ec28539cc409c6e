"""Copies of what layers with a window see behind a text, to go on from there in any slot: its own rows move on."""

from __future__ import annotations

from collections.abc import Sequence

from edge_rt.runtime.cache.checkpoints import Array, Copies
from edge_rt.runtime.cache.sliding_window import SlidingWindow


class WindowCopies:
    """What one of several slots can begin with, of layers with a sliding window or a short convolution.

    Args:
        window: the slot's own rows.
        copies: those of all slots.
    """

    def __init__(self, window: SlidingWindow, copies: Copies) -> None:
        self._window, self._copies = window, copies

    @property
    def keeps(self) -> int:
        """How many copies are kept."""
        return self._copies.count

    def keep(self, token_ids: Sequence[int]) -> None:
        """Keep what the token behind a text sees, if the rows still hold it."""
        if self._window.holds(length := len(token_ids)):
            self._copies.put(token_ids, lambda: self._window.each_seen(length))

    def kept(self, token_ids: Sequence[int]) -> dict[int, list[Array]]:
        """Return of how many of a text's first tokens there are copies -> these, part by part."""
        return self._copies.kept(token_ids)

    def kept_lengths(self, token_ids: Sequence[int] | Array, most: int) -> list[int]:
        """Return of which beginnings of a text, at most so long, there are copies: their lengths, the longest first."""
        return sorted(self._copies.kept(token_ids[:most]), reverse=True)

    def go_on(self, token_ids: Sequence[int]) -> None:
        """Go on behind a text of which a copy is kept, or behind none."""
        found = self._copies.get(token_ids) if len(token_ids) else ()
        self._window.reset()
        if found:
            self._window.fill(len(token_ids), found)

    def check(self) -> None:
        """Assert the invariants of all copies."""
        self._copies.check()
