"""Moments of inputs, and the walk that gathers them, against a forward pass that records every input."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edge_rt.errors import UnsupportedModel
from edge_rt.export.decoder.tensors import INPUT_OF
from edge_rt.export.quantise.moments import (
    HELD_OUT_TOKENS,
    SEQUENCE,
    WIDTH,
    CalibrationWalk,
    HeldOut,
    Moments,
    expert_width,
)
from edge_rt.export.reference.forward import DecoderForward
from edge_rt.package.ahead import with_block
from edge_rt.package.layers import Experts, FeedForward, ShortConv
from tests.helpers.arrays import Arrays, random_arrays, source_of, tiny_decoder


class TestMoments:
    @pytest.mark.parametrize("inputs", [1, 7, 8, 9, 24, 27])
    def test_against_numpy(self, inputs):
        rng = np.random.default_rng(inputs)
        rows = rng.standard_normal((50, inputs)).astype(np.float32)
        moments = Moments(inputs, 8)
        for part in np.split(rows, [1, 20]):
            moments.add(part)
        assert moments.tokens == 50
        assert [len(block) for block in moments.blocks] == [8] * (inputs // 8) + [inputs % 8] * (inputs % 8 > 0)
        whole = rows.T @ rows
        for number, block in enumerate(moments.blocks):
            own = slice(8 * number, 8 * number + len(block))
            np.testing.assert_allclose(block, whole[own, own], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(moments.diagonal, np.square(rows).mean(axis=0), rtol=1e-4)

    def test_the_error_of_outputs(self):
        """With one block it is that of the outputs; with several, products across them are taken as 0."""
        rng = np.random.default_rng(1)
        rows = rng.standard_normal((40, 24)).astype(np.float32)
        weights = rng.standard_normal((5, 24)).astype(np.float32)
        whole, apart = Moments(24), Moments(24, 8)
        whole.add(rows)
        apart.add(rows)
        assert whole.error(weights) == pytest.approx(float(np.square(rows @ weights.T).sum()) / 40, rel=1e-4)
        parts = [np.square(rows[:, at : at + 8] @ weights[:, at : at + 8].T).sum() for at in (0, 8, 16)]
        assert apart.error(weights) == pytest.approx(float(sum(parts)) / 40, rel=1e-4)

    def test_none(self):
        moments = Moments(3)
        assert moments.tokens == 0
        assert not moments.diagonal.any()
        assert moments.error(np.ones((2, 3), np.float32)) == 0

    def test_wide_inputs_are_cut(self):
        assert [len(block) for block in Moments(2 * WIDTH + 5).blocks] == [WIDTH, WIDTH, 5]


class TestHeldOut:
    def test_against_numpy(self):
        rows = np.random.default_rng(2).standard_normal((50, 24)).astype(np.float32)
        weights = np.random.default_rng(3).standard_normal((5, 24)).astype(np.float32)
        held_out = HeldOut()
        for part in np.split(rows, [1, 20]):
            held_out.add(part)
        assert held_out.tokens == 50
        np.testing.assert_allclose(held_out.diagonal, np.square(rows).mean(axis=0), rtol=1e-4)
        assert held_out.error(weights) == pytest.approx(float(np.square(rows @ weights.T).sum()) / 50, rel=1e-4)

    def test_rows_are_copied(self):
        rows, held_out = np.ones((2, 3), np.float32), HeldOut()
        held_out.add(rows)
        rows[:] = 5
        assert held_out.diagonal.tolist() == [1, 1, 1]

    def test_the_memory_is_bounded(self):
        held_out = HeldOut()
        for value in (1, 2):
            held_out.add(np.full((HELD_OUT_TOKENS - 1, 2), value, np.float32))
        held_out.add(np.full((5, 2), 9, np.float32))
        assert held_out.tokens == HELD_OUT_TOKENS
        assert held_out.diagonal.tolist() == [(HELD_OUT_TOKENS - 1 + 4) / HELD_OUT_TOKENS] * 2

    def test_none(self):
        assert not HeldOut().diagonal.any()
        assert HeldOut().error(np.ones((2, 3), np.float32)) == 0


def floats(arrays):
    return Arrays({name: array.astype(np.float32) for name, array in arrays.items()})


def recorded(matrices, source, decoder, token_ids):
    """Return the input of every matrix, and the head's, of all sequences by themselves."""
    found = {}

    def product(x, name):
        found.setdefault(name, []).append(x[0])
        return x @ matrices.arrays[name].T

    forward = DecoderForward(matrices, source, decoder, product=product, dtype=np.float64)
    for begin in range(0, len(token_ids), SEQUENCE):
        ids = token_ids[begin : begin + SEQUENCE]
        x = forward.embed(ids)[None]
        for layer in range(decoder.num_layers):
            x = forward.layer(x, layer, forward.rope(len(ids)))
        found.setdefault("head", []).append(forward.norm(x[0], "output_norm.weight"))
    return found


LENGTHS = {1: 0, 5: 0, SEQUENCE: 0, SEQUENCE + 1: 0, 3 * SEQUENCE: 0, 3 * SEQUENCE + 2: 1, 8 * SEQUENCE + 10: 2}
"""Tokens of a text -> sequences at its end that are held out."""


@pytest.mark.parametrize(("length", "held_out"), LENGTHS.items())
def test_the_walk_gathers_what_the_forward_pass_sees(length, held_out):
    conv = ShortConv(3) if length % 2 else None
    decoder = tiny_decoder(attention={"window": 0 if length % 2 else 7}, conv=conv)
    arrays = random_arrays(decoder)
    source, token_ids = source_of(arrays, has_halves=bool(held_out)), [(7 * i * i) % 13 for i in range(length)]
    expected = recorded(Arrays(arrays), source, decoder, token_ids)
    walk = CalibrationWalk(floats(arrays), source, decoder, token_ids)
    count = -(-length // SEQUENCE)
    assert [walk.is_held_out(number) for number in range(count)] == [False] * (count - held_out) + [True] * held_out

    def check(found, inputs):
        fitted, judged = inputs[: count - held_out], inputs[count - held_out :]
        width = inputs[0].shape[1]
        fitted = np.concatenate([np.zeros((0, width)), *fitted])
        judged = np.concatenate([np.zeros((0, width)), *judged])[:HELD_OUT_TOKENS]
        assert (found.fitted.tokens, found.held_out.tokens) == (len(fitted), len(judged))
        (block,) = found.fitted.blocks
        np.testing.assert_allclose(block, fitted.T @ fitted, rtol=1e-3, atol=1e-3 * np.abs(fitted).max(initial=1))
        weights = np.linspace(-1, 1, 3 * width, dtype=np.float32).reshape(3, width)
        error = float(np.square(judged @ weights.T).sum()) / max(len(judged), 1)
        assert found.held_out.error(weights) == pytest.approx(error, rel=1e-3)

    for layer in range(decoder.num_layers):
        found = walk.layer(layer)
        kinds = [kind for kind in INPUT_OF if f"blk.{layer}.{kind}.weight" in arrays]
        assert set(found) == {INPUT_OF[kind] for kind in kinds}
        for kind in kinds:
            check(found[INPUT_OF[kind]], expected[f"blk.{layer}.{kind}.weight"])
    found = walk.head()
    assert set(found) == {"head"}
    check(found["head"], expected["head"])
    for number in range(count):
        np.testing.assert_allclose(walk.final(number), expected["head"][number], rtol=1e-3, atol=1e-3)


def test_experts_have_moments_of_the_rows_that_chose_them():
    experts = Experts(6, 2, FeedForward(16))
    plain = tiny_decoder()
    decoder = replace(plain, kinds=tuple(replace(kind, feed_forward=None, experts=experts) for kind in plain.kinds))
    arrays = random_arrays(decoder)
    # Nobody chooses the last one.
    arrays["blk.0.ffn_gate_inp.weight"][-1] = 0
    arrays["blk.0.ffn_norm.weight"][:] = 0
    arrays["blk.0.ffn_norm.weight"][0] = 1
    source, token_ids = source_of(arrays), [(7 * i * i) % 13 for i in range(90)]
    expected = recorded(Arrays(arrays), source, decoder, token_ids)
    found = CalibrationWalk(floats(arrays), source, decoder, token_ids).layer(0)
    reached = [n for n in range(6) if f"blk.0.ffn_gate.{n}.weight" in expected]
    assert 0 < len(reached) < 6
    names = {f"{name}.{n}" for name in ("gate_up", "down") for n in reached}
    assert {name for name in found if name[-1].isdigit()} == names
    for n in reached:
        for name, kind in (("gate_up", "ffn_up"), ("down", "ffn_down")):
            (rows,) = expected[f"blk.0.{kind}.{n}.weight"]
            assert found[f"{name}.{n}"].fitted.tokens == len(rows)
            np.testing.assert_allclose(
                found[f"{name}.{n}"].fitted.diagonal, np.square(rows).mean(axis=0), rtol=1e-3, atol=1e-6
            )


def test_a_block_that_predicts_ahead_has_moments():
    """Its rows are a state and the token behind it; the last state of a sequence has none."""
    decoder = tiny_decoder()
    layer, offset = decoder.layers[0], 0.5
    arrays = random_arrays(decoder, ahead=layer)
    source, tokens = source_of(arrays, norm_offset=offset, ahead=layer), [(7 * i * i) % 13 for i in range(SEQUENCE + 1)]
    walk = CalibrationWalk(floats(arrays), source, decoder, tokens)
    for number in range(decoder.num_layers):
        walk.layer(number)
    found, last = walk.ahead(), f"blk.{decoder.num_layers}"
    states = walk.final(0)[:-1]
    parts = []
    for x, name in ((arrays["token_embd.weight"][tokens[1:SEQUENCE]], "enorm"), (states, "hnorm")):
        root = np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + decoder.norm_epsilon)
        parts.append(x / root * (arrays[f"{last}.nextn.{name}.weight"] + offset))
    both = np.concatenate(parts, axis=-1)
    inputs = {}

    def product(x, name):
        inputs[name] = x[0]
        return x @ arrays[name].T

    block = DecoderForward(Arrays(arrays), source, with_block(decoder, layer), product=product, dtype=np.float64)
    block.layer((both @ arrays[f"{last}.nextn.eh_proj.weight"].T)[None], decoder.num_layers, block.rope(SEQUENCE - 1))
    inputs[f"{last}.nextn.eh_proj.weight"] = both
    kinds = ("nextn.eh_proj", "attn_q", "attn_output", "ffn_gate", "ffn_down")
    assert found.keys() == {INPUT_OF[kind] for kind in kinds}
    for kind in kinds:
        moments, rows = found[INPUT_OF[kind]], inputs[f"{last}.{kind}.weight"]
        assert (moments.fitted.tokens, moments.held_out.tokens) == (SEQUENCE - 1, 0)
        (square,) = moments.fitted.blocks
        np.testing.assert_allclose(square, rows.T @ rows, rtol=1e-3, atol=1e-3 * np.abs(rows).max())
    assert walk.head()["head"].fitted.tokens == SEQUENCE + 1


@pytest.mark.parametrize(("count", "width"), [(1, WIDTH), (32, 320), (128, 32), (4096, 32)])
def test_many_experts_have_narrow_moments(count, width):
    experts = Experts(count, 1, FeedForward(512 if count == 32 else 768))
    assert expert_width(experts, 1024 if count == 32 else 2048) == width


def test_activations_that_are_not_finite_are_refused():
    decoder = tiny_decoder()
    arrays = random_arrays(decoder)
    arrays["blk.1.attn_norm.weight"] = arrays["blk.1.attn_norm.weight"] * 1e25
    walk = CalibrationWalk(floats(arrays), source_of(arrays), decoder, [1, 2, 3])
    walk.layer(0)
    with pytest.raises(UnsupportedModel, match=r"In layer 1, at the input 'qkv'"):
        walk.layer(1)


def test_a_head_that_is_not_finite_is_refused():
    decoder = tiny_decoder()
    arrays = random_arrays(decoder)
    arrays["output_norm.weight"] = arrays["output_norm.weight"] * 1e25
    walk = CalibrationWalk(floats(arrays), source_of(arrays), decoder, [1, 2, 3])
    for layer in range(decoder.num_layers):
        walk.layer(layer)
    with pytest.raises(UnsupportedModel, match="In the head"):
        walk.head()
