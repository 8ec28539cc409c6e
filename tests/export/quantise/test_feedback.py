"""Error feedback against a slow LDLQ in float64, and what it is for: the error of outputs."""

from __future__ import annotations

import numpy as np
import pytest

from edge_rt.export.quantise.feedback import feedback, importance, quantise, quantise_with_numpy
from edge_rt.export.quantise.grids import Grid
from edge_rt.export.weights.codes import values
from edge_rt.export.weights.tile_formats import BLOCK, tile_format

TYPES = ("Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K", "IQ4_NL", "IQ4_XS")
INPUTS, ROWS = 256, 24


def grid_of(type_name):
    return Grid(tile_format(type_name))


def moments_of(seed=0, *, inputs=INPUTS, tokens=4000, rank=24):
    """Return mean second moments of inputs that depend on each other, and are of several sizes."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((tokens, rank)) @ rng.standard_normal((rank, inputs)) / rank**0.5
    x += 0.5 * rng.standard_normal((tokens, inputs))
    x *= np.exp(rng.standard_normal(inputs) * 0.5)
    return (x.T @ x / tokens).astype(np.float32)


def weights_of(seed=1, inputs=INPUTS):
    return (np.random.default_rng(seed).standard_normal((inputs, ROWS)) * 0.05).astype(np.float32)


def quantised(weights, shares, factors, grid, rounding=quantise):
    """Quantise weights ``[inputs, rows]``."""
    codes, errors = rounding(np.ascontiguousarray(weights.T), shares, factors, grid)
    return codes, errors.T


def output_error(errors, moments):
    return float(np.einsum("in,ij,jn->", errors.astype(np.float64), moments.astype(np.float64), errors))


def slow_factor(moments, shrinkage):
    """Return N of ``H = (N + 1) D (N + 1)^T`` by eliminating the last input first, in float64."""
    rest = moments.astype(np.float64) * (1 - shrinkage)
    np.fill_diagonal(rest, moments.diagonal())
    factor = np.zeros_like(rest)
    for last in range(len(rest) - 1, -1, -1):
        column = rest[: last + 1, last] / rest[last, last]
        factor[:last, last] = column[:last]
        rest[: last + 1, : last + 1] -= np.outer(column, column) * rest[last, last]
    return factor


@pytest.mark.parametrize("shrinkage", [0.0, 0.3, 0.9])
def test_the_factor_is_that_of_the_moments(shrinkage):
    moments = moments_of(inputs=64)
    found = feedback(moments, shrinkage)[0]
    assert not np.triu(found).any()
    np.testing.assert_allclose(found.T, slow_factor(moments, shrinkage), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("type_name", TYPES)
def test_a_diagonal_gives_no_feedback(type_name):
    moments = np.diag(np.random.default_rng(2).random(INPUTS).astype(np.float32) + 0.1)
    factor, grid = feedback(moments)[0], grid_of(type_name)
    assert not factor.any()
    shares = importance(moments.diagonal())
    found, errors = quantised(weights_of(), shares, [factor], grid)
    plain, plain_errors = quantised(weights_of(), shares, (), grid)
    np.testing.assert_array_equal(found.codes, plain.codes)
    np.testing.assert_array_equal(found.d, plain.d)
    np.testing.assert_array_equal(errors, plain_errors)


@pytest.mark.parametrize("rounding", [quantise, quantise_with_numpy])
@pytest.mark.parametrize("type_name", TYPES)
def test_codes_are_those_of_a_slow_ldlq(type_name, rounding):
    """With the scales that were found, every input rounded after all errors before it, one by one."""
    moments, weights, grid = moments_of(), weights_of(), grid_of(type_name)
    form = grid.form
    found, errors = quantised(weights, importance(moments.diagonal()), [feedback(moments)[0]], grid, rounding)
    stored = values(found, form).T.astype(np.float64)
    np.testing.assert_allclose(weights - stored, errors, atol=1e-7)
    factor, lost = slow_factor(moments, 0.3), np.zeros_like(stored)
    group, wrong = BLOCK // form.groups, 0
    for j in range(INPUTS):
        target = weights[j] + factor[:j, j] @ lost[:j]
        for row in range(ROWS):
            choices = _values_of(found, form, row, j // group)
            nearest = choices[np.abs(choices - target[row]).argmin()]
            step = np.diff(choices).max(initial=1e-12)
            # Ties, and differences of float32 from float64, may fall to the other side.
            off = abs(abs(stored[j, row] - target[row]) - abs(nearest - target[row]))
            wrong += off > 1e-3 * step
        lost[j] = weights[j] - stored[j]
    # A ratio to a table is first rounded to a whole number.
    assert wrong <= (0.03 if form.table else 0.001) * INPUTS * ROWS


@pytest.mark.parametrize("type_name", ["Q4_0", "Q4_1", "Q8_0", "IQ4_NL"])
def test_scales_fit_the_weights_with_the_errors_before_their_unit(type_name):
    moments, weights, grid = moments_of(), weights_of(), grid_of(type_name)
    shares, factor = importance(moments.diagonal()), feedback(moments)[0]
    found, errors = quantised(weights, shares, [factor], grid)
    for unit in range(INPUTS // BLOCK):
        own = slice(unit * BLOCK, (unit + 1) * BLOCK)
        target = weights[own] + factor[own, : own.start] @ errors[: own.start]
        alone, _ = quantised(target.astype(np.float32), shares[own], (), grid)
        # Sums in another order may choose another scale of two that are equally good.
        assert (alone.d[:, 0] == found.d[:, unit]).mean() > (0.8 if type_name == "Q8_0" else 0.9)


def _values_of(found, form, row, group):
    """Return the values that codes of a group can have."""
    per_unit = form.unit_blocks * form.groups
    scale = float(found.d[row, group // per_unit])
    minimum = 0.0 if found.m is None else float(found.m[row, group // per_unit])
    if found.scales is not None:
        scale *= float(found.scales[row, group])
        minimum *= -float(found.minima[row, group]) if found.minima is not None else 0.0
    counts = {"nibbles": 16, "five": 32, "six": 64}
    integers = np.asarray(form.table) if form.table else (
        np.arange(-127, 128) if form.codes == "bytes" else np.arange(counts[form.codes]) - form.offset
    )  # fmt: skip
    return np.unique(integers * scale + minimum)


@pytest.mark.parametrize("type_name", TYPES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_outputs_lose_less(type_name, seed):
    moments, weights, grid = moments_of(seed), weights_of(seed + 10), grid_of(type_name)
    shares = importance(moments.diagonal())
    _, with_feedback = quantised(weights, shares, [feedback(moments, 0.0)[0]], grid)
    _, without = quantised(weights, shares, (), grid)
    assert output_error(with_feedback, moments) < 0.9 * output_error(without, moments)


@pytest.mark.parametrize("type_name", ["Q4_0", "IQ4_XS"])
def test_blocks_of_moments_do_not_touch_each_other(type_name):
    """A matrix whose inputs are in several blocks is what each block gives by itself."""
    moments = [moments_of(seed) for seed in (0, 1)]
    weights, grid = weights_of(inputs=2 * INPUTS), grid_of(type_name)
    shares = importance(np.concatenate([block.diagonal() for block in moments]))
    factors = [feedback(block)[0] for block in moments]
    _, errors = quantised(weights, shares, factors, grid)
    for number in range(2):
        own = slice(number * INPUTS, (number + 1) * INPUTS)
        _, alone = quantised(weights[own], shares[own], [factors[number]], grid)
        np.testing.assert_array_equal(errors[own], alone)


class TestDegenerate:
    def test_moments_of_one_token(self):
        x = np.random.default_rng(4).standard_normal((1, INPUTS)).astype(np.float32)
        moments, weights, grid = x.T @ x, weights_of(), grid_of("Q4_0")
        factor = feedback(moments)[0]
        assert np.isfinite(factor).all()
        shares = importance(moments.diagonal())
        _, errors = quantised(weights, shares, [factor], grid)
        _, without = quantised(weights, shares, (), grid)
        assert output_error(errors, moments) < output_error(without, moments)

    @pytest.mark.parametrize("shrinkage", [0.1, 0.3])
    def test_inputs_that_are_always_zero_or_copies_of_each_other(self, shrinkage):
        rng = np.random.default_rng(5)
        x = rng.standard_normal((500, INPUTS)).astype(np.float32)
        x[:, 7:20] = 0
        x[:, 100:130] = x[:, 99:100]
        factor = feedback(x.T @ x / np.float32(500), shrinkage)[0]
        assert np.isfinite(factor).all()
        assert not factor[:, 7:20].any()
        codes, errors = quantised(weights_of(), importance(np.square(x).mean(axis=0)), [factor], grid_of("Q4_K"))
        assert np.isfinite(errors).all()
        assert np.isfinite(codes.d).all()

    def test_nothing_but_zeros(self):
        factor = feedback(np.zeros((INPUTS, INPUTS), np.float32))[0]
        assert not factor.any()
        np.testing.assert_array_equal(importance(np.zeros(INPUTS, np.float32)), 1)

    @pytest.mark.parametrize("size", [1e-30, 1e-18, 1e18, 1e30])
    def test_the_size_of_the_moments_does_not_matter(self, size):
        moments = moments_of()
        found = feedback(moments * np.float32(size))[0]
        np.testing.assert_allclose(found, feedback(moments)[0], atol=1e-4)
        np.testing.assert_allclose(
            importance(moments.diagonal() * np.float32(size)), importance(moments.diagonal()), rtol=1e-4
        )

    def test_importance_is_above_zero_and_its_mean_about_1(self):
        moments = np.asarray([0, 0, 1e-9, 1, 3, 8], np.float32)
        found = importance(moments)
        assert found.dtype == np.float32
        assert (found >= 1e-4).all()
        assert found.mean() == pytest.approx(1, rel=1e-3)
