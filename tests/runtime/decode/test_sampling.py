"""The sampler against a slow reference: sorting, in float64, a token at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from edge_rt.errors import ConfigError, InferenceError
from edge_rt.ort.op_library import native_library
from edge_rt.runtime.config import GenerationConfig
from edge_rt.runtime.decode.numpy_chain import fused
from edge_rt.runtime.decode.sampling import Chance, Sampler
from tests.helpers.examples import share_of
from tests.ops.single_op import ISAS, needs_native
from tests.reference.sampling import Case, rounded_once

NEAR = 1e-5
"""Sums of float32 weights closer than this (relative) to top-p's bound are not decided here."""

# Steps of 1/16 with powers of two as temperatures: equal or far apart, in any precision.
logit_steps = st.integers(-160, 160)
temperatures = st.sampled_from([0.25, 0.5, 1.0, 2.0])


def as_logits(steps):
    return (np.asarray(steps, np.float64) / 16).astype(np.float32)


def reference_set(logits, temperature, top_k, top_p, min_p):
    """Return the ids that may be drawn, rising; None if a sum lies too near to top-p's bound."""
    top = max(float(value) for value in logits)
    weights = [math.exp((float(value) - top) / temperature) for value in logits]
    order = sorted(range(len(weights)), key=lambda i: (-weights[i], i))
    if 0 < top_k < len(order):
        order = order[:top_k]
    if top_p < 1.0:
        wanted = top_p * math.fsum(weights[i] for i in order)
        total, kept = 0.0, []
        for i in order:
            kept.append(i)
            total += weights[i]
            if abs(total - wanted) <= NEAR * wanted:
                return None
            if total >= wanted:
                break
        order = kept
    if min_p > 0.0:
        if any(abs(weights[i] - min_p) <= NEAR * min_p for i in order):
            return None
        order = [i for i in order if weights[i] >= min_p]
    return sorted(order)


def kept(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """Return the tokens that may be drawn."""
    config = GenerationConfig(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    return Sampler(config, len(logits)).distribution(np.asarray(logits, np.float32))[0].tolist()


class TestSets:
    @pytest.mark.parametrize(
        ("top_p", "expected"), [(0.25, [0]), (0.26, [0, 1]), (0.5, [0, 1]), (0.75, [0, 1, 2]), (0.76, [0, 1, 2, 3])]
    )
    def test_a_sum_that_equals_the_bound_is_enough(self, top_p, expected):
        assert kept(np.zeros(4), top_p=top_p) == expected

    @pytest.mark.parametrize("top_k", [1, 2, 100, 128, 511])
    def test_equal_weights_rank_by_id(self, top_k):
        assert kept(np.zeros(512), top_k=top_k) == list(range(top_k))

    def test_a_tie_at_the_cut_keeps_the_lower_ids(self):
        assert kept([0, 1, 0, 2, 0, 1, 0], top_k=4) == [0, 1, 3, 5]

    def test_a_flat_distribution_is_cut_where_it_should(self):
        assert kept(np.zeros(10_000), top_p=0.5) == list(range(5000))

    def test_top_k_beyond_the_vocabulary_keeps_all(self):
        assert kept(range(5), top_k=5) == kept(range(5), top_k=(1 << 31) - 1) == [0, 1, 2, 3, 4]

    def test_something_is_always_left(self):
        for top_p, min_p in ((1e-12, 0.0), (1.0, 0.999999), (1e-12, 0.999999)):
            assert kept(as_logits([3, 9, 1]), top_k=1, top_p=top_p, min_p=min_p) == [1]

    def test_a_logit_of_minus_infinity_is_never_kept(self):
        logits = np.full(1000, -np.inf, np.float32)
        logits[[7, 500]] = 1.0
        assert kept(logits) == kept(logits, top_k=40) == kept(logits, top_p=0.95) == [7, 500]


@needs_native
class TestChain:
    """The native chain against ``tests/reference/sampling.py``, which can compare many more rows."""

    @pytest.mark.parametrize("first", range(0, 120, 30))
    def test_laws_and_draws_are_the_references_on_every_instruction_set(self, first):
        for seed in range(first, first + 30):
            Case(seed, 1_000 if seed % 30 else 151_936).check(ISAS)

    @pytest.mark.own_pools
    def test_threads_do_not_show(self):
        case = Case(3, 49_152)
        one = case.chain().law(case.logits, case.mask, excludes=False)
        native_library().use_threads(3)
        for found, wanted in zip(case.chain().law(case.logits, case.mask, excludes=False), one, strict=True):
            np.testing.assert_array_equal(found, wanted)

    def test_weights_are_those_of_a_fused_multiply_add_that_rounds_once(self):
        rng = np.random.default_rng(1)
        a, b, c = (rng.standard_normal(2000).astype(np.float32) for _ in range(3))
        # Where c is nearly -a * b nothing but the rest is left.
        c[::3] = (-(a * b))[::3]
        assert fused(a, b, c).tolist() == [float(rounded_once(*three)) for three in zip(a, b, c, strict=True)]

    def test_numpy_draws_the_same_tokens(self, monkeypatch):
        rng = np.random.default_rng(2)
        mask = rng.integers(0, 1 << 32, 94, np.uint32)
        for seed, options in enumerate(
            [{}, {"top_k": 0}, {"top_k": 0, "top_p": 1.0, "min_p": 0.0}, {"temperature": 0.0}]
        ):
            penalties = {"repetition_penalty": 1.3, "frequency_penalty": 0.2, "logit_bias": {5: 3.0}, "banned": [8]}
            config = GenerationConfig(**{"seed": seed, **options, **penalties})
            native = Sampler(config, 3000, [1, 2], exempt=[0])
            monkeypatch.setattr("edge_rt.runtime.decode.sampling.has_native_chain", lambda: False)
            plain = Sampler(config, 3000, [1, 2], exempt=[0])
            monkeypatch.undo()
            for step in range(40):
                logits = (rng.standard_normal(3000) * 3).astype(np.float32)
                here = mask if step % 2 else None
                for one, other in zip(native.distribution(logits, here), plain.distribution(logits, here), strict=True):
                    np.testing.assert_array_equal(one, other)
                token = native.sample(logits, here)
                assert plain.sample(logits, here) == token
                native.observe(token)
                plain.observe(token)

    def test_a_mask_and_bans_leave_what_they_leave(self):
        mask = np.asarray([0b1010, 1], np.uint32)
        sampler = Sampler(GenerationConfig(temperature=1.0, banned=[32]), 40)
        assert sampler.distribution(np.zeros(40, np.float32), mask)[0].tolist() == [1, 3]
        with pytest.raises(InferenceError, match="No token may follow"):
            sampler.sample(np.zeros(40, np.float32), np.asarray([0, 1], np.uint32))

    def test_xtc_takes_one_number_for_a_token(self):
        logits = as_logits([64, 60, 0, -20])
        plain, xtc = (
            Sampler(GenerationConfig(temperature=1.0, top_p=1.0, min_p=0.0, seed=1, xtc_probability=share), 4)
            for share in (0.0, 0.5)
        )
        for sampler in (plain, xtc):
            sampler.sample(logits)
        assert plain.chance.number() == xtc.chance.number()

    def test_dry_makes_a_repetition_unlikely_but_not_behind_a_breaker(self):
        logits = as_logits([0] * 10)
        config = GenerationConfig(temperature=0.0, dry_multiplier=0.8)
        prompt = [1, 2, 3, 0, 9, 1, 2]
        assert Sampler(config.with_options(logit_bias={3: 0.5}), 10, prompt).sample(logits) == 0
        is_breaker = frozenset([2]).__contains__
        assert Sampler(config.with_options(logit_bias={3: 0.5}), 10, prompt, is_breaker=is_breaker).sample(logits) == 3


def reference_scores(logits, config, prompt, answer):
    scores = [float(value) for value in logits]
    for token in set(prompt) | set(answer):
        penalty = config.repetition_penalty
        scores[token] = scores[token] / penalty if scores[token] > 0 else scores[token] * penalty
    for token in set(answer):
        scores[token] -= config.presence_penalty + config.frequency_penalty * answer.count(token)
    for token, bias in config.logit_bias.items():
        scores[token] += bias
    return scores


tokens = st.lists(st.integers(0, 19), max_size=12)


class TestPenalties:
    @settings(max_examples=share_of(150))
    @given(
        steps=st.lists(st.integers(-60, 60), min_size=20, max_size=20),
        prompt=tokens,
        answer=tokens,
        repetition=st.sampled_from([0.5, 1.0, 1.1, 2.0]),
        presence=st.sampled_from([0.0, 0.7, -0.3]),
        frequency=st.sampled_from([0.0, 0.4, -0.2]),
        bias=st.dictionaries(st.integers(0, 19), st.sampled_from([-9.0, -0.55, 0.35, 9.0]), max_size=3),
    )
    def test_greedy_takes_the_best_score_of_the_reference(
        self, steps, prompt, answer, repetition, presence, frequency, bias
    ):
        config = GenerationConfig(
            temperature=0.0,
            repetition_penalty=repetition,
            presence_penalty=presence,
            frequency_penalty=frequency,
            logit_bias=bias,
        )
        logits = as_logits(steps)
        scores = reference_scores(logits, config, prompt, answer)
        second, best = sorted(scores)[-2:]
        assume(best - second > 1e-4)
        sampler = Sampler(config, 20, prompt)
        for token in answer:
            sampler.observe(token)
        before = logits.copy()

        assert sampler.sample(logits) == scores.index(best)

        np.testing.assert_array_equal(logits, before)

    def test_the_prompt_counts_for_repetition_only(self):
        logits = np.asarray([1.0, 0.9], np.float32)
        assert Sampler(GenerationConfig(temperature=0.0, repetition_penalty=2.0), 2, [0]).sample(logits) == 1
        for options in ({"presence_penalty": 1.0}, {"frequency_penalty": 1.0}):
            assert Sampler(GenerationConfig(temperature=0.0, **options), 2, [0]).sample(logits) == 0

    def test_exempt_tokens_have_no_repetition_penalty(self):
        logits = np.asarray([1.0, 0.9], np.float32)
        config = GenerationConfig(temperature=0.0, repetition_penalty=2.0)
        assert Sampler(config, 2, [0], exempt=[0]).sample(logits) == 0

    def test_many_different_tokens(self):
        sampler = Sampler(GenerationConfig(temperature=0.0, presence_penalty=5.0), 1000)
        logits = np.linspace(1, 0, 1000, dtype=np.float32)
        for expected in range(300):
            assert sampler.sample(logits) == expected
            sampler.observe(expected)

    def test_bias_outside_the_vocabulary(self):
        with pytest.raises(ConfigError, match=r"Token 20, the vocabulary has 20\."):
            Sampler(GenerationConfig(logit_bias={3: 1.0, 20: 1.0}), 20)


def draw(config, logits, count):
    sampler = Sampler(config, len(logits))
    return [sampler.sample(logits) for _ in range(count)]


class TestDraws:
    LOGITS = as_logits([0, 16, 32, -16, 24, 8])

    @pytest.mark.parametrize(
        "options", [{}, {"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.8}, {"min_p": 0.2}, {"top_k": 4, "top_p": 0.9}]
    )
    def test_frequencies_are_the_probabilities(self, options):
        config = GenerationConfig(**({"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 5} | options))
        count = 6000
        used = config.sampling()
        kept = reference_set(self.LOGITS, used.temperature, used.top_k, used.top_p, used.min_p)
        weights = {i: math.exp(float(self.LOGITS[i]) / used.temperature) for i in kept}
        total = sum(weights.values())
        drawn = draw(config, self.LOGITS, count)
        assert set(drawn) <= set(kept)
        chi_square = sum((drawn.count(i) - count * w / total) ** 2 / (count * w / total) for i, w in weights.items())
        # Five degrees of freedom at most: 25.7 is passed once in ten thousand seeds.
        assert chi_square < 25.7

    def test_a_seed_repeats_and_another_one_differs(self):
        one, again, other = (draw(GenerationConfig(seed=seed), self.LOGITS, 60) for seed in (3, 3, 4))
        assert one == again
        assert one != other

    def test_without_a_seed_every_sampler_differs(self):
        assert draw(GenerationConfig(), self.LOGITS, 60) != draw(GenerationConfig(), self.LOGITS, 60)

    def test_the_largest_seed(self):
        assert draw(GenerationConfig(seed=(1 << 64) - 1), self.LOGITS, 5)

    def test_logits_are_left_unchanged(self):
        logits = self.LOGITS.copy()
        config = GenerationConfig(repetition_penalty=1.5, presence_penalty=1.0, logit_bias={1: 2.0}, top_k=2)
        sampler = Sampler(config, 6, [1, 2])
        sampler.sample(logits)
        np.testing.assert_array_equal(logits, self.LOGITS)

    @pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-45, 1e-38, 1e-6])
    def test_very_low_temperatures_are_greedy(self, temperature):
        config = GenerationConfig(temperature=temperature, seed=1)
        assert set(draw(config, self.LOGITS * 1000, 20)) == {2}

    def test_the_highest_temperature_is_nearly_even(self):
        drawn = draw(GenerationConfig(temperature=100.0, top_p=1.0, seed=1), self.LOGITS, 3000)
        assert all(400 < drawn.count(i) < 600 for i in range(6))

    @pytest.mark.parametrize("options", [{"temperature": 0.0}, {}, {"top_k": 2, "top_p": 0.5}])
    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_logits_that_are_no_numbers(self, bad, options):
        logits = self.LOGITS.copy()
        logits[3] = bad
        with pytest.raises(InferenceError, match="not numbers"):
            Sampler(GenerationConfig(**options), 6).sample(logits)


class TestDistribution:
    @settings(max_examples=share_of(150))
    @given(
        steps=st.lists(st.integers(-60, 60), min_size=20, max_size=20),
        answer=tokens,
        temperature=temperatures,
        top_k=st.integers(0, 20),
        top_p=st.one_of(st.just(1.0), st.floats(0.01, 0.999)),
        min_p=st.one_of(st.just(0.0), st.floats(0.001, 0.9)),
        repetition=st.sampled_from([0.5, 1.0, 2.0]),
        frequency=st.sampled_from([0.0, 0.5, -0.25]),
        bias=st.dictionaries(st.integers(0, 19), st.sampled_from([-9.0, -0.5, 0.25]), max_size=3),
    )
    def test_is_the_references(self, steps, answer, temperature, top_k, top_p, min_p, repetition, frequency, bias):
        config = GenerationConfig(
            temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
            repetition_penalty=repetition, frequency_penalty=frequency, logit_bias=bias,
        )  # fmt: skip
        scores = reference_scores(as_logits(steps), config, [1, 2], answer)
        expected = reference_set(scores, temperature, top_k, top_p, min_p)
        assume(expected is not None)
        # Weights are whole parts of 2^30: what is less than half of one is never drawn.
        every = [math.exp((score - max(scores)) / temperature) * 2**30 for score in scores]
        parts = {token: every[token] for token in expected}
        assume(all(abs(part - 0.5) > NEAR for part in parts.values()))
        # Of weights that round to the same number, the lower id comes first.
        least = min(parts.values())
        assume(all(part == least or round(part) < round(least) for part in every if part <= least))
        expected = [token for token, part in parts.items() if part > 0.5]
        sampler = Sampler(config, 20, [1, 2])
        for token in answer:
            sampler.observe(token)

        ids, probabilities = sampler.distribution(as_logits(steps))

        assert ids.tolist() == expected
        assert probabilities.dtype == np.float64
        weights = np.exp((np.asarray(scores)[expected] - max(scores)) / temperature)
        np.testing.assert_allclose(probabilities, weights / weights.sum(), rtol=1e-5, atol=2**-30)
        assert probabilities.min() > 0
        assert math.fsum(probabilities) == pytest.approx(1.0, abs=1e-14)

    @pytest.mark.parametrize("seed", range(5))
    def test_sample_draws_from_it_with_one_number_per_token(self, seed):
        config = GenerationConfig(seed=seed, temperature=1.1, top_p=0.9, repetition_penalty=1.4, presence_penalty=0.3)
        one, other = Sampler(config, 200, [3]), Sampler(config, 200, [3])
        random, chance = np.random.default_rng(seed), Chance(seed)
        for _ in range(50):
            logits = random.standard_normal(200).astype(np.float32)
            # As often as one likes: looking draws nothing.
            ids, probabilities = [other.distribution(logits) for _ in range(3)][-1]
            token = one.sample(logits)
            assert token == ids[chance.choose(probabilities)]
            for sampler in (one, other):
                sampler.observe(token)

    def test_at_temperature_0_it_is_one_token_and_nothing_is_drawn(self):
        config = GenerationConfig(temperature=0.0, top_k=3, seed=4)
        sampler = Sampler(config, 6)
        ids, probabilities = sampler.distribution(as_logits([0, 16, 32, -16, 24, 8]))
        assert (ids.tolist(), probabilities.tolist()) == ([2], [1.0])
        assert sampler.sample(as_logits([0, 16, 32, -16, 24, 8])) == 2
        fresh = Chance(4)
        half = [fresh.happens(0.5) for _ in range(64)]
        assert [sampler.chance.happens(0.5) for _ in range(64)] == half


class TestChance:
    def test_what_is_sure_and_what_cannot_be(self):
        chance = Chance(1)
        for _ in range(100):
            assert chance.happens(1.0)
            assert not chance.happens(0.0)
            assert chance.choose(np.asarray([0.0, 0.0, 1e-300, 0.0])) == 2

    def test_frequencies(self):
        chance, count = Chance(2), 6000
        happened = sum(chance.happens(0.3) for _ in range(count))
        # Four standard deviations.
        assert abs(happened - 0.3 * count) < 4 * math.sqrt(count * 0.3 * 0.7)
        chosen = [chance.choose(np.asarray([1.0, 0.0, 3.0, 4.0])) for _ in range(count)]
        expected = {0: count / 8, 2: count * 3 / 8, 3: count / 2}
        assert set(chosen) == set(expected)
        # Two degrees of freedom: 18.4 is passed once in ten thousand seeds.
        assert sum((chosen.count(i) - n) ** 2 / n for i, n in expected.items()) < 18.4

    def test_every_choice_takes_one_number(self):
        one, other = Chance(3), Chance(3)
        for _ in range(10):
            one.happens(0.5)
            other.choose(np.ones(4))
        assert [one.happens(0.5) for _ in range(64)] == [other.happens(0.5) for _ in range(64)]
