"""The constants of 4-bit keys against plain loops, and what holds for them whatever the keys are."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from edge_rt.export.calibration.key_constants import (
    DAMPING,
    MAX_BALANCE,
    KeyConstants,
    key_constants,
    key_statistics,
    turn,
    weighted_moment,
)
from tests.helpers.examples import share_of

HEAD_DIMS = (2, 16, 20, 48, 64, 80)


def sample(seed=0, *, tokens=40, head_dim=16, group=3, stride=4, spread=1.5):
    """Return keys, queries and positions in which some dimensions are large, and some keys draw attention."""
    draws = np.random.default_rng(seed)
    sizes = np.exp(draws.standard_normal(head_dim))
    positions = np.arange(0, tokens, stride)
    keys = draws.standard_normal((tokens, head_dim)) * sizes + draws.standard_normal(head_dim)
    queries = draws.standard_normal((len(positions), group, head_dim)) * spread / sizes**0.3
    return keys, queries, positions


def hadamard(head_dim):
    """Return the transform of the cache as a matrix."""
    block = math.gcd(head_dim, 1 << 20)
    matrix = np.ones((1, 1))
    while len(matrix) < block:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return np.kron(np.eye(head_dim // block), matrix / np.sqrt(block))


def looped(keys, queries, positions, scale, window=0, is_centred=True):
    """Return centre, balance and feedback of a kv head, one number after the other."""
    tokens, head_dim = keys.shape
    key_weights, moment = np.zeros(tokens), np.zeros((head_dim, head_dim))
    for row, position in enumerate(positions):
        first = max(0, position + 1 - window) if window else 0
        for query in queries[row]:
            scores = [math.exp(scale * float(query @ keys[t])) for t in range(first, position + 1)]
            shares = [score / sum(scores) for score in scores]
            changes = [share * (1 - share) for share in shares]
            for t, change in zip(range(first, position + 1), changes, strict=True):
                key_weights[t] += change
            moment += sum(changes) * np.outer(query, query)
    centre = sum(w * key for w, key in zip(key_weights, keys, strict=True)) / key_weights.sum()
    if not is_centred:
        centre = np.zeros(head_dim)
    variance = sum(w * (key - centre) ** 2 for w, key in zip(key_weights, keys, strict=True)) / key_weights.sum()
    moment /= np.trace(moment)
    balance = (np.sqrt(variance) / np.sqrt(np.diag(moment))) ** 0.5
    balance /= np.prod(balance) ** (1 / head_dim)
    balance = np.clip(balance, 1 / MAX_BALANCE, MAX_BALANCE)
    turned = hadamard(head_dim) @ np.diag(balance) @ moment @ np.diag(balance) @ hadamard(head_dim)
    turned += DAMPING * np.trace(turned) / head_dim * np.eye(head_dim)
    upper = np.linalg.cholesky(np.linalg.inv(turned)).T
    feedback = np.zeros((head_dim, head_dim))
    for i in range(head_dim):
        for j in range(i + 1, head_dim):
            feedback[i, j] = upper[i, j] / upper[i, i]
    return centre, balance, feedback


def computed(keys, queries, positions, **options):
    return key_constants(key_statistics(keys, queries, positions, scale=keys.shape[1] ** -0.5, **options))


def assert_same(constants, expected, tolerance=6e-4):
    # Half precision rounds by up to 2 ** -11 of a value.
    for found, wanted in zip(constants.arrays, expected, strict=True):
        np.testing.assert_allclose(found[0], wanted, rtol=tolerance, atol=1e-6)


class TestAgainstLoops:
    @pytest.mark.parametrize("head_dim", HEAD_DIMS)
    def test_every_head_size(self, head_dim):
        keys, queries, positions = sample(head_dim=head_dim)
        assert_same(computed(keys, queries, positions), looped(keys, queries, positions, head_dim**-0.5))

    @pytest.mark.parametrize("window", [1 << 20, 17, 3])
    def test_windows(self, window):
        keys, queries, positions = sample(1)
        expected = looped(keys, queries, positions, 0.25, window)
        assert_same(computed(keys, queries, positions, window=window), expected)

    def test_more_rows_and_keys_than_are_taken_at_once(self):
        keys, queries, positions = sample(2, tokens=700, group=2, stride=7)
        for window in (0, 300):
            expected = looped(keys, queries, positions, 0.25, window)
            assert_same(computed(keys, queries, positions, window=window), expected)

    def test_without_a_centre(self):
        keys, queries, positions = sample(3)
        constants = computed(keys, queries, positions, is_centred=False)
        assert not constants.centre.any()
        assert_same(constants, looped(keys, queries, positions, 0.25, is_centred=False))

    @pytest.mark.parametrize("head_dim", HEAD_DIMS)
    def test_the_transform(self, head_dim):
        rows = np.random.default_rng(4).standard_normal((5, head_dim))
        np.testing.assert_allclose(turn(rows), rows @ hadamard(head_dim), atol=1e-12)
        np.testing.assert_allclose(turn(turn(rows)), rows, atol=1e-12)

    def test_a_weighted_moment(self):
        rows, weights = np.random.default_rng(5).standard_normal((300, 20)), np.random.default_rng(6).random(300)
        np.testing.assert_allclose(weighted_moment(rows, weights), rows.T @ np.diag(weights) @ rows, atol=1e-10)


class TestProperties:
    @given(seed=st.integers(0, 10**6), head_dim=st.sampled_from(HEAD_DIMS), window=st.sampled_from([0, 5]))
    @settings(max_examples=share_of(25))
    def test_what_constants_look_like(self, seed, head_dim, window):
        constants = computed(*sample(seed, head_dim=head_dim), window=window)
        for array in constants.arrays:
            assert array.dtype == np.float32
            assert np.array_equal(array, array.astype(np.float16))
        assert not np.tril(constants.feedback[0]).any()
        assert (constants.balance >= 1 / MAX_BALANCE).all()
        assert (constants.balance <= MAX_BALANCE).all()

    @given(seed=st.integers(0, 10**6))
    @settings(max_examples=share_of(25))
    def test_what_all_keys_share_moves_the_centre_alone(self, seed):
        keys, queries, positions = sample(seed)
        shift = np.random.default_rng(seed + 1).standard_normal(16) * 3
        plain = key_statistics(keys, queries, positions, scale=0.25)
        shifted = key_statistics(keys + shift, queries, positions, scale=0.25)
        np.testing.assert_allclose(shifted.centre, plain.centre + shift, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(shifted.variance, plain.variance, rtol=1e-6)
        np.testing.assert_allclose(shifted.query_moment, plain.query_moment, rtol=1e-6, atol=1e-9)

    def test_the_scale_of_queries_is_that_of_scores(self):
        keys, queries, positions = sample(7)
        plain = key_statistics(keys, queries, positions, scale=0.25)
        larger = key_statistics(keys, 8 * queries, positions, scale=0.25 / 8)
        np.testing.assert_allclose(larger.query_moment, plain.query_moment, rtol=1e-9)
        np.testing.assert_allclose(larger.key_weights, plain.key_weights, rtol=1e-9)

    def test_heads_of_a_group_count_alike(self):
        keys, queries, positions = sample(8)
        expected = computed(keys, queries, positions)
        for found, wanted in zip(computed(keys, queries[:, ::-1], positions).arrays, expected.arrays, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-6)

    @given(seed=st.integers(0, 10**6), head_dim=st.sampled_from([16, 48, 64]))
    @settings(max_examples=share_of(20))
    def test_no_other_error_that_follows_costs_less(self, seed, head_dim):
        """Of an error of 1 in element i, the row of the feedback makes good what can be made good behind it."""
        keys, queries, positions = sample(seed, head_dim=head_dim)
        statistics = key_statistics(keys, queries, positions, scale=head_dim**-0.5)
        constants = key_constants(statistics)
        balance, feedback = constants.balance[0].astype(float), constants.feedback[0].astype(float)
        scaled = balance[:, None] * statistics.query_moment * balance
        moment = hadamard(head_dim) @ scaled @ hadamard(head_dim)
        moment += DAMPING * np.trace(moment) / head_dim * np.eye(head_dim)
        for i in range(0, head_dim - 1, 5):
            # x_i loses 1, and the elements behind it may add what they like.
            best = np.linalg.solve(moment[i + 1 :, i + 1 :], -moment[i + 1 :, i])
            np.testing.assert_allclose(feedback[i, i + 1 :], best, atol=3e-3 * max(1, np.abs(best).max()))


class TestDegenerate:
    def check(self, keys, queries, positions):
        constants = computed(keys, queries, positions)
        for array in constants.arrays:
            assert np.isfinite(array).all()
        assert (constants.balance > 0).all()
        return constants

    def test_equal_keys(self):
        _, queries, positions = sample()
        constants = self.check(np.full((40, 16), 3.0), queries, positions)
        assert np.array_equal(constants.centre, np.full((1, 16), 3.0, np.float32))
        assert np.array_equal(constants.balance, np.ones((1, 16), np.float32))

    def test_no_queries_worth_the_name(self):
        keys, queries, positions = sample()
        constants = self.check(keys, np.zeros_like(queries), positions)
        assert not constants.feedback.any()
        assert np.array_equal(constants.balance, np.ones((1, 16), np.float32))

    def test_dimensions_that_are_not_used(self):
        keys, queries, positions = sample()
        keys[:, 3] = 0
        queries[..., 5] = 0
        balance = self.check(keys, queries, positions).balance[0]
        assert balance[3] == balance[5] == 1
        assert len(set(balance.tolist())) > 4

    def test_a_single_token(self):
        keys, queries, _ = sample()
        constants = self.check(keys[:1], queries[:1], np.arange(1))
        assert not constants.centre.any()  # attention has no choice, so no key counts

    def test_attention_of_one_key_alone(self):
        keys, queries, positions = sample(spread=1e4)
        self.check(keys, queries, positions)

    def test_dimensions_of_other_orders_of_magnitude(self):
        keys, queries, positions = sample()
        keys[:, 0] *= 1e4
        queries[..., 0] *= 1e-4
        assert self.check(keys, queries, positions).balance[0, 0] == MAX_BALANCE


def test_layers_are_joined_and_mended_head_by_head():
    heads = [computed(*sample(seed)) for seed in range(3)]
    layer = KeyConstants.joined(heads)
    assert [array.shape for array in layer.arrays] == [(3, 16), (3, 16), (3, 16, 16)]
    for index, head in enumerate(heads):
        assert all(np.array_equal(a[index], b[0]) for a, b in zip(layer.arrays, head.arrays, strict=True))
    neutral = KeyConstants.neutral(2, 16)
    assert [array.shape for array in neutral.arrays] == [(2, 16), (2, 16), (2, 16, 16)]
    assert (neutral.centre.any(), (neutral.balance == 1).all(), neutral.feedback.any()) == (False, True, False)
