"""GatedDelta against its definition in float64; and its bits, whatever passes, drafts and slots rows went through."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from tests.ops.recurrent import (
    DRAFTS,
    Heads,
    Layer,
    check_accepted_drafts,
    check_divisions,
    check_sequences,
    check_tree,
    int32,
)
from tests.ops.single_op import ISAS, needs_native

pytestmark = [needs_native, pytest.mark.own_pools]

EPSILON = 2e-3


@dataclass(frozen=True)
class Shape(Heads):
    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    is_tiled: bool = False
    op, first = "GatedDelta", "qkv"

    def __str__(self):
        order = "-tiled" if self.is_tiled else ""
        return f"{self.key_heads}x{self.key_dim}-{self.value_heads}x{self.value_dim}{order}"

    @property
    def attributes(self):
        return {"key_heads": self.key_heads, "is_tiled": int(self.is_tiled), "epsilon": EPSILON}

    def key_head_of(self, head):
        return head % self.key_heads if self.is_tiled else head // (self.value_heads // self.key_heads)

    def rows(self, count, seed=0):
        """Return inputs of so many rows: name -> array."""
        rng = np.random.default_rng([seed, self.value_heads])
        heads = self.value_heads
        widths = {"qkv": 2 * self.keys + self.values, "z": self.values, "b": heads, "a": heads}
        return {name: rng.normal(size=(count, width)).astype(np.float32) for name, width in widths.items()}

    def weights(self):
        rng = np.random.default_rng(self.value_heads)
        return {
            "a_scale": -np.exp(0.7 * rng.normal(size=self.value_heads)).astype(np.float32),
            "dt_bias": rng.normal(size=self.value_heads).astype(np.float32),
            "norm": (1 + 0.3 * rng.normal(size=self.value_dim)).astype(np.float32),
        }


TINY = Shape(2, 32, 6, 48)
SHAPES = [TINY, Shape(2, 32, 6, 48, True), Shape(16, 128, 16, 128), Shape(1, 16, 1, 16)]
by_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def definition(shape, rows):
    """Return y of a whole text, and S behind it, in float64."""
    q, k, v = np.split(rows["qkv"].astype(np.float64), [shape.keys, 2 * shape.keys], axis=1)
    weights = shape.weights()
    heads = [shape.key_head_of(head) for head in range(shape.value_heads)]
    split = (len(q), shape.key_heads, shape.key_dim)
    q, k = (x.reshape(split) / np.sqrt((x.reshape(split) ** 2).sum(2, keepdims=True) + 1e-6) for x in (q, k))
    q, k = q[:, heads] / np.sqrt(shape.key_dim), k[:, heads]
    v, z = (x.reshape(-1, shape.value_heads, shape.value_dim) for x in (v, rows["z"].astype(np.float64)))
    softplus = np.logaddexp(0, rows["a"].astype(np.float64) + weights["dt_bias"])
    decay, beta = np.exp(weights["a_scale"] * softplus), 1 / (1 + np.exp(-rows["b"].astype(np.float64)))
    states, y = np.zeros((shape.value_heads, shape.key_dim, shape.value_dim)), np.empty_like(v)
    for i in range(len(q)):
        states *= decay[i][:, None, None]
        d = beta[i][:, None] * (v[i] - np.einsum("hkv,hk->hv", states, k[i]))
        states += k[i][:, :, None] * d[:, None, :]
        y[i] = np.einsum("hkv,hk->hv", states, q[i])
    y *= weights["norm"] / np.sqrt((y**2).mean(2, keepdims=True) + EPSILON)
    return (y * z / (1 + np.exp(-z))).reshape(len(q), -1), states


@by_shape
@pytest.mark.parametrize("isa", ISAS)
def test_any_division_into_passes_gives_the_numbers_of_the_definition_and_the_same_bits(shape, isa):
    check_divisions(shape, isa, *definition(shape, shape.rows(300)))


@by_shape
def test_a_row_of_a_tree_has_the_bits_of_its_own_text(shape):
    check_tree(shape)


@by_shape
def test_accepted_drafts_have_the_bits_of_the_text_and_all_others_leave_no_trace(shape):
    check_accepted_drafts(shape)


def test_sequences_of_a_pass_see_nothing_of_each_other():
    check_sequences(TINY)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"past_length": int32(-1)}, r"past_length\[0\] is -1"),
        ({"state_index": int32(1)}, r"state_index\[0\] is 1, must be 0 to 0"),
        ({"slot": int32(2)}, r"slot\[0\] is 2"),
        ({"advance": int32([3, 3])}, r"advance\[0, 1\] is 3"),
        ({"advance": int32([DRAFTS])}, rf"advance\[0, 0\] is {DRAFTS}"),
        ({"advance": int32([-1, 0])}, r"advance\[0, 1\] is 0"),
        ({"advance": int32([0]), "past_length": int32(0)}, "-1 where past_length is 0"),
        ({"certain": int32(7)}, r"certain\[0\] is 7"),
        ({"parents": int32(-1, -1, 1, 2, 3, 2)}, r"parents\[1\] is -1, must be 0: it is certain"),
        ({"parents": int32(-1, 0, 0, 2, 3, 2)}, r"parents\[2\] is 0, must be 1"),
        ({"parents": int32(-1, 0, 1, 1, 2, 2)}, r"parents\[4\] is 2, .*depth first"),
        ({"parents": int32(-1, 0, 1, 2, 3, 5)}, r"parents\[5\] is 5"),
        ({"sequence_rows": int32(5)}, r"sequence_rows\[0\] is 5"),
        ({"state": np.zeros((1, 2, 9216 + 7), np.float32)}, "state has slots of 9223 floats"),
        ({"state": np.zeros((1, 2, 9216), np.float32)}, "at most 0 drafts"),
        ({"norm": np.zeros(40, np.float32)}, r"norm is \[40\]"),
        ({"a_scale": np.zeros(5, np.float32)}, r"a_scale is \[5\]"),
        ({"qkv": np.zeros((6, 417), np.float32)}, "qkv has 417 columns"),
        ({"z": np.zeros((6, 287), np.float32)}, "z"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_does_not_fit_is_refused_before_anything_is_written(changed, message):
    layer = Layer(TINY)
    layer.past = 1
    with pytest.raises(RuntimeError, match=message):
        layer.run(TINY.rows(6), 2, **changed)
    assert np.isnan(layer.state).all()
