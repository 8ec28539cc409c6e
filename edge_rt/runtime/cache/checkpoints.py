"""States of texts, kept to go on from them: a state cannot be taken back, and rows alone do not make one again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from edge_rt.errors import DEVICE_FAILURES, Cancelled

Array = npt.NDArray[Any]

STEP: Final = 1024
"""Tokens of a prompt from one checkpoint to the next."""
SHORT: Final = 8
"""Tokens behind the last turn of a prompt, at most, that are computed again by whoever goes on from its state."""


@dataclass
class _Kept:
    """A state that is kept: of which tokens, and where."""

    token_ids: Array
    place: int


class Copies:
    """Which texts there are copies for, of what belongs to them, and in which place of a bounded memory.

    The copy used longest ago makes room for another one.

    Attributes:
        count: how many copies are kept, at most.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._kept: list[_Kept] = []
        # Another thread may close the model, and waits for the copy under way; so may a signal handler of this one.
        self._lock = threading.RLock()

    def put(self, token_ids: Sequence[int], write: Callable[[int], None]) -> None:
        """Keep what belongs to a text, unless it is kept already, or lies on a device that fails.

        Args:
            write: writes it into a place.
        """
        with self._lock:
            if self.count and len(token_ids):
                self._put(np.asarray(token_ids, np.int32), write)

    def _put(self, ids: Array, write: Callable[[int], None]) -> None:
        found = next((one for one in self._kept if np.array_equal(one.token_ids, ids)), None)
        if found is None:
            # What is overwritten is not kept any longer, also if copying fails.
            self._kept = self._kept[-(self.count - 1) :] if self.count > 1 else []
            place = min(set(range(self.count)) - {one.place for one in self._kept})
            try:
                write(place)
            except DEVICE_FAILURES:
                # Of a device that is lost the next pass says so; whoever computes that knows what takes its place.
                return
            found = _Kept(ids, place)
        self._use(found)

    def get(self, token_ids: Sequence[int], read: Callable[[int], None]) -> None:
        """Read the copy for exactly these tokens, which must be kept.

        Args:
            read: reads what is in a place.

        Raises:
            Cancelled: the model was closed in the meantime.
        """
        ids = np.asarray(token_ids, np.int32)
        with self._lock:
            if not self.count:
                raise Cancelled("The model was closed.")
            found = next(one for one in self._kept if np.array_equal(one.token_ids, ids))
            self._use(found)
            read(found.place)

    def places(self, token_ids: Sequence[int] | Array) -> dict[int, int]:
        """Return of how many of a text's first tokens there are copies -> their places."""
        ids = np.asarray(token_ids, np.int32)
        return {len(one.token_ids): one.place for one in self._kept if _begins_with(ids, one.token_ids)}

    def forget(self) -> None:
        """Forget all copies."""
        self._kept = []

    def release(self) -> None:
        """Forget all copies, whose memory is given back, when the one under way is done."""
        with self._lock:
            self.forget()
            self.count = 0

    def check(self) -> None:
        """Assert the invariants: every copy has a place of its own, and there are no two of a text."""
        places = [one.place for one in self._kept]
        assert len(set(places)) == len(places), places
        assert set(places) <= set(range(self.count)), (places, self.count)
        texts = {one.token_ids.tobytes() for one in self._kept}
        assert len(texts) == len(places), "two copies for the same text"
        assert b"" not in texts, "a copy for no tokens"

    def _use(self, one: _Kept) -> None:
        self._kept = [*(other for other in self._kept if other is not one), one]


class StateCopies(Protocol):
    """Places for states, beside the memory that passes read and write."""

    @property
    def count(self) -> int:
        """How many places there are."""

    def save(self, place: int, index: int, slot: int, /) -> None:
        """Copy the state of a sequence's slot into a place."""

    def load(self, place: int, index: int, slot: int, /) -> None:
        """Copy what is in a place into a sequence's slot."""

    def parts(self, place: int, /) -> list[Array]:
        """Return the memory of a place, part by part; of this process alone."""

    def state(self, index: int, slot: int, /) -> list[Array]:
        """Return the memory of a sequence's slot, part by part; of this process alone."""


class HostStateCopies:
    """Such places in this process.

    Args:
        states: name -> float32 ``[sequences, 2, numbers of a slot]``, the memory that passes read and write.
        sizes: name -> numbers of a state, with which a slot begins.
        memory: float32 ``[places, sum of sizes]``.
    """

    def __init__(self, states: Mapping[str, Array], sizes: Mapping[str, int], memory: Array) -> None:
        assert memory.shape[1] == sum(sizes.values()), (memory.shape, sizes)
        self._places = [np.split(place, np.cumsum(list(sizes.values()))[:-1]) for place in memory]
        self._states, self._sizes = states, sizes

    @property
    def count(self) -> int:
        """How many places there are."""
        return len(self._places)

    def save(self, place: int, index: int, slot: int) -> None:
        """Copy the state of a sequence's slot into a place."""
        for copy, part in zip(self._places[place], self.state(index, slot), strict=True):
            copy[:] = part

    def load(self, place: int, index: int, slot: int) -> None:
        """Copy what is in a place into a sequence's slot."""
        for part, copy in zip(self.state(index, slot), self._places[place], strict=True):
            part[:] = copy

    def parts(self, place: int) -> list[Array]:
        """Return the memory of a place, part by part."""
        return list(self._places[place])

    def state(self, index: int, slot: int) -> list[Array]:
        """Return the memory of a sequence's slot, part by part."""
        return [self._states[name][index, slot, :size] for name, size in self._sizes.items()]


class Checkpoints(Copies):
    """Copies of states; of how many there are places."""

    def __init__(self, memory: StateCopies) -> None:
        super().__init__(memory.count)
        self.memory = memory

    def save(self, index: int, slot: int, token_ids: Sequence[int]) -> None:
        """Keep the state of a sequence's slot, which has seen these tokens, unless it is kept already."""
        self.put(token_ids, lambda place: self.memory.save(place, index, slot))

    def load(self, index: int, slot: int, token_ids: Sequence[int]) -> None:
        """Write the state of exactly these tokens, which must be kept, into a sequence's slot."""
        self.get(token_ids, lambda place: self.memory.load(place, index, slot))


def _begins_with(token_ids: Array, beginning: Array) -> bool:
    return len(beginning) <= len(token_ids) and np.array_equal(token_ids[: len(beginning)], beginning)


def stops(prompt: Sequence[int], end_ids: Iterable[int], step: int = 1) -> tuple[list[int], int]:
    """Return where the states of a prompt are worth keeping: positions to stop at, rising, and the last one.

    Templates render a conversation anew from its last turns on, at most: these are the ends of the last two turns.

    Args:
        end_ids: tokens that end a turn.
        step: positions are multiples of it, the next lower ones; the last one may be 0 then.
    """
    ids, ends = np.asarray(prompt), list(end_ids)
    turns = (np.flatnonzero(np.isin(ids, ends))[-2:] + 1).tolist() if ends else []
    last = len(ids) - 1
    if turns and len(ids) - turns[-1] <= SHORT:
        last = min(last, turns[-1])
    last -= last % step
    found = {*range(STEP, last, STEP), *(turn - turn % step for turn in turns)}
    return sorted(stop for stop in found if 0 < stop < last), last
