"""Nested codes: both views of weights are good, and what the packed codes say is what was measured."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from edge_rt.export.quantise.feedback import quantise
from edge_rt.export.quantise.grids import Grid
from edge_rt.export.quantise.nested import quantise_nested
from edge_rt.export.weights.codes import upper_codes, values
from edge_rt.export.weights.tile_formats import tile_format

EVEN = np.ones(256, np.float32)


def lost(errors):
    return float(np.square(errors).sum())


@pytest.fixture(params=["normal", "heavy tails", "one side"])
def weights(request):
    rng = np.random.default_rng(4)
    drawn = rng.standard_normal((256, 200)) if request.param == "normal" else rng.standard_t(4, (256, 200))
    return (np.abs(drawn) if request.param == "one side" else drawn).astype(np.float32) * np.float32(0.05)


def test_errors_are_those_of_the_stored_values(weights):
    codes, errors, upper_errors = quantise_nested(weights, EVEN)
    for found, form, error in ((codes, "W8N", errors), (upper_codes(codes), "Q4_1", upper_errors)):
        np.testing.assert_allclose(weights - values(found, tile_format(form)).T, error, rtol=0, atol=1e-7)


def test_whole_codes_are_as_good_as_int8_and_upper_ones_as_four_bits(weights):
    _, errors, upper_errors = quantise_nested(weights, EVEN)
    alone = {
        name: lost(quantise(weights.T, EVEN, (), Grid(tile_format(name)))[1].T) for name in ("Q8_0", "Q4_1", "IQ4_NL")
    }
    # Int8 alone may take the range that is best for it.
    assert lost(errors) < 1.25 * alone["Q8_0"]
    # Four bits alone may cut off what eight must hold.
    assert lost(upper_errors) < 1.15 * min(alone["Q4_1"], alone["IQ4_NL"])


def test_importance_moves_errors_to_inputs_that_matter_less(weights):
    importance = np.where(np.arange(256) % 2 == 0, 30.0, 0.1).astype(np.float32)
    for even, weighted in zip(
        quantise_nested(weights, EVEN)[1:], quantise_nested(weights, importance)[1:], strict=True
    ):
        assert lost(weighted[::2]) < lost(even[::2])


@given(st.sampled_from([0.0, 1.0, -3.0, 65504.0, 1e-6, -2e-8]), st.integers(0, 2**32 - 1))
def test_groups_that_are_equal_or_nearly_so(value, seed):
    weights = np.full((32, 3), value, np.float32)
    weights[:, 1] += np.float32(1e-4 * value) * np.random.default_rng(seed).random(32).astype(np.float32)
    codes, errors, upper_errors = quantise_nested(weights, EVEN[:32])
    found = values(codes, tile_format("W8N"))
    assert np.isfinite(found).all()
    # Halves have 11 bits, and below 6e-8 none.
    for error in (errors, upper_errors):
        assert np.abs(error).max() <= abs(value) * 2e-3 + 6e-8
