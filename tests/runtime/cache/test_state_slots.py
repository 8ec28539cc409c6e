"""The bookkeeping of states, against slots that hold texts: whatever happens, the next pass goes on with the text."""

from __future__ import annotations

import numpy as np
import pytest

from edge_rt.runtime.cache.kv_cache import KVCache
from edge_rt.runtime.cache.state_slots import StateSlots
from edge_rt.runtime.forward.row_order import depth_first

DRAFTS = 6


class Text:
    """A cache, and what an operator would keep: per slot the text that its state has seen, and the drafts."""

    def __init__(self):
        self.states = StateSlots(0, DRAFTS)
        self.cache = KVCache(1000, row_map=np.arange(1000, dtype=np.int32), states=self.states)
        self.slots = [((), ()), ((), ())]

    @property
    def seen(self):
        """What the next pass goes on with."""
        text, drafts = self.slots[self.states.slot] if self.cache.length else ((), ())
        return (*text, *(drafts[number] for number in self.states.advance))

    def run(self, tokens, parents=None):
        """Run a pass as operators do: rows depth first, drafts numbered behind the certain rows."""
        order = list(range(len(tokens))) if parents is None else depth_first(parents)
        self.states.note(None if parents is None else np.argsort(order).tolist())
        certain = self.states.certain(len(tokens))
        rows = [tokens[node] for node in order]
        self.slots[1 - self.states.slot] = (*self.seen, *rows[:certain]), tuple(rows[certain:])

    def check(self):
        self.cache.check()
        assert self.seen == self.cache.token_ids


def test_certain_rows_and_drafts_that_are_accepted_are_the_text():
    text = Text()
    with text.cache.reserve(3) as rows:
        text.run([1, 2, 3])
        rows.commit([1, 2, 3])
    text.check()
    # Children of the last certain row: 10 and 20; the path 20, 21 is accepted.
    with text.cache.reserve(6, [-1, 0, 0, 1, 2, 4], certain=1) as rows:
        text.run([4, 10, 20, 11, 21, 22], [-1, 0, 0, 1, 2, 4])
        rows.commit([4, 20, 21], [0, 2, 4])
    assert text.states.advance == (2, 3)
    text.check()
    with text.cache.reserve(2) as rows:
        text.run([5, 6])
        rows.commit([5, 6])
    assert (text.states.length, text.states.advance) == (8, ())
    text.check()


def test_a_pass_whose_result_nobody_takes_changes_nothing():
    text = Text()
    with text.cache.reserve(2) as rows:
        text.run([1, 2])
        rows.commit([1, 2])
    before = text.states.slot
    with text.cache.reserve(3, certain=1):
        text.run([7, 8, 9])
    with text.cache.reserve(2):
        text.run([7, 8])
    assert text.states.slot == before
    text.check()


def test_going_back_keeps_what_the_state_has_not_seen():
    text = Text()
    with text.cache.reserve(5, certain=2) as rows:
        text.run([1, 2, 3, 4, 5])
        rows.commit([1, 2, 3, 4, 5], range(5))
    assert text.cache.truncate(4) == 4
    text.check()
    assert text.cache.truncate(2) == 2
    text.check()
    assert text.cache.truncate(1) == 0
    text.check()
    with text.cache.reserve(1) as rows:
        text.run([9])
        rows.commit([9])
    text.check()


def test_rows_are_not_taken_that_no_pass_has_computed():
    text = Text()
    with pytest.raises(AssertionError, match="no pass"), text.cache.reserve(1) as rows:
        rows.commit([1])


def test_more_drafts_than_there_is_room_for_are_not_reserved():
    text = Text()
    text.cache.reserve(DRAFTS + 1, certain=1)
    with pytest.raises(AssertionError):
        text.cache.reserve(DRAFTS + 1, certain=0)


def test_any_course_of_passes():
    rng, text, most = np.random.default_rng(0), Text(), 0
    for _ in range(300):
        certain, drafts = int(rng.integers(0, 4)), int(rng.integers(0, DRAFTS + 1))
        rows = certain + drafts
        if rows == 0 or text.cache.length + rows > 900:
            continue
        parents = [*range(-1, certain - 1), *(int(rng.integers(certain - 1, node)) for node in range(certain, rows))]
        tokens = rng.integers(0, 50, rows).tolist()
        with text.cache.reserve(rows, parents, certain=certain) as reserved:
            text.run(tokens, parents)
            if rng.integers(4):
                path = list(range(certain))
                while (children := [n for n in range(certain, rows) if parents[n] == (path[-1] if path else -1)]) and (
                    rng.integers(4)
                ):
                    path.append(int(rng.choice(children)))
                reserved.commit([tokens[node] for node in path], path)
        text.check()
        most = max(most, text.cache.length)
        if rng.integers(20) == 0:
            text.cache.truncate(int(rng.integers(max(0, text.cache.length - 3), text.cache.length + 1)))
            text.check()
    assert most > 50
