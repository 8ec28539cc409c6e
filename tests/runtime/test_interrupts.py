"""Two interrupts of one pass: the second one comes at every place of the step's exit, and leaves everything whole."""

from __future__ import annotations

import dis
import sys
import threading
from contextlib import contextmanager

import pytest

from tests.helpers.fake_batch import FakeBatch
from tests.helpers.fake_model import Run
from tests.runtime.speculation.test_beside import ALONE, PROMPT, Nearly, Slow, drafter_of, drafting

FILES = (
    "batch.py",
    "step_turns.py",
    "loop.py",
    "kv_cache.py",
    "side_thread.py",
    "beside.py",
    "draft_model.py",
    "model_source.py",
)
ASKS = ("CALL", "CALL_KW", "CALL_FUNCTION_EX", "RESUME", "JUMP_BACKWARD")
"""Behind these instructions the interpreter looks for signals."""
TOKENS = 12


class Interrupts:
    """Raises ``KeyboardInterrupt`` twice: when it is asked to, and at the n-th place behind that.

    Attributes:
        place: of the second one; None: there was no such place.
    """

    def __init__(self, nth):
        self._left, self._is_on, self._before = nth, False, {}
        self.place = None

    def first(self):
        self._is_on = True
        sys.settrace(self)
        frame = sys._getframe()
        while frame is not None:
            if frame.f_code.co_filename.endswith(FILES):
                frame.f_trace, frame.f_trace_opcodes = self._trace, True
                # They are in the middle of a call.
                self._before[frame] = "CALL"
            frame = frame.f_back
        raise KeyboardInterrupt

    def __call__(self, frame, event, arg):
        code = frame.f_code
        if code.co_name == "cancel":
            # The step has ended.
            self._is_on = False
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
            self.interrupts.first()
        return self.runner.forward_many(parts)


class InterruptedDraft(Nearly):
    """Is interrupted in a pass."""

    def __init__(self, index, interrupts):
        super().__init__()
        self.left, self.interrupts = index, interrupts

    def forward(self, token_ids, start, num_logits, *, parents=None):
        self.left -= 1
        if self.left == -1:
            self.interrupts.first()
        return super().forward(token_ids, start, num_logits, parents=parents)


def interrupted(nth, *, in_draft):
    """Interrupt an answer twice; return the place of the second one, or None, and what was wrong behind it."""
    interrupts = Interrupts(nth)
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
    thread.join(20)
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
