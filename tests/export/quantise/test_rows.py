"""Rows on their way into a package: which are quantised, in which order, with which feedback, and what is noted."""

from __future__ import annotations

import numpy as np
import pytest

from edge_rt.export.quantise.feedback import feedback, importance, quantise
from edge_rt.export.quantise.grids import Grid
from edge_rt.export.quantise.moments import HeldOut, InputMoments, Moments
from edge_rt.export.quantise.rows import QuantisedRows
from edge_rt.export.weights.codes import joined_rows, values
from edge_rt.export.weights.linear import Part
from edge_rt.export.weights.tile_formats import tile_format
from tests.helpers.arrays import Arrays
from tests.helpers.ggml_blocks import tensor_of

INPUTS, ROWS = 64, 50
NAME = "blk.0.ffn_down.weight"
WEIGHTS = (np.random.default_rng(0).standard_normal((ROWS, INPUTS)) * 0.05).astype(np.float32)


def part_of(quantised_to, row_order=None, source_type="F32"):
    return Part(tensor_of(source_type, ROWS, INPUTS, NAME), row_order, quantised_to)


def rows_of(part, moments=(), piece_rows=7, multiple=1):
    """Return what was read in pieces, and what was noted."""
    rows = QuantisedRows(None, Arrays({NAME: WEIGHTS}, piece_rows), dict(moments))
    return list(rows.rows(part, multiple=multiple)), rows.errors


def moments_of(x, held_out=None):
    found = InputMoments(Moments(INPUTS), HeldOut())
    found.fitted.add(x.astype(np.float32))
    if held_out is not None:
        found.held_out.add(held_out.astype(np.float32))
    return {"down": found}


def inputs_of(tokens, seed=1):
    rng = np.random.default_rng(seed)
    mixed = np.random.default_rng(9).standard_normal((6, INPUTS))
    return rng.standard_normal((tokens, 6)) @ mixed + 0.1 * rng.standard_normal((tokens, INPUTS))


def stored(pieces, type_name):
    return values(joined_rows([codes for codes, _ in pieces]), tile_format(type_name))


class Plain:
    """Gives rows of a part, and remembers how it was asked."""

    def rows(self, part, *, multiple=1):
        yield part, multiple


def test_what_keeps_its_type_is_read_as_it_is():
    part = part_of(None)
    assert list(QuantisedRows(Plain(), None, {}).rows(part, multiple=16)) == [(part, 16)]


@pytest.mark.parametrize("piece_rows", [1, 7, 16, 17, 100])
@pytest.mark.parametrize("multiple", [1, 16])
def test_pieces_are_of_whole_tiles_and_count_every_byte(piece_rows, multiple):
    pieces, _ = rows_of(part_of("Q4_1"), piece_rows=piece_rows, multiple=multiple)
    counts = [len(codes.codes) for codes, _ in pieces]
    assert all(count and count % multiple == 0 for count in counts[:-1])
    assert sum(counts) == ROWS
    assert sum(read for _, read in pieces) == part_of("Q4_1").tensor.nbytes


@pytest.mark.parametrize("type_name", ["Q4_1", "Q8_0", "IQ4_NL"])
def test_rows_in_an_order_of_their_own(type_name):
    order = np.random.default_rng(3).permutation(ROWS)
    plain, _ = rows_of(part_of(type_name))
    turned, _ = rows_of(part_of(type_name, order))
    np.testing.assert_array_equal(stored(turned, type_name), stored(plain, type_name)[order])


@pytest.mark.parametrize("order", [None, np.arange(ROWS)[::-1]])
def test_floats(order):
    halves, errors = rows_of(part_of("F16", order))
    expected = WEIGHTS if order is None else WEIGHTS[order]
    found = np.concatenate([rows for rows, _ in halves])
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, expected.astype(np.float16))
    floats, _ = rows_of(part_of("F32", order, "BF16"))
    found = np.concatenate([rows for rows, _ in floats])
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)
    assert errors == []


def test_without_moments_every_input_counts_alike():
    pieces, errors = rows_of(part_of("Q4_0"))
    grid = Grid(tile_format("Q4_0"))
    codes, lost = quantise(WEIGHTS, np.ones(INPUTS, np.float32), (), grid)
    np.testing.assert_array_equal(stored(pieces, "Q4_0"), values(codes, grid.form))
    (noted,) = errors
    assert (noted.name, noted.type_name, noted.has_feedback, noted.values) == (NAME, "Q4_0", False, ROWS * INPUTS)
    assert noted.error == pytest.approx(np.square(lost).sum() / np.square(WEIGHTS).sum(), rel=1e-5)


@pytest.mark.parametrize("type_name", ["Q4_0", "Q5_0", "IQ4_NL"])
def test_feedback_where_it_wins_on_tokens_that_were_held_out(type_name):
    fitted, judged = inputs_of(2000), inputs_of(500, seed=2)
    pieces, (noted,) = rows_of(part_of(type_name), moments_of(fitted, judged))
    assert noted.has_feedback
    grid = Grid(tile_format(type_name))
    found = moments_of(fitted)["down"].fitted
    factor, left = feedback(found.blocks[0] / np.float32(2000))
    ways = [quantise(WEIGHTS, importance(counts), [factor], grid) for counts in (left, found.diagonal)]
    codes, lost = min(ways, key=lambda way: np.square(judged @ way[1].T).sum())
    np.testing.assert_array_equal(stored(pieces, type_name), values(codes, grid.form))
    expected = np.square(judged @ lost.T).sum() / np.square(judged @ WEIGHTS.T).sum()
    assert noted.error == pytest.approx(expected, rel=1e-3)
    _, plain = quantise(WEIGHTS, importance(found.diagonal), (), grid)
    assert noted.error < np.square(judged @ plain.T).sum() / np.square(judged @ WEIGHTS.T).sum()


def test_no_feedback_where_it_loses():
    """The inputs of tokens that were held out do not depend on each other."""
    rng = np.random.default_rng(4)
    base = rng.standard_normal((2000, 1)) + 0.3 * rng.standard_normal((2000, INPUTS))
    pieces, (noted,) = rows_of(part_of("Q4_0"), moments_of(base, rng.standard_normal((500, INPUTS))))
    assert not noted.has_feedback
    grid = Grid(tile_format("Q4_0"))
    weight_of = importance(np.square(base).mean(axis=0))
    codes, _ = quantise(WEIGHTS, weight_of, (), grid)
    assert (stored(pieces, "Q4_0") == values(codes, grid.form)).mean() > 0.99


@pytest.mark.parametrize("held_out", [0, 2, 63])
def test_too_few_tokens_to_judge_by(held_out):
    x = inputs_of(600)
    _, (noted,) = rows_of(part_of("Q4_0"), moments_of(x, inputs_of(held_out, 3) if held_out else None))
    assert not noted.has_feedback


@pytest.mark.parametrize("tokens", [1, 63])
def test_too_few_tokens_to_fit_to(tokens):
    pieces, _ = rows_of(part_of("Q4_0"), moments_of(inputs_of(tokens)))
    plain, _ = rows_of(part_of("Q4_0"))
    np.testing.assert_array_equal(stored(pieces, "Q4_0"), stored(plain, "Q4_0"))


def test_a_matrix_of_zeros_loses_nothing():
    rows = QuantisedRows(None, Arrays({NAME: WEIGHTS * 0}), {})
    (piece,) = rows.rows(part_of("Q4_1", np.arange(ROWS)))
    assert not stored([piece], "Q4_1").any()
    assert rows.errors[0].error == 0
