"""States of texts, kept to go on from them: a state cannot be taken back, and rows alone do not make one again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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


class Copies:
    """Copies of what belongs to texts, in a bounded memory; the one used longest ago makes room for another one.

    Args:
        places: the memory of each copy, part by part.
    """

    def __init__(self, places: Sequence[Sequence[Array]]) -> None:
        self._places = list(places)
        self._kept: list[_Kept] = []

    @property
    def count(self) -> int:
        """How many copies are kept, at most."""
        return len(self._places)

    def put(self, token_ids: Sequence[int], parts: Callable[[], Iterable[Array]]) -> None:
        """Keep what belongs to a text, unless it is kept already; a part may be shorter than there is room."""
        if not self.count or not len(token_ids):
            return
        ids = np.asarray(token_ids, np.int32)
        found = next((one for one in self._kept if np.array_equal(one.token_ids, ids)), None)
        if found is None:
            # What is overwritten is not kept any longer, also if copying fails.
            self._kept = self._kept[-(self.count - 1) :] if self.count > 1 else []
            place = min(set(range(self.count)) - {one.place for one in self._kept})
            for memory, part in zip(self._places[place], parts(), strict=True):
                memory[: len(part)] = part
            found = _Kept(ids, place)
        self._use(found)

    def get(self, token_ids: Sequence[int]) -> Sequence[Array]:
        """Return what belongs to exactly these tokens, which must be kept, part by part."""
        ids = np.asarray(token_ids, np.int32)
        found = next(one for one in self._kept if np.array_equal(one.token_ids, ids))
        self._use(found)
        return self._places[found.place]

    def kept(self, token_ids: Sequence[int] | Array) -> dict[int, list[Array]]:
        """Return of how many of a text's first tokens there are copies -> these, part by part."""
        ids = np.asarray(token_ids, np.int32)
        return {
            len(one.token_ids): list(self._places[one.place]) for one in self._kept if _begins_with(ids, one.token_ids)
        }

    def forget(self) -> None:
        """Forget all copies."""
        self._kept = []

    def release(self) -> None:
        """Forget all copies, and their memory."""
        self.forget()
        self._places = []

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


class Checkpoints(Copies):
    """Copies of states.

    Args:
        states: name -> float32 ``[sequences, 2, numbers of a slot]``, the memory that passes read and write.
        sizes: name -> numbers of a state, with which a slot begins.
        count: how many are kept; 0: none.
        memory: float32 ``[count, sum of sizes]``.
    """

    def __init__(self, states: Mapping[str, Array], sizes: Mapping[str, int], count: int, memory: Array) -> None:
        assert memory.shape == (count, sum(sizes.values())), (memory.shape, count)
        super().__init__([np.split(place, np.cumsum(list(sizes.values()))[:-1]) for place in memory])
        self._states, self._sizes = states, sizes

    def save(self, index: int, slot: int, token_ids: Sequence[int]) -> None:
        """Keep the state of a sequence's slot, which has seen these tokens, unless it is kept already."""
        self.put(token_ids, lambda: self.memory(index, slot))

    def load(self, index: int, slot: int, token_ids: Sequence[int]) -> None:
        """Write the state of exactly these tokens, which must be kept, into a sequence's slot."""
        for part, copy in zip(self.memory(index, slot), self.get(token_ids), strict=True):
            part[:] = copy

    def memory(self, index: int, slot: int) -> list[Array]:
        """Return the memory of a sequence's slot, part by part as ``kept``."""
        return [self._states[name][index, slot, :size] for name, size in self._sizes.items()]


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
