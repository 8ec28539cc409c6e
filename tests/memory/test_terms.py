from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from edge_rt.memory.activations import allocated_bytes
from edge_rt.memory.figures import Choice
from edge_rt.memory.plan_terms import terms_of
from edge_rt.memory.request import Request
from edge_rt.memory.sizes import sizes_of
from edge_rt.memory.speed import SPECULATION_STEPS, row_cost, speculation_step
from edge_rt.memory.terms import (
    BASE_BYTES,
    encodable_bytes,
    kv_bytes,
    long_stretch_bytes,
    longest_stretch,
    pass_memory_bytes,
    runtime_bytes,
    tokenizer_bytes,
    weights_bytes,
)
from tests.helpers.examples import share_of
from tests.memory.shapes import DEVICE, MIB, make_shape, shapes, windows_of

CHOICE = Choice(2048, "f16", "auto", 23, 256, 8192, 4096, 24)
LARGE = make_shape(
    num_layers=16, hidden_size=2048, intermediate_size=8192, num_heads=32, num_kv_heads=8, vocab_size=128256
)


def test_passes_take_what_was_measured():
    # Anonymous memory that a first pass of this many rows adds, in MiB: measured with benchmarks/memory_terms.py.
    measured = {
        ("small", 64): 1.8,
        ("small", 256): 7.2,
        ("small", 512): 13.6,
        ("large", 256): 26.3,
        ("large", 512): 51.4,
    }
    for (name, rows), size in measured.items():
        shape = make_shape() if name == "small" else LARGE
        assert 0.97 * size <= allocated_bytes(shape, rows, 2048) / MIB <= 1.1 * size + 10


@given(shapes(), st.sampled_from([64, 128, 256]), st.integers(64, 8192))
@settings(max_examples=share_of(60))
def test_more_rows_and_a_longer_context_never_take_less(shape, rows, ctx):
    assert allocated_bytes(shape, rows, ctx) <= allocated_bytes(shape, 2 * rows, ctx)
    assert allocated_bytes(shape, 8, ctx) <= allocated_bytes(shape, 8, 2 * ctx)


def test_the_arena_of_a_choice_holds_its_largest_pass():
    shape = make_shape()
    assert pass_memory_bytes(shape, CHOICE) >= allocated_bytes(shape, 256, 2048)
    few = replace(CHOICE, prefill_chunk=1, draft_max=15, ctx=8192)
    assert pass_memory_bytes(shape, few) >= allocated_bytes(shape, 16, 8192)


def test_the_cache_is_rows_times_bytes():
    shape = make_shape()
    assert kv_bytes(shape, CHOICE) == 2048 * 30 * 2 * 3 * 64 * 2
    assert kv_bytes(shape, replace(CHOICE, kv_format="int8")) == 2048 * 30 * 2 * 3 * (64 + 4)


def test_windowed_layers_keep_the_window_and_the_largest_pass():
    shape = make_shape(layer_windows=windows_of(100, 10))
    row = 2 * 3 * 64 * 2
    assert kv_bytes(shape, CHOICE) == (20 * 2048 + 10 * 384) * row  # 100 + 256, up to a multiple of 64


def test_rotations_count_as_far_as_the_context_reaches():
    shape = make_shape(context_length=131072)
    saved = weights_bytes(shape, 131072) - weights_bytes(shape, 1024)
    # Those behind are a mapping of their own: a few pages around them.
    assert 0.98 * shape.rotation_bytes - MIB // 4 < saved < shape.rotation_bytes - MIB // 4


def test_a_process_counts_as_it_is_and_one_to_be_started_as_usual():
    assert runtime_bytes(DEVICE, None) == BASE_BYTES
    assert runtime_bytes(DEVICE, 62 * MIB) == 62 * MIB
    assert runtime_bytes(DEVICE, 0) == 0
    assert runtime_bytes(replace(DEVICE, base_bytes=9 * MIB), None) == 9 * MIB


def test_reading_a_large_vocabulary_may_be_the_peak():
    shape = make_shape(weights_bytes=4 * MIB, read_bytes=4 * MIB, vocab_size=151000, tokenizer_bytes=11 * MIB)
    choice = Choice(64, "int4", "off", 0, 64, 0, 0, 1)
    sizes = sizes_of(shape, DEVICE, choice, Request())
    assert sizes.regimes.largest == "load"
    assert sum(term.bytes for term in terms_of(shape, choice, sizes, Request())) == sizes.regimes.load == sizes.total


def test_packed_weights_are_counted_once_while_they_are_made():
    # Measured with SmolLM2-135M: 197.1 MiB beside what the process held, tokenizer included, of 108.6 MiB of weights.
    shape = make_shape(op_profile="portable", kv_formats=("f32",), weights_bytes=113840128, read_bytes=113840128)
    choice = Choice(512, "f32", "off", 0, 128, 0, 0, 1)
    packing = sizes_of(shape, DEVICE, choice, Request(resident_bytes=0)).packing
    assert 197.1 * MIB <= packing <= 1.06 * 197.1 * MIB


def test_a_corpus_is_a_mapped_file_where_suffixes_are_looked_up():
    request = Request(corpus="texts.idx", corpus_bytes=50 * MIB)
    with_it, without = (sizes_of(make_shape(), DEVICE, CHOICE, asked) for asked in (request, Request()))
    assert with_it.total - without.total == 50 * MIB
    terms = {term.name: term for term in terms_of(make_shape(), CHOICE, with_it, Request())}
    assert (terms["corpus"].bytes, terms["corpus"].kind) == (50 * MIB, "file")
    assert "corpus" not in {term.name for term in terms_of(make_shape(), CHOICE, without, Request())}
    other = replace(CHOICE, spec="recycling", suffix_tokens=0)
    assert sizes_of(make_shape(), DEVICE, other, request).corpus == 0


def test_a_block_of_stored_rows_counts_beyond_the_memory_for_texts():
    large = make_shape(num_layers=36, num_kv_heads=8, head_dim=128, vocab_size=151936)
    for shape, more in ((make_shape(), 0), (large, 64 * 36 * 2 * 2 * 8 * 128 - 54 * 151936)):
        plain, stored = (sizes_of(shape, DEVICE, CHOICE, Request(prompt_cache=is_asked)) for is_asked in (False, True))
        assert (stored.prompt_cache, stored.total - plain.total) == (more, more)
        terms = terms_of(shape, CHOICE, stored, Request(prompt_cache=True))
        assert [term.bytes for term in terms if term.name == "prompt_cache"] == ([more] if more else [])


def test_a_longer_context_may_have_a_longer_stretch_that_cannot_be_cut():
    assert [longest_stretch(ctx) for ctx in (64, 8192, 20000, 131072)] == [8192, 8192, 20000, 32768]
    shape = make_shape()
    assert tokenizer_bytes(shape, 20000) - tokenizer_bytes(shape, 8192) == 330 * (20000 - 8192)
    # What drawing a token of a large vocabulary takes afterwards is room enough.
    assert tokenizer_bytes(make_shape(vocab_size=128256), 17000) == tokenizer_bytes(make_shape(vocab_size=128256), 64)


def test_a_longer_text_than_planned_takes_memory_beyond_the_plan():
    shape = make_shape()
    assert long_stretch_bytes(shape, 64, 8192) == 0
    for size in (8193, 20000, 1 << 20):
        more = long_stretch_bytes(shape, 64, size)
        assert more >= 330 * (size - 8192)
        assert encodable_bytes(shape, 64, more) == size
        assert encodable_bytes(shape, 64, more - 1) == max(size - 1, 8192)
    # What drawing a token of a large vocabulary takes is room for a text.
    assert long_stretch_bytes(make_shape(vocab_size=151936), 8192, 12000) == 0


def test_longer_drafts_emit_more_and_what_lies_between_is_between():
    for mode, steps in SPECULATION_STEPS.items():
        for step in steps:
            assert speculation_step(mode, step.draft_max, 1 << 16).tokens == step.tokens
        between = speculation_step(mode, 6, 1 << 16)
        assert steps[2].tokens < between.tokens < steps[3].tokens
        assert speculation_step(mode, 63, 1 << 16).tokens == steps[-1].tokens
    assert speculation_step("suffix", 8, 1024).tokens < speculation_step("suffix", 8, 4096).tokens
    assert speculation_step("ngram", 8, 4096) == speculation_step("suffix", 8, 4096)


def test_row_costs_are_interpolated_and_continued():
    curve = ((1, 1.0), (8, 1.7), (16, 3.3))
    assert [row_cost(curve, rows) for rows in (1, 4.5, 8, 16, 24)] == pytest.approx([1.0, 1.35, 1.7, 3.3, 4.9])


def test_hidden_states_take_a_row_for_every_row_of_logits():
    shape = make_shape()
    plain, with_them = (sizes_of(shape, DEVICE, CHOICE, Request(hidden=hidden)) for hidden in (False, True))
    assert with_them.logits - plain.logits == with_them.total - plain.total == 24 * 576 * 4
    assert with_them.one_logit_row - plain.one_logit_row == 576 * 4
    (term,) = [term for term in terms_of(shape, CHOICE, with_them, Request(hidden=True)) if term.name == "logits"]
    assert term.text == "24 rows x 49152, and 576 hidden states x 4 B"


def test_portable_packages_pad_heads():
    native, portable = (make_shape(op_profile=profile, head_dim=100) for profile in ("native", "portable"))
    assert (native.token_bytes("f32"), portable.token_bytes("f32")) == (2 * 3 * 100 * 4, 2 * 3 * 104 * 4)
    # Padding copies queries, keys and values.
    assert allocated_bytes(portable, 64, 512) > allocated_bytes(
        replace(portable, model=replace(portable.model, head_dim=104)), 64, 512
    )


def test_one_of_something_is_in_the_singular():
    shape, choice = make_shape(num_layers=1), replace(CHOICE, spec="off", draft_max=0, logit_rows=1)
    texts = {
        one.name: one.text for one in terms_of(shape, choice, sizes_of(shape, DEVICE, choice, Request()), Request())
    }
    assert texts["logits"] == "1 row x 49152 x 4 B"
    assert f"{choice.ctx} rows x 1 layer x " in texts["kv_cache"]
    assert texts["session"].startswith("graph of 1 layer, ")


@pytest.mark.parametrize("mode", ["self", "exit", "auto", "suffix"])
def test_whatever_drafts_reads_the_weights_that_are_mapped_for_the_model(mode):
    choice = replace(CHOICE, spec=mode, kv_format="int4x2", draft_max=8, logit_rows=9)
    for shape in (make_shape(segments=3, has_upper_halves=True), LARGE):
        found = sizes_of(shape, DEVICE, choice, Request())
        assert found.weights == weights_bytes(shape, choice.ctx) <= shape.weights_bytes
