"""Matrices that are converted through float: FP8, bitsandbytes, MLX.

Values by an independent reading, the bytes of every layout, and one error for each fault.
"""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from edge_rt.errors import EdgeRTError, InvalidModelFile
from edge_rt.export.sources.compound import ConvertedTensor
from edge_rt.export.sources.float8 import e4m3_values, exact_type
from edge_rt.export.sources.mlx import AffineTensor
from edge_rt.export.weights.codes import Codes, values as values_of
from edge_rt.export.weights.tile_formats import tile_format
from edge_rt.export.weights.tiles import pack_rows, unpack_rows
from tests import fuzz_packed
from tests.helpers.converted_factory import (
    as_stored,
    bitsandbytes,
    float8,
    mlx,
    opened_bitsandbytes,
    opened_float8,
    opened_mlx,
)
from tests.helpers.examples import share_of

STATE = "weight.quant_state.bitsandbytes__nf4"
EVERY = np.arange(256, dtype=np.uint8)
LAYOUTS = {
    "fp8": (float8, opened_float8),
    "bitsandbytes": (bitsandbytes, opened_bitsandbytes),
    "mlx": (mlx, opened_mlx),
}


def matrix(rows, inputs, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, inputs)).astype(np.float32)


def options_of(layout, options):
    """Return the settings with which a layout that was written with some options is read."""
    if layout == "fp8":
        if options["kind"] == "block":
            return {"kinds": ("block",), "block": options["block"]}
        return {"kinds": ("tensor", "channel")}
    return {name: options[name] for name in ("kind", "bits", "group") if name in options}


def written(layout, values, **options):
    """Return the parts of a matrix, its weights, and what reads such parts."""
    write, read = LAYOUTS[layout]
    parts, expected = write(values, **options)
    return parts, expected, lambda changed=parts: read(changed, **options_of(layout, options))


def document(value):
    """Return a stored JSON object, or whatever text is given."""
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return "U8", np.frombuffer(text, np.uint8)


# Layout, rows, inputs, options, bits of a stored number, largest mean error: not only the same as another computation,
# but near what was stored.
VALUES = [
    *(
        ("fp8", rows, inputs, {"kind": kind, "block": block, "dtype": dtype, "suffix": suffix}, 8, 0.05)
        for kind, rows, inputs, block in [
            ("scalar", 16, 64, None), ("tensor", 16, 64, None), ("tensor", 1, 32, None), ("channel", 24, 96, None),
            ("block", 256, 128, (128, 128)), ("block", 200, 160, (128, 128)), ("block", 24, 96, (16, 32)),
            ("block", 16, 64, (1, 64)), ("block", 8, 32, (128, 128)),
        ]
        for suffix in ("weight_scale_inv", "weight_scale")
        for dtype in ("F32", "BF16", "F16")
    ),
    # Blocks go on from row to row where inputs are no multiple of them.
    *(
        ("bitsandbytes", rows, inputs, {"kind": kind, "block": block, "nested_block": nested}, 4, 0.25)
        for rows, inputs, block in [
            (16, 64, 64), (24, 192, 64), (6, 96, 64), (5, 34, 64), (3, 22, 128), (8, 128, 32),
        ]
        for nested in (0, 256, 3)
        for kind in ("nf4", "fp4")
    ),
    *(
        ("mlx", rows, inputs, {"bits": bits, "group": group, "dtype": dtype}, bits, error)
        for bits, error in ((4, 0.12), (8, 0.01))
        for rows, inputs, group in [(16, 64, 64), (24, 96, 32), (5, 256, 128), (1, 32, 32)]
        for dtype in ("F32", "BF16", "F16")
    ),
]  # fmt: skip


@pytest.mark.parametrize(("layout", "rows", "inputs", "options", "bits", "error"), VALUES, ids=str)
def test_values_are_those_of_the_description(layout, rows, inputs, options, bits, error):
    _, expected, read = written(layout, matrix(rows, inputs), **options)
    tensor, opened = read()
    assert (tensor.shape, tensor.nbytes) == ((inputs, rows), rows * inputs * bits // 8)
    is_kept = layout == "mlx" and bits == 4 and options["dtype"] != "F32"
    assert tensor.type_name == ("Q4_1" if is_kept else "F32")
    assert isinstance(tensor, AffineTensor if is_kept else ConvertedTensor)
    every = np.arange(rows)
    for some in (every, every[::-1].copy(), every[-1:], np.array([0, rows // 2, rows // 2, rows - 1])):
        found = opened.values(some)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, expected[some])
    assert np.sqrt(np.mean((expected - matrix(rows, inputs)) ** 2)) < error


HALF = ("F16", np.array([[0.5]], np.float16))
STATED = {
    "quant_type": "nf4", "blocksize": 4, "dtype": "float16", "shape": [2, 6], "nested_blocksize": 2,
    "nested_dtype": "float32", "nested_offset": 0.5,
}  # fmt: skip
MINUS_TWO = ("F16", np.array([[-2.0]], np.float16))
GOLDEN = {
    # Codes 1, 2, -1, -2, 448, 2^-9, -448, -2^-9; 0, -0, 240, 2^-4, -48, 2^-6, 15 x 2^-9, -12 x 2^-7.
    "fp8": (
        {
            "weight": (
                "F8_E4M3",
                np.frombuffer(bytes.fromhex("3840b8c07e01fe81 00807718e4080f9c"), "u1").reshape(2, 8),
            ),
            "weight_scale_inv": ("F32", np.array([[0.5, -2.0]], np.float32)),
        },
        {"kind": "block", "block": (2, 4)},
        [
            [0.5, 1, -0.5, -1, -896, -(2.0**-8), 896, 2.0**-8],
            [0, -0.0, 120, 2.0**-5, 96, -(2.0**-5), -15 * 2.0**-8, 12 * 2.0**-6],
        ],
    ),
    # The first value is in the high half; the third byte of scales is that of the last two values.
    # Scales: 1 x 2 + 0.5, 2 x 2 + 0.5, 200 x 0.25 + 0.5.
    "bitsandbytes": (
        {
            "weight": ("U8", np.frombuffer(bytes.fromhex("0f187f3ac4d2"), np.uint8)[:, None]),
            "weight.quant_map": ("F32", np.arange(16, dtype=np.float32) - 8),
            "weight.absmax": ("U8", np.array([1, 2, 200], np.uint8)),
            "weight.nested_absmax": ("F32", np.array([2.0, 0.25], np.float32)),
            "weight.nested_quant_map": ("F32", np.linspace(0, 255, 256, dtype=np.float32)),
            STATE: document(STATED),
        },
        {"kind": "nf4"},
        [
            [-8 * 2.5, 7 * 2.5, -7 * 2.5, 0, -1 * 4.5, 7 * 4.5],
            [-5 * 4.5, 2 * 4.5, 4 * 50.5, -4 * 50.5, 5 * 50.5, -6 * 50.5],
        ],
    ),
    # The first code is in the lowest bits, of four bits or of eight.
    "mlx, 4 bits": (
        {
            "weight": ("U32", np.frombuffer(bytes.fromhex("1032547698badcfeefcdab8967452301"), "<u4").reshape(1, 4)),
            "scales": HALF,
            "biases": MINUS_TWO,
        },
        {"bits": 4, "group": 32},
        [np.array([*range(16), *range(15, -1, -1)]) * 0.5 - 2],
    ),
    "mlx, 8 bits": (
        {
            "weight": ("U32", np.frombuffer(bytes(range(7, 39)), "<u4").reshape(1, 8)),
            "scales": HALF,
            "biases": MINUS_TWO,
        },
        {"bits": 8, "group": 32},
        [np.arange(7, 39) * 0.5 - 2],
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_bytes_of_the_layout(name):
    parts, options, expected = GOLDEN[name]
    layout = name.partition(",")[0]
    _, opened = LAYOUTS[layout][1](parts, **options_of(layout, options))
    np.testing.assert_array_equal(opened.values(np.arange(len(expected))), np.array(expected, np.float32))


def test_every_code():
    found, expected = e4m3_values(), EVERY.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    np.testing.assert_array_equal(found, expected)
    assert np.isnan(found[[0x7F, 0xFF]]).all()
    assert np.isfinite(np.delete(found, [0x7F, 0xFF])).all()
    assert np.signbit(found[0x80])
    assert (found[0x7E], found[0x01], found[0x38]) == (448, 2.0**-9, 1)


class TestExactType:
    def test_products_with_powers_of_two_are_exact_in_bfloat16(self):
        parts, expected = float8(matrix(256, 256), powers=True)
        tensor, opened = opened_float8(parts, kinds=("block",), block=(128, 128))
        assert tensor.type_name == "BF16"
        found = opened.values(np.arange(256))
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(found.astype(ml_dtypes.bfloat16).astype(np.float32), found)

    @pytest.mark.parametrize(
        ("scales", "expected"),
        [
            ([1.0], "BF16"), ([0.0], "BF16"), ([-0.25, 2.0**100], "BF16"), ([1.0, 3.0], "F32"), ([0.1], "F32"),
            ([2.0**-117], "BF16"), ([2.0**-118], "F32"), ([2.0**119], "BF16"), ([2.0**120], "F32"), ([], "BF16"),
        ],
    )  # fmt: skip
    def test_of_scales(self, scales, expected):
        scales = np.array(scales, np.float32)
        assert exact_type(scales) == expected
        if expected == "BF16":
            products = np.delete(e4m3_values(), [0x7F, 0xFF])[:, None] * scales
            np.testing.assert_array_equal(products.astype(ml_dtypes.bfloat16).astype(np.float32), products)


@pytest.mark.parametrize("code", [0x7F, 0xFF])
def test_codes_that_are_no_numbers(code):
    parts, _ = float8(matrix(16, 64), kind="channel")
    parts["weight"][1][5, 7] = code
    tensor, opened = opened_float8(parts, kinds=("channel",))
    assert tensor.type_name == "F32"
    assert np.isfinite(opened.values(np.arange(5))).all()
    with pytest.raises(InvalidModelFile, match="'m' holds a value that is not finite"):
        opened.values(np.arange(16))


@pytest.mark.parametrize("group", [32, 64, 128])
def test_rows_for_packing_of_mlx_have_the_same_values(group):
    parts, expected = mlx(matrix(20, 256), bits=4, group=group, dtype="BF16")
    _, opened = opened_mlx(parts, bits=4, group=group)
    form = tile_format("Q4_1")
    for some in (np.arange(20), np.array([7, 3, 19])):
        found = opened.rows(some)
        assert (found.codes.dtype, found.scales.dtype, found.minima.dtype) == (np.uint8, np.float16, np.float16)
        codes = Codes(found.codes, d=found.scales, m=found.minima)
        np.testing.assert_array_equal(values_of(codes, form), expected[some])
        np.testing.assert_array_equal(unpack_rows(pack_rows(codes, form), form)[: len(some)], expected[some])


@pytest.mark.parametrize("part", ["scales", "biases"])
@pytest.mark.parametrize("value", [0.1, 1e5, 2.0**-25])
def test_numbers_that_fp16_does_not_have_are_converted(part, value):
    parts, _ = mlx(matrix(16, 64), bits=4, group=64, dtype="F16")
    numbers = parts[part][1].astype(np.float32)
    numbers[3, 0] = value
    tensor, opened = opened_mlx({**parts, part: ("F32", numbers)}, bits=4, group=64)
    assert (tensor.type_name, isinstance(tensor, ConvertedTensor)) == ("F32", True)
    assert "not exact in float16" in tensor.remark
    both = {name: parts[name][1].astype(np.float32) for name in ("scales", "biases")} | {part: numbers}
    codes = parts["weight"][1][3].view(np.uint8)
    codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(-1).astype(np.float32)
    np.testing.assert_array_equal(opened.values(np.array([3]))[0], codes * both["scales"][3] + both["biases"][3])


def test_layers_with_settings_of_their_own():
    parts, expected = mlx(matrix(16, 64), bits=8, group=32, dtype="F16")
    _, opened = opened_mlx(parts, bits=4, group=64, layers={"layer": (8, 32), "other": (4, 128)})
    np.testing.assert_array_equal(opened.values(np.arange(16)), expected)


# What is written, and the numbers that a float32 cannot hold the products of.
BEYOND = {
    "fp8": ({"kind": "tensor"}, {"weight_scale_inv": ("F32", np.array([3e38], np.float32))}),
    "bitsandbytes": (
        {"kind": "nf4"},
        {
            "weight.absmax": ("F32", np.full(16, 3e38, np.float32)),
            "weight.quant_map": ("F32", np.linspace(-9, 9, 16).astype(np.float32)),
        },
    ),
    "mlx": ({"bits": 8, "group": 64, "dtype": "F32"}, {"scales": ("F32", np.full((16, 1), 3e38, np.float32))}),
}


@pytest.mark.parametrize("layout", BEYOND)
def test_products_beyond_float32(layout):
    options, changed = BEYOND[layout]
    parts, _, read = written(layout, matrix(16, 64), **options)
    with pytest.raises(InvalidModelFile, match="'m' holds a value that is not finite"):
        read({**parts, **changed})[1].values(np.arange(16))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("layout", "options", "part"),
    [
        ("fp8", {"kind": "channel"}, "weight_scale_inv"),
        *(
            ("mlx", {"bits": bits, "group": 64, "dtype": "F16"}, part)
            for bits in (4, 8)
            for part in ("scales", "biases")
        ),
    ],
)
def test_scales_that_are_no_numbers(layout, options, part, value):
    parts, _, read = written(layout, matrix(16, 64), **options)
    parts[part][1][3, 0] = value
    with pytest.raises(InvalidModelFile, match="a scale that is not finite"):
        read()


def shaped(dtype, *shape):
    return dtype, np.zeros(shape, np.int64)


# One thing that is wrong, one error; a matrix of 16 rows and 64 inputs, of MLX 128. None: the part is missing.
FP8 = [
    ("channel", "weight", shaped("U8", 16, 64), "It is U8"),
    ("channel", "weight", shaped("F8_E4M3", 16, 64, 1), "two dimensions"),
    ("channel", "weight", shaped("F8_E4M3", 0, 64), "two dimensions"),
    ("channel", "weight", shaped("F8_E4M3", 17, 64), r"must have \[17, 1\]"),
    ("channel", "weight_scale_inv", shaped("F32", 16), r"must have \[16, 1\]"),
    ("channel", "weight_scale_inv", shaped("F32", 16, 2), r"must have \[16, 1\]"),
    ("channel", "weight_scale_inv", shaped("I32", 16, 1), "must be F16 or BF16 or F32"),
    ("scalar", "weight_scale_inv", shaped("F32", 2), r"must have \[16, 1\]"),
    ("block", "weight_scale_inv", shaped("F32", 1, 2), r"must have \[2, 2\]"),
    ("block", "weight_scale_inv", shaped("F32"), r"must have \[2, 2\]"),
    ("block", "weight", shaped("F8_E4M3", 16, 65), r"must have \[2, 3\]"),
]
BITSANDBYTES = [
    (0, "weight", shaped("U8", 511, 1), r"must have \[512, 1\]"),
    (0, "weight", shaped("U8", 512), r"must have \[512, 1\]"),
    (0, "weight", shaped("I32", 512, 1), "must be U8"),
    (0, "weight.quant_map", shaped("F32", 15), r"must have \[16\]"),
    (0, "weight.quant_map", shaped("U8", 16), "must be F16 or BF16 or F32"),
    (0, "weight.quant_map", ("F32", np.full(16, np.nan)), "a scale that is not finite"),
    (0, "weight.absmax", shaped("F32", 17), r"must have \[16\]"),
    (0, "weight.absmax", shaped("I32", 16), "must be F16 or BF16 or F32"),
    (0, "weight.absmax", ("F32", np.full(16, np.inf)), "a scale that is not finite"),
    (0, "weight.absmax", shaped("U8", 16), "is U8, and weight.nested_absmax is missing"),
    (4, "weight.absmax", shaped("F32", 16), "is F32, and weight.nested_absmax is there"),
    (4, "weight.absmax", shaped("U8", 15), r"must have \[16\]"),
    (4, "weight.nested_absmax", shaped("F32", 5), r"must have \[4\]"),
    (4, "weight.nested_quant_map", shaped("F32", 16), r"must have \[256\]"),
    (4, "weight.nested_absmax", ("F32", np.full(4, np.inf)), "a scale that is not finite"),
    (0, STATE, shaped("I32", 80), "must be U8 with one dimension"),
    (0, STATE, shaped("U8", 80, 1), "must be U8 with one dimension"),
    (0, STATE, shaped("U8", 1 << 17), "of at most 65536"),
    (0, STATE, document(b"\xff{}"), "It is no JSON object"),
    (0, STATE, document(b"[" * 60000), "nested too deeply"),
    (0, STATE, document([1]), "It holds an array"),
]
MLX = [
    ("weight", shaped("I32", 16, 16), "must be U32 with two dimensions"),
    ("weight", shaped("U32", 16, 16, 1), "must be U32 with two dimensions"),
    ("weight", shaped("U32", 16, 0), "must be U32 with two dimensions"),
    ("weight", shaped("U32", 16, 17), "It has 136 inputs of 4 bits, no multiple of 64"),
    ("weight", shaped("U32", 15, 16), r"must have \[15, 2\]"),
    ("scales", shaped("F16", 16, 3), r"must have \[16, 2\]"),
    ("scales", shaped("U8", 16, 2), "must be F16 or BF16 or F32"),
    ("biases", shaped("F16", 2, 16), r"must have \[16, 2\]"),
]
# Whether scales have scales, a key of the JSON object, its value.
STATES = [
    (0, "quant_type", "fp4", "quant_type is 'fp4', its name and config.json say nf4"),
    (0, "quant_type", None, "quant_type is None"),
    (0, "blocksize", 0, "blocksize is 0, must be 1 to"),
    (0, "blocksize", 64.0, "blocksize is 64.0"),
    (0, "blocksize", True, "blocksize is True"),
    (0, "blocksize", 1 << 40, "blocksize is 1099511627776"),
    (0, "blocksize", None, "blocksize is None"),
    (0, "shape", [16], r"shape is \[16\], must be rows"),
    (0, "shape", [16, 0], r"shape is \[16, 0\]"),
    (0, "shape", [-16, -64], r"shape is \[-16, -64\]"),
    (0, "shape", [16, 63], r"shape is \[16, 63\], must be rows and an even"),
    (0, "shape", [16, "64"], "shape is"),
    (0, "shape", [16, 66], r"must have \[528, 1\]"),
    (0, "shape", [1 << 50, 1 << 50], "must have"),
    (4, "nested_blocksize", 0, "nested_blocksize is 0"),
    (4, "nested_blocksize", None, "nested_blocksize is None"),
    (4, "nested_offset", None, "nested_offset is None, must be a number"),
    (4, "nested_offset", "0", "nested_offset is '0'"),
    (4, "nested_offset", True, "nested_offset is True"),
    (4, "nested_offset", float("nan"), "nested_offset is nan"),
    (4, "nested_offset", float("inf"), "nested_offset is inf"),
    (4, "nested_offset", 1e299, "a scale that is not finite"),
    (4, "nested_offset", 10**400, "nested_offset is 1000"),
]

MISFITS = [
    *(("fp8", {"kind": kind, "block": (8, 32)}, *rest) for kind, *rest in FP8),
    *(("bitsandbytes", {"kind": "nf4", "nested_block": nested}, *rest) for nested, *rest in BITSANDBYTES),
    *(("mlx", {"bits": 4, "group": 64, "dtype": "F16"}, *rest) for rest in MLX),
]


@pytest.mark.parametrize(("layout", "options", "part", "wrong", "message"), MISFITS)
def test_a_part_that_does_not_fit(layout, options, part, wrong, message):
    parts, _, read = written(layout, matrix(16, 128 if layout == "mlx" else 64), **options)
    with pytest.raises(InvalidModelFile, match=message):
        read({**parts, part: wrong})


@pytest.mark.parametrize(("nested_block", "key", "value", "message"), STATES)
def test_a_state_of_bitsandbytes_that_does_not_fit(nested_block, key, value, message):
    parts, _ = bitsandbytes(matrix(16, 64), nested_block=nested_block, state={key: value})
    with pytest.raises(InvalidModelFile, match=message):
        opened_bitsandbytes(parts, kind="nf4")


def test_a_kind_that_config_json_does_not_say():
    parts, _ = bitsandbytes(matrix(16, 64), kind="fp4")
    with pytest.raises(InvalidModelFile, match=r"its name and config\.json say nf4"):
        opened_bitsandbytes(parts, kind="nf4")


@pytest.mark.parametrize(("kinds", "shape", "wanted"), [(("tensor",), (16, 1), r"\[1\]"), (("channel",), (1,), "")])
def test_scales_of_another_kind_than_the_configuration_says(kinds, shape, wanted):
    parts, _ = float8(matrix(16, 64), kind="channel")
    with pytest.raises(InvalidModelFile, match=f"must have {wanted}"):
        opened_float8({**parts, "weight_scale_inv": shaped("F32", *shape)}, kinds=kinds)


@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize(
    ("layout", "options", "names", "what"),
    [
        ("fp8", {"kind": "channel"}, ("weight_scale_inv", "weight_scale"), "tensors of scales"),
        ("bitsandbytes", {"kind": "nf4"}, (STATE, STATE.replace("nf4", "fp4")), "tensors named weight.quant_state"),
    ],
)
def test_a_part_that_is_missing_or_there_twice(layout, options, names, what, count):
    parts, _, read = written(layout, matrix(16, 64), **options)
    parts |= dict.fromkeys(names[:count], parts.pop(names[0]))
    with pytest.raises(InvalidModelFile, match=f"It has {count} {what}, must have one"):
        read(parts)


SIZES = st.sampled_from([1, 2, 16, 32, 64, 512, 1024, -1, 0, 1 << 62, None, "64", [16, 64], [1, 1024], [2, 2]])
# Layout, how it is written, how it is read.
DRAWN = st.one_of(
    st.tuples(st.just("fp8"), st.just({"kind": "channel"}), st.just({"kinds": ("tensor", "channel")})),
    st.sampled_from([(8, 32), (128, 128), (1, 1)]).map(
        lambda block: ("fp8", {"kind": "block", "block": block}, {"kinds": ("block",), "block": block})
    ),
    st.tuples(
        st.just("bitsandbytes"),
        st.fixed_dictionaries(
            {
                "nested_block": st.sampled_from([0, 4]),
                "state": st.dictionaries(st.sampled_from(["blocksize", "shape", "nested_blocksize"]), SIZES),
            }
        ),
        st.just({"kind": "nf4"}),
    ),
    st.tuples(
        st.just("mlx"),
        st.fixed_dictionaries({"bits": st.sampled_from([4, 8]), "group": st.just(32), "dtype": st.just("F16")}),
        st.fixed_dictionaries({"bits": st.sampled_from([4, 8]), "group": st.sampled_from([32, 64, 128])}),
    ),
)


@settings(max_examples=share_of(450))
@given(st.data(), DRAWN, st.integers(0, 2**32 - 1))
def test_whatever_the_tensors_say_nothing_else_is_raised(data, drawn, seed):
    """Types, shapes and values of one or two parts, and of bitsandbytes' JSON object, are drawn anew."""
    layout, writing, reading = drawn
    write, read = LAYOUTS[layout]
    parts, _ = write(matrix(16, 128 if layout == "mlx" else 64, seed), **writing)
    for part in data.draw(st.lists(st.sampled_from(sorted(parts)), max_size=2)):
        dtype = data.draw(st.sampled_from(["F8_E4M3", "I32", "U32", "F16", "BF16", "F32", "U8"]))
        sizes = st.integers(0, 70) | st.sampled_from([1, 2, 4, 8, 16, 32, 256, 512])
        shape = data.draw(st.lists(sizes, max_size=3))
        if np.prod(shape) <= 1 << 16:
            parts[part] = (dtype, np.random.default_rng(seed).integers(0, 2**16, shape))
    try:
        tensor, opened = read(parts, **reading)
        found = opened.values(np.arange(tensor.shape[1]))
    except EdgeRTError:
        return
    assert np.isfinite(found).all()
    if tensor.type_name == "BF16":
        np.testing.assert_array_equal(as_stored(found, "BF16")[1], found)


@pytest.mark.parametrize("layout", fuzz_packed.CONVERTED)
def test_the_first_inputs_of_the_script_that_makes_many(layout):
    counts = fuzz_packed.run_converted(layout, 400, 2)
    refused = sum(count for kind, count in counts.items() if kind.endswith("refused"))
    assert counts["good"] > 100
    assert refused > 50
