"""Formats' values: what is stored is what the errors say, and the search is never worse than plain rounding."""

from __future__ import annotations

import numpy as np
import pytest

from edge_rt.export.quantise.feedback import quantise
from edge_rt.export.quantise.grids import LARGEST_HALF, QUANTISABLE, Grid
from edge_rt.export.weights.tile_formats import tile_format
from edge_rt.export.weights.tiles import pack_rows, unpack_rows

INPUTS, ROWS = 256, 48
FIRST_CODES = {"nibbles": 16, "five": 32, "six": 64, "bytes": 255}


def grid_of(type_name):
    return Grid(tile_format(type_name))


def weights_of(kind, seed=1):
    rng = np.random.default_rng(seed)
    weights = {
        "normal": rng.standard_normal((INPUTS, ROWS)) * 0.05,
        "heavy": rng.standard_t(2, (INPUTS, ROWS)) * 0.05,
        "positive": rng.random((INPUTS, ROWS)) + 0.5,
        "negative": -rng.random((INPUTS, ROWS)) - 0.5,
    }[kind]
    return weights.astype(np.float32)


def rounded(weights, type_name, importance=None):
    """Return the values that tiles hold, ``[inputs, rows]``, and the errors that were returned."""
    grid = grid_of(type_name)
    shares = np.ones(len(weights), np.float32) if importance is None else importance
    codes, errors = quantise(np.ascontiguousarray(weights.T), shares, (), grid)
    stored = unpack_rows(pack_rows(codes, grid.form), grid.form)[: weights.shape[1]].T
    return stored, errors.T


def plain_errors(weights, type_name):
    """Return the squared errors of rows by plain rounding: the largest weight, or the range, gets the last code."""
    grid = grid_of(type_name)
    form, squares = grid.form, np.zeros(weights.shape[1])
    for begin in range(0, len(weights), form.unit_inputs):
        groups = weights[begin : begin + form.unit_inputs].reshape(-1, grid.group, weights.shape[1])
        if form.has_minimum:
            least = groups.min(axis=1)
            # Formats whose scales are bytes hold minima that are not above 0.
            least = np.minimum(least, 0) if form.scale_bytes else least
            found = grid.settle((groups.max(axis=1) - least) / (FIRST_CODES[form.codes] - 1), least)
        else:
            peak = np.take_along_axis(groups, np.abs(groups).argmax(axis=1)[:, None], axis=1)[:, 0]
            lowest = min(form.table) if form.table else {"bytes": -127}.get(form.codes, -form.offset)
            found = grid.settle(peak / np.float32(lowest), None)
        scale = found.scale[:, None]
        minimum = 0 if found.minimum is None else found.minimum[:, None]
        integers = grid.integers((groups - minimum) / np.where(scale == 0, 1, scale))
        squares += np.square(groups - scale * integers - minimum).sum(axis=(0, 1))
    return squares


@pytest.mark.parametrize("kind", ["normal", "heavy", "positive", "negative"])
@pytest.mark.parametrize("type_name", QUANTISABLE)
def test_tiles_hold_the_weights_less_their_errors(type_name, kind):
    weights = weights_of(kind)
    stored, errors = rounded(weights, type_name)
    np.testing.assert_array_equal((weights - stored).view(np.uint32), errors.view(np.uint32))


@pytest.mark.parametrize("kind", ["normal", "heavy", "positive", "negative"])
@pytest.mark.parametrize("type_name", QUANTISABLE)
def test_the_search_is_not_worse_than_plain_rounding(type_name, kind):
    weights = weights_of(kind)
    found, plain = np.square(rounded(weights, type_name)[1]).sum(axis=0), plain_errors(weights, type_name)
    # Of one row a little: the scales of a unit are rounded together.
    assert (found <= 1.05 * plain).all()
    assert found.sum() < plain.sum()


@pytest.mark.parametrize("type_name", QUANTISABLE)
def test_finer_types_lose_less(type_name):
    bits = {"nibbles": 4, "table": 4, "five": 5, "six": 6, "bytes": 8}[tile_format(type_name).codes]
    weights = weights_of("normal")
    relative = np.square(rounded(weights, type_name)[1]).sum() / np.square(weights).sum()
    least, most = {4: (0.004, 0.008), 5: (0.001, 0.002), 6: (2e-4, 5e-4), 8: (1e-5, 4e-5)}[bits]
    assert least < relative < most


@pytest.mark.parametrize("type_name", QUANTISABLE)
def test_weights_on_a_grid_come_back(type_name):
    """Scales that fp16 has, factors that bytes have, and every group has both ends of the codes."""
    grid = grid_of(type_name)
    form, rng = grid.form, np.random.default_rng(3)
    groups = INPUTS // grid.group
    values = np.asarray(form.table) if form.table else np.arange(FIRST_CODES[form.codes]) - (
        127 if form.codes == "bytes" else form.offset
    )  # fmt: skip
    codes = rng.choice(values, (groups, grid.group, ROWS)).astype(np.float32)
    codes[:, 0], codes[:, 1] = values.min(), values.max()
    per_unit = form.unit_blocks * form.groups
    factors = np.full((groups, 1, ROWS), 1.0)
    if form.scale_bytes:
        most = 127 if form.scales == "signed" else 255
        factors = rng.integers(most // 2, most + 1, (groups, 1, ROWS)).astype(np.float64)
        factors[::per_unit] = most
    scale = (factors * 2.0**-12).astype(np.float32)
    minimum = np.float32(0)
    if form.has_minimum:
        minima = rng.integers(1, 256, (groups, 1, ROWS))
        minima[::per_unit] = 255
        minimum = (-minima * 2.0**-10).astype(np.float32)
    weights = (codes * scale + minimum).reshape(INPUTS, ROWS).astype(np.float32)
    stored, errors = rounded(weights, type_name)
    # Numbers that are searched by least squares in float32 may miss those of fp16 by one place.
    assert np.abs(errors).max() <= 2.0**-9 * np.abs(weights).max()
    assert (stored == weights).mean() > 0.5


@pytest.mark.parametrize("type_name", QUANTISABLE)
class TestUnusualWeights:
    def test_zeros(self, type_name):
        stored, errors = rounded(np.zeros((INPUTS, ROWS), np.float32), type_name)
        assert not stored.any()
        assert not errors.any()

    @pytest.mark.parametrize("value", [0.75, -0.75, 3e4, -3e4])
    def test_constants(self, type_name, value):
        stored, _ = rounded(np.full((INPUTS, ROWS), value, np.float32), type_name)
        np.testing.assert_allclose(stored, value, rtol=1e-3)

    def test_one_outlier(self, type_name):
        weights = weights_of("normal")
        weights[37, 5] = -40
        stored, errors = rounded(weights, type_name)
        assert stored[37, 5] == pytest.approx(-40, rel=0.02)
        # Rows and, where each has a scale of its own, blocks without it lose no more than before.
        _, without = rounded(weights_of("normal"), type_name)
        others = np.arange(ROWS) != 5
        np.testing.assert_array_equal(errors[:, others], without[:, others])

    @pytest.mark.parametrize("size", [1e-30, 1e-38, 1e-45])
    def test_tiny_weights_are_finite(self, type_name, size):
        weights = (weights_of("normal") * np.float32(size)).astype(np.float32)
        stored, errors = rounded(weights, type_name)
        assert np.isfinite(stored).all()
        assert np.abs(errors).max() <= np.abs(weights).max()

    def test_the_largest_weights_that_fit(self, type_name):
        weights = weights_of("normal") / np.float32(0.05)
        weights = np.clip(weights * np.float32(LARGEST_HALF / 2), -LARGEST_HALF, LARGEST_HALF).astype(np.float32)
        stored, errors = rounded(weights, type_name)
        assert np.isfinite(stored).all()
        assert np.square(errors).sum() < 0.02 * np.square(weights).sum()


@pytest.mark.parametrize("type_name", QUANTISABLE)
class TestImportance:
    def test_errors_go_where_they_count_less(self, type_name):
        weights = weights_of("normal")
        importance = np.exp(np.random.default_rng(5).standard_normal(INPUTS) * 1.5).astype(np.float32)
        _, alike = rounded(weights, type_name)
        _, weighted = rounded(weights, type_name, importance)
        assert importance @ np.square(weighted).sum(axis=1) < importance @ np.square(alike).sum(axis=1)
        assert np.square(weighted).sum() > np.square(alike).sum()

    def test_an_input_loses_less_the_more_it_counts(self, type_name):
        weights, chosen = weights_of("normal"), slice(3, None, 32)
        lost = []
        for size in (0.01, 1, 100, 1e4):
            importance = np.ones(INPUTS, np.float32)
            importance[chosen] = size
            lost.append(float(np.square(rounded(weights, type_name, importance)[1][chosen]).sum()))
        assert lost == sorted(lost, reverse=True)

    def test_its_unit_does_not_matter(self, type_name):
        weights = weights_of("normal")
        importance = np.exp(np.random.default_rng(5).standard_normal(INPUTS)).astype(np.float32)
        a, b = (rounded(weights, type_name, importance * np.float32(unit))[0] for unit in (1, 1024))
        np.testing.assert_array_equal(a, b)
