"""Rounding to 4 bits against plain loops, and which constants are kept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from edge_rt.export.calibration.key_constants import (
    KeyConstants,
    better_constants,
    key_constants,
    key_statistics,
    rounded,
    weighted_error,
)
from tests.export.calibration.test_key_constants import hadamard, sample
from tests.helpers.examples import share_of


def looped(row, feedback):
    """Return one row as ``int4`` holds it, and its codes."""
    row = row.copy()
    minimums, scales = [], []
    for begin in range(0, len(row), 32):
        group = row[begin : begin + 32]
        minimums.append(float(np.float16(group.min())))
        scales.append(float(np.float16((group.max() - group.min()) / 15)))
    result, codes = np.zeros_like(row), []
    for i in range(len(row)):
        minimum, scale = minimums[i // 32], scales[i // 32]
        code = 0 if scale == 0 else min(max(round((row[i] - minimum) / scale), 0), 15)
        codes.append(code)
        result[i] = code * scale + minimum
        error = row[i] - result[i]
        for j in range(i + 1, len(row)):
            row[j] -= error * feedback[i, j]
    return result, codes


@pytest.mark.parametrize("head_dim", [16, 32, 48, 80])
@pytest.mark.parametrize("strength", [0.0, 0.3])
def test_rows_are_rounded_as_the_format_says(head_dim, strength):
    draws = np.random.default_rng(head_dim)
    rows = draws.standard_normal((6, head_dim)) * 3
    rows[2] = 1.5  # no range: the scale is 0
    feedback = np.triu(draws.standard_normal((head_dim, head_dim)), 1) * strength
    found = rounded(rows, feedback)
    for row, values in zip(rows, found, strict=True):
        expected, codes = looped(row, feedback)
        np.testing.assert_allclose(values, expected, atol=1e-12)
        assert len(set(codes)) > 4 or row[0] == 1.5


def test_rows_are_not_changed():
    rows = np.random.default_rng(0).standard_normal((3, 32))
    before = rows.copy()
    rounded(rows, np.triu(np.ones((32, 32)), 1))
    assert np.array_equal(rows, before)


def test_the_error_is_that_of_weighted_scores():
    keys, queries, positions = sample(1, tokens=60, head_dim=32)
    statistics = key_statistics(keys, queries, positions, scale=32**-0.5)
    constants = key_constants(statistics)
    centre, balance, feedback = (array[0].astype(float) for array in constants.arrays)
    turned = (keys - centre) / balance @ hadamard(32)
    back = rounded(turned, feedback) @ hadamard(32) * balance + centre
    weights = statistics.key_weights / statistics.key_weights.sum()
    expected = sum(w * (e @ statistics.query_moment @ e) for w, e in zip(weights, back - keys, strict=True))
    assert weighted_error(keys, statistics, constants) == pytest.approx(expected, rel=1e-9)


@given(seed=st.integers(0, 10**6), head_dim=st.sampled_from([16, 48, 64]))
@settings(max_examples=share_of(20))
def test_feedback_lowers_the_error(seed, head_dim):
    """Queries that are alike in some directions leave others in which an error costs nothing."""
    keys, queries, positions = sample(seed, tokens=200, head_dim=head_dim)
    queries = queries @ np.random.default_rng(seed).standard_normal((head_dim, 3)) @ np.ones((3, head_dim)) / 9
    queries += 0.1 * np.random.default_rng(seed + 1).standard_normal(queries.shape)
    statistics = key_statistics(keys, queries, positions, scale=head_dim**-0.5)
    constants = key_constants(statistics)
    without = KeyConstants(constants.centre, constants.balance, np.zeros_like(constants.feedback))
    assert weighted_error(keys, statistics, constants) < weighted_error(keys, statistics, without)


def test_constants_that_help_are_kept_and_others_are_not():
    keys, queries, positions = sample(2, tokens=300, head_dim=32)
    keys += 20 * np.random.default_rng(3).standard_normal(32)
    statistics = key_statistics(keys, queries, positions, scale=32**-0.5)
    constants = key_constants(statistics)
    assert better_constants(keys, statistics, constants) is constants
    neutral = KeyConstants.neutral(1, 32)
    spoilt = KeyConstants(neutral.centre, neutral.balance, np.triu(np.ones((1, 32, 32), np.float32), 1))
    kept = better_constants(keys, statistics, spoilt)
    assert all(np.array_equal(a, b) for a, b in zip(kept.arrays, neutral.arrays, strict=True))


def test_keys_that_no_half_holds_get_neutral_constants():
    keys, queries, positions = sample(4, tokens=50)
    keys *= 60_000 / np.abs(keys).max()
    queries /= 1e5
    statistics = key_statistics(keys, queries, positions, scale=0.25)
    tiny = KeyConstants(np.zeros((1, 16), np.float32), np.full((1, 16), 1 / 16, np.float32), np.zeros((1, 16, 16)))
    kept = better_constants(keys, statistics, tiny)
    assert (kept.balance == 1).all()
