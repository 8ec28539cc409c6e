"""What SpecAttention writes into a cache: rows in every format, codes of keys with and without constants."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.kv_layout import marked_rows
from tests.ops import spec_attention_reference as reference
from tests.ops.attention_cases import (
    CAPACITY,
    CODED,
    CONSTANTS,
    HEADS,
    OF_SIZE,
    Case,
    Layer,
    make_rows,
    make_tables,
    with_changes,
)
from tests.ops.single_op import needs_native
from tests.ops.spec_attention_reference import FORMATS, Config

pytestmark = [needs_native, pytest.mark.own_pools]

# Largest error of a stored value of size 1: none but float32's; half an ulp of a half; half a code, of which there are
# 254 or 15 from the least to the greatest; a whole one of 255 where the finer code would be 8.
STORED = {"f32": 2e-6, "f16": 2.5e-3, "int8": 2.5e-2, "nibbles": 0.07, "pairs": 9e-3, "upper": 0.07}
# A step that float32 and float64 put on two sides of the middle between codes.
TIE = 2e-3
SUBSETS = [CONSTANTS, *((name,) for name in CONSTANTS), CONSTANTS[:2]]


@pytest.mark.parametrize("kv_format", FORMATS)
def test_stored_rows(kv_format):
    rng = np.random.default_rng(1)
    config = Config(heads=2, kv_heads=2, dim=40)
    tables = make_tables(rng, Case(config, of_row=HEADS))
    layer = Layer(config, tables, kv_format, row_map=rng.permutation(CAPACITY))
    qkv = make_rows(rng, config, 9)
    layer.run(qkv, 0)
    stored = reference.read_cache(layer.cache, kv_format, config.dim)
    for row in range(9):
        _, *given = reference.split_heads(config, tables, qkv[row], row)
        at = layer.row_map[row]
        for i, coding in enumerate(reference.CODINGS[kv_format]):
            wanted = reference.turns(kv_format)[i](given[i])
            np.testing.assert_allclose(stored[i, :, at], wanted, atol=STORED[coding] * np.abs(wanted).max())
    untouched = np.delete(stored, layer.row_map[:9], axis=2)
    assert not untouched.any()


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("dim", [2, 48, 64])
def test_rows_lie_where_the_format_says(kv_format, dim):
    """A pass writes all bytes of its rows, and no others."""
    config = Config(dim=dim)
    rng = np.random.default_rng(7)
    row_map = rng.permutation(CAPACITY)
    caches = []
    for empty in (0, 0xEE):
        layer = Layer(config, make_tables(rng, Case(config)), kv_format, row_map=row_map)
        layer.cache[...] = empty
        layer.run(make_rows(np.random.default_rng(8), config, 5), 0)
        caches.append((layer.cache != empty).copy())
    marks = marked_rows(kv_format.removesuffix("_upper"), layer.cache.shape, dim, row_map[:5])
    # What was written differs from one of the two.
    np.testing.assert_array_equal(caches[0] | caches[1], marks)


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("value", [0.0, 1e-7, 3e-8, 1e38])
def test_values_that_a_format_cannot_hold(kv_format, value):
    config = Config(dim=32)
    layer = Layer(config, make_tables(np.random.default_rng(0), Case(config, 0)), kv_format)
    qkv = np.full((2, 8 * 32), value, np.float32)
    qkv[:, : 4 * 32] = 0.0
    y = layer.run(qkv, 0)
    assert np.isfinite(y).all()
    # A constant: exact in f32, the largest half (times 127 in int8) where it is too large.
    limits = {"f32": np.inf, "f16": 65504.0, "int8": 127 * 65504.0}
    if kv_format in limits:
        np.testing.assert_allclose(y, min(np.float32(value), limits[kv_format]), rtol=1e-3, atol=1e-7 * 127)
        return
    # Turned, all of a head lies in its first element: exact, but for halves, where those hold it; else 15 codes of the
    # largest half (and with finer codes a little less than half a code beyond).
    height = value * np.sqrt(32)
    wanted = value if height < 65504.0 else 15 * 65504.0 / np.sqrt(32)
    np.testing.assert_allclose(y, wanted, rtol=0.035, atol=1e-7 * 15)


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("count", [4, 40])
def test_a_broken_row_breaks_only_itself(kv_format, count):
    """Rows that do not see it have the same bits, as results and in the cache; what it gives itself is left open."""
    config = Config(dim=48)
    rng = np.random.default_rng(5)
    tables = make_tables(rng, Case(config))
    parents = np.arange(-1, count - 1)
    at = count // 2
    parents[at + 1] = at - 1  # the rows behind it follow another
    qkv = make_rows(rng, config, count)
    broken = qkv.copy()
    broken[at, -1] = broken[at, config.heads * config.dim] = np.nan  # of a value, of a key
    broken[at, 0] = np.inf
    clean, found = Layer(config, tables, kv_format), Layer(config, tables, kv_format)
    expected, got = clean.run(qkv, 0, parents), found.run(broken, 0, parents)
    others = np.arange(count) != at
    assert got[others].tobytes() == expected[others].tobytes()
    if kv_format in ("f32", "f16"):
        assert not np.isfinite(got[at]).all()
    name = kv_format.removesuffix("_upper")
    own = marked_rows(name, found.cache.shape, config.dim, [at])
    np.testing.assert_array_equal(found.cache[~own], clean.cache[~own])


@pytest.mark.parametrize("kv_format", FORMATS)
def test_a_broken_row_of_another_pass_breaks_nothing(kv_format):
    """It is rolled back: what is computed afterwards does not see it, in the row that it had or in others."""
    config = Config(dim=48)
    rng = np.random.default_rng(6)
    tables = make_tables(rng, Case(config))
    first, second = make_rows(rng, config, 20), make_rows(rng, config, 9)
    clean, found = Layer(config, tables, kv_format), Layer(config, tables, kv_format)
    for layer in (clean, found):
        layer.run(first, 0)
    found.run(np.full_like(second, np.nan), 20)
    for size in (1, 8):
        assert found.run(second[:size], 20).tobytes() == clean.run(second[:size], 20).tobytes()


def keys_of(layer, qkv, past=0):
    """Return keys [rows, kv heads, dim] as they are before rounding."""
    keys = []
    for row, numbers in enumerate(qkv):
        split = reference.split_heads(layer.config, layer.tables, numbers, past + row)
        _, key = reference.balanced(layer.config, layer.tables, layer.kv_format, *split[:2])
        keys.append(reference.turned(key))
    return np.array(keys)


@pytest.mark.parametrize("names", SUBSETS, ids="+".join)
@pytest.mark.parametrize("dim", OF_SIZE)
def test_codes_are_those_of_the_definition(dim, names):
    rng = np.random.default_rng(dim)
    case = OF_SIZE[dim]._replace(constants=names)
    layer = Layer(case.config, make_tables(rng, case), "int4")
    config, count = layer.config, 11
    qkv = make_rows(rng, config, count)
    layer.run(qkv, 0)
    keys = keys_of(layer, qkv)
    codes, scales, minimums = reference.read_int4_keys(layer.cache, dim)
    feedback = layer.tables.key_feedback
    for row in range(count):
        for kv in range(config.kv_heads):
            x, code, scale, minimum = keys[row, kv], codes[kv, row], scales[kv, row], minimums[kv, row]
            for begin in range(0, dim, reference.GROUP):
                part = x[begin : begin + reference.GROUP]
                np.testing.assert_allclose(scale[begin], (part.max() - part.min()) / 15, rtol=1e-3)
                np.testing.assert_allclose(minimum[begin], part.min(), rtol=1e-3, atol=1e-5)
            steps = reference.coded_steps(
                x, code, scale, minimum, np.zeros((dim, dim)) if feedback is None else feedback[kv]
            )
            wanted = np.clip(steps, 0, 15)
            assert np.abs(code - wanted).max() <= 0.5 + TIE
    if feedback is not None:
        plain = with_changes(layer, key_feedback=None)
        plain.run(qkv, 0)
        others, *levels = reference.read_int4_keys(plain.cache, dim)
        assert np.mean(others[:, :count] != codes[:, :count]) > 0.02  # feedback that did nothing would pass above
        np.testing.assert_array_equal(levels[0], scales)
        np.testing.assert_array_equal(levels[1], minimums)


@pytest.mark.parametrize("kv_format", CODED)
@pytest.mark.parametrize("dim", OF_SIZE)
def test_feedback_of_zeros_changes_codes_only_where_they_tie(dim, kv_format):
    """It multiplies by the inverse of a scale, where codes are otherwise divided."""
    rng = np.random.default_rng(1)
    case = OF_SIZE[dim]
    plain = Layer(case.config, make_tables(rng, case), kv_format)
    fed = with_changes(plain, key_feedback=np.zeros((case.config.kv_heads, dim, dim), np.float32))
    qkv = make_rows(rng, case.config, 20)
    for layer in (plain, fed):
        layer.run(qkv, 0)
    codes, others = (reference.read_cache(layer.cache, kv_format, dim)[0] for layer in (fed, plain))
    assert np.mean(codes != others) < 1e-3


def errors(config, tables, qkv, kv_format):
    """Return the mean squared difference from what a float cache gives."""
    exact = Layer(config, replace(tables, **dict.fromkeys(CONSTANTS)), "f32").run(qkv, 0)
    return np.mean((Layer(config, tables, kv_format).run(qkv, 0) - exact) ** 2)


QUERIES, KEYS = slice(0, 4 * 64), slice(4 * 64, 6 * 64)  # columns of qkv
GAINS = Config(heads=4, kv_heads=2, dim=64, scale=0.125)


def unrotated(rng, config, **constants):
    return make_tables(rng, Case(config, 0), **constants)


@pytest.mark.parametrize("kv_format", CODED)
def test_a_centre_takes_away_what_all_keys_share(kv_format):
    rng = np.random.default_rng(2)
    qkv = make_rows(rng, GAINS, 150)
    shared = 6 * rng.standard_normal(2 * 64).astype(np.float32)
    qkv[:, KEYS] += shared
    plain = errors(GAINS, unrotated(rng, GAINS), qkv, kv_format)
    centred = errors(GAINS, unrotated(rng, GAINS, key_centre=shared.reshape(2, 64)), qkv, kv_format)
    assert centred < plain / 3


def test_scores_do_not_see_the_centre():
    rng = np.random.default_rng(3)
    qkv = make_rows(rng, GAINS, 150)
    centre = 0.3 * rng.standard_normal((2, 64)).astype(np.float32)
    assert errors(GAINS, unrotated(rng, GAINS, key_centre=centre), qkv, "int4x2") < 1e-4


@pytest.mark.parametrize("kv_format", CODED)
def test_a_balance_suits_dimensions_of_unlike_size(kv_format):
    rng = np.random.default_rng(4)
    qkv = make_rows(rng, GAINS, 150)
    sizes = 2.0 ** rng.uniform(-3, 3, (2, 64)).astype(np.float32)
    qkv[:, KEYS] *= sizes.reshape(-1)
    qkv[:, QUERIES] /= np.repeat(sizes, 2, axis=0).reshape(-1)
    plain = errors(GAINS, unrotated(rng, GAINS), qkv, kv_format)
    balanced = errors(GAINS, unrotated(rng, GAINS, key_balance=sizes), qkv, kv_format)
    assert balanced < plain / 3


def test_feedback_moves_errors_to_where_queries_are_small():
    rng = np.random.default_rng(5)
    qkv = make_rows(rng, GAINS, 150)
    # Queries of few directions, and their second moment in the space of turned keys.
    spread = (rng.standard_normal((64, 64)) * 3 * 0.8 ** np.arange(64)).T.astype(np.float32)
    qkv[:, QUERIES] = (qkv[:, QUERIES].reshape(-1, 64) @ spread).reshape(150, -1)
    turned = reference.turned(spread.astype(np.float64))
    moment = turned.T @ turned
    moment += 0.02 * np.trace(moment) / 64 * np.eye(64)
    upper = np.linalg.cholesky(np.linalg.inv(moment)).T
    feedback = np.triu(upper / np.diag(upper)[:, None], 1)
    feedback = np.repeat(feedback[None], 2, axis=0).astype(np.float32)
    plain = errors(GAINS, unrotated(rng, GAINS), qkv, "int4")
    fed = errors(GAINS, unrotated(rng, GAINS, key_feedback=feedback), qkv, "int4")
    assert fed < plain / 1.5


@pytest.mark.parametrize("value", [0.0, 1e-7, 3e-8, 1e5, 1e38])
@pytest.mark.parametrize("dim", [22, 64])
def test_values_that_codes_cannot_hold_give_finite_results(dim, value):
    rng = np.random.default_rng(dim)
    case = OF_SIZE[dim]._replace(constants=CONSTANTS)
    layer = Layer(case.config, make_tables(rng, case), "int4")
    qkv = np.full_like(make_rows(rng, layer.config, 5), value)
    qkv[:, : layer.config.heads * dim] = 0.0
    assert np.isfinite(layer.run(qkv, 0)).all()
    assert np.isfinite(reference.read_cache(layer.cache, "int4", dim)).all()
