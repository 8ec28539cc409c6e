"""Interrupts at every place of the exit of a step, and of cancelling an answer: they leave everything whole."""

from __future__ import annotations

import dis
import sys
import threading
from contextlib import contextmanager, suppress
from functools import partial

import pytest

from edge_rt.errors import InvalidGrammar
from edge_rt.package.kv_formats import ROW_BLOCK
from edge_rt.runtime.decode.accept import accept
from tests.helpers.fake_batch import FakeBatch
from tests.helpers.fake_model import Run
from tests.runtime.speculation.test_beside import ALONE, PROMPT, Nearly, Slow, drafter_of, drafting

FILES = (
    "batch.py",
    "step_turns.py",
    "loop.py",
    "kv_cache.py",
    "row_pool.py",
    "admission.py",
    "generation.py",
    "side_thread.py",
    "beside.py",
    "draft_model.py",
    "model_source.py",
)
ASKS = ("CALL", "CALL_KW", "CALL_FUNCTION_EX", "RESUME", "JUMP_BACKWARD")
"""Behind these instructions the interpreter looks for signals."""
TOKENS, FEW = 12, 4


class Interrupts:
    """Raises ``KeyboardInterrupt`` at the n-th place from where it begins.

    Args:
        start, end: names of functions before which places begin and end to count.

    Attributes:
        place: of the interrupt; None: there was no such place.
    """

    def __init__(self, nth, start=None, end=None):
        self._left, self._start, self._end, self._is_on, self._before = nth, start, end, False, {}
        self.place = None

    def begin(self):
        self._is_on = self._start is None
        sys.settrace(self)
        frame = sys._getframe()
        while frame is not None:
            if frame.f_code.co_filename.endswith(FILES):
                frame.f_trace, frame.f_trace_opcodes = self._trace, True
                # They are in the middle of a call.
                self._before[frame] = "CALL"
            frame = frame.f_back

    def __call__(self, frame, event, arg):
        code = frame.f_code
        if code.co_name in (self._start, self._end):
            self._is_on = code.co_name == self._start and self.place is None
        if not code.co_filename.endswith(FILES):
            return None
        frame.f_trace_opcodes = True
        return self._trace

    def _trace(self, frame, event, arg):
        if event == "opcode":
            # Of a function that begins the first one, ``RESUME``, may not be told.
            before, now = self._before.get(frame, "RESUME"), dis.opname[frame.f_code.co_code[frame.f_lasti]]
            self._before[frame] = now
            # A call that has raised something asks nobody.
            if self._is_on and before in ASKS and now != "PUSH_EXC_INFO":
                self._left -= 1
                if self._left < 0:
                    self._is_on = False
                    self.place = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
                    raise KeyboardInterrupt
        return self._trace


@contextmanager
def traced_again():
    """Give back what traces, such as a measurement of coverage."""
    before = sys.gettrace()
    try:
        yield
    finally:
        sys.settrace(before)


class InterruptedRunner:
    """Computes as another one, and is interrupted in a pass."""

    def __init__(self, runner, index, interrupts):
        self.runner, self.left, self.interrupts = runner, index, interrupts

    def forward_many(self, parts):
        self.left -= 1
        if self.left == -1:
            self.interrupts.begin()
            raise KeyboardInterrupt
        return self.runner.forward_many(parts)


class InterruptedDraft(Nearly):
    """Is interrupted in a pass."""

    def __init__(self, index, interrupts):
        super().__init__()
        self.left, self.interrupts = index, interrupts

    def forward(self, token_ids, start, num_logits, *, parents=None):
        self.left -= 1
        if self.left == -1:
            self.interrupts.begin()
            raise KeyboardInterrupt
        return super().forward(token_ids, start, num_logits, parents=parents)


def interrupted(nth, *, in_draft):
    """Interrupt an answer twice; return the place of the second one, or None, and what was wrong behind it."""
    # The step has ended then.
    interrupts = Interrupts(nth, end="cancel")
    target = InterruptedDraft(1, interrupts) if in_draft else Slow(0.002)
    source, model = drafting(beside=not in_draft, alone=ALONE, target=target)
    drafter, fake = drafter_of(source), FakeBatch(2)
    if not in_draft:
        fake.runner = InterruptedRunner(fake.runner, 1, interrupts)
    with traced_again(), pytest.raises(KeyboardInterrupt):
        fake.stream(PROMPT, drafter=drafter, max_tokens=TOKENS).result()
    found = []

    def goes_on():
        fake.batch.check()
        for prompt in (PROMPT, [1, 2]):
            stream = fake.stream(prompt, drafter=drafter, max_tokens=TOKENS)
            found.append(stream.result().token_ids)
        fake.batch.check()
        model.cache.check()

    # A thread, so that what waits for ever is seen.
    thread = threading.Thread(target=goes_on, daemon=True)
    thread.start()
    thread.join(60)
    return interrupts.place, found


@pytest.mark.parametrize("in_draft", [False, True], ids=["in the pass", "in the draft's pass"])
def test_a_second_interrupt_anywhere_leaves_everything_whole(in_draft):
    expected = [Run(prompt, max_tokens=TOKENS).result().token_ids for prompt in (PROMPT, [1, 2])]
    places = set()
    # A run beside may have ended or not, so that the exits have not always the same places.
    for nth in range(36):
        place, found = interrupted(nth, in_draft=in_draft)
        assert found == expected, place
        places.add((place or "").split(":")[0])
    assert {"", "Decoding.drop", "KVCache.end_pass", "StepTurns._give_back"} <= places, places


class CostlyGrammar:
    """Is fitted by any text, and turns out to be too costly before the fourth token."""

    is_whole, left = False, 3

    def begin(self, sampler, room):
        return ()

    def pruned(self, draft):
        self.left -= 1
        if self.left < 0:
            raise InvalidGrammar("The grammar is too costly.", "", "")
        return draft

    def accept(self, draft, outputs, sampler, room):
        return accept(draft, outputs.logits, sampler, ())


LONG = [token % 7 for token in range(0, 180, 5)]
"""A prompt with two whole blocks of rows and more, which whoever begins alike shares."""
TALKS = ((LONG, TOKENS), ([*LONG, 3], FEW), ([9] * 20, FEW))
"""Prompts, and tokens of their answers: of one that goes on, one that ends, and one that waits for its rows."""


def ended(nth, second, *, how):
    """Let one of two answers end, interrupted, and the turn behind it as well; return the places, and the texts."""
    # Without drafts, as how many there are depends on the time that passes take.
    fake = FakeBatch(3, rows=5 * ROW_BLOCK, draft_max=0)
    fake.stream(LONG[:20], max_tokens=FEW).result()  # whose rows rest
    (first, count), (ending, few), (last, _) = TALKS
    grammar = CostlyGrammar() if how == "failed" else None
    other, events = fake.stream(first, max_tokens=count), iter(fake.stream(ending, max_tokens=few, grammar=grammar))
    others = iter(other)
    for one in (others, events):
        next(one)
    waiting = fake.submit(last, max_tokens=few)
    fake.batch.step()
    assert waiting in fake.admission.waiting
    blocks = [set(cache.blocks) for cache in fake.caches[:2]]
    assert len(blocks[0] & blocks[1]) == 2, blocks
    # One that fails leaves before the others' pass runs.
    ends = (events.close,) if how == "cancelled" else (partial(list, events), "leave", "_pieces")
    places = []
    for left, (turn, *bounds) in ((nth, ends), (second, (fake.batch.check,))):
        interrupts = Interrupts(left, *bounds)
        with traced_again(), suppress(KeyboardInterrupt, InvalidGrammar):
            interrupts.begin()
            turn()
        places.append(interrupts.place)
    fake.batch.check()
    assert len(fake.admission.active) == 1, places
    fake.batch.step()
    assert waiting in fake.admission.active, places
    for _ in others:
        pass
    fake.compute_all()
    found = [other.result().token_ids, fake.stream(ending, max_tokens=few).result().token_ids]
    found.append(waiting.generation.settled().token_ids)
    fake.batch.check()
    assert not fake.admission.has_work, places
    return places, found


@pytest.mark.parametrize(("how", "each"), [("cancelled", 1), ("at its last token", 2), ("failed", 2)])
def test_interrupts_anywhere_where_an_answer_ends_leave_everything_whole(how, each):
    expected = [Run(prompt, max_tokens=count).result().token_ids for prompt, count in TALKS]
    places, nth, found = [set(), set()], 0, ""
    while found is not None:
        (found, second), texts = ended(nth, 7 * nth % 60, how=how)
        assert texts == expected, (found, second)
        for seen, place in zip(places, (found, second), strict=True):
            seen.add((place or "").split(":")[0])
        nth += each  # the way out is the same: every second place of the others is enough
    assert {"", "Admission.leave", "PooledCache.rest", "RowPool.keep", "RowPool.drop"} <= places[0], places
    assert {"Admission.mend", "RowPool.recount"} <= places[1], places


def admitted(nth, second):
    """Let one that waits begin before another, interrupted, and the turn behind it; return places and all answers."""
    fake = FakeBatch(3, rows=5 * ROW_BLOCK, draft_max=0)
    asked = [([5] * 20, TOKENS), ([9] * 50, FEW), ([3, 4], FEW)]
    under_way = fake.submit(asked[0][0], max_tokens=asked[0][1])
    fake.batch.step()
    # The first of the others has to wait for rows, so that the second one begins before it.
    tickets = [under_way, *(fake.submit(prompt, max_tokens=count) for prompt, count in asked[1:])]
    assert fake.admission.head is tickets[1]
    places = []
    for left, *bounds in ((nth, "_admit", "_pass"), (second, "_finish", "_admit")):
        interrupts = Interrupts(left, *bounds)
        with traced_again(), suppress(KeyboardInterrupt):
            interrupts.begin()
            fake.batch.step()
        places.append(interrupts.place)
    fake.batch.check()
    for _ in range(40):
        fake.batch.step()
    fake.batch.check()
    assert not fake.admission.has_work, places
    assert all(ticket.has_ended for ticket in tickets), places
    return places, [ticket.error or ticket.generation.settled().token_ids for ticket in tickets], asked


def test_interrupts_anywhere_where_an_answer_begins_lose_none():
    places, nth, found, hits = [set(), set()], 0, "", 0
    while found is not None:
        (found, second), answers, asked = admitted(nth, 5 * nth % 40)
        for number, (answer, (prompt, count)) in enumerate(zip(answers, asked, strict=True)):
            # What is half begun fails; others do not.
            is_hit = number == 2 and isinstance(answer, KeyboardInterrupt)
            hits += is_hit
            assert is_hit or answer == Run(prompt, max_tokens=count).result().token_ids, (number, found, second)
        for seen, place in zip(places, (found, second), strict=True):
            seen.add((place or "").split(":")[0])
        # What is between a queue and a slot is kept by the order of two lines; elsewhere every third place is enough.
        nth += 1 if (found or "").startswith("Admission") else 3
    assert {"Admission.next", "Admission._begin", "PooledCache.begin", "Generation.open"} <= places[0], places
    assert "Admission.mend" in places[1], places
    assert hits
