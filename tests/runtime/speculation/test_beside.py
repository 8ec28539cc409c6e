"""A second model that drafts beside passes: the same drafts and texts as behind them, and a cache that stays whole."""

from __future__ import annotations

import itertools
import random
import threading
import time
from contextlib import nullcontext

import numpy as np
import pytest

from edge_rt.errors import Cancelled, DeviceLost, InferenceError, MemoryBudgetExceeded
from edge_rt.runtime.decode.draft import Accepted, Draft
from edge_rt.runtime.forward.cancel import CancelToken
from edge_rt.runtime.forward.outputs import Outputs
from edge_rt.runtime.speculation.adaptive import AdaptiveDrafter
from edge_rt.runtime.speculation.beside import MOST_SHARE, Beside, added_ms, told_share
from edge_rt.runtime.speculation.core import DraftCore
from edge_rt.runtime.speculation.cost_model import RowCosts
from edge_rt.runtime.speculation.draft_model import DraftModel
from edge_rt.runtime.speculation.library import draft_library
from edge_rt.runtime.speculation.model_source import ChainCosts, ModelSource, Way
from edge_rt.runtime.speculation.source import MAX_CHAIN
from edge_rt.runtime.speculation.text_sources import NativeSuffixSource
from tests.helpers.fake_batch import FakeBatch
from tests.helpers.fake_model import VOCABULARY, FakeTarget, Run, fake_cache

LONG_MS = 1e4
ALONE = RowCosts((1,), (0,), ((4.0,),))
WHOLE = RowCosts((1, 16), (0,), ((20.0, 24.0),))
# Beside passes that cost so much nothing is long to wait for.
DEAR = RowCosts((1,), (0,), ((200.0,),))
PROMPT = [5, 6, 7]


class Slow(FakeTarget):
    """Takes a while for every pass, in which other threads may run."""

    def __init__(self, seconds=0.003, **options):
        super().__init__(**options)
        self.seconds = seconds

    def forward(self, token_ids, start, num_logits, *, parents=None):
        if self.seconds:
            time.sleep(self.seconds)
        return super().forward(token_ids, start, num_logits, parents=parents)


class Nearly(Slow):
    """Says something else than ``FakeTarget`` behind one of four texts."""

    @staticmethod
    def logits(history):
        found = FakeTarget.logits(history)
        return found if sum(history) % 4 else np.roll(found, 1)

    def __init__(self, seconds=0.0, **options):
        super().__init__(seconds, **options)


class Reusing(Nearly):
    """Overwrites its results in the next pass, as runners do."""

    def forward(self, token_ids, start, num_logits, *, parents=None):
        found = super().forward(token_ids, start, num_logits, parents=parents).top
        if not hasattr(self, "top"):
            self.top = found
        for old, new in zip(
            (self.top.ids, self.top.logits, self.top.log_sum_exp),
            (found.ids, found.logits, found.log_sum_exp),
            strict=True,
        ):
            old[:] = new
        return Outputs(np.zeros((1, VOCABULARY), np.float32), self.top)


def followed(cache=None, target=None):
    return DraftModel(target or Nearly(), cache or fake_cache(), known_tokens=VOCABULARY, stand_in=1, chunk=5)


class Awaited(Beside):
    """One that passes do not outrun, however busy the machine is: it has computed once, or has nothing to."""

    _passes = 0

    def begin(self, *guess, **options):
        self._passes = self.counts.passes
        super().begin(*guess, **options)

    def end(self):
        waited(lambda: self.counts.passes > self._passes or not is_drafting())
        super().end()


def is_drafting():
    return any(thread.name == "edge-rt drafts" for thread in threading.enumerate())


def drafting(*, beside, share=0.01, target=None, end_ids=(), alone=DEAR, kind=Beside):
    """Return a source, and the model that drafts in it, for which no time passes."""
    model = followed(target=target)
    planner = ChainCosts(WHOLE, ALONE, MAX_CHAIN, prior=0.6, hides=beside)
    helper = kind(model, alone, share, planner.value_of, end_ids=end_ids, clock=lambda: 0.0) if beside else None
    return ModelSource([Way(model, planner, helper)], end_ids=end_ids, beside="on" if beside else None), model


def drafter_of(*sources, chain=False):
    return AdaptiveDrafter(DraftCore(draft_library(), sources, chain=chain), WHOLE, None, max_nodes=16)


def likely(model, drafted):
    top = model.follow(drafted)
    return top.ids.tolist(), top.logits.tobytes(), top.log_sum_exp.tobytes()


def run_ahead(model, guess):
    while True:
        if (top := model.advance(guess, 5)) is not None:
            guess.append(int(top.ids[0, 0]))


def waited(is_so, seconds=60.0):
    """Wait until something is so."""
    until = time.perf_counter() + seconds
    while not is_so():
        assert time.perf_counter() < until
        time.sleep(1e-4)


class TestRows:
    """What ran ahead is what would have been computed, wherever the guess ends to be right."""

    @pytest.mark.parametrize("right", range(8))
    @pytest.mark.parametrize("ends", [False, True])
    def test_a_guess_dropped_at_every_place(self, right, ends):
        rng = random.Random(right)
        text = [rng.randrange(VOCABULARY) for _ in range(11)]
        ahead, behind = followed(target=Reusing()), followed()
        for model in (ahead, behind):
            model.begin(text)
        guess = [rng.randrange(VOCABULARY) for _ in range(3)]
        while ahead.advance(guess, 4) is None:
            pass
        for _ in range(4):
            guess.append(int(ahead.follow(guess).ids[0, 0]))
            assert ahead.advance(guess, 4) is not None
        wrong = [] if ends or right == len(guess) else [(guess[right] + 1) % VOCABULARY]
        known = [*guess[:right], *wrong]
        for model in (ahead, behind):
            model.extend(known)
        drafted = []
        for _ in range(MAX_CHAIN):
            for _ in range(2):
                assert likely(ahead, drafted) == likely(behind, drafted)
            drafted.append(int(behind.follow(drafted).ids[0, 0]))
            ahead.cache.check()
        assert ahead.cache.token_ids == behind.cache.token_ids

    def test_what_is_ready_is_not_computed_again(self):
        target = Nearly()
        model = followed(target=target)
        model.begin([1, 2, 3])
        guess = [4, 5]
        assert model.ready(guess) is None
        assert model.advance(guess, 2) is None
        assert model.advance(guess, 3) is not None
        computed = target.computed
        assert model.ready(guess) is not None
        assert model.advance(guess, 1) is not None
        model.extend([4])
        assert model.follow([5]) is model.ready([5])
        assert model.ready([]) is None
        assert model.ready([6]) is None
        assert target.computed == computed

    def test_another_text_forgets_it(self):
        model = followed()
        model.begin([1, 2, 3])
        model.advance([], 5)
        assert model.ready([]) is not None
        model.begin([1, 2, 3])
        assert model.ready([]) is None

    @pytest.mark.parametrize("stop_at", range(6))
    def test_a_stopped_pass_leaves_it_whole(self, stop_at):
        model, other = followed(target=Nearly(stop_at=stop_at)), followed()
        for one in (model, other):
            one.begin(list(range(12)))
        with pytest.raises(Cancelled):
            run_ahead(model, [3])
        model.cache.check()
        for one in (model, other):
            one.extend([3])
        assert likely(model, []) == likely(other, [])


class TestSource:
    def run(self, source, text, kept, *, waits):
        """Draft, verify beside, accept ``kept`` tokens of the chain and another one; return the chain."""
        chain = source.forest().token_ids[:: 1 + 3].tolist()
        before = source.beside_counts.passes
        source.pass_begins(Draft.chain(chain), LONG_MS)
        if waits:
            waited(lambda: source.beside_counts.passes > before + 2)
        source.pass_ends()
        emitted = [*chain[:kept], 1]
        source.observe(Draft.chain(chain), Accepted(tuple(emitted), tuple(range(min(kept, len(chain)))), 0), None, ())
        source.extend(emitted)
        text += emitted
        return chain

    def test_drafts_are_the_same(self):
        """Whatever is accepted, at every place; chains of what is ready may be longer, as they cost nothing."""
        (one, first), (other, second) = drafting(beside=True), drafting(beside=False)
        texts = [list(PROMPT), list(PROMPT)]
        for source, text in zip((one, other), texts, strict=True):
            source.begin(text)
        for kept in (0, 1, 2, 3, 4, 8, 0, 8, 1):
            chain = self.run(one, texts[0], kept, waits=True)
            # The other one is told the same.
            found = other.forest().token_ids[:: 1 + 3].tolist()
            assert chain[: len(found)] == found[: len(chain)]
            emitted = texts[0][len(texts[1]) :]
            other.observe(Draft(), Accepted(tuple(emitted), (), 0), None, ())
            other.extend(emitted)
            texts[1] += emitted
            first.cache.check()
        assert second.cache.length
        assert one.beside_counts.passes > 8
        assert other.beside_counts.passes == 0

    def test_a_right_guess_costs_no_pass(self):
        target = FakeTarget()
        source, model = drafting(beside=True, target=target)
        source.begin(PROMPT)
        chain = source.forest().token_ids[:: 1 + 3].tolist()
        source.pass_begins(Draft.chain(chain), LONG_MS)
        waited(lambda: source.beside_counts.passes >= 3)
        source.pass_ends()
        said = int(model.follow(chain).ids[0, 0])
        source.extend([*chain, said])
        computed = target.computed
        assert model.ready([]) is not None
        assert len(source.forest().token_ids)
        counts = source.beside_counts
        assert 2 <= counts.drafted <= counts.passes + 1
        assert counts.hidden_ms == pytest.approx(counts.drafted * 200.0)
        assert target.computed - computed <= MAX_CHAIN - counts.drafted + 1

    @pytest.mark.parametrize(
        ("draft", "ms", "share"),
        [(Draft.chain([49, 48]), LONG_MS, 0.01), (Draft(), 0.0, 0.01), (Draft(), LONG_MS, 1.0)],
        ids=["another path", "no time", "too dear"],
    )
    def test_nothing_runs_where_it_does_not_pay(self, draft, ms, share):
        source, _ = drafting(beside=True, share=share)
        source.begin(PROMPT)
        chain = source.forest().token_ids[:: 1 + 3].tolist()
        assert chain[0] != 49
        source.pass_begins(draft, ms)
        time.sleep(0.01)
        source.pass_ends()
        assert source.beside_counts.passes == 0

    def test_nothing_follows_the_end_of_an_answer(self):
        source, model = drafting(beside=True)
        source.begin(PROMPT)
        first = int(model.follow([]).ids[0, 0])
        source, _ = drafting(beside=True, end_ids=[first])
        source.begin(PROMPT)
        assert source.forest().token_ids[0] == first
        source.pass_begins(Draft.chain([first]), LONG_MS)
        source.pass_ends()
        assert source.beside_counts.passes == 0

    @pytest.mark.parametrize("fail_at", range(1, 7))
    def test_a_pass_that_fails_is_computed_again_by_whoever_needs_it(self, fail_at):
        target = Nearly(fail_at={fail_at: MemoryError("broken")})
        (source, model), (other, second) = drafting(beside=True, target=target), drafting(beside=False)
        failed = 0
        for one in (source, other):
            one.begin(PROMPT)
        for _ in range(4):
            try:
                source.forest()
            except MemoryError:
                failed += 1
                source.forest()
            source.pass_begins(Draft(), LONG_MS)
            waited(lambda: not is_drafting())
            source.pass_ends()
            model.cache.check()
            for one in (source, other):
                one.extend([7])
        assert likely(model, []) == likely(second, [])
        assert failed <= 1
        assert len(target.passes) > fail_at


SAMPLINGS = [
    {},
    {"temperature": 0.7, "seed": 2, "top_p": 0.9},
    {"temperature": 0.5, "seed": 3, "repetition_penalty": 1.1},
]


class TestAnswers:
    """On a target that takes milliseconds, as a device does."""

    @pytest.mark.parametrize("chain", [False, True], ids=["tree", "chain"])
    @pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled", "penalty"])
    @pytest.mark.parametrize("texts", [False, True], ids=["alone", "with texts"])
    def test_the_text_is_that_of_plain_decoding(self, sampling, chain, texts):
        plain = Run(PROMPT, max_tokens=60, **sampling).result()
        source, model = drafting(beside=True, alone=ALONE, kind=Beside if texts else Awaited)
        more = [NativeSuffixSource(draft_library())] if texts else []
        drafter = drafter_of(*more, source, chain=chain)
        result = Run(PROMPT, target=Slow(), drafter=drafter, max_tokens=60, **sampling).result()
        assert result.token_ids == plain.token_ids
        assert result.spec.beside == "on"
        assert texts or result.spec.beside_n > 0
        model.cache.check()

    def test_guesses_that_are_right_hide_drafting(self):
        source, _ = drafting(beside=True, alone=ALONE, target=FakeTarget(), kind=Awaited)
        result = Run(PROMPT, target=Slow(), drafter=drafter_of(source), max_tokens=80).result()
        assert result.token_ids == Run(PROMPT, max_tokens=80).result().token_ids
        assert result.spec.beside_drafted > 5
        assert result.spec.hidden_ms == pytest.approx(4.0 * result.spec.beside_drafted)

    @pytest.mark.parametrize("count", range(1, 8))
    def test_cancelled_in_the_middle(self, count):
        source, model = drafting(beside=True, alone=ALONE)
        drafter = drafter_of(source)
        cancel, seen = CancelToken(), itertools.count(1)

        def stop(event):
            if next(seen) == count:
                cancel.cancel()

        run = Run(PROMPT, target=Slow(), drafter=drafter, max_tokens=60, cancel=cancel)
        run.result(stop)
        assert not is_drafting()
        model.cache.check()
        again = Run(PROMPT, target=Slow(0.0), drafter=drafter, max_tokens=60).result()
        assert again.token_ids == Run(PROMPT, max_tokens=60).result().token_ids

    @pytest.mark.parametrize("fail_at", range(0, 12, 3))
    @pytest.mark.parametrize("kind", [Cancelled, RuntimeError])
    def test_a_device_that_fails(self, fail_at, kind):
        source, model = drafting(beside=True, alone=ALONE, target=Nearly(0.004))
        drafter = drafter_of(source)
        run = Run(PROMPT, target=Slow(fail_at={fail_at: kind("lost")}), drafter=drafter, max_tokens=60)
        with pytest.raises(RuntimeError, match="lost") if kind is RuntimeError else nullcontext():
            run.result()
        assert not is_drafting()
        run.cache.check()
        model.cache.check()
        again = Run(PROMPT, target=Slow(0.0), drafter=drafter, max_tokens=60).result()
        assert again.token_ids == Run(PROMPT, max_tokens=60).result().token_ids


class TimedPasses:
    """Passes of 20 ms, and of 4 ms of a model that drafts, in a time of their own: however busy the machine is."""

    def __init__(self, *, share_time):
        self._share_time, self._now, self._drafted, self._lock = share_time, 0.0, 0, threading.Lock()

    def clock(self):
        return self._now

    def verify(self):
        if is_drafting():
            before = self._drafted
            waited(lambda: self._drafted >= before + 4)
        self._take(0.02)

    def draft(self):
        time.sleep(1e-4)
        if self._share_time:
            self._take(0.004)
        self._drafted += 1

    def _take(self, seconds):
        with self._lock:
            self._now += seconds


class TestCosts:
    """What a pass adds to another one: a whole pass where both share the CPU, little beside a device."""

    def test_beside_a_device(self):
        passes = TimedPasses(share_time=False)
        ms, is_steady = added_ms(passes.verify, passes.draft, clock=passes.clock)
        assert ms < 0.01
        assert is_steady

    def test_on_one_cpu(self):
        passes = TimedPasses(share_time=True)
        ms, _ = added_ms(passes.verify, passes.draft, clock=passes.clock)
        # Those behind the other model's last pass count less than they took: nobody ends them at once.
        assert 1.7 < ms < 4.1

    def test_an_error_of_the_other_thread(self):
        def fails():
            raise Cancelled("stopped")

        with pytest.raises(Cancelled):
            added_ms(lambda: None, fails)

    def test_what_is_told(self):
        assert told_share(MOST_SHARE) == "on"
        assert (
            told_share(0.97) == "off: beside a pass on the device one of the second model adds 97 % of its time alone"
        )


class FailsBeside(Slow):
    """Fails in passes beside others, the first time."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def forward(self, token_ids, start, num_logits, *, parents=None):
        if self.error is not None and threading.current_thread().name == "edge-rt drafts":
            error, self.error = self.error, None
            raise error
        return super().forward(token_ids, start, num_logits, parents=parents)


class TestFaults:
    """What is met beside a pass."""

    @pytest.mark.parametrize("error", [AssertionError("two of them"), InferenceError("It fails."), KeyError(4)])
    @pytest.mark.parametrize("is_batch", [False, True])
    def test_what_nobody_expects_is_raised_by_the_step(self, error, is_batch):
        source, model = drafting(beside=True, alone=ALONE, target=FailsBeside(error), kind=Awaited)
        drafter = drafter_of(source)
        plain = Run(PROMPT, max_tokens=12).result().token_ids
        if is_batch:
            fake = FakeBatch(2)
            with pytest.raises(type(error)) as raised:
                fake.stream(PROMPT, drafter=drafter, max_tokens=12).result()
            fake.batch.check()
            again = fake.stream(PROMPT, drafter=drafter, max_tokens=12).result()
            fake.batch.check()
        else:
            run = Run(PROMPT, target=Slow(), drafter=drafter, max_tokens=12)
            with pytest.raises(type(error)) as raised:
                run.result()
            run.check()
            again = Run(PROMPT, target=Slow(), drafter=drafter, max_tokens=12).result()
        assert raised.value is error
        model.cache.check()
        assert again.token_ids == plain
        assert again.spec.beside_n > 0

    @pytest.mark.parametrize(
        "error", [Cancelled("Stopped."), MemoryError(), DeviceLost("It is lost."), MemoryBudgetExceeded("It is full.")]
    )
    def test_what_ends_passes_ends_the_guess_alone(self, error):
        target = FailsBeside(error)
        source, model = drafting(beside=True, alone=ALONE, target=target, kind=Awaited)
        result = Run(PROMPT, target=Slow(), drafter=drafter_of(source), max_tokens=12).result()
        assert target.error is None
        assert result.token_ids == Run(PROMPT, max_tokens=12).result().token_ids
        model.cache.check()

    def test_that_of_a_step_that_is_dropped_is_told_by_the_next(self):
        target = FailsBeside(AssertionError("two of them"))
        source, _ = drafting(beside=True, alone=DEAR, target=target)
        source.begin(PROMPT)
        source.pass_begins(Draft(), LONG_MS)
        waited(lambda: target.error is None)
        source.pass_ends(quietly=True)
        with pytest.raises(AssertionError, match="two of them"):
            source.forest()
        assert len(source.forest().token_ids)


def test_no_pass_begins_once_the_other_has_ended():
    target = Slow(0.02)
    model = followed(target=target)
    beside = Beside(model, DEAR, 0.01, lambda probability: 1.0)
    model.begin(PROMPT)
    for _ in range(3):
        beside.begin([1, 2, 3, 4, 5, 6], 1.0, 3, LONG_MS, pays=True)
        beside.end()
    assert beside.counts.passes <= 3


def test_where_waiting_costs_more_than_it_saves_it_rests():
    """A model whose passes take far longer than measured, beside passes that end at once."""
    target = Slow(0.02)
    model = followed(target=target)
    beside = Beside(model, ALONE, 0.01, lambda probability: probability)
    model.begin(PROMPT)
    passes = []
    for step in range(12):
        before = beside.counts.passes
        beside.begin([], 1.0, 3, LONG_MS, pays=True)
        waited(lambda: len(target.passes) or beside.counts.passes > 0)
        beside.end()
        model.extend([step])
        passes.append(beside.counts.passes - before)
    assert passes[0] > 0
    assert passes[-1] == 0
