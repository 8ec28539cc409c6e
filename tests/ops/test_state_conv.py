"""StateConv against a loop in float64; and its bits, whatever passes, drafts and slots rows went through."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from tests.ops.recurrent import (
    DRAFTS,
    Layer,
    check_accepted_drafts,
    check_bits,
    check_sequences,
    check_tree,
    int32,
)
from tests.ops.single_op import ISAS, needs_native

pytestmark = [needs_native, pytest.mark.own_pools]


@dataclass(frozen=True)
class Shape:
    channels: int
    taps: int
    has_bias: bool = False
    before: int = 0
    op, first = "StateConv", "x"

    @property
    def attributes(self):
        return {"first": self.before} if self.before else {}

    @property
    def state_floats(self):
        return (self.taps - 1) * self.channels

    @property
    def transition_floats(self):
        return self.channels

    def rows(self, count, seed=0):
        """Return inputs of so many rows: name -> array."""
        rng = np.random.default_rng([seed, self.channels])
        width = self.channels if not self.before else self.before + self.channels + 3
        return {"x": rng.normal(size=(count, width)).astype(np.float32)}

    def weights(self):
        rng = np.random.default_rng(self.channels)
        drawn = {"weight": rng.normal(size=(self.taps, self.channels))}
        if self.has_bias:
            drawn["bias"] = rng.normal(size=self.channels)
        return {name: array.astype(np.float32) for name, array in drawn.items()}

    def expected(self, x):
        """Return y of a whole text in float64."""
        u, weights = x[:, self.before : self.before + self.channels].astype(np.float64), self.weights()
        u = np.concatenate([np.zeros((self.taps - 1, self.channels)), u])
        y = sum(weights["weight"][j] * u[j : j + len(x)] for j in range(self.taps)) + weights.get("bias", 0)
        return y / (1 + np.exp(-y))


SHAPES = [Shape(64, 4, True), Shape(37, 3, False, 6), Shape(5, 16, True), Shape(16, 1)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("isa", ISAS)
def test_any_division_into_passes_gives_the_numbers_of_the_definition_and_the_same_bits(shape, isa):
    whole, layer = check_bits(shape, isa, shape.expected(shape.rows(300)["x"]))
    used = slice(0, shape.state_floats)
    assert layer.state[0, layer.slot, used].tobytes() == whole.state[0, whole.slot, used].tobytes()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_of_a_tree_has_the_bits_of_its_own_text(shape):
    check_tree(shape)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_accepted_drafts_have_the_bits_of_the_text_and_others_leave_no_trace(shape):
    check_accepted_drafts(shape)


def test_sequences_of_a_pass_see_nothing_of_each_other():
    check_sequences(SHAPES[1])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"weight": np.zeros((17, 64), np.float32)}, "must be 1 to 16 taps"),
        ({"weight": np.zeros((4, 65), np.float32)}, "x has 64 columns, must have 65"),
        ({"bias": np.zeros(63, np.float32)}, "bias"),
        ({"state": np.zeros((1, 2, 100), np.float32)}, "state has slots of 100 floats"),
        ({"certain": int32(4)}, r"certain\[0\] is 4"),
        ({"parents": int32(-1, -1, 1)}, r"parents\[1\] is -1, must be 0: it is certain"),
        ({"advance": int32([DRAFTS])}, r"advance\[0, 0\] is 12"),
    ],
    ids=["taps", "channels", "bias", "state", "certain", "parents", "advance"],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(changed, message):
    layer = Layer(SHAPES[0])
    with pytest.raises(RuntimeError, match=message):
        layer.run(SHAPES[0].rows(3), **changed)
    assert np.isnan(layer.state).all()
