"""SpecAttention where the positions fill several spans of 256, whose sums are joined at the end."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops import spec_attention_reference as reference
from tests.ops.single_op import ISAS, needs_native
from tests.ops.spec_attention_reference import FORMATS, Config
from tests.ops.test_spec_attention import Layer, check, make_rows, make_tables, random_parents

pytestmark = [needs_native, pytest.mark.own_pools]

SPAN = 256
PROMPT, CAPACITY = 700, 760
# Windows that begin inside a span, and one within which no row sees the first of three.
SHAPES = {
    "plain": (Config(heads=3, kv_heads=1, dim=32), {}),
    "sinks": (Config(heads=4, kv_heads=2, dim=22, softcap=3.0), {"sinks": True, "norms": True}),
    "window": (Config(heads=4, kv_heads=2, dim=16, window=300), {"sinks": True}),
    "narrow window": (Config(heads=2, kv_heads=2, dim=16, window=40), {}),
}


def make_layers(shape, kv_format, count):
    """Return a random generator and layers with caches of their own; the first in order, the others shuffled."""
    config, options = SHAPES[shape]
    rng = np.random.default_rng(len(shape))
    tables = make_tables(rng, config, positions=CAPACITY, **options)
    maps = [np.arange(CAPACITY), *(rng.permutation(CAPACITY) for _ in range(count - 1))]
    threads = (1, 3, 2, 4)
    return rng, [
        Layer(config, tables, kv_format, row_map=row_map, capacity=CAPACITY, threads=threads[i % 4])
        for i, row_map in enumerate(maps)
    ]


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_long_contexts_match_the_reference(shape, kv_format):
    rng, (layer,) = make_layers(shape, kv_format, 1)
    past = 0
    for count, is_tree in ((250, False), (12, True), (449, False), (1, False), (9, True), (30, True)):
        qkv = make_rows(rng, layer.config, count)
        parents = random_parents(rng, count) if is_tree else None
        y = layer.run(qkv, past, parents)
        check(y, layer.expected(qkv, past, parents), kv_format)
        past += 1 if is_tree else count
    assert past == PROMPT + 3


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_bits_do_not_depend_on_how_a_long_prompt_is_cut(shape, kv_format):
    rng, (alone, *others) = make_layers(shape, kv_format, 4)
    qkv = make_rows(rng, alone.config, PROMPT)
    wanted = np.concatenate([alone.run(qkv[i : i + 1], i) for i in range(PROMPT)])
    for layer, sizes in zip(others, ([PROMPT], [SPAN], [1, 3, 16, 17, 100, 300]), strict=True):
        past = 0
        while past < PROMPT:
            part = qkv[past : past + int(rng.choice(sizes))]
            assert layer.run(part, past).tobytes() == wanted[past : past + len(part)].tobytes(), (past, len(part))
            past += len(part)


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("past", [SPAN - 2, 2 * SPAN - 3, 2 * SPAN])
def test_bits_of_a_tree_over_the_end_of_a_span_are_those_of_its_branches(shape, kv_format, past):
    rng, (plain, layer) = make_layers(shape, kv_format, 2)
    prompt, rows = make_rows(rng, plain.config, past), make_rows(rng, plain.config, 11)
    parents = [-1, 0, 1, 2, 3, 4, 1, 6, 7, -1, 9]
    for each in (plain, layer):
        each.run(prompt, 0)
    for count in (11, 24):  # few rows, and so many that they are shared out otherwise
        more = make_rows(rng, plain.config, count - 11)
        tree = layer.run(np.concatenate([rows, more]), past, parents + [3] * (count - 11))
        for row in (0, 5, 8, 10):
            path = reference.ancestors(parents, row)
            assert plain.run(rows[path], past)[-1].tobytes() == tree[row].tobytes(), path


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("kept", [SPAN - 6, SPAN, 2 * SPAN + 1])
def test_a_rollback_over_the_end_of_a_span_leaves_no_trace(kept, kv_format):
    rng, (fresh, layer) = make_layers("window", kv_format, 2)
    prompt, after = make_rows(rng, fresh.config, PROMPT), make_rows(rng, fresh.config, 21)
    layer.run(prompt, 0)
    layer.run(make_rows(rng, fresh.config, 8), PROMPT, random_parents(rng, 8))
    fresh.run(prompt[:kept], 0)
    past = kept
    for part in (after[:1], after[1:4], after[4:]):
        assert layer.run(part, past).tobytes() == fresh.run(part, past).tobytes(), past
        past += len(part)


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("isa", ISAS[1:])
def test_bits_of_long_contexts_do_not_depend_on_the_instruction_set(isa, kv_format):
    config, options = SHAPES["window"]
    rng = np.random.default_rng(3)
    tables = make_tables(rng, config, positions=CAPACITY, **options)
    best, other = (Layer(config, tables, kv_format, capacity=CAPACITY, isa=name) for name in (ISAS[0], isa))
    past = 0
    for count, parents in ((2 * SPAN - 1, None), (1, None), (9, random_parents(rng, 9)), (60, None), (1, None)):
        qkv = make_rows(rng, config, count)
        assert other.run(qkv, past, parents).tobytes() == best.run(qkv, past, parents).tobytes(), past
        past += count if parents is None else 1
    assert other.cache.tobytes() == best.cache.tobytes()
