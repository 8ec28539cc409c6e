import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp
from kv_codecs import asymmetric, hadamard, half, low_rank, outliers, symmetric8, two_planes, without

rows = hnp.arrays(np.float32, (4, 64), elements=st.floats(-100, 100, width=32))


@given(rows, st.sampled_from([2, 4]))
def test_rounding_to_a_few_levels_errs_by_half_a_step_at_most(x, bits):
    groups = x.reshape(4, 2, 32)
    step = (groups.max(-1) - groups.min(-1)) / (2**bits - 1)
    # The scale and the minimum are float16's: 11 bits of each, and of what lies between.
    slack = 2**-10 * np.abs(groups).max(-1) * 2**bits + 1e-5
    error = np.abs(asymmetric(x, bits) - x).reshape(4, 2, 32).max(-1)
    assert (error <= step / 2 + slack).all()


@given(rows)
def test_groups_along_tokens_are_those_of_the_transposed(x):
    turned = np.ascontiguousarray(x.T)
    assert np.array_equal(asymmetric(turned, 4, axis=-2), asymmetric(x, 4).T)


@given(rows)
def test_eight_bits_err_by_half_a_step_at_most(x):
    groups = np.abs(x.reshape(4, 2, 32)).max(-1)
    error = np.abs(symmetric8(x) - x).reshape(4, 2, 32).max(-1)
    assert (error <= groups / 254 + groups * 2**-10 + 1e-5).all()


def test_a_constant_group_is_its_minimum():
    x = np.full((2, 32), 0.75, np.float32)
    assert np.array_equal(asymmetric(x, 4), x)
    assert np.array_equal(two_planes(x)[1], x)
    assert np.array_equal(symmetric8(np.zeros_like(x)), np.zeros_like(x))


def test_the_upper_plane_is_the_four_bit_format_and_both_are_near_eight_bits():
    x = np.random.default_rng(0).standard_normal((50, 64)).astype(np.float32)
    upper, both = two_planes(x)
    assert np.array_equal(upper, asymmetric(x, 4))
    assert np.abs(both - x).mean() < np.abs(upper - x).mean() / 10


@pytest.mark.parametrize("size", [32, 64, 80, 96, 128])
def test_the_transform_is_its_own_inverse(size):
    matrix = hadamard(size)
    assert np.allclose(matrix @ matrix, np.eye(size), atol=1e-6)
    block = size & -size
    assert (np.abs(matrix) > 0).sum(axis=1).tolist() == [block] * size


def test_low_rank_finds_a_matrix_of_that_rank_and_the_best_one_otherwise():
    rng = np.random.default_rng(0)
    exact = (rng.standard_normal((3, 128, 2)) @ rng.standard_normal((3, 2, 64))).astype(np.float32)
    assert np.allclose(low_rank(exact, 2), exact, atol=0.02)
    noisy = rng.standard_normal((128, 64)).astype(np.float32)
    left, values, right = np.linalg.svd(noisy, full_matrices=False)
    best = (left[:, :4] * values[:4]) @ right[:4]
    assert np.linalg.norm(noisy - low_rank(noisy, 4)) == pytest.approx(np.linalg.norm(noisy - best), rel=1e-3)


def test_outliers_are_the_ends_of_each_vector():
    x = np.array([[5, -7, 0, 1], [2, 3, 9, -1]], np.float32)
    assert outliers(x, 1, axis=-1).tolist() == [[True, True, False, False], [False, False, True, True]]
    assert outliers(x.T.copy(), 1, axis=-2).T.tolist() == outliers(x, 1, axis=-1).tolist()


def test_outliers_give_way_to_the_mean_of_the_others():
    x = np.array([[5, -7, 0, 1]], np.float32)
    assert without(x, outliers(x, 1, axis=-1), -1).tolist() == [[0.5, 0.5, 0, 1]]


def test_half_is_what_float16_holds():
    assert half(np.array([1 / 3], np.float32))[0] == np.float16(1 / 3)
