"""What QuantLinear does before and behind its product: activations, scales, softcap, LayerNorm, norm of the result."""

from __future__ import annotations

from itertools import cycle

import numpy as np
import pytest

from edge_rt.export.weights.tile_formats import TILE_FORMATS
from tests.ops.packed import random_matrix, wide
from tests.ops.single_op import ISAS, SingleOp, needs_native
from tests.ops.test_quant_linear import attributes, rms_norm, silu

pytestmark = [needs_native, pytest.mark.own_pools]

EPSILON = 1e-5
OUTPUTS, COLUMNS = 96, 160
"""Three pairs of tiles."""


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


GATES = {"swiglu": silu, "geglu": gelu}


def layer_norm(x, weight, bias):
    wide = x.astype(np.float64)
    centred = wide - wide.mean(-1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON) * weight
    return (normed if bias is None else normed + bias).astype(np.float32)


class Product:
    """A float matrix, inputs of every kind, and what they give in float64.

    Args:
        numbers: attributes besides those of the matrix.
        given: names of the optional inputs that are there.
        rows: of x.
    """

    def __init__(self, numbers, given, *, rows=7):
        rng = np.random.default_rng(len(given) + rows)
        self.activation = numbers.get("activation", "none")
        self.is_paired = self.activation in GATES and "gate" not in given
        width = OUTPUTS // 2 if self.is_paired else OUTPUTS
        self.numbers = {"epsilon": EPSILON, **numbers}
        self.attributes = attributes("f32", OUTPUTS, COLUMNS, **self.numbers)
        packed, self.weights = random_matrix(rng, "f32", OUTPUTS, COLUMNS)
        draw = lambda *shape: (rng.standard_normal(shape) * 1.5 + 0.2).astype(np.float32)  # noqa: E731
        optional = {
            "norm_weight": draw(COLUMNS),
            "bias": draw(OUTPUTS),
            "residual": draw(rows, width),
            "gate": draw(rows, width),
            "post_norm": draw(width),
            "norm_bias": draw(COLUMNS),
        }
        self.x = draw(rows, COLUMNS)
        self.optional = {name: optional[name] for name in given}
        self.inputs = {"x": self.x, "weight": packed, **self.optional}

    def run(self, **options):
        return SingleOp("QuantLinear", self.attributes, self.inputs, **options)(**self.inputs)[0]

    def expected(self):
        find, number = self.optional.get, self.numbers.get
        x = self.x
        if find("norm_weight") is not None:
            is_layer = number("norm") == "layer" or find("norm_bias") is not None
            weight = find("norm_weight")
            x = layer_norm(x, weight, find("norm_bias")) if is_layer else rms_norm(x, weight, EPSILON)
        value = x.astype(np.float64) @ self.weights.astype(np.float64).T
        if find("bias") is not None:
            value = value + find("bias")
        gate = find("gate")
        if self.is_paired:
            tiles = value.reshape(len(value), -1, 2, 16)
            gate, value = (tiles[:, :, i].reshape(len(value), -1) for i in range(2))
        if self.activation in GATES:
            value = GATES[self.activation](gate.astype(np.float64)) * value
        elif self.activation == "relu2":
            value = np.where(value > 0, value, 0) ** 2
        value = value * number("output_scale", 1.0)
        if cap := number("softcap", 0.0):
            value = cap * np.tanh(value / cap)
        if find("post_norm") is not None:
            value = value / np.sqrt((value**2).mean(-1, keepdims=True) + EPSILON) * find("post_norm")
        if find("residual") is not None:
            value = find("residual") + number("residual_scale", 1.0) * value
        return value


CASES = {
    "geglu": ({"activation": "geglu"}, ()),
    "geglu, biased": ({"activation": "geglu"}, ("bias", "norm_weight")),
    "geglu of a gate": ({"activation": "geglu"}, ("gate", "bias", "residual")),
    "swiglu, biased": ({"activation": "swiglu"}, ("bias", "residual")),
    "swiglu of a gate, biased": ({"activation": "swiglu"}, ("gate", "bias")),
    "relu2": ({"activation": "relu2"}, ()),
    "relu2, biased": ({"activation": "relu2"}, ("bias", "norm_weight")),
    "scaled": ({"output_scale": 0.25}, ("bias",)),
    "capped": ({"softcap": 1.5}, ("norm_weight",)),
    "scaled and capped": ({"output_scale": 0.5, "softcap": 2.0}, ("bias",)),
    "scaled residual": ({"residual_scale": 0.22}, ("residual", "bias")),
    "post norm": ({}, ("post_norm",)),
    "post norm and residual": ({}, ("post_norm", "residual", "norm_weight")),
    "post norm of pairs": ({"activation": "geglu"}, ("post_norm", "residual", "bias")),
    "layer norm": ({"norm": "layer"}, ("norm_weight",)),
    "layer norm with a bias": ({"norm": "layer"}, ("norm_weight", "norm_bias")),
    "a bias alone asks for it": ({}, ("norm_weight", "norm_bias")),
    "no norm without a weight": ({"norm": "layer"}, ()),
    "all": (
        {"activation": "relu2", "norm": "layer", "output_scale": 0.3, "softcap": 4.0, "residual_scale": -0.7},
        ("norm_weight", "bias", "residual", "post_norm", "norm_bias"),
    ),
    "all of pairs": (
        {"activation": "geglu", "output_scale": 2.0, "softcap": 5.0, "residual_scale": 0.5},
        ("norm_weight", "bias", "residual", "post_norm", "norm_bias"),
    ),
}


@pytest.mark.parametrize("rows", [1, 7, 20])
@pytest.mark.parametrize("case", CASES)
def test_steps_match_float64(case, rows):
    product = Product(*CASES[case], rows=rows)
    wanted = product.expected()
    assert np.abs(wanted).max() > 0.1
    np.testing.assert_allclose(product.run(threads=2), wanted, rtol=3e-5, atol=3e-5)


def test_gelu_of_far_values():
    packed, _ = random_matrix(np.random.default_rng(0), "f32", 16, 32)
    gate = np.array([[-60.0, -9.0, -3.0, -1e-3, 0.0, 1e-4, 2.0, 10.0, 50.0, *np.zeros(7)]], np.float32)
    inputs = {"x": np.zeros((1, 32), np.float32), "weight": packed, "gate": gate, "bias": np.ones(16, np.float32)}
    numbers = attributes("f32", 16, 32, activation="geglu")
    (y,) = SingleOp("QuantLinear", numbers, inputs)(**inputs)
    np.testing.assert_allclose(y, gelu(gate.astype(np.float64)), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("activation", GATES)
def test_tile_pairs_have_the_bits_of_a_gate(activation):
    rng = np.random.default_rng(6)
    packed, _ = random_matrix(rng, "w4m", 64, 64)
    x, bias = rng.standard_normal((9, 64)).astype(np.float32), rng.standard_normal(64).astype(np.float32)
    inputs = {"x": x, "weight": packed, "bias": bias}
    (paired,) = SingleOp("QuantLinear", attributes("w4m", 64, 64, activation=activation), inputs)(**inputs)

    tiles = [np.ascontiguousarray(packed[i::2]) for i in range(2)]
    biases = [np.ascontiguousarray(bias.reshape(-1, 2, 16)[:, i]).reshape(-1) for i in range(2)]
    first = {"x": x, "weight": tiles[0], "bias": biases[0]}
    (gate,) = SingleOp("QuantLinear", attributes("w4m", 32, 64), first)(**first)
    second = {"x": x, "weight": tiles[1], "bias": biases[1], "gate": gate}
    (gated,) = SingleOp("QuantLinear", attributes("w4m", 32, 64, activation=activation), second)(**second)
    assert gated.tobytes() == paired.tobytes()


@pytest.mark.parametrize("activation", GATES)
def test_parts_of_pairs_take_the_bias_in_the_order_of_tiles(activation):
    rng = np.random.default_rng(7)
    packed, _ = random_matrix(rng, "w4m", 64, 64)
    x, bias = rng.standard_normal((9, 64)).astype(np.float32), rng.standard_normal(64).astype(np.float32)
    inputs = {"x": x, "weight": packed, "bias": bias}
    (wanted,) = SingleOp("QuantLinear", attributes("w4m", 64, 64, activation=activation), inputs)(**inputs)
    behind = np.concatenate([np.ascontiguousarray(packed[i::2]).reshape(-1) for i in range(2)])
    inputs = {"x": x, "weight": behind, "bias": bias}
    numbers = attributes("w4m,w4m", 64, 64, activation=activation, part_rows="32,32")
    assert SingleOp("QuantLinear", numbers, inputs)(**inputs)[0].tobytes() == wanted.tobytes()


def test_numbers_that_change_nothing_keep_the_bits():
    inputs = ("norm_weight", "bias", "residual")
    neutral = {"norm": "rms", "activation": "none", "output_scale": 1.0, "softcap": 0.0, "residual_scale": 1.0}
    assert Product(neutral, inputs).run().tobytes() == Product({}, inputs).run().tobytes()


@pytest.mark.parametrize(("form", "case"), [*zip(TILE_FORMATS, cycle(CASES)), *(("w4m", case) for case in CASES)])
def test_bits_depend_on_the_row_alone(form, case):
    numbers, given = CASES[case]
    product = Product(numbers, given, rows=40)
    columns = wide(form, COLUMNS)
    rng = np.random.default_rng(8)
    packed, _ = random_matrix(rng, form, OUTPUTS, columns)
    inputs = {**product.inputs, "weight": packed, "x": (rng.standard_normal((40, columns)) * 2).astype(np.float32)}
    for name in {"norm_weight", "norm_bias"} & set(inputs):
        inputs[name] = rng.standard_normal(columns).astype(np.float32)
    of_rows = {"x", "residual", "gate"} & set(inputs)
    chosen = attributes(form, OUTPUTS, columns, **product.numbers)
    single = SingleOp("QuantLinear", chosen, inputs)

    def part(first, count):
        return {name: a[first : first + count] if name in of_rows else a for name, a in inputs.items()}

    wanted = np.concatenate([single(**part(i, 1))[0] for i in range(40)])
    assert np.isfinite(wanted).all()
    for isa in ISAS:
        op = SingleOp("QuantLinear", chosen, inputs, isa=isa, threads=3)
        for first, count in ((0, 40), (3, 17), (5, 8), (7, 2)):
            assert op(**part(first, count))[0].tobytes() == wanted[first : first + count].tobytes(), (isa, count)


@pytest.mark.parametrize("threads", [2, 3, 4])
@pytest.mark.parametrize("count", [1, 5, 130])
def test_threads_do_not_show_in_a_norm_of_the_result(threads, count):
    rng = np.random.default_rng(9)
    packed, _ = random_matrix(rng, "w4m", 3000, 320)
    draw = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    inputs = {"x": draw(count, 320), "weight": packed, "residual": draw(count, 3000), "post_norm": draw(3000)}
    numbers = attributes("w4m", 3000, 320, residual_scale=0.5, epsilon=EPSILON)
    (wanted,) = SingleOp("QuantLinear", numbers, inputs)(**inputs)
    op = SingleOp("QuantLinear", numbers, inputs, threads=threads)
    for _ in range(20):
        assert op(**inputs)[0].tobytes() == wanted.tobytes()


BAD_SHAPES = {
    "post_norm of another length": ({"post_norm": (47,)}, {}, "post_norm is"),
    "post_norm of a pair's length": (
        {"post_norm": (64,), "weight": (4, 2, 320)},
        {"out_features": 64, "activation": "geglu"},
        "post_norm is",
    ),
    "norm_bias of another length": ({"norm_weight": (64,), "norm_bias": (48,)}, {}, "norm_bias is"),
    "norm_bias alone": ({"norm_bias": (64,)}, {}, "norm_bias is given without norm_weight"),
    "gate without an activation": ({"gate": (2, 48)}, {"activation": "none"}, "gate is given, but activation is none"),
    "gate beside relu2": ({"gate": (2, 48)}, {"activation": "relu2"}, "gate is given, but activation is relu2"),
    "pairs of half a tile": ({}, {"activation": "geglu"}, "multiple of 32"),
    "scaled residual without one": ({}, {"residual_scale": 0.5}, "residual is missing"),
}


@pytest.mark.parametrize("what", BAD_SHAPES)
def test_wrong_inputs_are_errors(what):
    shapes, changes, message = BAD_SHAPES[what]
    shapes = {"x": (2, 64), "weight": (3, 2, 320), **shapes}
    inputs = {name: np.zeros(shape, np.uint8 if name == "weight" else np.float32) for name, shape in shapes.items()}
    op = SingleOp("QuantLinear", {**attributes("w4m", 48, 64), **changes}, inputs)
    with pytest.raises(Exception, match=f"QuantLinear: .*{message}"):
        op(**inputs)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activation": "gelu"}, "activation is 'gelu', must be one of none, swiglu, geglu, relu2"),
        ({"norm": "batch"}, "norm is 'batch', must be rms or layer"),
        ({"output_scale": float("nan")}, "output_scale is not finite"),
        ({"softcap": -1.0}, "softcap is -1"),
        ({"softcap": float("inf")}, "softcap is inf"),
        ({"residual_scale": float("inf")}, "residual_scale is not finite"),
        ({"output_scale": 2}, "output_scale is not a float"),
    ],
)
def test_wrong_attributes_are_errors(changes, message):
    inputs = {"x": np.zeros((2, 64), np.float32), "weight": np.zeros((3, 2, 320), np.uint8)}
    with pytest.raises(Exception, match=f"QuantLinear: .*{message}"):
        SingleOp("QuantLinear", {**attributes("w4m", 48, 64), **changes}, inputs)
