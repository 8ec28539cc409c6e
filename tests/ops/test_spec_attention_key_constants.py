"""Constants that 4-bit keys are written with: centre, balance and error feedback, each alone and together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.pairs import all_pairs
from tests.ops import spec_attention_reference as reference
from tests.ops.single_op import ISAS, needs_native
from tests.ops.spec_attention_reference import FORMATS, Config, Tables
from tests.ops.test_spec_attention import Layer, check, make_rows, make_tables, one_by_one, random_parents

pytestmark = [needs_native, pytest.mark.own_pools]

TURNED = ("int4", "int4x2", "int4x2_upper")  # formats whose keys the constants apply to
NAMES = ("key_centre", "key_balance", "key_feedback")
SUBSETS = [NAMES, *((name,) for name in NAMES), NAMES[:2]]
# Group sizes, rotations and norms of every kind; head sizes in whole vectors of 16 and not, of one vector and of many.
SHAPES = {
    16: (Config(heads=4, kv_heads=2, dim=16), {}),
    22: (Config(heads=3, kv_heads=3, dim=22), {"rotary": 10}),
    40: (Config(heads=4, kv_heads=1, dim=40, window=30), {"norms": True}),
    64: (Config(heads=9, kv_heads=3, dim=64, scale=0.125), {}),
    80: (Config(heads=10, kv_heads=2, dim=80, interleaved=1), {"norms": True}),
    128: (Config(heads=2, kv_heads=1, dim=128, scale=0.1), {}),
    256: (Config(heads=2, kv_heads=2, dim=256, scale=0.06), {"norms": True, "rotary": 64}),
}
# A step that float32 and float64 put on two sides of the middle between codes.
TIE = 2e-3


def spelled(value):
    """Return the id of a subset of the constants; of other values pytest's own."""
    return "+".join(value) if isinstance(value, tuple) else None


def make_constants(rng, config, names=NAMES):
    heads, dim = config.kv_heads, config.dim
    drawn = {
        "key_centre": rng.standard_normal((heads, dim)),
        "key_balance": rng.uniform(0.5, 2.0, (heads, dim)),
        "key_feedback": np.triu(0.12 * rng.standard_normal((heads, dim, dim)), 1),
    }
    return {name: drawn[name].astype(np.float32) for name in names}


def make_layers(dim, kv_format, count, names=NAMES, threads=(1,)):
    """Return a random generator and layers with caches of their own; the first in order, the others shuffled."""
    config, options = SHAPES[dim]
    rng = np.random.default_rng(dim)
    tables = replace(make_tables(rng, config, **options), **make_constants(rng, config, names))
    return rng, [
        Layer(config, tables, kv_format, row_map=rng.permutation(320) if i else None, threads=threads[i % len(threads)])
        for i in range(count)
    ]


def keys_of(layer, qkv, past=0):
    """Return keys [rows, kv heads, dim] as they are before rounding."""
    keys = []
    for row, numbers in enumerate(qkv):
        split = reference.split_heads(layer.config, layer.tables, numbers, past + row)
        _, key = reference.balanced(layer.config, layer.tables, layer.kv_format, *split[:2])
        keys.append(reference.turned(key))
    return np.array(keys)


@pytest.mark.parametrize("names", SUBSETS, ids="+".join)
@pytest.mark.parametrize("dim", SHAPES)
def test_codes_are_those_of_the_definition(dim, names):
    rng, (layer,) = make_layers(dim, "int4", 1, names)
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
        plain = Layer(config, replace(layer.tables, key_feedback=None), "int4")
        plain.run(qkv, 0)
        others, *levels = reference.read_int4_keys(plain.cache, dim)
        assert np.mean(others[:, :count] != codes[:, :count]) > 0.02  # feedback that did nothing would pass above
        np.testing.assert_array_equal(levels[0], scales)
        np.testing.assert_array_equal(levels[1], minimums)


@pytest.mark.parametrize(("dim", "kv_format", "names"), all_pairs(SHAPES, TURNED, SUBSETS), ids=spelled)
def test_passes_match_the_reference(dim, kv_format, names):
    rng, (_, layer) = make_layers(dim, kv_format, 2, names, threads=(2,))
    past = 0
    for count, is_tree in ((1, False), (40, False), (7, True), (1, False), (90, False), (20, True)):
        qkv = make_rows(rng, layer.config, count)
        parents = random_parents(rng, count) if is_tree else None
        y = layer.run(qkv, past, parents)
        check(y, layer.expected(qkv, past, parents), kv_format)
        past += 1 if is_tree else count


@pytest.mark.parametrize("kv_format", TURNED)
@pytest.mark.parametrize("dim", SHAPES)
def test_bits_do_not_depend_on_how_a_prompt_is_cut(dim, kv_format):
    rng, (alone, *others) = make_layers(dim, kv_format, 4, threads=(1, 2, 3))
    qkv = make_rows(rng, alone.config, 130)
    wanted = one_by_one(alone, qkv)
    for layer in others:
        past = 0
        while past < len(qkv):
            part = qkv[past : past + int(rng.choice([1, 2, 3, 5, 16, 17, 40, 130]))]
            assert layer.run(part, past).tobytes() == wanted[past : past + len(part)].tobytes(), past
            past += len(part)
        cut = reference.read_cache(layer.cache, kv_format, dim)[:, :, layer.row_map[: len(qkv)]]
        assert cut.tobytes() == reference.read_cache(alone.cache, kv_format, dim)[:, :, : len(qkv)].tobytes()


@pytest.mark.parametrize(("dim", "kv_format", "count"), all_pairs(SHAPES, TURNED, [6, 30]))
def test_bits_of_a_tree_are_those_of_its_branches(dim, kv_format, count):
    rng, (plain, layer) = make_layers(dim, kv_format, 2, threads=(1, 2))
    prompt, rows = make_rows(rng, layer.config, 75), make_rows(rng, layer.config, count)
    parents = random_parents(rng, count)
    layer.run(prompt, 0)
    plain.run(prompt, 0)
    tree = layer.run(rows, 75, parents)
    for row in range(count):
        path = reference.ancestors(parents, row)
        # Each branch is run after the one before it was rolled back, by a smaller length alone.
        assert plain.run(rows[path], 75)[-1].tobytes() == tree[row].tobytes(), path


@pytest.mark.parametrize("isa", ISAS[1:])
@pytest.mark.parametrize("kv_format", TURNED)
@pytest.mark.parametrize("dim", SHAPES)
def test_bits_do_not_depend_on_the_instruction_set(dim, kv_format, isa):
    rng, (best,) = make_layers(dim, kv_format, 1)
    other = Layer(best.config, best.tables, kv_format, isa=isa)
    for past, count in ((0, 50), (50, 1), (51, 9)):
        qkv = make_rows(rng, best.config, count)
        assert other.run(qkv, past).tobytes() == best.run(qkv, past).tobytes()
    assert other.cache.tobytes() == best.cache.tobytes()


@pytest.mark.parametrize("kv_format", [name for name in FORMATS if name not in TURNED])
def test_other_formats_do_without(kv_format):
    rng, (layer,) = make_layers(64, kv_format, 1)
    plain = Layer(layer.config, replace(layer.tables, **dict.fromkeys(NAMES)), kv_format)
    qkv = make_rows(rng, layer.config, 60)
    assert layer.run(qkv, 0).tobytes() == plain.run(qkv, 0).tobytes()
    assert layer.cache.tobytes() == plain.cache.tobytes()


@pytest.mark.parametrize("kv_format", ["int4x2", "int4x2_upper"])
def test_finer_codes_do_without_feedback(kv_format):
    rng, (layer,) = make_layers(64, kv_format, 1)
    plain = Layer(layer.config, replace(layer.tables, key_feedback=None), kv_format)
    qkv = make_rows(rng, layer.config, 60)
    assert layer.run(qkv, 0).tobytes() == plain.run(qkv, 0).tobytes()
    assert layer.cache.tobytes() == plain.cache.tobytes()


@pytest.mark.parametrize("kv_format", TURNED)
@pytest.mark.parametrize("dim", SHAPES)
def test_constants_that_change_nothing(dim, kv_format):
    config, options = SHAPES[dim]
    rng = np.random.default_rng(1)
    tables = make_tables(rng, config, **options)
    zeros, ones = (np.full((config.kv_heads, dim), value, np.float32) for value in (0, 1))
    neutral = replace(tables, key_centre=zeros, key_balance=ones)
    qkv = make_rows(rng, config, 20)
    plain, layer = Layer(config, tables, kv_format), Layer(config, neutral, kv_format)
    assert layer.run(qkv, 0).tobytes() == plain.run(qkv, 0).tobytes()
    # Feedback of zeros multiplies by the inverse of a scale, where codes are otherwise divided: ties may differ.
    fed = Layer(config, replace(neutral, key_feedback=np.zeros((config.kv_heads, dim, dim), np.float32)), kv_format)
    fed.run(qkv, 0)
    codes, others = (reference.read_cache(x.cache, kv_format, dim)[0] for x in (fed, plain))
    assert np.mean(codes != others) < 1e-3


def errors(config, tables, qkv, kv_format):
    """Return the mean squared difference from what a float cache gives."""
    exact = Layer(config, replace(tables, **dict.fromkeys(NAMES)), "f32").run(qkv, 0)
    return np.mean((Layer(config, tables, kv_format).run(qkv, 0) - exact) ** 2)


QUERIES, KEYS = slice(0, 4 * 64), slice(4 * 64, 6 * 64)  # columns of qkv
GAINS = Config(heads=4, kv_heads=2, dim=64, scale=0.125)


def unrotated(rng, config, **constants):
    return replace(make_tables(rng, config, rotary=0), **constants)


@pytest.mark.parametrize("kv_format", TURNED)
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


@pytest.mark.parametrize("kv_format", TURNED)
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
    rng, (layer,) = make_layers(dim, "int4", 1)
    qkv = np.full_like(make_rows(rng, layer.config, 5), value)
    qkv[:, : layer.config.heads * dim] = 0.0
    assert np.isfinite(layer.run(qkv, 0)).all()
    assert np.isfinite(reference.read_cache(layer.cache, "int4", dim)).all()


ZEROS = lambda *dims: np.zeros(dims, np.float32)  # noqa: E731
BAD = {
    "centre of one head": ({"key_centre": ZEROS(1, 16)}, r"key_centre is \[1, 16\]"),
    "centre of another size": ({"key_centre": ZEROS(2, 15)}, "key_centre is"),
    "flat centre": ({"key_centre": ZEROS(32)}, "key_centre is"),
    "balance of other heads": ({"key_balance": ZEROS(4, 16)}, r"key_balance is \[4, 16\]"),
    "feedback of one head": ({"key_feedback": ZEROS(1, 16, 16)}, "key_feedback is"),
    "feedback of fewer rows": ({"key_feedback": ZEROS(2, 15, 16)}, "key_feedback is"),
    "feedback of fewer columns": ({"key_feedback": ZEROS(2, 16, 15)}, "key_feedback is"),
    "flat feedback": ({"key_feedback": ZEROS(32, 16)}, "key_feedback is"),
}


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("what", BAD)
def test_other_shapes_are_errors_in_every_format(what, kv_format):
    changed, message = BAD[what]
    layer = Layer(Config(), make_tables(np.random.default_rng(0), Config()), kv_format)
    with pytest.raises(Exception, match=f"SpecAttention: {message}"):
        layer.run(ZEROS(2, 128), 0, **changed)
    assert not layer.cache.any()


@pytest.mark.parametrize(("softcap", "sinks", "what"), [(2.0, False, "a softcap"), (0.0, True, "sinks")])
def test_a_centre_beside_what_sees_it_is_an_error(softcap, sinks, what):
    config = Config(softcap=softcap)
    rng = np.random.default_rng(0)
    tables: Tables = make_tables(rng, config, sinks=sinks)
    constants = make_constants(rng, config)
    with pytest.raises(Exception, match=f"SpecAttention: key_centre is given beside {what}"):
        Layer(config, replace(tables, **constants), "int4").run(make_rows(rng, config, 2), 0)
    del constants["key_centre"]
    layer = Layer(config, replace(tables, **constants), "int4")
    qkv = make_rows(rng, config, 20)
    check(layer.run(qkv, 0), layer.expected(qkv, 0), "int4")
