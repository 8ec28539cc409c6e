"""SsmScan against its definition in float64; and its bits, whatever passes, drafts and slots rows went through."""

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
    """Gates and steps come out of one matrix, ``[z | x | b | c | t]``, unless `is_apart`."""

    value_heads: int
    value_dim: int
    key_heads: int
    key_dim: int
    order: str = "gate_norm"
    is_apart: bool = False
    op, first = "SsmScan", "xbc"

    def __str__(self):
        return f"{self.value_heads}x{self.value_dim}-{self.key_heads}x{self.key_dim}-{self.order}"

    @property
    def attributes(self):
        norm_first = {"norm_first": 1} if self.order == "norm_gate" else {}
        return {"head_dim": self.value_dim, "groups": self.key_heads, "epsilon": EPSILON, **norm_first}

    def rows(self, count, seed=0):
        """Return inputs of so many rows: name -> array."""
        rng = np.random.default_rng([seed, self.value_heads])
        width = self.values + 2 * self.keys
        widths = {"xbc": width, "z": self.values, "t": self.value_heads}
        if not self.is_apart:
            widths |= {"z": self.values + width + self.value_heads}
        drawn = {name: rng.normal(size=(count, width)).astype(np.float32) for name, width in widths.items()}
        return drawn if self.is_apart else drawn | {"t": drawn["z"]}

    def weights(self):
        rng = np.random.default_rng(self.value_heads)
        drawn = {
            "a_scale": -np.exp(0.7 * rng.normal(size=self.value_heads)),
            "skip": 1 + 0.3 * rng.normal(size=self.value_heads),
            "dt_bias": rng.normal(size=self.value_heads),
            "norm": 1 + 0.3 * rng.normal(size=self.values),
        }
        if self.order == "gate":
            del drawn["norm"]
        return {name: array.astype(np.float32) for name, array in drawn.items()}


class Unnormed(Shape):
    def weights(self):
        drawn = super().weights()
        del drawn["norm"]
        return drawn


TINY = Shape(12, 16, 3, 32)
SHAPES = [TINY, Shape(8, 16, 2, 4, "norm_gate", True), Shape(17, 48, 1, 20, "gate"), Shape(16, 64, 1, 128)]
by_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def definition(shape, rows):
    """Return y of a whole text, and S behind it, in float64."""
    x, b, c = np.split(rows["xbc"].astype(np.float64), [shape.values, shape.values + shape.keys], axis=1)
    weights = {name: array.astype(np.float64) for name, array in shape.weights().items()}
    z, t = rows["z"][:, : shape.values].astype(np.float64), rows["t"][:, -shape.value_heads :].astype(np.float64)
    groups = np.arange(shape.value_heads) // (shape.value_heads // shape.key_heads)
    b, c = (part.reshape(len(x), shape.key_heads, shape.key_dim)[:, groups] for part in (b, c))
    x = x.reshape(len(x), shape.value_heads, shape.value_dim)
    steps = np.logaddexp(0, t + weights["dt_bias"])
    decays = np.exp(weights["a_scale"] * steps)
    states, y = np.zeros((shape.value_heads, shape.key_dim, shape.value_dim)), np.empty_like(x)
    for i in range(len(x)):
        states *= decays[i][:, None, None]
        states += b[i][:, :, None] * (steps[i][:, None] * x[i])[:, None, :]
        y[i] = np.einsum("hnp,hn->hp", states, c[i])
    y = (y + weights["skip"][:, None] * x).reshape(len(x), -1)
    gates = z / (1 + np.exp(-z))
    if shape.order == "gate":
        return y * gates, states
    y = y if shape.order == "norm_gate" else y * gates
    groups = y.reshape(len(y), shape.key_heads, -1)
    y = (groups / np.sqrt((groups**2).mean(2, keepdims=True) + EPSILON)).reshape(len(y), -1) * weights["norm"]
    return y * gates if shape.order == "norm_gate" else y, states


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
        ({"certain": int32(7)}, r"certain\[0\] is 7"),
        ({"advance": int32([DRAFTS])}, rf"advance\[0, 0\] is {DRAFTS}"),
        ({"parents": int32(-1, 0, 1, 2, 3, 5)}, r"parents\[5\] is 5"),
        ({"state": np.zeros((1, 2, 6144 + 7), np.float32)}, "state has slots of 6151 floats"),
        ({"xbc": np.zeros((6, 385), np.float32)}, "xbc has 385 columns, of which 192 are x"),
        ({"z": np.zeros((6, 191), np.float32)}, "z has 191 columns"),
        ({"t": np.zeros((6, 11), np.float32)}, "and t 11"),
        ({"skip": np.zeros(11, np.float32)}, "skip"),
        ({"norm": np.zeros(16, np.float32)}, "norm"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_does_not_fit_is_refused_before_anything_is_written(changed, message):
    layer = Layer(TINY)
    layer.past = 1
    with pytest.raises(RuntimeError, match=message):
        layer.run(TINY.rows(6), 2, **changed)
    assert np.isnan(layer.state).all()


def test_heads_that_fill_no_stripe_and_a_norm_that_is_not_there_are_refused():
    with pytest.raises(Exception, match="head_dim is 24, must be a multiple of 16"):
        Layer(Shape(4, 24, 1, 16))
    unnormed = Unnormed(4, 16, 1, 16, "norm_gate")
    with pytest.raises(RuntimeError, match="norm_first is 1, and there is no norm"):
        Layer(unnormed).text(unnormed.rows(1))
