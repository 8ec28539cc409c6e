"""The decode loop with drawn drafts and the ratio rule: the state is whole, the text is distributed as plain's."""

from __future__ import annotations

import itertools
import time
import zlib
from collections import Counter
from contextlib import nullcontext
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from edge_rt.errors import ConfigError
from edge_rt.memory.fallbacks import DEFAULT_DRAFT
from edge_rt.package.spec_modes import SHOWN_MODES, Drafts
from edge_rt.runtime.config import GenerationConfig
from edge_rt.runtime.decode.accept_ratio import Proposal, accept_ratio
from edge_rt.runtime.decode.draft import NullDrafter
from edge_rt.runtime.decode.sampling import Sampler
from edge_rt.runtime.generation import Generation, Held
from edge_rt.runtime.speculation.cost_model import RowCosts
from edge_rt.runtime.speculation.library import draft_library
from edge_rt.runtime.speculation.sampled import SampledDrafter, SlotRates
from edge_rt.runtime.speculation.speculation import Speculation
from tests.helpers.examples import share_of
from tests.helpers.fake_model import VOCABULARY, FakeTarget, Run, fake_cache
from tests.helpers.models import load_package
from tests.reference.recycling import RecyclingSource

TOKENS = 5
PROMPT = [3, 1, 2]
CHEAP = RowCosts((1, 24), (0,), ((1.0, 1.5),))
"""Passes whose rows cost next to nothing, so that drafts are large."""


@cache
def logits_behind(*last):
    near, far = (
        np.random.default_rng(zlib.crc32(np.asarray(part, np.int64).tobytes())).standard_normal(TOKENS)
        for part in (last[-1:], last)
    )
    return (1.2 * near + 0.7 * far).astype(np.float32)


class RepeatingTarget(FakeTarget):
    """Few tokens; what follows depends on the last two, mostly on the last one: contexts come again, and mislead."""

    @staticmethod
    def logits(history):
        row = np.full(VOCABULARY, -np.inf, np.float32)
        row[:TOKENS] = logits_behind(*history[-2:])
        return row


class RatioRun(Run):
    """A run whose drafts are drawn, from a source or as the drafters ``of`` a model do, and accepted by ratio.

    Attributes:
        drafter: its drafter.
    """

    def __init__(self, prompt, *, source=None, rates=None, chain=False, rule=None, trace=None, of=None, **options):
        options = {"target": RepeatingTarget()} | options
        super().__init__(prompt, **options)
        names = {"target", "cache", "chunk", "end_ids", "cancel"}
        config = GenerationConfig(**{name: value for name, value in options.items() if name not in names})
        if of is None:
            self.drafter = SampledDrafter(
                source, rates, CHEAP, library=draft_library(),
                temperature=config.temperature, seed=config.seed, max_nodes=12, chain=chain,
                trace=trace,
            )  # fmt: skip
        else:
            self.drafter = of.sampled_drafter(config.temperature, config.seed)
        held = Held(self.target, self.drafter, self.drafter.accept if rule is None else rule(self.drafter))
        self._generation = Generation(
            self.sequence, lambda _: nullcontext(held), self.cache, Sampler(config, VOCABULARY, prompt), self.text,
            chunk=8, called=time.perf_counter(),
        )  # fmt: skip


def taught(tokens=200, *, max_order=3, **options):
    """Return a source that has seen an answer, and what became of drafts meanwhile."""
    source, rates = RecyclingSource(max_order=max_order), SlotRates()
    options = {"temperature": 1.0, "seed": 9, "max_tokens": tokens} | options
    RatioRun(PROMPT, source=source, rates=rates, **options).result()
    return source, rates


OPTIONS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.4, 1.0, 1.6]),
        "top_p": st.sampled_from([1.0, 0.7]),
        "top_k": st.sampled_from([0, 3]),
        "repetition_penalty": st.sampled_from([1.0, 1.3]),
        "frequency_penalty": st.sampled_from([0.0, 0.2]),
        "seed": st.integers(0, 999),
    }
)


class TestState:
    """``Run`` compares sequence, cache and rows after every step."""

    @settings(max_examples=share_of(40))
    @given(options=OPTIONS, max_tokens=st.integers(1, 60), chain=st.booleans())
    def test_whole_after_every_step_and_no_token_too_many(self, options, max_tokens, chain):
        source, rates = taught(60)
        run = RatioRun(PROMPT, source=source, rates=rates, chain=chain, max_tokens=max_tokens, **options)
        result = run.result()
        assert (len(result.token_ids), result.finish_reason) == (max_tokens, "length")

    @settings(max_examples=share_of(20))
    @given(options=OPTIONS, capacity=st.integers(4, 40))
    def test_full_contexts(self, options, capacity):
        source, rates = taught(60)
        run = RatioRun(PROMPT, cache=fake_cache(capacity), source=source, rates=rates, **options)
        result = run.result()
        assert (result.usage.total_tokens, result.finish_reason) == (capacity, "context_full")

    @settings(max_examples=share_of(30))
    @given(options=OPTIONS, end=st.integers(0, 4))
    def test_nothing_follows_an_end_token(self, options, end):
        source, rates = taught(60)
        run = RatioRun(PROMPT, source=source, rates=rates, max_tokens=60, end_ids=(end,), **options)
        answer = run.result().token_ids
        assert end not in answer[:-1]
        assert answer[-1] == end or len(answer) == 60

    @settings(max_examples=share_of(30))
    @given(options=OPTIONS, stop=st.text("ABCDE", min_size=1, max_size=3))
    def test_stop_texts(self, options, stop):
        source, rates = taught(60)
        run = RatioRun(PROMPT, source=source, rates=rates, max_tokens=60, stop=(stop,), **options)
        result = run.result()
        letters = "".join(chr(ord("A") + token) for token in result.token_ids)
        assert letters.find(stop) == (len(letters) - len(stop) if result.stop_string else -1)
        assert stop not in result.text
        assert run.cache.token_ids == (*PROMPT, *result.token_ids[:-1])

    def test_a_chat_goes_on(self):
        source, rates = taught()
        target, cache, prompt = RepeatingTarget(), fake_cache(), list(PROMPT)
        for turn in range(3):
            options = {"temperature": 1.0, "seed": turn, "max_tokens": 20}
            run = RatioRun(prompt, target=target, cache=cache, source=source, rates=rates, **options)
            result = run.result()
            assert result.usage.cached_tokens == (len(prompt) - 3 if turn else 0)
            prompt += [*result.token_ids, 4, 4]

    def test_it_saves_passes_and_counts_them(self):
        source, rates = taught()
        seen = []
        run = RatioRun(
            PROMPT, source=source, rates=rates, trace=seen.append, temperature=1.0, seed=1,
            max_tokens=100,
        )  # fmt: skip
        spec = run.result().spec
        assert spec.steps == len(run.target.passes) - 1 == len(seen) < 60
        assert spec.draft_n_accepted == 99 - spec.steps == sum(step["emitted"] - 1 for step in seen)
        assert spec.rows_drafted == sum(step["drafted"] for step in seen) >= spec.draft_n
        assert spec.choices["recycling"] == sum(step["drafted"] > 0 for step in seen)

    def test_trees_are_drawn_and_their_second_siblings_stay(self):
        source, rates = taught()
        run = RatioRun(PROMPT, source=source, rates=rates, temperature=1.0, seed=1, max_tokens=100)
        run.result()
        order = run.cache._row_map[: run.cache.length].tolist()
        assert any(before > after for before, after in itertools.pairwise(order)), "no branch was ever taken"

    def test_chains_have_no_siblings(self):
        source, rates = taught()
        proposed = []

        def watched(drafter):
            def rule(draft, logits, sampler, end_ids):
                proposed.append(draft)
                return drafter.accept(draft, logits, sampler, end_ids)

            return rule

        options = {"temperature": 1.0, "seed": 1, "max_tokens": 60}
        RatioRun(PROMPT, source=source, rates=rates, chain=True, rule=watched, **options).result()
        assert all(draft.is_chain for draft in proposed)
        assert max(len(draft) for draft in proposed) > 1

    def test_the_same_seed_the_same_text(self):
        def text(seed):
            source, rates = taught()
            options = {"temperature": 1.0, "seed": seed, "max_tokens": 40}
            return RatioRun(PROMPT, source=source, rates=rates, **options).result().token_ids

        assert text(5) == text(5) != text(6)


def law_of(options, length):
    """Return the probability of every answer of plain decoding."""
    law = {}
    for answer in itertools.product(range(TOKENS), repeat=length):
        sampler, history, probability = Sampler(GenerationConfig(**options), VOCABULARY, PROMPT), list(PROMPT), 1.0
        for token in answer:
            ids, chances = sampler.distribution(RepeatingTarget.logits(history))
            probability *= dict(zip(ids.tolist(), chances.tolist(), strict=True)).get(token, 0.0)
            sampler.observe(token)
            history.append(token)
        if probability:
            law[answer] = probability
    return law


def deviation(found, law):
    """Return chi-square in standard deviations; answers expected less than 5 times count as one."""
    count = found.total()
    assert set(found) <= set(law), "an answer that plain decoding never gives"
    cells = Counter()
    for answer, probability in law.items():
        cells[answer if count * probability >= 5 else None] += probability
    seen = Counter()
    for answer, number in found.items():
        seen[answer if count * law[answer] >= 5 else None] += number
    square = sum((seen[cell] - count * p) ** 2 / (count * p) for cell, p in cells.items())
    freedom = len(cells) - 1
    return (square - freedom) / (2 * freedom) ** 0.5


class FixedRates(SlotRates):
    """Believes in ranks, whatever happens: drafts have one shape."""

    def __init__(self, *by_rank):
        super().__init__()
        self._by_rank = by_rank

    def rate(self, sure, depth, rank):
        return self._by_rank[rank]

    def learn(self, sure, place, hit):
        pass


class TestTheLaw:
    """Beginnings of answers over many seeds, through the loop that users run."""

    LENGTH = 4
    COUNT = 700
    OPTIONS = (
        {"temperature": 1.0, "top_p": 1.0},
        {"temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.3},
        {"temperature": 1.4, "top_k": 4, "top_p": 1.0, "frequency_penalty": 0.5},
    )

    def answers(self, options, *, rates=None, **more):
        """Return how often each beginning came, and of which ranks the drafted tokens were that stayed."""
        # Contexts of one token are wrong about a model that looks at two.
        source, learned = taught(max_order=1, **options)
        found, ranks = Counter(), Counter()

        def watched(drafter):
            def rule(draft, *others):
                accepted = drafter.accept(draft, *others)
                ranks.update(draft.parents[:node].count(draft.parents[node]) for node in accepted.path)
                return accepted

            return rule

        more = {"rule": watched} | more
        for seed in range(self.COUNT):
            run = RatioRun(
                PROMPT, source=source, rates=rates or learned, seed=seed, max_tokens=self.LENGTH + 2, **options, **more
            )
            found[run.result().token_ids[: self.LENGTH]] += 1
        return found, ranks

    @pytest.mark.parametrize(
        ("options", "chain", "rates"),
        [
            (OPTIONS[0], True, None),
            (OPTIONS[1], False, None),
            #        +-- A --+-- C
            # root --+-- B   +-- E
            #        +-- D
            (OPTIONS[0], False, FixedRates(0.45, 0.3, 0.15)),
            (OPTIONS[2], False, FixedRates(0.45, 0.3, 0.15)),
            (OPTIONS[1], False, FixedRates(0.34, 0.33, 0.32)),
        ],
    )
    def test_answers_are_distributed_as_plain_decodings(self, options, chain, rates):
        found, ranks = self.answers(options, chain=chain, rates=rates)
        # Of about a hundred degrees of freedom, 5 standard deviations are passed once in a hundred thousand seeds.
        assert deviation(found, law_of(options, self.LENGTH)) < 5
        assert ranks.total() > self.COUNT
        if rates is not None:
            assert ranks[1] > self.COUNT // 10
            assert ranks[2] > self.COUNT // 50

    def test_plain_decoding_passes_the_same_test(self):
        options = self.OPTIONS[0]
        found = Counter(
            Run(PROMPT, target=RepeatingTarget(), drafter=NullDrafter(), seed=seed, max_tokens=self.LENGTH, **options)
            .result()
            .token_ids
            for seed in range(self.COUNT)
        )
        assert deviation(found, law_of(options, self.LENGTH)) < 5

    def test_untrue_proposals_would_be_found(self):
        def untrue(drafter):
            def rule(draft, logits, sampler, end_ids):
                flat = Proposal.of(range(TOKENS), [1.0] * TOKENS)
                return accept_ratio(draft, [flat] * len(draft), logits, sampler, end_ids, sampler.chance)

            return rule

        options = self.OPTIONS[0]
        found, _ = self.answers(options, rule=untrue)
        assert deviation(found, law_of(options, self.LENGTH)) > 10

    def test_unlikely_tokens_that_are_dropped_once_drawn_would_be_found(self):
        def picky(drafter):
            def rule(draft, *others):
                # The most likely token of this place is kept, another one is not.
                keep = [draft.token_ids[node] == best(drafter, node) for node in range(len(draft))]
                return drafter.accept(draft.first(keep.index(False) if False in keep else len(draft)), *others)

            return rule

        def best(drafter, node):
            proposal = drafter._proposals[node]
            return proposal.token_ids[proposal.weights.argmax()]

        options = self.OPTIONS[0]
        found, _ = self.answers(options, chain=True, rule=picky)
        assert deviation(found, law_of(options, self.LENGTH)) > 10


def speculation(mode="auto", *, exact=True):
    return Speculation(
        mode,
        DEFAULT_DRAFT,
        drafts=Drafts.TREES if exact else Drafts.ASKED_CHAINS,
        costs=lambda: CHEAP,
        corpus=None,
        library=draft_library(),
    )


class TestChoosingTheRule:
    @pytest.mark.parametrize("mode", [mode for mode in SHOWN_MODES if mode != "recycling"])
    def test_other_drafters_know_no_probabilities(self, mode):
        for model_mode, asked in (("auto", mode), (mode, None)):
            with pytest.raises(ConfigError, match="'ratio' needs a drafter") as caught:
                speculation(model_mode).resolve(asked, has_reference=True, accept="ratio")
            assert "--spec recycling" in str(caught.value)

    @pytest.mark.parametrize(("model_mode", "asked"), [("auto", "recycling"), ("recycling", None)])
    @pytest.mark.parametrize("exact", [True, False])
    def test_recycling_does(self, model_mode, asked, exact):
        assert speculation(model_mode, exact=exact).resolve(asked, accept="ratio") == "recycling"

    @pytest.mark.parametrize("wrong", ["both", "", None, 1, "Ratio"])
    def test_rules_there_are_not(self, wrong):
        with pytest.raises(ConfigError, match="'accept' is out of range") as caught:
            GenerationConfig(accept=wrong)
        assert "match or ratio" in str(caught.value)

    def test_what_was_learned_about_places_stays_until_it_is_forgotten(self):
        speculator = speculation("recycling")

        def answer():
            return RatioRun(PROMPT, of=speculator, temperature=1.0, seed=4, max_tokens=40).result().spec

        first, second = answer(), answer()
        assert second.steps < first.steps
        speculator.forget()
        assert answer().rows_drafted == first.rows_drafted


TEXT = "The little boat left the harbour at dawn, and the sea was calm."
RATIO = {"spec": "recycling", "accept": "ratio", "seed": 4, "max_tokens": 40}


@pytest.fixture(scope="module")
def native_model(native_package):
    with load_package(native_package, ctx=256) as model:
        model.speculation.costs = CHEAP
        yield model


@pytest.fixture
def fresh(native_model):
    native_model.reset()
    native_model.speculation.forget()
    return native_model


class TestLoadedModels:
    def test_it_drafts_and_a_seed_repeats_its_text_once_all_is_forgotten(self, fresh):
        def answers():
            """The second one knows the contexts of the first."""
            fresh.speculation.forget()
            return [fresh.generate(TEXT, temperature=0.2, **RATIO) for _ in range(2)]

        first, again = answers(), answers()
        assert (first[1].spec.mode, first[1].spec.draft_n_accepted > 0) == ("recycling", True)
        assert [result.token_ids for result in first] == [result.token_ids for result in again]

    def test_at_temperature_0_both_rules_are_one(self, fresh):
        plain = fresh.generate(TEXT, temperature=0.0, spec="off", max_tokens=40)
        assert fresh.generate(TEXT, temperature=0.0, **RATIO).token_ids == plain.token_ids

    def test_without_a_seed_too(self, fresh):
        result = fresh.generate(TEXT, temperature=1.0, **RATIO | {"seed": None})
        assert result.finish_reason in ("length", "stop")

    @pytest.mark.parametrize("temperature", [1e-300, 100.0])
    def test_extreme_temperatures(self, fresh, temperature):
        result = fresh.generate(TEXT, temperature=temperature, **RATIO)
        assert result.finish_reason in ("length", "stop")

    def test_another_mode_is_refused_before_anything_is_computed(self, fresh):
        with pytest.raises(ConfigError, match="'ratio' needs a drafter"):
            fresh.stream(TEXT, accept="ratio")
        assert fresh.cached_tokens == 0

    def test_portable_packages_take_it(self, model):
        result = model.generate(TEXT, temperature=1.0, **RATIO)
        # Its graph does not tell likely tokens, so there is nothing to draw from.
        assert (result.spec.mode, result.spec.rows_drafted) == ("recycling", 0)
