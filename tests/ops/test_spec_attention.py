"""SpecAttention of every kind against a float64 reference, and bit by bit against itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests.helpers.pairs import with_slow
from tests.ops import spec_attention_reference as reference
from tests.ops.attention_cases import (
    CAPACITY,
    CASES,
    CODED,
    CONSTANTS,
    HEADS,
    SOME_OF_TABLE,
    SPAN,
    TABLE,
    Case,
    Layer,
    check,
    make_constants,
    make_layers,
    make_rows,
    make_tables,
    random_parents,
    with_changes,
)
from tests.ops.single_op import ISAS, needs_native
from tests.ops.spec_attention_reference import FORMATS, Config

pytestmark = [needs_native, pytest.mark.own_pools]

# Rows, and whether they are a tree.
PASSES = ((1, False), (50, False), (7, True), (1, False), (90, False), (20, True), (16, True))
LONG_PASSES = ((250, False), (12, True), (449, False), (1, False), (9, True), (30, True))
PROMPT, LONG_PROMPT = 150, 700


@pytest.mark.parametrize(("name", "kv_format"), with_slow(TABLE, SOME_OF_TABLE))
def test_passes_of_every_kind_match_the_reference(name, kv_format):
    rng = np.random.default_rng(len(name))
    case = CASES[name]
    (layer,) = make_layers(rng, name, kv_format, {"row_map": rng.permutation(case.capacity), "threads": 2})
    past = 0
    for count, is_tree in LONG_PASSES if case.is_long else PASSES:
        qkv = make_rows(rng, case.config, count) * np.float32(1.2)
        parents = random_parents(rng, count) if is_tree else None
        y = layer.run(qkv, past, parents)
        check(y, layer.expected(qkv, past, parents), kv_format)
        # A tree leaves rows behind that are not part of the text: the next pass overwrites all but its first row.
        past += 1 if is_tree else count


@pytest.mark.parametrize(("name", "kv_format"), with_slow(TABLE[::2], TABLE[::4]))
def test_bits_do_not_depend_on_cuts_threads_rows_in_memory_or_the_instruction_set(name, kv_format):
    rng = np.random.default_rng(7)
    case = CASES[name]
    length = LONG_PROMPT if case.is_long else PROMPT
    row_map = rng.permutation(case.capacity)
    alone, elsewhere, *others = make_layers(
        rng, name, kv_format, {"row_map": row_map}, {"threads": 3},
        *({"row_map": row_map, "isa": isa, "threads": 1 + i % 4} for i, isa in enumerate(ISAS)),
    )  # fmt: skip
    qkv = make_rows(rng, case.config, length)
    wanted = np.concatenate([alone.run(qkv[i : i + 1], i) for i in range(length)])
    for layer, sizes in zip(
        (elsewhere, *others), ([length], [SPAN, 90, 1], *[[1, 2, 5, 16, 17, 40]] * 3), strict=False
    ):
        past = 0
        while past < length:
            part = qkv[past : past + int(rng.choice(sizes))]
            assert layer.run(part, past).tobytes() == wanted[past : past + len(part)].tobytes(), (past, len(part))
            past += len(part)
        assert layer.stored(length).tobytes() == alone.stored(length).tobytes()
    for layer in others:
        assert layer.cache.tobytes() == alone.cache.tobytes(), layer.options


@pytest.mark.parametrize(("name", "kv_format"), with_slow(TABLE[1::2], TABLE[1::4]))
def test_bits_of_a_tree_are_those_of_its_branches(name, kv_format):
    """In one pass, on every instruction set, and in several; behind spans and chunks, at their ends and over them."""
    rng = np.random.default_rng(len(name))
    case = CASES[name]
    pasts = (2 * SPAN, 2 * SPAN - 3, SPAN - 6) if case.is_long else (75, 63, 5)
    row_map = rng.permutation(case.capacity)
    plain, in_parts, *others = make_layers(
        rng, name, kv_format, {}, {"row_map": row_map},
        *({"row_map": row_map, "isa": isa, "threads": 1 + i % 4} for i, isa in enumerate(ISAS)),
    )  # fmt: skip
    prompt = make_rows(rng, case.config, LONG_PROMPT if case.is_long else PROMPT)
    # The other layers stop at the tree; this one goes back, to smaller lengths each time.
    plain.run(prompt, 0)
    for past, count in zip(pasts, (30, 6, 17), strict=True):
        rows, parents = make_rows(rng, case.config, count), random_parents(rng, count)
        plain.run(prompt[:past][-1:], past - 1)
        wanted = np.stack([plain.run(rows[reference.ancestors(parents, row)], past)[-1] for row in range(count)])
        for layer in others:
            layer.run(prompt[:past], 0)
            assert layer.run(rows, past, parents).tobytes() == wanted.tobytes(), (past, parents, layer.options)
        in_parts.run(prompt[:past], 0)
        done = 0
        while done < count:
            end = done + int(rng.integers(1, count - done + 1))
            y = in_parts.run(rows[done:end], past, parents[:end])
            assert y.tobytes() == wanted[done:end].tobytes(), (past, done, end, parents)
            done = end
        for layer in others:
            assert layer.cache.tobytes() == others[0].cache.tobytes(), layer.options
        assert in_parts.stored(past + count).tobytes() == others[0].stored(past + count).tobytes()


@pytest.mark.parametrize("kv_format", ["f16", "int8", "int4"])
def test_rows_of_a_tree_may_see_more_keys_together_than_a_chunk_has(kv_format):
    rng = np.random.default_rng(3)
    past, leaves = 31, 32
    plain, tree = make_layers(rng, "odd", kv_format, {}, {"row_map": rng.permutation(CAPACITY)})
    prompt, rows = make_rows(rng, plain.config, past), make_rows(rng, plain.config, 2 * leaves)
    parents = [-1] * leaves + [int(parent) for parent in rng.permutation(leaves)]
    for layer in (plain, tree):
        layer.run(prompt, 0)
    tree.run(rows[:leaves], past, parents[:leaves])
    y = tree.run(rows[leaves:], past, parents)
    wanted = [plain.run(rows[[parents[row], row]], past)[-1] for row in range(leaves, 2 * leaves)]
    assert y.tobytes() == np.stack(wanted).tobytes()


@settings(max_examples=30, derandomize=True)
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
    of_row, sinks = data.draw(st.sampled_from([None, HEADS])), data.draw(st.booleans())
    tables = make_tables(rng, Case(config, of_row=of_row, sinks=sinks))
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


def test_a_path_stays_by_changing_the_row_map():
    rng = np.random.default_rng(3)
    layer, plain = make_layers(rng, "smollm2", "f32", {}, {})
    prompt, rows, after = (make_rows(rng, layer.config, count) for count in (70, 6, 3))
    layer.run(prompt, 0)
    layer.run(rows, 70, [-1, 0, 0, 2, 1, 3])
    path = [0, 2, 3, 5]
    layer.row_map[70:76] = layer.row_map[70:76][[*path, 1, 4]]
    plain.run(np.concatenate([prompt, rows[path]]), 0)
    assert layer.run(after, 74).tobytes() == plain.run(after, 74).tobytes()


def zeros_and_ones(dim):
    """Return a centre and a balance that change nothing."""
    return {"key_centre": np.zeros((2, dim), np.float32), "key_balance": np.ones((2, dim), np.float32)}


# What is changed in the tables, or in the attributes; the first row is compared with each other.
NEUTRAL = {
    "scales of 1": (FORMATS, {"query_scale": np.ones(CAPACITY, np.float32)}, {}),
    "norms that are not there, behind the rotation": (FORMATS, {}, {"norm_after_rotation": 1}),
    "a centre of 0 and a balance of 1": (CODED, zeros_and_ones(64), {}),
    "constants of other formats": (
        [name for name in FORMATS if name not in CODED],
        make_constants(np.random.default_rng(1), Config(dim=64)),
        {},
    ),
    "feedback of finer codes": (
        CODED[1:],
        make_constants(np.random.default_rng(1), Config(dim=64), CONSTANTS[2:]),
        {},
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("what", "kv_format"), [(what, kv_format) for what, (formats, *_) in NEUTRAL.items() for kv_format in formats]
)
def test_what_changes_nothing_keeps_the_bits(what, kv_format):
    _, tables, attributes = NEUTRAL[what]
    rng = np.random.default_rng(3)
    (layer,) = make_layers(rng, "norms of rows, whole vectors", kv_format, {})
    layer = with_changes(layer, q_norm=None, k_norm=None)
    other = with_changes(layer, **tables)
    other.config = replace(layer.config, **attributes)
    qkv = make_rows(rng, layer.config, 70)
    assert other.run(qkv, 0).tobytes() == layer.run(qkv, 0).tobytes()
    assert other.cache.tobytes() == layer.cache.tobytes()


@pytest.mark.parametrize("kv_format", FORMATS)
def test_tables_without_columns_rotate_as_little_as_a_layer_without_rotation(kv_format):
    rng = np.random.default_rng(3)
    (still,) = make_layers(rng, "unrotated", kv_format, {})
    rotated, empty = with_changes(still), with_changes(still, cos=still.tables.cos[:, :0], sin=still.tables.sin[:, :0])
    rotated.config = empty.config = replace(still.config, rotate=1)
    qkv = make_rows(rng, still.config, 70)
    ys = [layer.run(qkv, 0).tobytes() for layer in (still, empty, rotated)]
    assert ys[0] == ys[1] != ys[2]
    assert empty.cache.tobytes() == still.cache.tobytes()
