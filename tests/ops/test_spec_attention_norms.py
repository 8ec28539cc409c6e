"""SpecAttention's norms of whole rows and behind the rotation, layers without rotation, and scales of queries."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.ops import spec_attention_reference as reference
from tests.ops.single_op import ISAS, needs_native
from tests.ops.spec_attention_reference import FORMATS, Config
from tests.ops.test_spec_attention import CAPACITY, Layer, check, make_rows, make_tables, one_by_one, random_parents
from tests.ops.test_spec_attention_key_constants import make_constants

pytestmark = [needs_native, pytest.mark.own_pools]

# Besides the attributes: width of the rotation, heads that share a norm (of q and of k), and what else is given.
SHAPES = {
    "norms of rows": (Config(heads=6, kv_heads=2, dim=40), {"of_row": (True, True), "rotary": 24}),
    "norms of rows, whole vectors": (Config(heads=4, kv_heads=2, dim=64, scale=0.125), {"of_row": (True, True)}),
    "a norm of rows for queries alone": (Config(heads=4, kv_heads=2, dim=32), {"of_row": (True, False)}),
    "one key head": (Config(heads=5, kv_heads=1, dim=22, interleaved=1), {"of_row": (True, False)}),
    "norms of rows in a window": (
        Config(heads=6, kv_heads=3, dim=32, window=70, softcap=3.0),
        {"of_row": (True, True), "sinks": True, "query_scale": True},
    ),
    "behind the rotation": (Config(heads=4, kv_heads=2, dim=32, norm_after_rotation=1), {"of_row": (False, False)}),
    "behind a narrow rotation": (
        Config(heads=3, kv_heads=3, dim=22, interleaved=1, norm_after_rotation=1),
        {"of_row": (False, False), "rotary": 10, "query_scale": True},
    ),
    "unrotated": (Config(heads=4, kv_heads=2, dim=64, scale=0.125, rotate=0), {}),
    "unrotated and normed": (
        Config(heads=4, kv_heads=2, dim=40, rotate=0, window=33),
        {"of_row": (True, True), "query_scale": True},
    ),
    "scaled queries": (Config(heads=9, kv_heads=3, dim=64, scale=0.125), {"query_scale": True}),
    "scaled queries and sinks": (
        Config(heads=6, kv_heads=2, dim=24, softcap=4.0),
        {"query_scale": True, "sinks": True, "of_row": (False, False)},
    ),
}


def make_layers(shape, kv_format, count, *, constants=False, threads=(1,), **changed):
    """Return a random generator and layers with caches of their own; the first in order, the others shuffled."""
    config, options = SHAPES[shape]
    config = replace(config, **changed)
    rng = np.random.default_rng(len(shape))
    tables = make_tables(rng, config, rotary=options.get("rotary"), sinks=options.get("sinks", False))
    draw = lambda n: rng.uniform(0.5, 1.5, n).astype(np.float32)  # noqa: E731
    more = {}
    if "of_row" in options:
        heads = [
            n if of_row else 1 for n, of_row in zip((config.heads, config.kv_heads), options["of_row"], strict=True)
        ]
        more = {"q_norm": draw(heads[0] * config.dim), "k_norm": draw(heads[1] * config.dim)}
    if options.get("query_scale"):
        more["query_scale"] = draw(CAPACITY)
    if constants:
        more |= make_constants(rng, config)
    tables = replace(tables, **more)
    return rng, [
        Layer(
            config,
            tables,
            kv_format,
            row_map=rng.permutation(CAPACITY) if i else None,
            threads=threads[i % len(threads)],
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_passes_of_every_kind_match_the_reference(shape, kv_format):
    rng, (_, layer) = make_layers(shape, kv_format, 2, threads=(2,))
    past = 0
    for count, is_tree in ((1, False), (50, False), (7, True), (1, False), (90, False), (20, True)):
        qkv = make_rows(rng, layer.config, count) * np.float32(1.5)
        parents = random_parents(rng, count) if is_tree else None
        y = layer.run(qkv, past, parents)
        check(y, layer.expected(qkv, past, parents), kv_format)
        past += 1 if is_tree else count


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_bits_do_not_depend_on_how_a_prompt_is_cut(shape, kv_format):
    rng, (alone, *others) = make_layers(shape, kv_format, 3, threads=(1, 2, 3))
    qkv = make_rows(rng, alone.config, 130)
    wanted = one_by_one(alone, qkv)
    for layer in others:
        past = 0
        while past < len(qkv):
            part = qkv[past : past + int(rng.choice([1, 2, 5, 16, 17, 40, 130]))]
            assert layer.run(part, past).tobytes() == wanted[past : past + len(part)].tobytes(), past
            past += len(part)
        cut = reference.read_cache(layer.cache, kv_format, layer.config.dim)[:, :, layer.row_map[: len(qkv)]]
        whole = reference.read_cache(alone.cache, kv_format, layer.config.dim)[:, :, : len(qkv)]
        assert cut.tobytes() == whole.tobytes()


@pytest.mark.parametrize("count", [6, 30])
@pytest.mark.parametrize("kv_format", ["f16", "int8", "int4"])
@pytest.mark.parametrize("shape", SHAPES)
def test_bits_of_a_tree_are_those_of_its_branches(shape, kv_format, count):
    rng, (plain, layer) = make_layers(shape, kv_format, 2, threads=(1, 2))
    prompt, rows = make_rows(rng, layer.config, 75), make_rows(rng, layer.config, count)
    parents = random_parents(rng, count)
    layer.run(prompt, 0)
    plain.run(prompt, 0)
    tree = layer.run(rows, 75, parents)
    for row in range(count):
        path = reference.ancestors(parents, row)
        assert plain.run(rows[path], 75)[-1].tobytes() == tree[row].tobytes(), path


@pytest.mark.parametrize("isa", ISAS[1:])
@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_bits_do_not_depend_on_the_instruction_set(shape, kv_format, isa):
    rng, (best,) = make_layers(shape, kv_format, 1)
    other = Layer(best.config, best.tables, kv_format, isa=isa)
    for past, count in ((0, 50), (50, 1), (51, 9)):
        qkv = make_rows(rng, best.config, count)
        assert other.run(qkv, past).tobytes() == best.run(qkv, past).tobytes()
    assert other.cache.tobytes() == best.cache.tobytes()


@pytest.mark.parametrize("kv_format", ["int4", "int4x2", "int4x2_upper"])
@pytest.mark.parametrize("shape", ["norms of rows", "behind the rotation", "unrotated", "scaled queries"])
def test_constants_of_keys_beside_them(shape, kv_format):
    rng, (layer,) = make_layers(shape, kv_format, 1, constants=True)
    qkv = make_rows(rng, layer.config, 80)
    check(layer.run(qkv, 0), layer.expected(qkv, 0), kv_format)


@pytest.mark.parametrize("kv_format", FORMATS)
def test_what_changes_nothing_keeps_the_bits(kv_format):
    config = Config(heads=4, kv_heads=2, dim=64, scale=0.125)
    rng = np.random.default_rng(3)
    tables = make_tables(rng, config)
    qkv = make_rows(rng, config, 70)
    wanted = Layer(config, tables, kv_format).run(qkv, 0)
    scaled = replace(tables, query_scale=np.ones(CAPACITY, np.float32))
    assert Layer(config, scaled, kv_format).run(qkv, 0).tobytes() == wanted.tobytes()
    # Nothing is normed, behind the rotation or before.
    assert Layer(replace(config, norm_after_rotation=1), tables, kv_format).run(qkv, 0).tobytes() == wanted.tobytes()
    # Angles of 0, and tables without columns, rotate as little as a layer without rotation.
    still = Layer(replace(config, rotate=0), tables, kv_format).run(qkv, 0)
    empty = make_tables(rng, config, rotary=0)
    assert Layer(config, empty, kv_format).run(qkv, 0).tobytes() == still.tobytes()
    assert still.tobytes() != wanted.tobytes()


def test_one_head_of_queries_has_one_norm():
    """The weights of all heads are then those of a head."""
    config = Config(heads=1, kv_heads=1, dim=32, norm_after_rotation=1)
    rng = np.random.default_rng(4)
    tables = make_tables(rng, config, norms=True)
    layer = Layer(config, tables)
    qkv = make_rows(rng, config, 20)
    check(layer.run(qkv, 0), layer.expected(qkv, 0), "f32")


ONES = lambda n: np.ones(n, np.float32)  # noqa: E731
BAD = {
    "queries' norm of the keys' heads": ({"q_norm": ONES(32)}, {}, r"q_norm is \[32\], must be \[16\] or \[64\]"),
    "keys' norm of the queries' heads": ({"k_norm": ONES(64)}, {}, r"k_norm is \[64\], must be \[16\] or \[32\]"),
    "a norm of heads and elements": ({"q_norm": np.ones((4, 16), np.float32)}, {}, r"q_norm is \[4, 16\]"),
    "a norm of rows behind the rotation": (
        {"q_norm": ONES(64)},
        {"norm_after_rotation": 1},
        r"q_norm is \[64\], with norm_after_rotation it must be \[16\]",
    ),
    "the same of keys": ({"k_norm": ONES(32)}, {"norm_after_rotation": 1}, r"k_norm is \[32\], with"),
    "fewer scales than positions": ({"query_scale": ONES(CAPACITY - 1)}, {}, r"query_scale is \[319\]"),
    "scales of heads": ({"query_scale": np.ones((CAPACITY, 4), np.float32)}, {}, "query_scale is"),
}


@pytest.mark.parametrize("what", BAD)
def test_wrong_inputs_are_errors_and_change_nothing(what):
    inputs, attributes, message = BAD[what]
    config = replace(Config(), **attributes)
    layer = Layer(config, replace(make_tables(np.random.default_rng(0), config), **inputs))
    with pytest.raises(Exception, match=f"SpecAttention: {message}"):
        layer.run(np.ones((3, 128), np.float32), 0)
    assert not layer.cache.any()


@pytest.mark.parametrize("value", [-1, 2])
@pytest.mark.parametrize("name", ["rotate", "norm_after_rotation"])
def test_wrong_attributes_are_errors(name, value):
    class Wrong(Config):
        @property
        def attributes(self):
            return {**super().attributes, name: value}

    layer = Layer(Wrong(), make_tables(np.random.default_rng(0), Config()))
    with pytest.raises(Exception, match=f"SpecAttention: {name} is {value}, must be 0 or 1"):
        layer.run(np.ones((1, 128), np.float32), 0)
