"""Activations: the formula of attention's scratch against what the operator asks for, pass by pass."""

from __future__ import annotations

from hypothesis import given, settings, strategies as st

from edge_rt.memory.activations import _attention_bytes, allocated_bytes, heaviest_rows, thread_bytes
from edge_rt.memory.terms import passes_bytes
from tests.helpers.examples import share_of
from tests.memory.shapes import make_shape, windows_of


def up(a, b):
    return -(-a // b)


def clamp(value, low, high):
    return max(low, min(value, high))


def operator_bytes(shape, rows, past, window=0):
    """Return what ``AttentionPlans`` takes for rows of a chain behind ``past``, with rounded queries."""
    return plans_bytes(shape, [(rows, past)], window)


def plans_bytes(shape, sequences, window=0):
    """Return the same for several sequences, of so many rows behind so many others."""
    plans = [plan_of(shape, rows, past, window) for rows, past in sequences]
    own, items = zip(*plans, strict=True)
    # A helper's item is in memory of its own.
    assert max(items) <= thread_bytes(shape, 2) - thread_bytes(shape, 1)
    return sum(own) + max(items)


def plan_of(shape, rows, past, window):
    """Return the bytes of a sequence, and those of an item under way."""
    group, kv, dim = shape.model.num_heads // shape.model.num_kv_heads, shape.model.num_kv_heads, shape.model.head_dim
    padded, codes, groups = up(dim, 16) * 16, up(dim, 64) * 64, up(dim, 32)
    first = max(past + 1 - window, 0) if window else 0
    spans = (past + rows - 1) // 256 + 1 - first // 256
    chunks = (past + rows - 1) // 64 + 1 - first // 64
    way = "blocks" if rows > 16 else "chunks" if spans == 1 else "spans"
    blocks = up(rows, clamp((96 if way == "blocks" else 48) // group, 1, 32))
    block_rows = up(rows, blocks)
    blocks = up(rows, block_rows)

    def piece(size, of=4):
        return up(size * of, 64) * 64

    def queries_of(size):
        return piece(size * padded) + piece(size * codes, 1) + 2 * piece(size * groups)

    def state_of(size):
        return 2 * piece(size) + piece(size * padded)

    queries, of_block = rows * shape.model.num_heads, block_rows * group
    shared = queries_of(queries) if way != "chunks" else piece(kv * blocks, 8)
    shared += 0 if way == "blocks" else state_of((spans if way == "spans" else chunks) * queries)
    words = max(padded, codes // 4)
    one = queries_of(of_block) if way == "chunks" else 0
    one += piece(of_block * 64) + piece(64 * words) + piece(16 * words) + piece(32 * groups) + 3 * state_of(of_block)
    return shared, one


@st.composite
def attentions(draw):
    kv, group = draw(st.sampled_from([1, 2, 3, 4, 5, 8, 16])), draw(st.integers(1, 64))
    dim = draw(st.sampled_from([16, 32, 64, 80, 96, 128, 256]))
    return make_shape(num_heads=kv * group, num_kv_heads=kv, head_dim=dim, context_length=1 << 17)


@settings(max_examples=share_of(400))
@given(attentions(), st.integers(1, 600), st.integers(2, 40000), st.integers(0, 40000))
def test_no_pass_over_any_context_takes_more_than_the_formula(shape, rows, ctx, past):
    rows = min(rows, ctx)
    past = min(past, ctx - rows)
    assert operator_bytes(shape, rows, past) <= _attention_bytes(shape, rows, ctx)


@settings(max_examples=share_of(300))
@given(attentions(), st.data(), st.integers(2, 40000), st.lists(st.integers(1, 60), min_size=2, max_size=8))
def test_no_pass_of_several_sequences_takes_more_either(shape, data, ctx, counts):
    rows = [min(count, ctx) for count in counts]
    sequences = [(count, data.draw(st.integers(0, ctx - count))) for count in rows]
    assert plans_bytes(shape, sequences) <= _attention_bytes(shape, sum(rows), ctx, len(rows))


@given(attentions(), st.integers(1, 600), st.sampled_from([16, 512, 1000, 4096]), st.integers(0, 40000))
def test_a_model_of_windows_alone_needs_no_more_in_a_longer_context(shape, rows, window, past):
    windowed = make_shape(
        num_heads=shape.model.num_heads, num_kv_heads=shape.model.num_kv_heads, head_dim=shape.model.head_dim,
        layer_windows=windows_of(window, 30),
    )  # fmt: skip
    assert operator_bytes(shape, rows, past, window) <= _attention_bytes(windowed, rows, past + rows)


@settings(max_examples=share_of(200))
@given(attentions(), st.integers(1, 600), st.integers(2, 40000))
def test_the_heaviest_passes_are_among_the_few_that_are_looked_at(shape, most, ctx):
    found = passes_bytes(shape, most, ctx)
    assert all(1 <= rows <= most for rows in heaviest_rows(shape, most))
    assert all(allocated_bytes(shape, rows, ctx) <= found for rows in range(1, most + 1))


@given(st.integers(257, 32768), st.sampled_from([1, 7, 12, 16, 17, 64, 512]))
def test_the_formula_asks_for_little_more_than_the_operator(ctx, rows):
    shape, rows = make_shape(), min(rows, ctx)
    most = max(
        operator_bytes(shape, rows, past)
        for past in {*range(0, ctx - rows, 256), min(max(256 - rows, 0), ctx - rows), ctx - rows}
    )
    assert _attention_bytes(shape, rows, ctx) <= 1.25 * most + (128 << 10)


def test_fine_blocks_take_room_in_every_row():
    plain, fine = (make_shape(fine_blocks=count) for count in (0, 8))
    # Of the input that is rounded, and of the one that is rounded behind it: codes, a scale and a sum.
    more = allocated_bytes(fine, 128, 512) - allocated_bytes(plain, 128, 512)
    assert 128 * 2 * 8 * 40 <= more <= 1.1 * 128 * 2 * 8 * 40
    assert thread_bytes(fine, 2) > thread_bytes(plain, 2)
