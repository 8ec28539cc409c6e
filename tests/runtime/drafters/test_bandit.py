"""Bandits: they find the best arm, follow a change, and are not led astray by rewards of any size."""

from __future__ import annotations

import random

import numpy as np
import pytest

from edge_rt.runtime.drafters.bandit import EXP3, MAX_REWARD, DiscountedUCB

MAKERS = {"ucb": lambda arms: DiscountedUCB((1.0,) * arms), "exp3": lambda arms: EXP3(arms, seed=1)}


@pytest.fixture(params=MAKERS)
def make(request):
    return MAKERS[request.param]


def play(bandit, means, rounds, *, noise=0.1, seed=0):
    """Return how often every arm was chosen."""
    draws, counts = random.Random(seed), [0] * len(means)
    for _ in range(rounds):
        arm = bandit.choose()
        counts[arm] += 1
        bandit.learn(arm, draws.gauss(means[arm], noise))
    return counts


@pytest.mark.parametrize("best", range(4))
def test_the_best_of_steady_arms_is_found(make, best):
    means = [1.8 if arm == best else 0.6 for arm in range(4)]
    bandit = make(4)
    play(bandit, means, 200)
    counts = play(bandit, means, 200, seed=1)
    assert counts[best] > 100


def test_small_differences_are_found_in_the_long_run():
    bandit = DiscountedUCB((1.0, 1.0, 1.0))
    counts = play(bandit, [1.0, 1.15, 0.9], 600, noise=0.05)
    assert counts[1] > 450


def test_a_switch_is_followed(make):
    bandit = make(3)
    play(bandit, [1.8, 0.6, 0.6], 300)
    assert play(bandit, [1.8, 0.6, 0.6], 100)[0] > 60
    play(bandit, [0.6, 0.6, 1.8], 300)
    assert play(bandit, [0.6, 0.6, 1.8], 100)[2] > 60


class TestDiscountedUCB:
    def test_before_any_trial_priors_decide(self):
        bandit = DiscountedUCB((0.8, 1.0, 1.0))
        assert bandit.means() == [0.8, 1.0, 1.0]
        assert bandit.choose() == 1

    def test_a_mean_counts_the_prior_as_one_trial(self):
        bandit = DiscountedUCB((1.0, 1.0), keep=1.0)
        for reward in (2.0, 2.0, 3.0):
            bandit.learn(0, reward)
        assert bandit.means() == [pytest.approx((1 + 2 + 2 + 3) / 4), 1.0]

    def test_old_trials_fade_back_to_the_prior(self):
        bandit = DiscountedUCB((1.0, 1.0), keep=0.9)
        bandit.learn(0, 0.0)
        assert bandit.means()[0] == pytest.approx(0.5)
        for _ in range(200):
            bandit.learn(1, 1.0)
        assert bandit.means()[0] == pytest.approx(1.0, abs=1e-6)

    def test_a_bad_arm_is_tried_again_but_seldom(self):
        bandit = DiscountedUCB((1.0, 1.0))
        counts = play(bandit, [1.0, 0.7], 1000, noise=0.02)
        assert 1 < counts[1] < 50

    def test_without_a_bonus_it_is_greedy(self):
        bandit = DiscountedUCB((1.0, 0.9), bonus=0.0)
        assert play(bandit, [1.0, 5.0], 100, noise=0.0) == [100, 0]


class TestEXP3:
    def test_at_first_all_arms_are_equal(self):
        assert EXP3(4).probabilities() == [0.25] * 4

    def test_probabilities_are_probabilities_whatever_the_rewards(self):
        bandit = EXP3(3, explore=0.09)
        draws = random.Random(0)
        for _ in range(3000):
            bandit.learn(draws.randrange(3), draws.choice([0.0, 1.0, MAX_REWARD, 1e9]))
            shares = bandit.probabilities()
            assert sum(shares) == pytest.approx(1.0)
            assert min(shares) >= 0.09 / 3 * (1 - 1e-12)

    def test_rewards_beyond_the_largest_count_as_it(self):
        one, other = EXP3(2), EXP3(2)
        one.learn(0, MAX_REWARD)
        other.learn(0, 1e6)
        assert one.probabilities() == other.probabilities()
        other.learn(1, MAX_REWARD / 2)
        assert one.probabilities() != other.probabilities()

    def test_draws_follow_the_probabilities_and_the_seed(self):
        bandits = [EXP3(3, seed=seed) for seed in (5, 5, 6)]
        for bandit in bandits:
            for _ in range(4):
                bandit.learn(1, 1.0)
        first, again, other = ([bandit.choose() for _ in range(2000)] for bandit in bandits)
        assert first == again != other
        shares = np.bincount(first, minlength=3) / 2000
        np.testing.assert_allclose(shares, bandits[0].probabilities(), atol=0.04)

    def test_a_reward_counts_more_the_seldomer_its_arm_is_drawn(self):
        bandit = EXP3(2, rate=0.1, explore=0.0, keep=1.0)
        bandit.learn(0, MAX_REWARD)
        share = 1 / (1 + np.exp(-0.1 / 0.5))
        assert bandit.probabilities() == pytest.approx([share, 1 - share])
        bandit.learn(1, MAX_REWARD)
        share = 1 / (1 + np.exp(-0.1 / 0.5 + 0.1 / (1 - share)))
        assert bandit.probabilities() == pytest.approx([share, 1 - share])
