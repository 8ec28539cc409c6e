"""Bandits: they find the best arm, follow a change, and are not led astray by rewards of any size."""

from __future__ import annotations

import random

import pytest

from edge_rt.runtime.speculation.arms import DiscountedUCB

MAKERS = {"ucb": lambda arms: DiscountedUCB((1.0,) * arms)}


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
