"""QuantLinear against float64, and its promise: a row's bits depend on that row alone."""

from __future__ import annotations

import numpy as np
import pytest

from edge_rt.export.weights.tile_formats import TILE_FORMATS
from tests.ops.packed import FLOAT_FORMATS, random_matrix, rounded_rows, wide
from tests.ops.single_op import ISAS, SingleOp, needs_native

pytestmark = [needs_native, pytest.mark.own_pools]

FORMATS = tuple(TILE_FORMATS)
TOLERANCE = {"float32": 2e-6}
"""Largest error relative to the sum of the products' sizes."""


def attributes(form, rows, columns, **more):
    return {"format": form, "out_features": rows, "in_features": columns, **more}


def expected(x, weights, form):
    seen = x.astype(np.float64) if form in FLOAT_FORMATS else rounded_rows(x)
    return seen @ weights.astype(np.float64).T, np.abs(seen) @ np.abs(weights.astype(np.float64)).T


def rms_norm(x, weight, epsilon):
    wide = x.astype(np.float64)
    return (wide / np.sqrt((wide**2).mean(-1, keepdims=True) + epsilon) * weight).astype(np.float32)


def silu(x):
    return x / (1 + np.exp(-x))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(("rows", "columns"), [(16, 32), (72, 96), (5, 544), (200, 64)])
def test_product(form, rows, columns):
    rng = np.random.default_rng(rows + columns)
    columns = wide(form, columns)
    packed, weights = random_matrix(rng, form, rows, columns)
    x = rng.standard_normal((11, columns)).astype(np.float32)
    (y,) = SingleOp("QuantLinear", attributes(form, rows, columns), {"x": x, "weight": packed})(x=x, weight=packed)
    wanted, size = expected(x, weights, form)
    assert np.max(np.abs(y - wanted) / size) < TOLERANCE["float32"]


@pytest.mark.parametrize("rows", [1, 3, 8, 30])
@pytest.mark.parametrize("isa", ISAS)
def test_upper_halves_of_nested_codes_are_a_matrix_of_4_bits(rows, isa):
    rng = np.random.default_rng(9)
    packed, _ = random_matrix(rng, "w8n", 40, 96)
    first = packed.reshape(-1)[: 3 * 3 * 320].reshape(3, 3, 320)
    x = rng.standard_normal((rows, 96)).astype(np.float32)
    found = [
        SingleOp("QuantLinear", attributes(form, 40, 96), {"x": x, "weight": tiles}, isa=isa)(x=x, weight=tiles)[0]
        for form, tiles in (("w8n_upper", packed), ("w4m", first))
    ]
    assert found[0].tobytes() == found[1].tobytes()


@pytest.mark.parametrize("form", FLOAT_FORMATS)
def test_float_matrices_of_any_width(form):
    rng = np.random.default_rng(3)
    packed, weights = random_matrix(rng, form, 20, 45)
    x = rng.standard_normal((3, 45)).astype(np.float32)
    (y,) = SingleOp("QuantLinear", attributes(form, 20, 45), {"x": x, "weight": packed})(x=x, weight=packed)
    wanted, size = expected(x, weights, form)
    assert np.max(np.abs(y - wanted) / size) < TOLERANCE["float32"]


def test_norm_bias_and_residual():
    rng = np.random.default_rng(5)
    packed, weights = random_matrix(rng, "f32", 40, 96)
    x, residual = (rng.standard_normal((4, n)).astype(np.float32) for n in (96, 40))
    norm, bias = rng.random(96).astype(np.float32), rng.standard_normal(40).astype(np.float32)
    inputs = {"x": x, "weight": packed, "norm_weight": norm, "bias": bias, "residual": residual}
    (y,) = SingleOp("QuantLinear", attributes("f32", 40, 96, epsilon=1e-5), inputs)(**inputs)
    wanted = residual + expected(rms_norm(x, norm, 1e-5), weights, "f32")[0] + bias
    np.testing.assert_allclose(y, wanted, rtol=0, atol=1e-5)


def test_swiglu_of_tile_pairs_and_of_a_gate():
    rng = np.random.default_rng(6)
    packed, weights = random_matrix(rng, "f32", 64, 64)
    x = rng.standard_normal((9, 64)).astype(np.float32)
    tiles = weights.reshape(2, 2, 16, 64)
    gate, up = (tiles[:, i].reshape(32, 64) for i in range(2))
    wanted = silu(x.astype(np.float64) @ gate.T) * (x.astype(np.float64) @ up.T)
    inputs = {"x": x, "weight": packed}
    (paired,) = SingleOp("QuantLinear", attributes("f32", 64, 64, activation="swiglu"), inputs)(**inputs)
    np.testing.assert_allclose(paired, wanted, rtol=2e-5, atol=1e-5)

    parts = [np.ascontiguousarray(packed[i::2]) for i in range(2)]
    (gates,) = SingleOp("QuantLinear", attributes("f32", 32, 64), inputs)(x=x, weight=parts[0])
    inputs = {"x": x, "weight": parts[1], "gate": gates}
    (gated,) = SingleOp("QuantLinear", attributes("f32", 32, 64, activation="swiglu"), inputs)(**inputs)
    assert gated.tobytes() == paired.tobytes()


def test_a_block_of_zeros_and_huge_values_stay_finite():
    rng = np.random.default_rng(7)
    packed, _ = random_matrix(rng, "w4m", 16, 64)
    x = np.zeros((2, 64), np.float32)
    x[1, :32] = 3e30
    (y,) = SingleOp("QuantLinear", attributes("w4m", 16, 64), {"x": x, "weight": packed})(x=x, weight=packed)
    assert np.all(y[0] == 0)
    assert np.all(np.isfinite(y))


@pytest.mark.parametrize("form", FORMATS)
def test_rows_have_the_same_bits_however_many_come_together(form):
    rng = np.random.default_rng(8)
    rows, columns = 100, wide(form, 160)
    packed, _ = random_matrix(rng, form, rows, columns)
    x = (rng.standard_normal((300, columns)) * 3).astype(np.float32)
    norm, residual = rng.random(columns).astype(np.float32), rng.standard_normal((300, rows)).astype(np.float32)
    inputs = {"x": x, "weight": packed, "norm_weight": norm, "residual": residual}
    op = SingleOp("QuantLinear", attributes(form, rows, columns, epsilon=1e-6), inputs)

    def run(first, count):
        part = slice(first, first + count)
        return op(x=x[part], weight=packed, norm_weight=norm, residual=residual[part])[0]

    single = np.concatenate([run(i, 1) for i in range(300)])
    for count in (*range(2, 34), 64, 128, 300):
        assert run(0, count).tobytes() == single[:count].tobytes(), count
    first = 0
    while first < 300:
        count = int(rng.integers(1, 40))
        assert run(first, count).tobytes() == single[first : first + count].tobytes()
        first += count


@pytest.mark.parametrize("threads", [2, 3, 4])
@pytest.mark.parametrize("count", [1, 5, 130])
def test_threads_do_not_show(threads, count):
    rng = np.random.default_rng(9)
    packed, _ = random_matrix(rng, "w4m", 3000, 320)
    x = rng.standard_normal((count, 320)).astype(np.float32)
    inputs = {"x": x, "weight": packed}
    (wanted,) = SingleOp("QuantLinear", attributes("w4m", 3000, 320), inputs)(**inputs)
    op = SingleOp("QuantLinear", attributes("w4m", 3000, 320), inputs, threads=threads)
    for _ in range(20):
        assert op(**inputs)[0].tobytes() == wanted.tobytes()


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("activation", ["none", "swiglu"])
def test_every_instruction_set_gives_the_same_bits(form, activation):
    rng = np.random.default_rng(10)
    columns = wide(form, 288)
    packed, _ = random_matrix(rng, form, 96, columns)
    for count in (1, 2, 3, 4, 5, 6, 7, 8, 20):
        x = (rng.standard_normal((count, columns)) * np.exp(rng.standard_normal((count, 1)) * 4)).astype(np.float32)
        norm = rng.random(columns).astype(np.float32)
        inputs = {"x": x, "weight": packed, "norm_weight": norm}
        chosen = attributes(form, 96, columns, activation=activation)
        results = {isa: SingleOp("QuantLinear", chosen, inputs, isa=isa)(**inputs)[0] for isa in ISAS}
        assert len({y.tobytes() for y in results.values()}) == 1, {isa: y[0, :3] for isa, y in results.items()}


def test_no_rows():
    rng = np.random.default_rng(11)
    packed, _ = random_matrix(rng, "w4", 16, 32)
    x = np.zeros((0, 32), np.float32)
    assert SingleOp("QuantLinear", attributes("w4", 16, 32), {"x": x, "weight": packed})(x=x, weight=packed)[
        0
    ].shape == (0, 16)


GOOD = {"x": (2, 64), "weight": (3, 2, 320)}


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"x": (2, 32)}, "x"),
        ({"weight": (2, 2, 320)}, "weight"),
        ({"weight": (3, 2, 288)}, "weight"),
        ({"weight": (3, 1, 320)}, "weight"),
        ({"norm_weight": (32,)}, "norm_weight"),
        ({"bias": (47,)}, "bias"),
        ({"residual": (1, 48)}, "residual"),
        ({"residual": (2, 47)}, "residual"),
        ({"gate": (2, 48)}, "gate"),
    ],
)
def test_wrong_shapes_are_errors(shapes, message):
    inputs = {
        name: np.zeros(shape, np.uint8 if name == "weight" else np.float32)
        for name, shape in {**GOOD, **shapes}.items()
    }
    op = SingleOp("QuantLinear", attributes("w4m", 48, 64), inputs)
    with pytest.raises(Exception, match=f"QuantLinear: .*{message}"):
        op(**inputs)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "w9"}, "format"),
        ({"out_features": 0}, "out_features"),
        ({"in_features": 33}, "in_features"),
        ({"in_features": 1 << 40}, "in_features"),
        ({"activation": "relu"}, "activation"),
        ({"epsilon": -1.0}, "epsilon"),
    ],
)
def test_wrong_attributes_are_errors(changes, message):
    inputs = {name: np.zeros(shape, np.uint8 if name == "weight" else np.float32) for name, shape in GOOD.items()}
    with pytest.raises(Exception, match=f"QuantLinear: .*{message}"):
        SingleOp("QuantLinear", {**attributes("w4m", 48, 64), **changes}, inputs)


def test_pairs_need_whole_tiles():
    inputs = {name: np.zeros(shape, np.uint8 if name == "weight" else np.float32) for name, shape in GOOD.items()}
    op = SingleOp("QuantLinear", attributes("w4m", 48, 64, activation="swiglu"), inputs)
    with pytest.raises(Exception, match="multiple of 32"):
        op(**inputs)
