"""Experts against a loop in float64 over the same packed matrices; and a row's bits, whatever rows are beside it."""

from __future__ import annotations

import numpy as np
import pytest

from edge_rt.export.reference.forward import expert_weights
from edge_rt.package.layers import Experts, FeedForward
from tests.ops.packed import FLOAT_FORMATS, random_matrix
from tests.ops.single_op import ISAS, SingleOp, needs_native

pytestmark = [needs_native, pytest.mark.own_pools]

HIDDEN, INNER, COUNT, CHOSEN = 64, 32, 19, 3
TILE = 16


class Layer:
    """Experts of a layer, packed, and what they stand for."""

    def __init__(self, *, gating="softmax", form="w8", activation="swiglu", seed=0, more=(), count=COUNT, **attributes):
        rng = np.random.default_rng(seed)
        halves = 1 if activation == "relu2" else 2
        self.count, self.width = count, attributes.get("width", HIDDEN)
        gate_up, self.gate_up = random_matrix(rng, form, count * halves * INNER, self.width)
        down, self.down = random_matrix(rng, form, count * self.width, INNER)
        optional = {
            "norm_weight": rng.normal(size=HIDDEN),
            "router_bias": rng.normal(size=count),
            "choice_bias": rng.normal(size=count),
            "gate_up_bias": rng.normal(size=count * halves * INNER),
            "down_bias": rng.normal(size=count * self.width),
            "shared_gate": rng.normal(size=HIDDEN) * 0.3,
            "expert_scale": rng.normal(size=count),
            "post_norm": rng.normal(size=self.width),
            "expert_norm": rng.normal(size=HIDDEN),
            "sum_norm": rng.normal(size=self.width),
        }
        self.fixed = {"router": rng.normal(size=(count, HIDDEN)) * 0.3, **{name: optional[name] for name in more}}
        self.fixed = {name: values.astype(np.float32) for name, values in self.fixed.items()}
        self.fixed |= {"gate_up": gate_up, "down": down}
        self.activation, self.gating = activation, gating
        self.attributes = {
            "hidden": HIDDEN,
            "intermediate": INNER,
            "experts": count,
            "chosen": CHOSEN,
            "gating": gating,
            "activation": activation,
            "gate_up_format": form,
            "down_format": form,
            "epsilon": 1e-5,
            **attributes,
        }

    def op(self, inputs, **more):
        return SingleOp("Experts", self.attributes, {**self.fixed, **inputs}, **more)

    def run(self, x, residual=None, *, op=None, beside=None, **more):
        inputs = {"x": x} | ({} if residual is None else {"residual": residual}) | (beside or {})
        return (op or self.op(inputs, **more))(**self.fixed, **inputs)[0]

    def activated(self, gate, up):
        limit, slope = self.attributes.get("limit", 0) or np.inf, self.attributes.get("slope", 1)
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
        return gate / (1 + np.exp(-slope * gate)) * (up + self.attributes.get("up_offset", 0))

    def expected(self, x, residual=None, expert_x=None, shared=None):
        x, fixed = x.astype(np.float64), self.fixed

        def normed(rows, weight):
            return rows / np.sqrt((rows**2).mean(-1, keepdims=True) + 1e-5) * fixed[weight]

        if "expert_norm" in fixed:
            expert_x = normed(x, "expert_norm")
        if "norm_weight" in fixed:
            x = normed(x, "norm_weight")
        description = Experts(
            self.count,
            CHOSEN,
            FeedForward(INNER),
            self.gating,
            bool(self.attributes.get("normalise", 0)),
            self.attributes.get("weight_epsilon", 0.0),
            self.attributes.get("weight_scale", 1.0),
            groups=self.attributes.get("groups", 1),
            chosen_groups=self.attributes.get("chosen_groups", 1),
        )
        weights = expert_weights(
            x @ fixed["router"].T + fixed.get("router_bias", 0), description, fixed.get("choice_bias")
        )
        weights = weights * fixed.get("expert_scale", 1)
        rows = x if expert_x is None else expert_x.astype(np.float64)
        y = np.zeros_like(rows)
        for row, e in zip(*np.nonzero(weights), strict=True):
            made = self.gate_up.reshape(self.count, -1, self.width)[e] @ rows[row]
            if "gate_up_bias" in fixed:
                made = made + fixed["gate_up_bias"].reshape(self.count, -1)[e]
            if self.activation == "relu2":
                inner = np.maximum(made, 0) ** 2
            else:
                gate, up = made.reshape(-1, 2, TILE).swapaxes(0, 1).reshape(2, INNER)
                inner = self.activated(gate, up)
            out = self.down.reshape(self.count, self.width, INNER)[e] @ inner
            if "down_bias" in fixed:
                out = out + fixed["down_bias"].reshape(self.count, self.width)[e]
            y[row] += weights[row, e] * out
        if shared is not None and "sum_norm" not in fixed:
            share = 1 / (1 + np.exp(-x @ fixed["shared_gate"])) if "shared_gate" in fixed else np.ones(len(x))
            y += share[:, None] * shared
        if "post_norm" in fixed:
            y = normed(y, "post_norm")
        if "sum_norm" in fixed:
            y = normed(y + shared, "sum_norm")
        return y if residual is None else residual + self.attributes.get("residual_scale", 1.0) * y


def rows_of(count, seed=1):
    return np.random.default_rng(seed).normal(size=(count, HIDDEN)).astype(np.float32)


OWN_NORMS = ("norm_weight", "expert_norm", "post_norm", "sum_norm")
CASES = {
    "softmax": {"more": ("norm_weight",)},
    "normalised": {"normalise": 1, "more": ("norm_weight",), "residual_scale": 0.25},
    "of the chosen": {"gating": "chosen", "more": ("router_bias", "gate_up_bias", "down_bias")},
    "sigmoid": {"gating": "sigmoid", "normalise": 1, "weight_epsilon": 1e-6, "weight_scale": 2.5}
    | {"more": ("choice_bias",)},
    "relu2": {"activation": "relu2", "more": ("norm_weight",)},
    "limits": {"gating": "chosen", "limit": 1.5, "slope": 1.702, "up_offset": 1.0, "more": ("gate_up_bias",)},
    "groups": {"gating": "sigmoid", "normalise": 1, "count": 20, "groups": 4, "chosen_groups": 2}
    | {"weight_epsilon": 1e-20, "more": ("choice_bias",)},
    "scales": {"normalise": 1, "residual_scale": 0.5, "more": ("norm_weight", "expert_scale", "post_norm")},
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("form", FLOAT_FORMATS)
def test_weights_of_floats_give_the_sum_of_a_row_s_experts(name, form):
    layer, x, residual = Layer(form=form, **CASES[name]), rows_of(40), rows_of(40, seed=2)
    y, expected = layer.run(x, residual), layer.expected(x, residual)
    assert np.abs(y - expected).max() < 2e-5 * np.abs(expected).max()


@pytest.mark.parametrize("more", [(), ("norm_weight", "shared_gate"), ("post_norm",), OWN_NORMS, OWN_NORMS[1:]])
def test_what_another_feed_forward_made_is_added(more):
    layer = Layer(form="f32", more=more, residual_scale=0.5)
    x, residual, shared = rows_of(40), rows_of(40, seed=2), rows_of(40, seed=3)
    y, expected = layer.run(x, residual, beside={"shared": shared}), layer.expected(x, residual, shared=shared)
    assert np.abs(y - expected).max() < 2e-5 * np.abs(expected).max()


@pytest.mark.parametrize("width", [32, HIDDEN])
def test_experts_may_have_rows_of_their_own(width):
    layer, x, own = Layer(form="f32", more=("norm_weight", "down_bias"), width=width), rows_of(40), rows_of(40, seed=4)
    y = layer.run(x, beside={"expert_x": own[:, :width]})
    expected = layer.expected(x, expert_x=own[:, :width])
    assert y.shape == (40, width)
    assert np.abs(y - expected).max() < 2e-5 * np.abs(expected).max()


@pytest.mark.parametrize("form", ["w8", "w4", "w5", "t4", "mx4"])
def test_codes_give_it_but_for_rounded_inputs(form):
    layer, x = Layer(form=form, normalise=1), rows_of(33)
    assert np.abs(layer.run(x) - layer.expected(x)).max() < 0.03 * np.abs(layer.expected(x)).max()


BESIDE = {
    "w8": ("norm_weight", "choice_bias", "down_bias", "shared_gate", "post_norm"),
    "bf16": ("norm_weight", "choice_bias", "down_bias", "shared_gate", "post_norm"),
    "w4": (*OWN_NORMS, "expert_scale"),
}


@pytest.mark.parametrize(("form", "more"), BESIDE.items())
def test_a_row_has_the_same_bits_beside_any_others(form, more):
    layer = Layer(form=form, normalise=1, more=more, count=5, limit=2.0)
    x, residual, beside = rows_of(70), rows_of(70, seed=3), {"shared": rows_of(70, seed=4)}
    y = layer.run(x, residual, beside=beside)
    for isa in ISAS:
        for threads in (1, 3):
            op = layer.op({"x": x, "residual": residual, **beside}, isa=isa, threads=threads)
            for step in (1, 2, 7, 64, 70):
                own = [(slice(i, i + step), {"shared": beside["shared"][i : i + step]}) for i in range(0, 70, step)]
                parts = [layer.run(x[part], residual[part], op=op, beside=some) for part, some in own]
                np.testing.assert_array_equal(np.concatenate(parts).view(np.int32), y.view(np.int32))


def test_of_equal_scores_the_first_experts_are_chosen():
    layer = Layer(form="f32")
    layer.fixed["router"][:] = layer.fixed["router"][:1]
    x = rows_of(5)
    with_all = layer.run(x)
    changed = Layer(form="f32")
    changed.fixed = {**layer.fixed, "down": layer.fixed["down"].copy()}
    changed.fixed["down"].reshape(COUNT, -1)[CHOSEN:] = 0
    np.testing.assert_array_equal(changed.run(x), with_all)


@pytest.mark.parametrize("name", ["softmax", "sigmoid", "groups"])
def test_the_numbers_are_those_of_a_row_s_experts(name):
    layer, x = Layer(form="f32", **CASES[name]), rows_of(6)
    y, numbers = layer.op({"x": x})(**layer.fixed, x=x)
    assert (np.diff(numbers) > 0).all()
    down = layer.fixed["down"]
    for row, own in enumerate(numbers):
        others = np.setdiff1d(np.arange(layer.count), own)
        layer.fixed["down"] = down.copy()
        layer.fixed["down"].reshape(layer.count, -1)[others] = 0
        np.testing.assert_array_equal(layer.run(x[[row]])[0], y[row])


def test_rows_that_are_no_numbers_leave_the_others_alone():
    layer, x = Layer(more=("norm_weight",)), rows_of(9)
    expected = layer.run(x)
    x[4] = np.nan
    found = layer.run(x)
    assert np.isnan(found[4]).all()
    np.testing.assert_array_equal(np.delete(found, 4, 0), np.delete(expected, 4, 0))


def test_no_rows():
    assert Layer().run(rows_of(0)).shape == (0, HIDDEN)


WRONG = {
    "experts is 0 and chosen is 3": {"experts": 0},
    "chosen is 20": {"chosen": 20},
    "hidden is 72": {"hidden": 72},
    "intermediate is 0": {"intermediate": 0},
    "gating is 'best'": {"gating": "best"},
    "normalise is 2": {"normalise": 2},
    "weight_epsilon is -1": {"weight_epsilon": -1.0},
    "activation is 'none'": {"activation": "none"},
    "gate_up_format is 'w9'": {"gate_up_format": "w9"},
    "gate_up is": {"gate_up_format": "w4"},
    "gate_up is .76, 2, 544., must be .72": {"experts": 18},
    "residual_scale is 0.5": {"residual_scale": 0.5},
    "groups is 3 and chosen_groups is 1": {"groups": 3},
    "limit is -1": {"limit": -1.0},
    "limit, slope and up_offset are given": {"limit": 1.0, "activation": "relu2"},
    "expert_x and attribute width": {"width": 32},
    "shared_gate is given without shared": {"more": ("shared_gate",)},
    "sum_norm needs shared and post_norm": {"more": ("post_norm", "sum_norm")},
}


@pytest.mark.parametrize("message", WRONG)
def test_what_does_not_fit_is_refused(message):
    with pytest.raises(Exception, match=message):
        Layer(**WRONG[message]).run(rows_of(2))


def test_nested_codes_are_refused():
    with pytest.raises(Exception, match="gate_up has nested codes"):
        Layer(form="w8n").run(rows_of(2))
