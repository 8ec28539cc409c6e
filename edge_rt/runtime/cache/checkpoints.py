"""States of texts, kept to go on from them: a state cannot be taken back, and rows alone do not make one again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

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


class Checkpoints:
    """States of texts in a bounded memory; the one that was used longest ago makes room for another one.

    Args:
        states: name -> float32 ``[sequences, 2, numbers of a slot]``, the memory that passes read and write.
        sizes: name -> numbers of a state, with which a slot begins.
        count: how many are kept; 0: none.
    """

    def __init__(self, states: Mapping[str, Array], sizes: Mapping[str, int], count: int, memory: Array) -> None:
        assert memory.shape == (count, sum(sizes.values())), (memory.shape, count)
        self._states, self._sizes, self._memory = states, sizes, memory
        self._kept: list[_Kept] = []
        self.count = count

    def save(self, index: int, slot: int, token_ids: Sequence[int]) -> None:
        """Keep the state of a sequence's slot, which has seen these tokens, unless it is kept already."""
        if not self.count or not len(token_ids):
            return
        ids = np.asarray(token_ids, np.int32)
        found = next((one for one in self._kept if np.array_equal(one.token_ids, ids)), None)
        if found is None:
            place = self._kept.pop(0).place if len(self._kept) == self.count else len(self._kept)
            for name, part in self._parts(place):
                part[:] = self._states[name][index, slot, : len(part)]
            found = _Kept(ids, place)
        self._use(found)

    def kept(self, token_ids: Sequence[int] | Array) -> dict[int, list[Array]]:
        """Return of how many of the first tokens states are kept -> the memory of a state, part by part."""
        ids = np.asarray(token_ids, np.int32)
        return {
            len(one.token_ids): [part for _, part in self._parts(one.place)]
            for one in self._kept
            if _begins_with(ids, one.token_ids)
        }

    def memory(self, index: int, slot: int) -> list[Array]:
        """Return the memory of a sequence's slot, part by part as ``kept``."""
        return [self._states[name][index, slot, :size] for name, size in self._sizes.items()]

    def load(self, index: int, slot: int, token_ids: Sequence[int]) -> None:
        """Write the state of exactly these tokens, which must be kept, into a sequence's slot."""
        ids = np.asarray(token_ids, np.int32)
        found = next(one for one in self._kept if np.array_equal(one.token_ids, ids))
        for name, part in self._parts(found.place):
            self._states[name][index, slot, : len(part)] = part
        self._use(found)

    def forget(self) -> None:
        """Forget all states."""
        self._kept = []

    def check(self) -> None:
        """Assert the invariants: every state that is kept has a place of its own, and there are no two of a text."""
        places = [one.place for one in self._kept]
        assert sorted(places) == list(range(len(places))), places
        assert len(places) <= self.count, (len(places), self.count)
        texts = {one.token_ids.tobytes() for one in self._kept}
        assert len(texts) == len(places), "two states of the same text"
        assert b"" not in texts, "a state of no tokens"

    def _use(self, one: _Kept) -> None:
        self._kept = [*(other for other in self._kept if other is not one), one]

    def _parts(self, place: int) -> Iterable[tuple[str, Array]]:
        begin = 0
        for name, size in self._sizes.items():
            yield name, self._memory[place, begin : begin + size]
            begin += size


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
