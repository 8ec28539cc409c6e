"""The sampler against a slow reference: sorting, in float64, a token at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from edge_rt.errors import ConfigError, InferenceError
from edge_rt.runtime.config import GenerationConfig
from edge_rt.runtime.decode.sampling import Chance, Sampler, candidates

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


class TestCandidates:
    @settings(max_examples=150)
    @given(
        steps=st.lists(logit_steps, min_size=1, max_size=400),
        temperature=temperatures,
        top_k=st.integers(0, 40),
        top_p=st.one_of(st.just(1.0), st.floats(0.01, 0.999)),
        min_p=st.one_of(st.just(0.0), st.floats(0.001, 0.9)),
    )
    def test_exactly_the_reference_set(self, steps, temperature, top_k, top_p, min_p):
        logits = as_logits(steps)
        expected = reference_set(logits, temperature, top_k, top_p, min_p)
        assume(expected is not None)
        ids, weights = candidates(logits, temperature, top_k, top_p, min_p)
        assert ids.tolist() == expected
        true = np.exp((logits[ids].astype(np.float64) - float(logits.max())) / temperature)
        np.testing.assert_allclose(weights, true, rtol=1e-6)

    @settings(max_examples=25)
    @given(
        seed=st.integers(0, 1 << 32),
        spread=st.sampled_from([0.0, 1.0, 8.0, 40.0]),
        top_k=st.sampled_from([0, 1, 63, 64, 65, 900]),
        top_p=st.sampled_from([0.03, 0.5, 0.9, 0.95, 0.9999, 1.0]),
        min_p=st.sampled_from([0.0, 0.05]),
    )
    def test_large_vocabularies(self, seed, spread, top_k, top_p, min_p):
        steps = np.round(np.random.default_rng(seed).standard_normal(5000) * spread).astype(int)
        logits = as_logits(steps)
        expected = reference_set(logits, 1.0, top_k, top_p, min_p)
        assume(expected is not None)
        assert candidates(logits, 1.0, top_k, top_p, min_p)[0].tolist() == expected

    @pytest.mark.parametrize(
        ("top_p", "expected"), [(0.25, [0]), (0.26, [0, 1]), (0.5, [0, 1]), (0.75, [0, 1, 2]), (0.76, [0, 1, 2, 3])]
    )
    def test_a_sum_that_equals_the_bound_is_enough(self, top_p, expected):
        assert candidates(np.zeros(4, np.float32), 1.0, 0, top_p, 0.0)[0].tolist() == expected

    @pytest.mark.parametrize("top_k", [1, 2, 100, 128, 511])
    def test_equal_weights_rank_by_id(self, top_k):
        assert candidates(np.zeros(512, np.float32), 1.0, top_k, 1.0, 0.0)[0].tolist() == list(range(top_k))

    def test_a_tie_at_the_cut_keeps_the_lower_ids(self):
        logits = np.asarray([0, 1, 0, 2, 0, 1, 0], np.float32)
        assert candidates(logits, 1.0, 4, 1.0, 0.0)[0].tolist() == [0, 1, 3, 5]

    def test_a_flat_distribution_is_cut_where_it_should(self):
        assert candidates(np.zeros(10_000, np.float32), 1.0, 0, 0.5, 0.0)[0].tolist() == list(range(5000))

    def test_top_k_beyond_the_vocabulary_keeps_all(self):
        logits = np.arange(5, dtype=np.float32)
        assert candidates(logits, 1.0, 5, 1.0, 0.0)[0].tolist() == [0, 1, 2, 3, 4]
        assert candidates(logits, 1.0, 10**9, 1.0, 0.0)[0].tolist() == [0, 1, 2, 3, 4]

    def test_something_is_always_left(self):
        logits = as_logits([3, 9, 1])
        for top_p, min_p in ((1e-12, 0.0), (1.0, 0.999999), (1e-12, 0.999999)):
            assert candidates(logits, 1.0, 1, top_p, min_p)[0].tolist() == [1]

    def test_masked_logits_are_never_kept_before_others(self):
        logits = np.full(1000, -np.inf, np.float32)
        logits[[7, 500]] = 1.0
        ids, weights = candidates(logits, 0.8, 0, 0.95, 0.0)
        assert (ids.tolist(), weights.tolist()) == ([7, 500], [1.0, 1.0])


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
    @settings(max_examples=150)
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
    @settings(max_examples=150)
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
        sampler = Sampler(config, 20, [1, 2])
        for token in answer:
            sampler.observe(token)

        ids, probabilities = sampler.distribution(as_logits(steps))

        assert ids.tolist() == expected
        assert probabilities.dtype == np.float64
        weights = np.exp((np.asarray(scores)[expected] - max(scores)) / temperature)
        np.testing.assert_allclose(probabilities, weights / weights.sum(), rtol=1e-5, atol=1e-30)
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
