"""Rounding in the native library against numpy's, and its bits."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from edge_rt.export.quantise.feedback import feedback, importance, quantise_with_numpy
from edge_rt.export.quantise.grids import QUANTISABLE, Grid
from edge_rt.export.quantise.native import round_rows
from edge_rt.export.weights.tile_formats import tile_format
from edge_rt.ort.op_library import native_library
from tests.helpers.pairs import with_slow
from tests.ops.single_op import needs_native

pytestmark = needs_native

WIDTHS = (512, 256)
INPUTS, ROWS = sum(WIDTHS), 70
PARTS = ("codes", "scales", "minima", "d", "m")


def task_of(seed=0):
    """Return rows, importance and feedback of inputs that depend on each other."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((2000, 24)) @ rng.standard_normal((24, INPUTS)) / 24**0.5
    x = (x + 0.5 * rng.standard_normal(x.shape)) * np.exp(0.5 * rng.standard_normal(INPUTS))
    moments = (x.T @ x / len(x)).astype(np.float32)
    blocks = [moments[:512, :512], moments[512:, 512:]]
    rows = (0.05 * rng.standard_normal((ROWS, INPUTS))).astype(np.float32)
    return rows, importance(moments.diagonal()), [feedback(block)[0] for block in blocks], blocks


def assert_same_bits(found, expected, rows=slice(None)):
    for name in PARTS:
        ours, theirs = getattr(found[0], name), getattr(expected[0], name)
        assert (ours is None) == (theirs is None)
        if ours is not None:
            np.testing.assert_array_equal(ours, theirs[rows])
    np.testing.assert_array_equal(found[1], expected[1][rows])


@pytest.mark.parametrize(
    ("type_name", "has_feedback"),
    with_slow(product(QUANTISABLE, [True, False]), [*product(QUANTISABLE, [True]), ("Q4_K", False), ("IQ4_NL", False)]),
)
class TestEveryType:
    def test_loses_what_numpy_does(self, type_name, has_feedback):
        rows, shares, factors, blocks = task_of()
        grid, factors = Grid(tile_format(type_name)), factors if has_feedback else ()
        found, expected = round_rows(rows, shares, factors, grid), quantise_with_numpy(rows, shares, factors, grid)
        # Sums in another order may choose another of two scales, or of two codes.
        assert (found[0].codes == expected[0].codes).mean() > (0.9 if type_name == "Q8_0" else 0.98)

        def lost(errors):
            begins = (0, WIDTHS[0])
            pieces = [(errors[:, at : at + len(block)], block) for at, block in zip(begins, blocks, strict=True)]
            return sum(float(np.einsum("ni,ij,nj->", part, block, part)) for part, block in pieces)

        assert lost(found[1]) == pytest.approx(lost(expected[1]), rel=0.01)

    def test_bits_do_not_depend_on_the_instruction_set_nor_on_other_rows(self, type_name, has_feedback):
        rows, shares, factors, _ = task_of(1)
        grid, factors = Grid(tile_format(type_name)), factors if has_feedback else ()
        found = round_rows(rows, shares, factors, grid)
        for isa in native_library().isa_names:
            assert_same_bits(round_rows(rows, shares, factors, grid, isa=isa), found)
        for own in (slice(0, 1), slice(3, 20), slice(65, 70)):
            assert_same_bits(round_rows(rows[own], shares, factors, grid), found, own)


def test_no_rows():
    codes, errors = round_rows(np.empty((0, 64), np.float32), np.ones(64, np.float32), (), Grid(tile_format("Q4_1")))
    assert codes.codes.shape == errors.shape == (0, 64)
