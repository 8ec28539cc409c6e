"""States that are kept: of which texts, how many, and that going on from them is going on with the text."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from edge_rt.errors import Cancelled, DeviceLost, DeviceMemoryExhausted
from edge_rt.runtime.cache.checkpoints import SHORT, STEP, Checkpoints, Copies, HostStateCopies, stops
from edge_rt.runtime.cache.kv_cache import KVCache
from edge_rt.runtime.cache.state_slots import StateSlots

DRAFTS = 12


class Text:
    """A cache whose states are sums over its text, in an order that matters, and drafts behind them."""

    def __init__(self, count, copies=HostStateCopies):
        self.arrays = {"state.0": np.zeros((1, 2, 1 + DRAFTS), np.float32)}
        memory = np.zeros((count, 1), np.float32)
        self.checkpoints = Checkpoints(copies(self.arrays, {"state.0": 1}, memory))
        self.states = StateSlots(0, DRAFTS, self.checkpoints)
        self.cache = KVCache(5000, states=self.states)

    @staticmethod
    def after(state, token_ids):
        for token in token_ids:
            state = (state * 3 + token) % 1009
        return state

    def run(self, token_ids):
        slots = self.arrays["state.0"][0]
        read, written = slots[self.states.slot], slots[1 - self.states.slot]
        state = read[0] if self.cache.length else 0
        state = self.after(state, (read[1 + number] for number in self.states.advance))
        certain = self.states.certain(len(token_ids))
        written[0] = self.after(state, token_ids[:certain])
        written[1 : 1 + len(token_ids) - certain] = token_ids[certain:]
        self.states.note(None)

    def compute(self, prompt, end_ids=(), answer=()):
        """Compute a prompt as generations do, with what there is of an answer; return how much of it was there."""
        self.cache.keep_state()
        found = self.cache.truncate(self.cache.common_prefix(prompt[:-1]))
        self.cache.plan_stops(prompt, end_ids, has_answer=bool(answer))
        prompt = [*prompt, *answer]
        while self.cache.length < len(prompt):
            piece = self.cache.until_stop(min(64, len(prompt) - self.cache.length))
            rest = len(prompt) - self.cache.length
            certain = self.cache.certain_of(piece) if piece == rest else piece
            token_ids = prompt[self.cache.length : self.cache.length + piece]
            with self.cache.reserve(piece, certain=certain) as rows:
                self.run(token_ids)
                rows.commit(token_ids)
            self.check()
        return found

    def check(self):
        self.cache.check()
        state = self.arrays["state.0"][0, self.states.slot, 0]
        assert state == self.after(0, self.cache.token_ids[: self.states.length])


@pytest.mark.parametrize("count", [1, 8, 20, 150])
def test_a_prompt_is_gone_on_with_from_its_end_where_an_answer_was_computed_with_it(count):
    text, prompt = Text(4), list(range(1, 200))
    text.compute(prompt, answer=range(1000, 1000 + count))
    assert text.compute([*prompt, 8]) >= len(prompt) - 1


def test_a_prompt_is_gone_on_with_from_its_end():
    text, prompt = Text(4), list(range(1, 200))
    assert text.compute(prompt) == 0
    assert text.compute(prompt) == len(prompt) - 1
    # The answer is left out: of the prompt all but its last token is there.
    text.compute([*prompt, 5, 6, 7])
    assert text.compute([*prompt, 8]) == len(prompt) - 1
    assert text.compute([*prompt[:100], 9]) == 0


def test_turns_that_are_rendered_anew_are_gone_on_with_from_the_last_one():
    end = 999
    text, first = Text(4), [1, 2, end, *range(10, 80), end, 3, 4]
    text.compute(first, [end])
    answer = [*first, *range(100, 140), end]
    with text.cache.reserve(len(answer) - len(first)) as rows:
        text.run(answer[len(first) :])
        rows.commit(answer[len(first) :])
    # The thoughts at the beginning of the answer are dropped.
    again = [*first[:-2], 5, *range(120, 140), end, 6, 7, end, 3, 4]
    assert text.compute(again, [end]) == len(first) - 2
    # The last turn of the user is changed.
    assert text.compute([*again[:-5], 6, 8, end, 3, 4], [end]) == len(again) - 5


def test_long_prompts_are_kept_on_the_way():
    text, prompt = Text(6), [token % 50 for token in range(3 * STEP + 300)]
    text.compute(prompt)
    assert text.compute([*prompt[: 2 * STEP + 10], 51]) == 2 * STEP
    assert text.compute([*prompt[: STEP + 10], 52]) == STEP


@pytest.mark.parametrize("count", [0, 1, 2])
def test_what_was_used_longest_ago_makes_room(count):
    text = Text(count)
    prompts = [[first, *range(60)] for first in (100, 200, 300)]
    for prompt in prompts:
        text.compute(prompt)
    text.cache.truncate(0)
    found = [max(text.checkpoints.places(prompt), default=0) for prompt in prompts]
    assert sum(map(bool, found)) == count
    assert found == sorted(found)


def test_where_a_prompt_stops():
    end = 7
    assert stops([1] * 100, ()) == ([], 99)
    assert stops([1] * 10 + [end] + [1] * 40 + [end] + [1] * 3, [end]) == ([11], 52)
    # Too much behind the last turn: it is kept by itself, and the end of the prompt, too.
    assert stops([1] * 10 + [end] + [1] * (SHORT + 1), [end]) == ([11], 11 + SHORT)
    assert stops([1] * (2 * STEP + 1), ()) == ([STEP], 2 * STEP)
    assert stops([1] * (2 * STEP + 2), ()) == ([STEP, 2 * STEP], 2 * STEP + 1)
    assert stops([end], [end]) == ([], 0)


def test_a_copy_that_fails_takes_no_other_s_place():
    copies, places = Copies(3), np.zeros(3)

    def failing(place):
        places[place] = -1
        raise MemoryError

    for text in (1, 2, 3, 5):
        if text == 5:
            with pytest.raises(MemoryError):
                copies.put([4], failing)
            copies.check()
            assert copies.places([1]) == copies.places([4]) == {}
        copies.put([text], lambda place, text=text: places.__setitem__(place, text))
        copies.check()
    found = []
    for text in (2, 3, 5):
        copies.get([text], lambda place: found.append(places[place]))
    assert found == [2, 3, 5]


class FailingCopies(HostStateCopies):
    """Places on a device that fails, from some moment on."""

    error = None

    def save(self, place, index, slot):
        if self.error is not None:
            raise self.error
        super().save(place, index, slot)

    def load(self, place, index, slot):
        if self.error is not None:
            raise self.error
        super().load(place, index, slot)


@pytest.mark.parametrize("kind", [DeviceLost, DeviceMemoryExhausted])
def test_where_a_device_fails_a_text_is_computed_anew(kind):
    text, prompt = Text(4, FailingCopies), list(range(1, 200))
    text.compute(prompt)
    text.compute([*prompt, 5, 6, 7])
    text.checkpoints.memory.error = kind("It fails.", "", "")
    # Neither kept nor read.
    assert text.compute([*prompt, 8]) == 0
    text.checkpoints.memory.error = None
    assert text.compute([*prompt, 8, 9]) == len(prompt) + 1
    assert text.compute([*prompt, 8, 7]) == len(prompt) + 1


def test_memory_is_released_behind_the_copy_under_way():
    copies, seen = Copies(2), []
    thread = threading.Thread(target=lambda: (copies.release(), seen.append("released")))

    def write(place):
        thread.start()
        thread.join(0.05)
        seen.append("written")

    copies.put([1], write)
    thread.join()
    assert seen == ["written", "released"]
    copies.put([2], write)
    assert copies.places([2]) == {}
    with pytest.raises(Cancelled):
        copies.get([1], write)
