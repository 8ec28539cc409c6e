"""SpecAttention against a float64 reference, and bit by bit against itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests.helpers.kv_layout import marked_rows
from tests.ops import spec_attention_reference as reference
from tests.ops.single_op import ISAS, SingleOp, needs_native
from tests.ops.spec_attention_reference import FORMATS, Config, Tables

pytestmark = [needs_native, pytest.mark.own_pools]

# Largest error of y for values of size 1. The reference reads the very keys and values that the operator stored.
TOLERANCE = {"f32": 4e-6, "f16": 4e-6} | dict.fromkeys(FORMATS[2:], 2e-5)
# A query that lies between two int8 codes may round one way in float32 and the other in float64: few do.
OTHER_CODE = 2e-2
# Largest error of a stored value of size 1: none but float32's; half an ulp of a half; half a code, of which there are
# 254 or 15 from the least to the greatest; a whole one of 255 where the finer code would be 8.
STORED = {"f32": 2e-6, "f16": 2.5e-3, "int8": 2.5e-2, "nibbles": 0.07, "pairs": 9e-3, "upper": 0.07}
CAPACITY = 320
GUARD = 256


def make_tables(rng, config, rotary=None, norms=False, sinks=False, positions=CAPACITY):
    half = (config.dim if rotary is None else rotary) // 2
    angles = np.arange(positions)[:, None] * 100.0 ** -(np.arange(half) / max(half, 1))
    draw = lambda n, wanted: rng.uniform(0.5, 1.5, n).astype(np.float32) if wanted else None  # noqa: E731
    return Tables(
        np.cos(angles).astype(np.float32),
        np.sin(angles).astype(np.float32),
        draw(config.dim, norms),
        draw(config.dim, norms),
        draw(config.heads, sinks),
    )


class Layer:
    """One layer's cache, between guards, and what is needed to run passes over it."""

    def __init__(self, config, tables, kv_format="f32", *, row_map=None, isa=None, threads=1, capacity=CAPACITY):
        self.config, self.tables, self.kv_format = config, tables, kv_format
        self.row_map = np.arange(capacity, dtype=np.int32) if row_map is None else row_map.astype(np.int32)
        empty = reference.empty_cache(config, kv_format, capacity)
        self.memory = np.full(empty.size + 2 * GUARD, 0xA5, np.uint8)
        self.cache = self.memory[GUARD : GUARD + empty.size].reshape(empty.shape)
        self.cache[...] = 0
        self.options = {"isa": isa, "threads": threads}
        self.op = None

    def inputs(self, qkv, past, parents=None):
        chain = np.arange(-1, len(qkv) - 1)
        return {
            "qkv": qkv,
            "cache": self.cache,
            "past_length": np.array([past], np.int32),
            "row_map": self.row_map,
            "parents": np.array(chain if parents is None else parents, np.int32),
            "kv_formats": np.array([-1, FORMATS.index(self.kv_format)], np.int32),
            "cos": self.tables.cos,
            "sin": self.tables.sin,
            **self.tables.optional,
        }

    def run(self, qkv, past, parents=None, /, **changed):
        inputs = {**self.inputs(qkv, past, parents), **changed}
        if self.op is None:
            self.op = SingleOp("SpecAttention", self.config.attributes, inputs, **self.options)
        try:
            return self.op.run_in_place(**inputs)[0]
        finally:
            assert (self.memory[:GUARD] == 0xA5).all()
            assert (self.memory[-GUARD:] == 0xA5).all()

    def expected(self, qkv, past, parents=None):
        parents = range(-1, len(qkv) - 1) if parents is None else parents
        return reference.attend(
            self.config, self.tables, qkv, self.cache, self.kv_format, past, self.row_map, list(parents)
        )


def make_rows(rng, config, count):
    return rng.standard_normal((count, (config.heads + 2 * config.kv_heads) * config.dim)).astype(np.float32)


def check(y, wanted, kv_format):
    error = np.abs(y - wanted) / (4 + np.abs(wanted))
    if reference.has_query_codes(kv_format):
        assert np.quantile(error, 0.9) <= TOLERANCE[kv_format]
        assert error.max() <= OTHER_CODE
    else:
        assert error.max() <= TOLERANCE[kv_format]


def random_parents(rng, count):
    return [int(rng.integers(-1, i)) if i else -1 for i in range(count)]


# Head sizes that are no multiple of 16 or 32, groups of every size, everything optional, chunks that windows cut.
SHAPES = {
    "plain": (Config(), {}),
    "smollm2": (Config(heads=9, kv_heads=3, dim=64, scale=0.125), {}),
    "wide": (Config(heads=2, kv_heads=1, dim=128), {}),
    "one head": (Config(heads=1, kv_heads=1, dim=2, scale=1.0), {}),
    "odd": (Config(heads=3, kv_heads=3, dim=22), {"rotary": 10}),
    "80": (Config(heads=10, kv_heads=2, dim=80, interleaved=1), {"norms": True}),
    "sinks": (Config(heads=6, kv_heads=2, dim=32, softcap=3.0), {"sinks": True}),
    "window": (Config(heads=4, kv_heads=2, dim=48, window=70), {"norms": True, "sinks": True, "rotary": 16}),
    "narrow window": (Config(heads=33, kv_heads=1, dim=16, window=3), {}),
    "no rotation": (Config(dim=40), {"rotary": 0}),
}


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_passes_of_every_kind_match_the_reference(shape, kv_format):
    config, options = SHAPES[shape]
    rng = np.random.default_rng(len(shape))
    tables = make_tables(rng, config, **options)
    layer = Layer(config, tables, kv_format, row_map=rng.permutation(CAPACITY), threads=2)
    past = 0
    for count, tree in ((1, False), (50, False), (7, True), (1, False), (90, False), (20, True), (16, True)):
        qkv = make_rows(rng, config, count)
        parents = random_parents(rng, count) if tree else None
        y = layer.run(qkv, past, parents)
        check(y, layer.expected(qkv, past, parents), kv_format)
        # A tree leaves rows behind that are not part of the text: the next pass overwrites all but its first row.
        past += 1 if tree else count


@pytest.mark.parametrize("kv_format", FORMATS)
def test_stored_rows(kv_format):
    rng = np.random.default_rng(1)
    config = Config(heads=2, kv_heads=2, dim=40)
    tables = make_tables(rng, config, norms=True)
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
@pytest.mark.parametrize("value", [0.0, 1e-7, 3e-8, 1e38])
def test_values_that_a_format_cannot_hold(kv_format, value):
    config = Config(dim=32)
    layer = Layer(config, make_tables(np.random.default_rng(0), config, rotary=0), kv_format)
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


def one_by_one(layer, qkv):
    return np.concatenate([layer.run(qkv[i : i + 1], i) for i in range(len(qkv))])


EXACT = ["smollm2", "odd", "sinks", "window"]


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("shape", EXACT)
def test_bits_do_not_depend_on_how_a_prompt_is_cut(shape, kv_format):
    config, options = SHAPES[shape]
    rng = np.random.default_rng(7)
    tables = make_tables(rng, config, **options)
    qkv = make_rows(rng, config, 150)
    alone = Layer(config, tables, kv_format)
    wanted = one_by_one(alone, qkv)
    for _ in range(3):
        layer = Layer(config, tables, kv_format, row_map=rng.permutation(CAPACITY), threads=int(rng.integers(1, 4)))
        past = 0
        while past < len(qkv):
            count = int(rng.choice([1, 2, 5, 16, 17, 40, 150]))
            part = qkv[past : past + count]
            assert layer.run(part, past).tobytes() == wanted[past : past + count].tobytes(), (past, count)
            past += len(part)
        cut = reference.read_cache(layer.cache, kv_format, config.dim)[:, :, layer.row_map[: len(qkv)]]
        whole = reference.read_cache(alone.cache, kv_format, config.dim)[:, :, : len(qkv)]
        assert cut.tobytes() == whole.tobytes()


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("shape", EXACT)
@pytest.mark.parametrize("count", [6, 30])
def test_bits_of_a_tree_are_those_of_its_branches(shape, kv_format, count):
    config, options = SHAPES[shape]
    rng = np.random.default_rng(count)
    tables = make_tables(rng, config, **options)
    prompt, rows = make_rows(rng, config, 75), make_rows(rng, config, count)
    parents = random_parents(rng, count)
    layer = Layer(config, tables, kv_format, row_map=rng.permutation(CAPACITY), threads=2)
    layer.run(prompt, 0)
    tree = layer.run(rows, 75, parents)
    plain = Layer(config, tables, kv_format)
    plain.run(prompt, 0)
    for row in range(count):
        path = reference.ancestors(parents, row)
        # Each branch is run after the one before it was rolled back, by a smaller length alone.
        assert plain.run(rows[path], 75)[-1].tobytes() == tree[row].tobytes(), path


def test_a_path_stays_by_changing_the_row_map():
    config, options = SHAPES["smollm2"]
    rng = np.random.default_rng(3)
    tables = make_tables(rng, config, **options)
    prompt, rows, after = make_rows(rng, config, 70), make_rows(rng, config, 6), make_rows(rng, config, 3)
    layer, plain = Layer(config, tables), Layer(config, tables)
    layer.run(prompt, 0)
    layer.run(rows, 70, [-1, 0, 0, 2, 1, 3])
    path = [0, 2, 3, 5]
    layer.row_map[70:76] = layer.row_map[70:76][[*path, 1, 4]]
    plain.run(np.concatenate([prompt, rows[path]]), 0)
    assert layer.run(after, 74).tobytes() == plain.run(after, 74).tobytes()


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_bits_do_not_depend_on_the_instruction_set(shape, kv_format):
    config, options = SHAPES[shape]
    rng = np.random.default_rng(11)
    tables = make_tables(rng, config, **options)
    parts = [(make_rows(rng, config, n), p) for n, p in ((90, None), (1, None), (9, random_parents(rng, 9)))]
    found = {}
    for isa in ISAS:
        layer = Layer(config, tables, kv_format, isa=isa)
        ys = [layer.run(qkv, past, parents) for (qkv, parents), past in zip(parts, (0, 90, 91), strict=True)]
        found[isa] = b"".join(y.tobytes() for y in ys) + layer.cache.tobytes()
    for isa in ISAS[1:]:
        assert found[isa] == found[ISAS[0]], isa


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("count", [4, 40])
def test_a_broken_row_breaks_only_itself(kv_format, count):
    """Rows that do not see it have the same bits, as results and in the cache; what it gives itself is left open."""
    config = Config(dim=48)
    rng = np.random.default_rng(5)
    tables = make_tables(rng, config)
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
    tables = make_tables(rng, config)
    first, second = make_rows(rng, config, 20), make_rows(rng, config, 9)
    clean, found = Layer(config, tables, kv_format), Layer(config, tables, kv_format)
    for layer in (clean, found):
        layer.run(first, 0)
    found.run(np.full_like(second, np.nan), 20)
    for size in (1, 8):
        assert found.run(second[:size], 20).tobytes() == clean.run(second[:size], 20).tobytes()


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("dim", [2, 48, 64])
def test_rows_lie_where_the_format_says(kv_format, dim):
    """A pass writes all bytes of its rows, and no others."""
    config = Config(dim=dim)
    rng = np.random.default_rng(7)
    row_map = rng.permutation(CAPACITY)
    caches = []
    for empty in (0, 0xEE):
        layer = Layer(config, make_tables(rng, config), kv_format, row_map=row_map)
        layer.cache[...] = empty
        layer.run(make_rows(np.random.default_rng(8), config, 5), 0)
        caches.append((layer.cache != empty).copy())
    marks = marked_rows(kv_format.removesuffix("_upper"), layer.cache.shape, dim, row_map[:5])
    # What was written differs from one of the two.
    np.testing.assert_array_equal(caches[0] | caches[1], marks)


def good(kv_format="f32"):
    config = Config()
    rng = np.random.default_rng(0)
    layer = Layer(config, make_tables(rng, config), kv_format)
    layer.run(make_rows(rng, config, 5), 0)
    return layer, make_rows(rng, config, 3)


def permuted(**places):
    row_map = np.arange(CAPACITY, dtype=np.int32)
    for place, row in places.items():
        row_map[int(place[1:])] = row
    return row_map


INT = lambda *values: np.array(values, np.int32)  # noqa: E731
ZEROS = lambda *dims: np.zeros(dims, np.float32)  # noqa: E731
BAD = {
    "negative past": ({"past_length": INT(-1)}, "past_length -1"),
    "past beyond the cache": ({"past_length": INT(CAPACITY)}, "past_length 320 and 3 rows"),
    "pass beyond the cache": ({"past_length": INT(CAPACITY - 2)}, "cache has 320 rows"),
    "largest past": ({"past_length": INT(2**31 - 1)}, "past_length 2147483647"),
    "negative row": ({"row_map": permuted(_2=-1)}, "row_map holds -1"),
    "row beyond the cache": ({"row_map": permuted(_6=CAPACITY)}, "row_map holds 320"),
    "row given twice": ({"row_map": permuted(_6=5)}, "row 5 to two positions"),
    "committed row": ({"row_map": permuted(_6=3)}, "row 3 of position 3"),
    "parent is the row itself": ({"parents": INT(-1, 1, 0)}, r"parents\[1\] is 1, must be -1 to 0"),
    "parent of the future": ({"parents": INT(2, 0, 1)}, r"parents\[0\] is 2"),
    "parent below -1": ({"parents": INT(-1, -2, 0)}, r"parents\[1\] is -2"),
    "too few parents": ({"parents": INT(-1, 0)}, "parents"),
    "unknown format": ({"kv_formats": INT(0, 7)}, r"kv_formats\[1\] is 7"),
    "negative format": ({"kv_formats": INT(0, -1)}, r"kv_formats\[1\] is -1"),
    "no format for the layer": ({"kv_formats": INT(0)}, "kv_formats has 1 entries, layer is 1"),
    "row map of another length": ({"row_map": INT(*range(CAPACITY + 1))}, "row_map"),
    "positions end": ({"cos": ZEROS(7, 8), "sin": ZEROS(7, 8)}, "position 7 has no row"),
    "sin unlike cos": ({"sin": ZEROS(CAPACITY, 7)}, "sin"),
    "rotation wider than a head": ({"cos": ZEROS(9, 9), "sin": ZEROS(9, 9)}, "cos has 9 columns"),
    "qkv of another width": ({"qkv": ZEROS(3, 127)}, "qkv"),
    "no rows": ({"qkv": ZEROS(0, 128), "parents": INT()}, "no rows"),
    "past of two numbers": ({"past_length": INT(5, 5)}, "past_length"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_inputs_are_errors_and_change_nothing(what):
    layer, qkv = good()
    changed, message = BAD[what]
    before = layer.memory.copy()
    with pytest.raises(Exception, match=f"SpecAttention: .*{message}"):
        layer.run(qkv, 5, **changed)
    assert layer.memory.tobytes() == before.tobytes()
    assert np.isfinite(layer.run(qkv, 5)).all()


@pytest.mark.parametrize("shape", [(2, 2, CAPACITY, 63), (2, 2, CAPACITY, 66), (2, 1, CAPACITY, 64), (1, 2, 320, 64)])
def test_caches_of_another_shape_are_errors(shape):
    layer, qkv = good()
    with pytest.raises(Exception, match=r"SpecAttention: .*cache"):
        layer.run(qkv, 5, cache=np.zeros(shape, np.uint8))


@pytest.mark.parametrize("name", ["q_norm", "k_norm", "sinks"])
def test_optional_inputs_of_another_length_are_errors(name):
    config = Config()
    tables = make_tables(np.random.default_rng(0), config)
    tables.optional[name] = np.ones(15, np.float32)
    with pytest.raises(Exception, match=f"SpecAttention: {name}"):
        Layer(config, tables).run(np.zeros((1, 128), np.float32), 0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"heads": 5}, "num_heads is 5"),
        ({"kv_heads": 0}, "num_heads is 4, must be a multiple of num_kv_heads 0"),
        ({"dim": 15}, "head_dim is 15"),
        ({"dim": 1024}, "head_dim is 1024"),
        ({"layer": -1}, "layer is -1"),
        ({"window": -1}, "window is -1"),
        ({"softcap": -1.0}, "softcap is -1"),
        ({"interleaved": 2}, "interleaved is 2"),
        ({"scale": float("nan")}, "scale is not finite"),
        ({"epsilon": -1.0}, "epsilon is -1"),
    ],
)
def test_wrong_attributes_are_errors(changed, message):
    config = replace(Config(), **changed)
    layer = Layer(Config(), make_tables(np.random.default_rng(0), Config()))
    layer.config = config
    with pytest.raises(Exception, match=f"SpecAttention: {message}"):
        layer.run(np.zeros((1, 128), np.float32), 0)


@settings(deadline=None, max_examples=30, derandomize=True)
@given(st.data())
def test_any_pass_matches_the_reference_and_itself(data):
    group, kv_heads = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3))
    config = Config(
        heads=group * kv_heads,
        kv_heads=kv_heads,
        dim=2 * data.draw(st.integers(1, 40)),
        window=data.draw(st.sampled_from([0, 1, 2, 16, 64, 65, 100])),
        softcap=data.draw(st.sampled_from([0.0, 2.0])),
        interleaved=data.draw(st.integers(0, 1)),
    )
    kv_format = data.draw(st.sampled_from(FORMATS))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    tables = make_tables(rng, config, norms=data.draw(st.booleans()), sinks=data.draw(st.booleans()))
    past, count = data.draw(st.integers(0, 140)), data.draw(st.integers(1, 40))
    prompt, rows, parents = make_rows(rng, config, past), make_rows(rng, config, count), random_parents(rng, count)
    layer = Layer(config, tables, kv_format, row_map=rng.permutation(CAPACITY), threads=2)
    if past:
        layer.run(prompt, 0)
    y = layer.run(rows, past, parents)
    check(y, layer.expected(rows, past, parents), kv_format)
    row = data.draw(st.integers(0, count - 1))
    path = reference.ancestors(parents, row)
    assert layer.run(rows[path], past)[-1].tobytes() == y[row].tobytes()
