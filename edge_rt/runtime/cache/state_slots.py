"""Which of its two slots holds the states of a sequence, and which drafts of the last pass belong to its text."""

from __future__ import annotations

from collections.abc import Sequence

from edge_rt.errors import DEVICE_FAILURES
from edge_rt.runtime.cache.checkpoints import Array, Checkpoints


class StateSlots:
    """States of a sequence: rows of its text that they have seen, and what is still to be applied to them.

    A pass reads one slot and writes the other: the state behind its certain rows, and what each of its drafts would
    change. Whoever takes the pass's result takes the other slot, and notes the drafts that became text; the next pass
    applies them first. A pass whose result nobody takes has changed nothing.

    Args:
        index: number of the states in memory.
        most_drafts: of a pass.
        checkpoints: states of texts that were kept; None: none are.

    Attributes:
        slot: that the next pass reads.
        length: rows of the text that the slot's state has seen.
        advance: numbers of the last pass's drafts that follow them in the text, rising.
    """

    def __init__(self, index: int, most_drafts: int, checkpoints: Checkpoints | None = None) -> None:
        self.index = index
        self.most_drafts = most_drafts
        self._checkpoints = checkpoints
        self.slot = 0
        self.length = 0
        self.advance: tuple[int, ...] = ()
        self._certain: int | None = None
        self._places: Sequence[int] | None = None
        self._is_written = False

    @property
    def end(self) -> int:
        """Rows of the text that the next pass follows."""
        return self.length + len(self.advance)

    def certain(self, rows: int) -> int:
        """Return how many rows of the next pass, of so many, are text for certain: all, unless ``begin`` said so."""
        return rows if self._certain is None else min(rows, self._certain)

    def begin(self, certain: int) -> None:
        """Say how many rows of the passes that come, the first ones, are text for certain."""
        self._certain = certain
        self._places, self._is_written = None, False

    def note(self, places: Sequence[int] | None) -> None:
        """Note that a pass runs.

        Args:
            places: for every row that was reserved its row of the pass; None: they have the same order.
        """
        self._places, self._is_written = places, True

    def commit(self, path: Sequence[int]) -> None:
        """Take the result of the pass that ran last: these rows that were reserved are text; certain ones are first."""
        assert self._is_written, "no pass has written the states"
        certain = len(path) if self._certain is None else self._certain
        assert list(path[:certain]) == list(range(certain)), (path, certain)
        places = path if self._places is None else [self._places[row] for row in path]
        self.length += len(self.advance) + certain
        self.advance = tuple(place - certain for place in places[certain:])
        self.slot = 1 - self.slot
        self.end_pass()

    def end_pass(self) -> None:
        """Forget what ``begin`` and ``note`` said."""
        self._certain, self._places, self._is_written = None, None, False

    @property
    def keeps(self) -> int:
        """How many states are kept."""
        return 0 if self._checkpoints is None else self._checkpoints.count

    def keep(self, token_ids: Sequence[int]) -> None:
        """Keep the state, which has seen the first of these tokens."""
        if self._checkpoints is not None:
            self._checkpoints.save(self.index, self.slot, token_ids[: self.length])

    def kept(self, token_ids: Sequence[int]) -> dict[int, list[Array]]:
        """Return of how many of a text's first tokens there are states -> their memory, part by part.

        Args:
            token_ids: that the sequence begins with.
        """
        if self._checkpoints is None:
            return {}
        memory = self._checkpoints.memory
        found = {length: memory.parts(place) for length, place in self._checkpoints.places(token_ids).items()}
        if 0 < self.length <= len(token_ids):
            found[self.length] = memory.state(self.index, self.slot)
        return found

    def spare(self) -> list[Array]:
        """Return the memory of the slot that the next pass writes, part by part, for a state to ``take``."""
        return [] if self._checkpoints is None else self._checkpoints.memory.state(self.index, 1 - self.slot)

    def take(self, length: int) -> None:
        """Go on from the state of ``length`` rows that was written into the spare slot."""
        self.slot, self.length, self.advance = 1 - self.slot, length, ()
        self.end_pass()

    def kept_lengths(self, token_ids: Sequence[int] | Array, most: int) -> list[int]:
        """Return of which beginnings of a text, at most so long, states are kept: their lengths, the longest first."""
        return [] if self._checkpoints is None else sorted(self._checkpoints.places(token_ids[:most]), reverse=True)

    def reach(self, length: int, token_ids: Sequence[int]) -> int:
        """Return to how many rows of a text, at most ``length``, these states can go back.

        Where they have seen more, those are the rows of the longest beginning whose state was kept.
        """
        if length and length >= self.length:
            return length
        return max(self.kept_lengths(token_ids, length), default=0)

    def cut(self, length: int, token_ids: Sequence[int]) -> int:
        """Go back to so many rows of a text, to which they ``reach``.

        Returns:
            The number of rows: ``length``, or 0 where a device fails to read what is kept.
        """
        if length and length >= self.length:
            self.advance = self.advance[: length - self.length]
            return length
        try:
            self.go_on(token_ids[:length])
        except DEVICE_FAILURES:
            # Of a device that is lost the next pass says so, as of one that fails while something is kept.
            self.pretend(0)
            return 0
        return length

    def go_on(self, token_ids: Sequence[int]) -> None:
        """Go on from the state of a text that was kept, or from none."""
        if not len(token_ids):
            self.pretend(0)
            return
        assert self._checkpoints is not None, "no states are kept"
        # The current one is whole until the other one is.
        self._checkpoints.load(self.index, 1 - self.slot, token_ids)
        self.slot, self.length, self.advance = 1 - self.slot, len(token_ids), ()

    def pretend(self, length: int) -> None:
        """Treat the state as one that has seen ``length`` rows."""
        self.slot, self.length, self.advance = 0, length, ()

    def check(self, length: int) -> None:
        """Assert the invariants for ``length`` committed rows."""
        assert self.end == length, (self.length, self.advance, length)
        assert self.slot in (0, 1), self.slot
        assert list(self.advance) == sorted(set(self.advance)), self.advance
        assert all(0 <= number < self.most_drafts for number in self.advance), self.advance
        if self._checkpoints is not None:
            self._checkpoints.check()
