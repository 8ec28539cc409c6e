"""The adaptive drafter on a clock of its own: as much as pays, nothing where nothing pays, and always the same text."""

from __future__ import annotations

import functools
import random
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from edge_rt.runtime.decode.draft import ROOT, Accepted, Draft
from edge_rt.runtime.decode.sequence import Sequence
from edge_rt.runtime.forward.outputs import Outputs
from edge_rt.runtime.speculation.adaptive import BLOCK_STEPS, AdaptiveDrafter
from edge_rt.runtime.speculation.arms import DiscountedUCB
from edge_rt.runtime.speculation.core import DraftCore
from edge_rt.runtime.speculation.cost_model import RowCosts
from edge_rt.runtime.speculation.library import draft_library
from edge_rt.runtime.speculation.ngram import NgramSource
from edge_rt.runtime.speculation.text_sources import NativeRecyclingSource, NativeReferenceSource, NativeSuffixSource
from tests.helpers.examples import share_of
from tests.helpers.fake_model import VOCABULARY, FakeTarget, Run, fake_cache
from tests.helpers.fake_sources import Clock, OracleSource, RandomSource, TimedTarget, linear_costs
from tests.helpers.pairs import all_pairs, with_slow

PROMPT = [5, 6, 7]
COSTS = linear_costs()


def suffix():
    return NativeSuffixSource(draft_library())


def recycling():
    return NativeRecyclingSource(draft_library())


def reference(text):
    return NativeReferenceSource(draft_library(), text)


def always(position):
    return True


def never(position):
    return False


class RepeatingTarget(TimedTarget):
    """Looks at the last two tokens only, so that its texts repeat themselves; notes whether passes were trees."""

    trees = 0

    def forward(self, token_ids, start, num_logits, *, parents=None):
        self.trees += parents is not None
        return super().forward(token_ids, start, num_logits, parents=parents)

    @staticmethod
    def logits(history):
        return FakeTarget.logits(history[-2:])


@functools.cache
def plain_answer(target, costs, options):
    """Return the tokens of plain decoding, and the seconds that it takes on a clock of its own."""
    clock = Clock()
    run = Run(PROMPT, target=target(clock, costs), cache=fake_cache(4096), drafter=None, **dict(options))
    return run.result().token_ids, clock.now


class Trial:
    """An answer, plain and drafted, on a clock that passes and drafting move on.

    Attributes:
        plain_ms, ms: virtual time of both.
        answer: tokens of plain decoding.
        steps: the trace.
    """

    def __init__(self, make_sources, *, costs=COSTS, measured=None, bandit=True, max_nodes=23, target=TimedTarget,
                 chain=False, **options):  # fmt: skip
        options = {"max_tokens": 400} | options
        self.clock = Clock()
        self._costs, self._target, self._options = costs, target, options
        self.answer, self.clock.now = plain_answer(target, costs, tuple(options.items()))
        self.plain_ms = 1e3 * self.clock.now
        self.steps = []
        self.sources = make_sources([*PROMPT, *self.answer], self.clock)
        self.drafter = AdaptiveDrafter(
            DraftCore(draft_library(), self.sources, chain=chain),
            measured or costs,
            DiscountedUCB((0.8, 1.0)) if bandit else None,
            max_nodes=max_nodes,
            trace=self.steps.append,
            clock=self.clock,
        )
        self.again()

    def again(self):
        """Answer once more, with what was learned."""
        self.steps.clear()
        started = self.clock.now
        self.used = self._target(self.clock, self._costs)
        run = Run(PROMPT, target=self.used, cache=fake_cache(4096), drafter=self.drafter, **self._options)
        result = run.result()
        self.ms = 1e3 * (self.clock.now - started)
        assert result.token_ids == self.answer
        self.spec = result.spec
        return self

    @property
    def drafted(self):
        return [step["drafted"] for step in self.steps]


REAL = {
    "suffix": lambda text: [suffix()],
    "ngram": lambda text: [NgramSource()],
    "recycling": lambda text: [recycling()],
    "reference": lambda text: [reference(text[20:80] + text[10:30] + text[90:])],
    "auto": lambda text: [suffix(), recycling()],
    "auto and reference": lambda text: [
        suffix(),
        recycling(),
        reference(text[30:100]),
    ],
    "noise": lambda text: [RandomSource(seed, tokens=VOCABULARY, silent=0.0) for seed in range(3)],
}


SAMPLING = {
    "greedy": {},
    "cold": {"temperature": 0.4, "seed": 1},
    "warm": {"temperature": 0.8, "seed": 2, "top_p": 0.9},
    "penalty": {"temperature": 0.5, "seed": 3, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.1},
}
SAME = (REAL, SAMPLING, ("tree", "chain"))


class TestSameText:
    @pytest.mark.parametrize(("mode", "sampling", "form"), with_slow(product(*SAME), all_pairs(*SAME)))
    def test_of_every_source(self, mode, sampling, form):
        chain = form == "chain"
        trial = Trial(
            lambda text, clock: REAL[mode](text), target=RepeatingTarget, max_tokens=150, chain=chain,
            costs=linear_costs(4.0, 0.1), **SAMPLING[sampling],
        )  # fmt: skip
        assert trial.spec.rows_drafted > 0
        if mode != "noise":
            assert trial.spec.draft_n_accepted > 0
        if chain:
            assert trial.used.trees == 0
        trial.again()

    @settings(max_examples=share_of(40))
    @given(
        pattern=st.lists(st.booleans(), min_size=1, max_size=12),
        other=st.lists(st.booleans(), min_size=1, max_size=12),
        seed=st.integers(0, 99),
        temperature=st.sampled_from([0.0, 0.7, 1.5]),
        bandit=st.booleans(),
        max_nodes=st.integers(1, 40),
    )
    def test_whatever_sources_know(self, pattern, other, seed, temperature, bandit, max_nodes):
        trial = Trial(
            lambda text, clock: [
                OracleSource(text, lambda at: pattern[at % len(pattern)], name="one"),
                OracleSource(text, lambda at: other[at % len(other)], name="other"),
            ],
            max_tokens=60, seed=seed, temperature=temperature, bandit=bandit, max_nodes=max_nodes,
        )  # fmt: skip
        assert max(trial.drafted) <= max_nodes

    def test_with_any_bandit(self):
        trial = Trial(
            lambda text, clock: [suffix(), recycling()],
            target=RepeatingTarget,
        )
        clock = Clock()
        core = DraftCore(draft_library(), trial.sources)
        drafter = AdaptiveDrafter(core, COSTS, DiscountedUCB((0.8, 1.0)), max_nodes=8, clock=clock)
        run = Run(PROMPT, target=RepeatingTarget(clock, COSTS), cache=fake_cache(4096), drafter=drafter, max_tokens=400)
        assert run.result().token_ids == trial.answer


def liars(count=1, *, kinds=1, ms=0.02):
    return lambda text, clock: [
        OracleSource(
            text,
            never,
            name=f"liar{index}",
            priors=(0.5,) * kinds,
            kind=lambda at: at % kinds,
            lie=1 + index,
            clock=clock,
            ms=ms,
        )
        for index in range(count)
    ]


class TestLiars:
    @pytest.mark.parametrize(
        ("count", "kinds", "bandit"), [(1, 1, False), (1, 8, False), (1, 8, True), (2, 1, True), (3, 4, True)]
    )
    def test_they_are_left_alone_at_little_cost(self, count, kinds, bandit):
        trial = Trial(liars(count, kinds=kinds), bandit=bandit)
        assert trial.ms < 1.04 * trial.plain_ms
        assert sum(trial.drafted[10 * BLOCK_STEPS :]) < 0.15 * len(trial.drafted)
        assert sum(trial.drafted[25 * BLOCK_STEPS :]) < 0.05 * len(trial.drafted)
        assert trial.spec.choices["off"] > 0.75 * trial.spec.steps
        assert trial.spec.acceptance == 0

    def test_in_the_next_answer_they_are_known(self):
        trial = Trial(liars(2, kinds=4), max_tokens=200)
        first = sum(trial.drafted)
        assert sum(trial.again().drafted) < 0.5 * first
        assert trial.ms < 1.02 * trial.plain_ms

    @pytest.mark.parametrize("first", [0.5, 4.0, 60.0])
    def test_on_machines_of_any_speed(self, first):
        trial = Trial(liars(2, ms=0.005 * first), costs=linear_costs(first, 0.1 * first))
        assert trial.ms < 1.04 * trial.plain_ms

    def test_drafting_that_takes_longer_than_it_saves_ends(self):
        """The guesses are right, but take longer than the passes that they save."""
        slow = Trial(
            lambda text, clock: [OracleSource(text, always, clock=clock, ms=6.0)], costs=linear_costs(4.0, 3.9)
        )
        assert slow.ms < 1.3 * slow.plain_ms
        assert {step["arm"] for step in slow.steps[-BLOCK_STEPS:]} == {"off"}


class TestTheRight:
    @pytest.mark.parametrize("bandit", [False, True])
    def test_they_draft_much(self, bandit):
        trial = Trial(lambda text, clock: [OracleSource(text, always, clock=clock, ms=0.02)], bandit=bandit)
        assert trial.spec.tokens_per_step > 15
        assert trial.ms < 0.2 * trial.plain_ms
        assert trial.spec.acceptance == 1
        assert min(trial.drafted[10:-1]) == 23

    def test_a_liar_beside_them_does_no_harm(self):
        alone = Trial(lambda text, clock: [OracleSource(text, always)])
        beside = Trial(lambda text, clock: [OracleSource(text, never, name="liar"), OracleSource(text, always)])
        assert beside.ms < 1.1 * alone.ms

    def test_two_that_are_right_by_turns_are_worth_their_price(self):
        """Both are asked at a price; one is right half as often."""
        trial = Trial(
            lambda text, clock: [
                OracleSource(text, lambda at: at % 2 > 0, name="half", clock=clock, ms=0.3),
                OracleSource(text, lambda at: at % 8 > 0, name="good", clock=clock, ms=0.3),
            ],
            max_tokens=1500,
        )
        assert trial.ms < 0.75 * trial.plain_ms

    def test_never_more_than_asked_for(self):
        trial = Trial(lambda text, clock: [OracleSource(text, always)], max_nodes=5)
        assert set(trial.drafted[:-1]) <= set(range(6))
        assert max(trial.drafted) == 5

    @pytest.mark.parametrize("limit", [0, 1, 4, 9])
    def test_never_more_than_there_is_room_for(self, limit):
        source = OracleSource(range(40), always, priors=(0.95,))
        drafter = AdaptiveDrafter(DraftCore(draft_library(), [source]), linear_costs(4.0, 0.01), None, max_nodes=8)
        sequence = Sequence([0, 1], capacity=100, max_tokens=None, end_ids=())
        drafter.begin(sequence)
        sequence.append([2])
        drafter.observe(Draft(), Accepted((2,), (), 0), Outputs(np.zeros((1, 1))))
        assert drafter.propose(sequence, limit) == Draft.chain(range(3, 3 + min(limit, 8)))

    def test_the_last_rows_of_an_answer_are_not_exceeded(self):
        for count in range(1, 30):
            trial = Trial(lambda text, clock: [OracleSource(text, always)], max_tokens=count)
            assert len(trial.answer) == count


class TestCosts:
    def test_drafts_end_where_rows_become_dear(self):
        costs = RowCosts((1, 8, 9, 24), (0,), ((4.0, 4.2, 40.0, 41.0),))
        trial = Trial(lambda text, clock: [OracleSource(text, always)], costs=costs)
        assert set(trial.drafted[2:-1]) == {7}

    def test_where_a_row_costs_a_pass_nothing_is_drafted(self):
        trial = Trial(lambda text, clock: [OracleSource(text, always)], costs=linear_costs(4.0, 4.0))
        # But for one guess now and then, to see whether it still does not pay.
        assert sum(trial.drafted) <= len(trial.drafted) / 64
        assert trial.ms == pytest.approx(trial.plain_ms, rel=0.02)

    def test_costs_of_the_depth_reached_count(self):
        costs = RowCosts((1, 24), (0, 300), ((4.0, 4.1), (4.0, 4.0 * 24)))
        trial = Trial(lambda text, clock: [OracleSource(text, always)], costs=costs, max_tokens=1000)
        sizes = [(step["position"], step["drafted"]) for step in trial.steps]
        assert all(size == 23 for position, size in sizes if 30 < position < 100)
        assert all(size <= 1 for position, size in sizes if position > 600)
        assert sum(size for position, size in sizes if position > 600) <= 8
        assert sizes[-1][0] > 600

    @pytest.mark.parametrize("factor", [0.3, 4.0])
    def test_a_machine_of_another_speed_than_measured_drafts_alike(self, factor):
        """All passes slowed alike change no choice: ratios count."""
        measured = linear_costs()
        other = linear_costs(4.0 * factor, 0.4 * factor)
        trial = Trial(
            lambda text, clock: [OracleSource(text, always, clock=clock, ms=0.02)], costs=other, measured=measured
        )
        assert min(trial.drafted[10:-1]) == 23
        assert trial.ms < 0.25 * trial.plain_ms


class TestChange:
    def test_a_source_that_becomes_right_beside_another_is_used(self):
        trial = Trial(
            lambda text, clock: [
                OracleSource(text, lambda at: at > 400, name="late"),
                OracleSource(text, lambda at: at > 400 and at % 3 > 0, name="later"),
            ],
            max_tokens=1500,
        )
        sizes = [(step["position"], step["drafted"]) for step in trial.steps]
        assert sum(size for position, size in sizes if 100 < position < 400) < 30
        assert min(size for position, size in sizes[:-2] if position > 1000) > 10
        assert trial.ms < 0.6 * trial.plain_ms

    def test_a_source_that_ceases_to_be_right_is_left_alone(self):
        trial = Trial(lambda text, clock: [OracleSource(text, lambda at: at < 400)], max_tokens=1500)
        sizes = [(step["position"], step["drafted"]) for step in trial.steps]
        assert max(size for position, size in sizes if 100 < position < 370) == 23
        assert sum(size for position, size in sizes if position > 900) < 30


class TestRest:
    def test_where_nothing_is_right_sources_mostly_rest(self):
        trial = Trial(liars(2), bandit=False, max_tokens=1000)
        assert trial.ms < 1.02 * trial.plain_ms
        assert {len(source.observed) < 0.5 * trial.spec.steps for source in trial.sources} == {True}
        assert sum(trial.spec.choices.values()) == len(trial.steps) == trial.spec.steps

    def test_text_that_becomes_foreseeable_is_noticed(self):
        trial = Trial(lambda text, clock: [OracleSource(text, lambda at: at > 400)], bandit=False, max_tokens=1500)
        sizes = [(step["position"], step["drafted"]) for step in trial.steps]
        assert len(trial.sources[0].observed) < len(sizes)
        assert sum(size for position, size in sizes if 100 < position < 400) < 10
        assert min(size for position, size in sizes[:-2] if position > 1000) > 10
        assert trial.sources[0].known == [*PROMPT, *trial.answer]


class TestBookkeeping:
    @pytest.fixture(params=["oracles", "real"])
    def trial(self, request):
        if request.param == "real":
            return Trial(
                lambda text, clock: [suffix(), recycling()],
                target=RepeatingTarget,
            )
        return Trial(
            lambda text, clock: [
                OracleSource(text, lambda at: at % 5 > 0, name="one", clock=clock, ms=0.05),
                OracleSource(text, lambda at: at % 7 > 2, name="other", clock=clock, ms=0.05),
            ]
        )

    def test_statistics_add_up(self, trial):
        spec, steps = trial.spec, trial.steps
        assert spec.steps == len(steps) == sum(spec.choices.values())
        assert 1 + spec.steps * spec.tokens_per_step == pytest.approx(len(trial.answer))
        assert spec.rows_drafted == sum(trial.drafted) >= spec.draft_n >= spec.draft_n_accepted > 0
        assert spec.acceptance == pytest.approx(spec.draft_n_accepted / spec.draft_n)
        assert spec.draft_n_accepted == sum(step["emitted"] - 1 for step in steps)
        assert sum(spec.accepted_per_position) * spec.steps == pytest.approx(spec.draft_n_accepted)
        assert all(first >= second for first, second in pairwise(spec.accepted_per_position))
        assert spec.choices.get("off", 0) == trial.drafted.count(0)
        assert spec.memory_bytes == sum(source.memory_bytes for source in trial.sources) > 0
        assert spec.mode == "off"  # what the run was told

    def test_times_add_up(self, trial):
        spec, steps = trial.spec, trial.steps
        assert spec.verifying_ms == pytest.approx(sum(step["verifying_ms"] for step in steps))
        assert spec.drafting_ms == pytest.approx(sum(step["drafting_ms"] for step in steps))
        prompt_ms = trial._costs.curve(0, 3)[-1]
        assert spec.drafting_ms + spec.verifying_ms + prompt_ms == pytest.approx(trial.ms)
        assert spec.drafting_share == pytest.approx(spec.drafting_ms / (spec.drafting_ms + spec.verifying_ms))

    def test_the_trace_tells_every_step(self, trial):
        names = {arm.name for arm in trial.drafter.arms}
        position = len(PROMPT) + 1
        for step in trial.steps:
            assert step["position"] == position
            assert step["arm"] in names
            assert 1 <= step["expected"] <= 1 + step["drafted"]
            assert 1 <= step["emitted"] <= 1 + step["drafted"]
            position += step["emitted"]
        assert position == len(PROMPT) + len(trial.answer)

    def test_statistics_are_of_one_answer(self, trial):
        before = trial.spec
        after = trial.again().spec
        assert 1 + after.steps * after.tokens_per_step == pytest.approx(len(trial.answer))
        assert after.steps < before.steps + 20
        assert trial.drafter.counter.steps == after.steps

    def test_what_was_expected_comes_true(self):
        trial = Trial(
            lambda text, clock: [OracleSource(text, lambda at: random.Random(at).random() < 0.7)], max_tokens=1500
        )
        later = trial.steps[len(trial.steps) // 3 :]
        expected = sum(step["expected"] for step in later) / len(later)
        assert expected == pytest.approx(sum(step["emitted"] for step in later) / len(later), rel=0.1)


class TestSources:
    def test_they_are_told_every_step(self):
        trial = Trial(lambda text, clock: [OracleSource(text, lambda at: at % 3 > 0)], max_tokens=60)
        (source,) = trial.sources
        text = [*PROMPT, *trial.answer]
        assert source.begun == [tuple(PROMPT)]
        assert source.known == text
        assert len(source.observed) == trial.spec.steps + 1
        known = len(PROMPT)
        for draft, accepted, before, context in source.observed:
            # They are told before they take the tokens in.
            assert list(before) == text[:known]
            assert list(context) == text[max(0, known - 4) : known]
            assert all(draft.parents[node] in (ROOT, *accepted.path) for node in accepted.path)
            known += len(accepted.token_ids)
        assert known == len(text)

    def test_nothing_is_drafted_with_the_prompt(self):
        trial = Trial(lambda text, clock: [OracleSource(text, always)], max_tokens=40)
        assert trial.used.passes[0][1:] == (tuple(PROMPT), 1)
        assert len(trial.used.passes[1][1]) > 1

    def test_those_not_chosen_keep_up(self):
        trial = Trial(liars(2, ms=2.0))
        assert {step["arm"] for step in trial.steps} == {"off", "fusion"}
        assert all(source.known == [*PROMPT, *trial.answer] for source in trial.sources)
        assert {len(source.observed) for source in trial.sources} == {trial.spec.steps + 1}

    @pytest.mark.parametrize("make", [suffix, NgramSource])
    def test_an_answer_given_again_is_drafted_from_the_first(self, make):
        trial = Trial(lambda text, clock: [make()], max_tokens=150)
        first = trial.spec.tokens_per_step
        second = trial.again().spec.tokens_per_step
        assert second > 3 > 1.5 > first

    def test_a_conversation_goes_on(self):
        """The next prompt begins with all that was said; sources get it whole, and see what is new."""
        source = suffix()
        drafter = AdaptiveDrafter(DraftCore(draft_library(), [source]), COSTS, None, max_nodes=8)
        first = Run(PROMPT, drafter=drafter, max_tokens=40).result()
        prompt = [*PROMPT, *first.token_ids, 9, 9, *first.token_ids[:20]]
        drafted = Run(prompt, drafter=drafter, max_tokens=20).result()
        assert drafted.token_ids == Run(prompt, max_tokens=20).result().token_ids
        fresh = suffix()
        fresh.begin([*prompt, *drafted.token_ids])
        assert source.memory_bytes < 1.05 * fresh.memory_bytes
        assert source.root() == fresh.root()
