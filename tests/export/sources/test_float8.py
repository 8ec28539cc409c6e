"""FP8 matrices: values by an independent reading, the bytes of the layout, and one error for each fault."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from edge_rt.errors import EdgeRTError, InvalidModelFile
from edge_rt.export.sources.float8 import e4m3_values, exact_type
from tests.helpers.converted_factory import as_stored, float8, opened_float8

EVERY = np.arange(256, dtype=np.uint8)


def matrix(rows, inputs, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, inputs)).astype(np.float32)


def settings_of(kind, block):
    return {"kinds": ("block",), "block": block} if kind == "block" else {"kinds": ("tensor", "channel")}


def test_every_code():
    found, expected = e4m3_values(), EVERY.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    np.testing.assert_array_equal(found, expected)
    assert np.isnan(found[[0x7F, 0xFF]]).all()
    assert np.isfinite(np.delete(found, [0x7F, 0xFF])).all()
    assert np.signbit(found[0x80])
    assert (found[0x7E], found[0x01], found[0x38]) == (448, 2.0**-9, 1)


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
@pytest.mark.parametrize("suffix", ["weight_scale_inv", "weight_scale"])
@pytest.mark.parametrize(
    ("kind", "rows", "inputs", "block"),
    [
        ("scalar", 16, 64, None), ("tensor", 16, 64, None), ("tensor", 1, 32, None), ("channel", 24, 96, None),
        ("block", 256, 128, (128, 128)), ("block", 200, 160, (128, 128)), ("block", 24, 96, (16, 32)),
        ("block", 16, 64, (1, 64)), ("block", 8, 32, (128, 128)),
    ],
)  # fmt: skip
def test_values_are_codes_times_scales(kind, rows, inputs, block, suffix, dtype):
    parts, expected = float8(matrix(rows, inputs), kind=kind, block=block, dtype=dtype, suffix=suffix)
    tensor, opened = opened_float8(parts, **settings_of(kind, block))
    assert (tensor.shape, tensor.nbytes, tensor.type_name) == ((inputs, rows), rows * inputs, "F32")
    every = np.arange(rows)
    for some in (every, every[::-1].copy(), every[-1:], np.array([0, rows // 2, rows // 2, rows - 1])):
        found = opened.values(some)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, expected[some])
    # Not only the same as another computation, but near what was stored.
    assert np.abs(expected - matrix(rows, inputs)).max() < 0.3


GOLDEN = bytes.fromhex("3840b8c07e01fe81 00807718e4080f9c")
"""Two rows of eight codes."""


def test_bytes_of_the_layout():
    """1, 2, -1, -2, 448, 2^-9, -448, -2^-9; 0, -0, 240, 2^-4, -48, 2^-6, 15 x 2^-9, -12 x 2^-7."""
    codes = np.frombuffer(GOLDEN, np.uint8).reshape(2, 8)
    scales = np.array([[0.5, -2.0]], np.float32)
    parts = {"weight": ("F8_E4M3", codes), "weight_scale_inv": ("F32", scales)}
    _, opened = opened_float8(parts, kinds=("block",), block=(2, 4))
    np.testing.assert_array_equal(
        opened.values(np.arange(2)),
        np.array(
            [
                [0.5, 1, -0.5, -1, -896, -(2.0**-8), 896, 2.0**-8],
                [0, -0.0, 120, 2.0**-5, 96, -(2.0**-5), -15 * 2.0**-8, 12 * 2.0**-6],
            ],
            np.float32,
        ),
    )


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


class TestNotFinite:
    @pytest.mark.parametrize("code", [0x7F, 0xFF])
    def test_codes_that_are_no_numbers(self, code):
        parts, _ = float8(matrix(16, 64), kind="channel")
        parts["weight"][1][5, 7] = code
        tensor, opened = opened_float8(parts, kinds=("channel",))
        assert tensor.type_name == "F32"
        assert np.isfinite(opened.values(np.arange(5))).all()
        with pytest.raises(InvalidModelFile, match="'m' holds a value that is not finite"):
            opened.values(np.arange(16))

    def test_products_beyond_float32(self):
        parts, _ = float8(matrix(16, 64), kind="tensor")
        parts["weight_scale_inv"] = ("F32", np.array([3e38], np.float32))
        with pytest.raises(InvalidModelFile, match="not finite"):
            opened_float8(parts, kinds=("tensor",))[1].values(np.arange(16))

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_scales(self, value):
        parts, _ = float8(matrix(16, 64), kind="channel")
        parts["weight_scale_inv"][1][3] = value
        with pytest.raises(InvalidModelFile, match="a scale that is not finite"):
            opened_float8(parts, kinds=("channel",))


def shaped(dtype, *shape):
    return dtype, np.zeros(shape, np.int64)


class TestMisfits:
    """One thing that is wrong, one error; a matrix of 16 rows and 64 inputs."""

    @pytest.mark.parametrize(
        ("kind", "part", "wrong", "message"),
        [
            ("channel", "weight", shaped("U8", 16, 64), "it is U8|It is U8"),
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
        ],
    )
    def test_refused(self, kind, part, wrong, message):
        parts, _ = float8(matrix(16, 64), kind=kind, block=(8, 32))
        with pytest.raises(InvalidModelFile, match=message):
            opened_float8({**parts, part: wrong}, **settings_of(kind, (8, 32)))

    @pytest.mark.parametrize(("kinds", "shape", "wanted"), [(("tensor",), (16, 1), r"\[1\]"), (("channel",), (1,), "")])
    def test_another_kind_than_the_configuration_says(self, kinds, shape, wanted):
        parts, _ = float8(matrix(16, 64), kind="channel")
        with pytest.raises(InvalidModelFile, match=f"must have {wanted}"):
            opened_float8({**parts, "weight_scale_inv": shaped("F32", *shape)}, kinds=kinds)

    @pytest.mark.parametrize("count", [0, 2])
    def test_no_scales_or_two(self, count):
        parts, _ = float8(matrix(16, 64), kind="channel")
        scale = parts.pop("weight_scale_inv")
        parts |= dict.fromkeys(("weight_scale_inv", "weight_scale")[:count], scale)
        with pytest.raises(InvalidModelFile, match=f"It has {count} tensors of scales, must have one"):
            opened_float8(parts, kinds=("channel",))


@settings(max_examples=150)
@given(st.data(), st.sampled_from([(8, 32), (128, 128), (1, 1), None]), st.integers(0, 2**32 - 1))
def test_whatever_the_tensors_say_nothing_else_is_raised(data, block, seed):
    """Types, shapes and values of one or two parts are drawn anew."""
    kind = "channel" if block is None else "block"
    parts, _ = float8(matrix(16, 64, seed), kind=kind, block=block)
    for part in data.draw(st.lists(st.sampled_from(sorted(parts)), max_size=2)):
        dtype = data.draw(st.sampled_from(["F8_E4M3", "I32", "F16", "BF16", "F32", "U8"]))
        shape = data.draw(st.lists(st.integers(0, 70), max_size=3))
        parts[part] = (dtype, np.random.default_rng(seed).integers(0, 2**16, shape))
    try:
        tensor, opened = opened_float8(parts, **settings_of(kind, block))
        found = opened.values(np.arange(tensor.shape[1]))
    except EdgeRTError:
        return
    assert np.isfinite(found).all()
    if tensor.type_name == "BF16":
        np.testing.assert_array_equal(as_stored(found, "BF16")[1], found)
