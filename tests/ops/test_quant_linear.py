"""QuantLinear against float64, and its promise: a row's bits depend on that row alone."""

from __future__ import annotations

from itertools import cycle

import numpy as np
import pytest

from edge_rt.export.weights.tile_formats import TILE_FORMATS
from tests.ops.packed import FLOAT_FORMATS, fine_blocks, random_matrix, rounded_rows, wide
from tests.ops.single_op import ISAS, SingleOp, needs_native

pytestmark = [needs_native, pytest.mark.own_pools]

FORMATS = tuple(TILE_FORMATS)
TOLERANCE = 2e-6
"""Largest error relative to the sum of the products' sizes."""
EPSILON = 1e-5
OUTPUTS, COLUMNS = 96, 160
"""Three pairs of tiles."""


def attributes(form, rows, columns, **more):
    return {"format": form, "out_features": rows, "in_features": columns, **more}


def run(numbers, inputs, **options):
    return SingleOp("QuantLinear", numbers, inputs, **options)(**inputs)[0]


def silu(x):
    return x / (1 + np.exp(-x))


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


GATES = {"swiglu": silu, "geglu": gelu}


def rms_norm(x, weight, epsilon):
    wide = x.astype(np.float64)
    return (wide / np.sqrt((wide**2).mean(-1, keepdims=True) + epsilon) * weight).astype(np.float32)


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
        return run(self.attributes, self.inputs, **options)

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
    "norm, bias and residual": ({}, ("norm_weight", "bias", "residual")),
    "swiglu": ({"activation": "swiglu"}, ("norm_weight",)),
    "swiglu of a gate": ({"activation": "swiglu"}, ("gate",)),
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


SIZES = [(16, 32), (72, 96), (5, 544), (200, 64)]


@pytest.mark.parametrize(
    ("form", "rows", "columns"),
    [(form, rows, wide(form, columns)) for form in FORMATS for rows, columns in SIZES]
    + [(form, 20, 45) for form in FLOAT_FORMATS],
)
def test_products_match_float64(form, rows, columns):
    rng = np.random.default_rng(rows + columns)
    packed, weights = random_matrix(rng, form, rows, columns)
    x = rng.standard_normal((11, columns)).astype(np.float32)
    y = run(attributes(form, rows, columns), {"x": x, "weight": packed})
    seen = x.astype(np.float64) if form in FLOAT_FORMATS else rounded_rows(x)
    weights = weights.astype(np.float64)
    assert np.max(np.abs(y - seen @ weights.T) / (np.abs(seen) @ np.abs(weights).T)) < TOLERANCE


CODED_FORMATS = [form for form in FORMATS if form not in FLOAT_FORMATS]


def with_peaks(rng, rows, columns):
    """Return rows in which one number of every block is far larger than the others."""
    x = rng.standard_normal((rows, columns))
    x[:, 5::32] *= 100
    return x.astype(np.float32)


@pytest.mark.parametrize("form", CODED_FORMATS)
def test_fine_blocks_have_16_bits(form):
    columns = wide(form, 544)
    rng = np.random.default_rng(4)
    packed, weights = random_matrix(rng, form, 40, columns)
    fine, x = fine_blocks(form, columns), with_peaks(rng, 11, columns)
    numbers = attributes(form, 40, columns, fine_blocks=",".join(map(str, fine)))
    y = run(numbers, {"x": x, "weight": packed})
    seen, weights = rounded_rows(x, fine), weights.astype(np.float64)
    of_fine = [32 * block + i for block in fine for i in range(32)]
    # At most half of a code's 254th is left of a number, where it was half of a code.
    peaks = np.abs(x.reshape(11, -1, 32)).max(-1)[:, fine].repeat(32, axis=1)
    assert (np.abs(seen - x)[:, of_fine] <= peaks / 127 / 254 / 1.99).all()
    assert np.max(np.abs(y - seen @ weights.T) / (np.abs(seen) @ np.abs(weights).T)) < TOLERANCE


@pytest.mark.parametrize("form", CODED_FORMATS)
def test_bits_of_fine_rows_depend_on_the_row_alone(form):
    """However many come together, on every instruction set; pairs of tiles, too."""
    columns = wide(form, 544)
    rng = np.random.default_rng(5)
    packed, _ = random_matrix(rng, form, OUTPUTS, columns)
    inputs = {"x": with_peaks(rng, 60, columns), "weight": packed}
    fine = ",".join(map(str, fine_blocks(form, columns)))
    for more in ({}, {"activation": "swiglu"}):
        numbers = attributes(form, OUTPUTS, columns, fine_blocks=fine, **more)
        single = SingleOp("QuantLinear", numbers, inputs)
        wanted = np.concatenate([single(**inputs | {"x": inputs["x"][i : i + 1]})[0] for i in range(60)])
        for isa in ISAS:
            op = SingleOp("QuantLinear", numbers, inputs, isa=isa, threads=2)
            for count in (*range(2, 18), 31, 60):
                found = op(**inputs | {"x": inputs["x"][:count]})[0]
                assert found.tobytes() == wanted[:count].tobytes(), (isa, count)


def test_a_fine_block_changes_what_it_adds_alone():
    rng = np.random.default_rng(6)
    packed, _ = random_matrix(rng, "w4m", 16, 96)
    x = with_peaks(rng, 3, 96)
    x[:, 32:64] = np.clip(np.rint(x[:, 32:64]), -127, 127)
    x[:, 32] = 127
    plain, of_numbers, of_codes = (
        run(attributes("w4m", 16, 96, **more), {"x": x, "weight": packed})
        for more in ({}, {"fine_blocks": "2"}, {"fine_blocks": "1"})
    )
    # The codes of a block are the numbers themselves: nothing is left of them.
    assert of_codes.tobytes() == plain.tobytes()
    assert of_numbers.tobytes() != plain.tobytes()


@pytest.mark.parametrize("rows", [1, 7, 20])
@pytest.mark.parametrize("case", CASES)
def test_steps_match_float64(case, rows):
    product = Product(*CASES[case], rows=rows)
    wanted = product.expected()
    assert np.abs(wanted).max() > 0.1
    np.testing.assert_allclose(product.run(threads=2), wanted, rtol=3e-5, atol=3e-5)


@pytest.mark.parametrize(("form", "case"), [*zip(FORMATS, cycle(CASES)), *(("w4m", case) for case in CASES)])
def test_bits_depend_on_the_row_alone(form, case):
    """However many come together, on however many threads, on every instruction set."""
    numbers, given = CASES[case]
    # Passes of many rows are cut alike whatever the form.
    rows = 300 if case == next(iter(CASES)) else 100
    product, columns = Product(numbers, given, rows=rows), wide(form, COLUMNS)
    rng = np.random.default_rng(8)
    packed, _ = random_matrix(rng, form, OUTPUTS, columns)
    x = rng.standard_normal((rows, columns)) * np.exp(2 * rng.standard_normal((rows, 1)))
    inputs = {**product.inputs, "weight": packed, "x": x.astype(np.float32)}
    for name in {"norm_weight", "norm_bias"} & set(inputs):
        inputs[name] = rng.standard_normal(columns).astype(np.float32)
    of_rows = {"x", "residual", "gate"} & set(inputs)
    chosen = attributes(form, OUTPUTS, columns, **product.numbers)
    single = SingleOp("QuantLinear", chosen, inputs)

    def part(first, count):
        return {name: a[first : first + count] if name in of_rows else a for name, a in inputs.items()}

    wanted = np.concatenate([single(**part(i, 1))[0] for i in range(rows)])
    assert np.isfinite(wanted).all()
    assert len(np.unique(wanted)) > wanted.size // 3
    for isa in ISAS:
        op, first = SingleOp("QuantLinear", chosen, inputs, isa=isa, threads=3), 0
        for count in (*range(2, 34), 64, min(128, rows), rows):
            assert op(**part(0, count))[0].tobytes() == wanted[:count].tobytes(), (isa, count)
        while first < rows:
            count = int(rng.integers(1, 40))
            assert op(**part(first, count))[0].tobytes() == wanted[first : first + count].tobytes(), (isa, first, count)
            first += count


@pytest.mark.parametrize("threads", [2, 3, 4])
@pytest.mark.parametrize("count", [1, 5, 130])
@pytest.mark.parametrize("given", [(), ("residual", "post_norm")], ids=["alone", "a norm of the result"])
def test_threads_do_not_show_however_often_they_meet(given, count, threads):
    rng = np.random.default_rng(9)
    packed, _ = random_matrix(rng, "w4m", 3000, 320)
    draw = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    optional = {"residual": draw(count, 3000), "post_norm": draw(3000)}
    inputs = {"x": draw(count, 320), "weight": packed, **{name: optional[name] for name in given}}
    numbers = attributes("w4m", 3000, 320, epsilon=EPSILON, **({"residual_scale": 0.5} if given else {}))
    wanted = run(numbers, inputs)
    op = SingleOp("QuantLinear", numbers, inputs, threads=threads)
    for _ in range(20):
        assert op(**inputs)[0].tobytes() == wanted.tobytes()


@pytest.mark.parametrize("rows", [1, 3, 8, 30])
@pytest.mark.parametrize("isa", ISAS)
def test_upper_halves_of_nested_codes_are_a_matrix_of_4_bits(rows, isa):
    rng = np.random.default_rng(9)
    packed, _ = random_matrix(rng, "w8n", 40, 96)
    first = packed.reshape(-1)[: 3 * 3 * 320].reshape(3, 3, 320)
    x = rng.standard_normal((rows, 96)).astype(np.float32)
    found = [
        run(attributes(form, 40, 96), {"x": x, "weight": tiles}, isa=isa)
        for form, tiles in (("w8n_upper", packed), ("w4m", first))
    ]
    assert found[0].tobytes() == found[1].tobytes()


def test_a_block_of_zeros_and_huge_values_stay_finite():
    rng = np.random.default_rng(7)
    packed, _ = random_matrix(rng, "w4m", 16, 64)
    x = np.zeros((2, 64), np.float32)
    x[1, :32] = 3e30
    y = run(attributes("w4m", 16, 64), {"x": x, "weight": packed})
    assert np.all(y[0] == 0)
    assert np.all(np.isfinite(y))


def test_gelu_of_far_values():
    packed, _ = random_matrix(np.random.default_rng(0), "f32", 16, 32)
    gate = np.array([[-60.0, -9.0, -3.0, -1e-3, 0.0, 1e-4, 2.0, 10.0, 50.0, *np.zeros(7)]], np.float32)
    inputs = {"x": np.zeros((1, 32), np.float32), "weight": packed, "gate": gate, "bias": np.ones(16, np.float32)}
    numbers = attributes("f32", 16, 32, activation="geglu")
    y = run(numbers, inputs)
    np.testing.assert_allclose(y, gelu(gate.astype(np.float64)), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("activation", GATES)
def test_pairs_of_tiles_have_the_bits_of_a_gate_and_of_two_parts(activation):
    """The parts lie one behind the other; the bias stays in the order of the tiles."""
    rng = np.random.default_rng(6)
    packed, _ = random_matrix(rng, "w4m", 64, 64)
    x, bias = rng.standard_normal((9, 64)).astype(np.float32), rng.standard_normal(64).astype(np.float32)
    paired = run(attributes("w4m", 64, 64, activation=activation), {"x": x, "weight": packed, "bias": bias})

    tiles = [np.ascontiguousarray(packed[i::2]) for i in range(2)]
    biases = [np.ascontiguousarray(bias.reshape(-1, 2, 16)[:, i]).reshape(-1) for i in range(2)]
    gate = run(attributes("w4m", 32, 64), {"x": x, "weight": tiles[0], "bias": biases[0]})
    inputs = {"x": x, "weight": tiles[1], "bias": biases[1], "gate": gate}
    assert run(attributes("w4m", 32, 64, activation=activation), inputs).tobytes() == paired.tobytes()

    behind = np.concatenate([part.reshape(-1) for part in tiles])
    numbers = attributes("w4m,w4m", 64, 64, activation=activation, part_rows="32,32")
    assert run(numbers, {"x": x, "weight": behind, "bias": bias}).tobytes() == paired.tobytes()


def test_numbers_that_change_nothing_keep_the_bits():
    inputs = ("norm_weight", "bias", "residual")
    neutral = {"norm": "rms", "activation": "none", "output_scale": 1.0, "softcap": 0.0, "residual_scale": 1.0}
    assert Product(neutral, inputs).run().tobytes() == Product({}, inputs).run().tobytes()


def test_no_rows():
    packed, _ = random_matrix(np.random.default_rng(11), "w4", 16, 32)
    assert run(attributes("w4", 16, 32), {"x": np.zeros((0, 32), np.float32), "weight": packed}).shape == (0, 16)


# Of 2 rows of 64 and a matrix [48, 64] of w4m: changed shapes and attributes, and what is said of them.
BAD_INPUTS = {
    "x of another width": ({"x": (2, 32)}, {}, "x"),
    "weight of fewer tiles": ({"weight": (2, 2, 320)}, {}, "weight"),
    "weight of smaller tiles": ({"weight": (3, 2, 288)}, {}, "weight"),
    "weight of fewer units": ({"weight": (3, 1, 320)}, {}, "weight"),
    "norm_weight of another length": ({"norm_weight": (32,)}, {}, "norm_weight"),
    "bias of another length": ({"bias": (47,)}, {}, "bias"),
    "residual of other rows": ({"residual": (1, 48)}, {}, "residual"),
    "residual of another width": ({"residual": (2, 47)}, {}, "residual"),
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
BAD_ATTRIBUTES = {
    "format": ({"format": "w9"}, "format"),
    "no rows": ({"out_features": 0}, "out_features"),
    "columns that cut a block": ({"in_features": 33}, "in_features"),
    "too many columns": ({"in_features": 1 << 40}, "in_features"),
    "activation": ({"activation": "gelu"}, "activation is 'gelu', must be one of none, swiglu, geglu, relu2"),
    "epsilon": ({"epsilon": -1.0}, "epsilon"),
    "norm": ({"norm": "batch"}, "norm is 'batch', must be rms or layer"),
    "output scale": ({"output_scale": float("nan")}, "output_scale is not finite"),
    "negative softcap": ({"softcap": -1.0}, "softcap is -1"),
    "endless softcap": ({"softcap": float("inf")}, "softcap is inf"),
    "residual scale": ({"residual_scale": float("inf")}, "residual_scale is not finite"),
    "another type": ({"output_scale": 2}, "output_scale is not a float"),
    "fine blocks of nothing": ({"fine_blocks": ","}, "fine_blocks has ''"),
    "a fine block behind the last": ({"fine_blocks": "0,2"}, "fine_blocks has '2', must be rising numbers below 2"),
    "fine blocks that fall": ({"fine_blocks": "1,0"}, "fine_blocks has '0'"),
    "a fine block twice": ({"fine_blocks": "1,1"}, "fine_blocks has '1'"),
    "a fine block of floats": ({"format": "f32", "fine_blocks": "0"}, "fine_blocks is given, but format is of floats"),
    "half a unit of fine blocks": (
        {"format": "w4z64", "fine_blocks": "0"},
        "fine_blocks ends within a unit of 2 blocks",
    ),
}


def make_op(shapes, changes):
    shapes = {"x": (2, 64), "weight": (3, 2, 320), **shapes}
    inputs = {name: np.zeros(shape, np.uint8 if name == "weight" else np.float32) for name, shape in shapes.items()}
    return SingleOp("QuantLinear", {**attributes("w4m", 48, 64), **changes}, inputs), inputs


@pytest.mark.parametrize("what", BAD_INPUTS)
def test_wrong_inputs(what):
    shapes, changes, message = BAD_INPUTS[what]
    op, inputs = make_op(shapes, changes)
    with pytest.raises(Exception, match=f"QuantLinear: .*{message}"):
        op(**inputs)


@pytest.mark.parametrize("what", BAD_ATTRIBUTES)
def test_wrong_attributes(what):
    changes, message = BAD_ATTRIBUTES[what]
    with pytest.raises(Exception, match=f"QuantLinear: .*{message}"):
        make_op({}, changes)
