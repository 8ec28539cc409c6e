import numpy as np
import pytest
from kv_stats import blocks_of, mean_interval, perplexity, perplexity_ratio


def test_blocks_do_not_cross_windows():
    sums, counts = blocks_of([np.ones(5), np.ones(3)], block=4)
    assert sums.tolist() == [4, 1, 3]
    assert counts.tolist() == [4, 1, 3]


def test_a_mean_weighs_every_token_the_same():
    estimate = mean_interval([np.array([1.0, 1.0, 1.0]), np.array([5.0])], block=2)
    assert estimate.value == pytest.approx(2.0)
    assert estimate.low <= estimate.value <= estimate.high


def test_perplexity_is_that_of_all_tokens_together():
    assert perplexity([np.full(3, np.log(2.0)), np.full(3, np.log(8.0))]) == pytest.approx(4.0)


def test_a_constant_loss_over_the_baseline_gives_its_ratio_without_doubt():
    base = [np.random.default_rng(0).random(500)]
    estimate = perplexity_ratio([base[0] + np.log(1.02)], base)
    assert [estimate.value, estimate.low, estimate.high] == pytest.approx([1.02] * 3)
    assert estimate.percent_change() == "+2.00 % (+2.00 to +2.00)"


def test_neighbours_that_are_alike_widen_the_interval():
    walk = np.repeat(np.random.default_rng(0).standard_normal(40), 32)
    apart, together = (mean_interval([walk], block=block) for block in (1, 64))
    assert together.high - together.low > 2 * (apart.high - apart.low)


def test_the_interval_holds_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(1)
    estimates = [mean_interval([rng.standard_normal(64 * 40)], draws=400) for _ in range(100)]
    assert 85 <= sum(estimate.low <= 0 <= estimate.high for estimate in estimates) <= 100
