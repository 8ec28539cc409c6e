"""MLX's matrices: values by an independent reading, the bytes of the layout, and one error for each fault."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from edge_rt.errors import EdgeRTError, InvalidModelFile
from edge_rt.export.sources.compound import ConvertedTensor
from edge_rt.export.sources.mlx import AffineTensor
from edge_rt.export.weights.codes import Codes, values as values_of
from edge_rt.export.weights.tile_formats import tile_format
from edge_rt.export.weights.tiles import pack_rows, unpack_rows
from tests.helpers.converted_factory import mlx, opened_mlx


def matrix(rows, inputs, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, inputs)).astype(np.float32)


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
@pytest.mark.parametrize(("rows", "inputs", "group"), [(16, 64, 64), (24, 96, 32), (5, 256, 128), (1, 32, 32)])
@pytest.mark.parametrize("bits", [4, 8])
def test_values_are_codes_times_scales_plus_biases(bits, rows, inputs, group, dtype):
    parts, expected = mlx(matrix(rows, inputs), bits=bits, group=group, dtype=dtype)
    tensor, opened = opened_mlx(parts, bits=bits, group=group)
    is_kept = bits == 4 and dtype != "F32"
    assert isinstance(tensor, AffineTensor if is_kept else ConvertedTensor)
    assert (tensor.shape, tensor.nbytes) == ((inputs, rows), rows * inputs * bits // 8)
    assert tensor.type_name == ("Q4_1" if is_kept else "F32")
    every = np.arange(rows)
    for some in (every, every[::-1].copy(), every[-1:], np.array([0, rows // 2, rows // 2, rows - 1])):
        found = opened.values(some)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, expected[some])
    # Not only the same as another computation, but near what was stored.
    assert np.abs(expected - matrix(rows, inputs)).max() < (0.4 if bits == 4 else 0.05)


@pytest.mark.parametrize("group", [32, 64, 128])
def test_rows_for_packing_have_the_same_values(group):
    parts, expected = mlx(matrix(20, 256), bits=4, group=group, dtype="BF16")
    _, opened = opened_mlx(parts, bits=4, group=group)
    form = tile_format("Q4_1")
    for some in (np.arange(20), np.array([7, 3, 19])):
        found = opened.rows(some)
        assert (found.codes.dtype, found.scales.dtype, found.minima.dtype) == (np.uint8, np.float16, np.float16)
        codes = Codes(found.codes, d=found.scales, m=found.minima)
        np.testing.assert_array_equal(values_of(codes, form), expected[some])
        np.testing.assert_array_equal(unpack_rows(pack_rows(codes, form), form)[: len(some)], expected[some])


def test_bytes_of_the_layout():
    """The first code is in the lowest bits, of four bits or of eight."""
    scales, biases = ("F16", np.array([[0.5]], np.float16)), ("F16", np.array([[-2.0]], np.float16))
    words = np.frombuffer(bytes.fromhex("1032547698badcfeefcdab8967452301"), "<u4").reshape(1, 4)
    _, opened = opened_mlx({"weight": ("U32", words), "scales": scales, "biases": biases}, bits=4, group=32)
    expected = np.array([*range(16), *range(15, -1, -1)]) * 0.5 - 2
    np.testing.assert_array_equal(opened.values(np.array([0]))[0], expected)
    words = np.frombuffer(bytes(range(7, 39)), "<u4").reshape(1, 8)
    _, opened = opened_mlx({"weight": ("U32", words), "scales": scales, "biases": biases}, bits=8, group=32)
    np.testing.assert_array_equal(opened.values(np.array([0]))[0], np.arange(7, 39) * 0.5 - 2)


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


@pytest.mark.parametrize("part", ["scales", "biases"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("bits", [4, 8])
def test_numbers_that_are_none(bits, value, part):
    parts, _ = mlx(matrix(16, 64), bits=bits, group=64, dtype="F16")
    parts[part][1][3, 0] = value
    with pytest.raises(InvalidModelFile, match="a scale that is not finite"):
        opened_mlx(parts, bits=bits, group=64)


def test_a_sum_beyond_float32():
    parts, _ = mlx(matrix(16, 64), bits=8, group=64, dtype="F32")
    parts["scales"][1][:] = 3e38
    with pytest.raises(InvalidModelFile, match="'m' holds a value that is not finite"):
        opened_mlx(parts, bits=8, group=64)[1].values(np.arange(16))


def test_layers_with_settings_of_their_own():
    parts, expected = mlx(matrix(16, 64), bits=8, group=32, dtype="F16")
    _, opened = opened_mlx(parts, bits=4, group=64, layers={"layer": (8, 32), "other": (4, 128)})
    np.testing.assert_array_equal(opened.values(np.arange(16)), expected)


def shaped(dtype, *shape):
    return dtype, np.zeros(shape, np.int64)


class TestMisfits:
    """One thing that is wrong, one error; a matrix of 16 rows and 128 inputs of 4 bits."""

    @pytest.mark.parametrize(
        ("part", "wrong", "message"),
        [
            ("weight", shaped("I32", 16, 16), "must be U32 with two dimensions"),
            ("weight", shaped("U32", 16, 16, 1), "must be U32 with two dimensions"),
            ("weight", shaped("U32", 16, 0), "must be U32 with two dimensions"),
            ("weight", shaped("U32", 16, 17), "It has 136 inputs of 4 bits, no multiple of 64"),
            ("weight", shaped("U32", 15, 16), r"must have \[15, 2\]"),
            ("scales", shaped("F16", 16, 3), r"must have \[16, 2\]"),
            ("scales", shaped("U8", 16, 2), "must be F16 or BF16 or F32"),
            ("biases", shaped("F16", 2, 16), r"must have \[16, 2\]"),
        ],
    )
    def test_refused(self, part, wrong, message):
        parts, _ = mlx(matrix(16, 128), bits=4, group=64, dtype="F16")
        with pytest.raises(InvalidModelFile, match=message):
            opened_mlx({**parts, part: wrong}, bits=4, group=64)


@settings(max_examples=150)
@given(st.data(), st.sampled_from([4, 8]), st.sampled_from([32, 64, 128]), st.integers(0, 2**32 - 1))
def test_whatever_the_tensors_say_nothing_else_is_raised(data, bits, group, seed):
    """Types, shapes and values of one or two parts are drawn anew."""
    parts, _ = mlx(matrix(16, 128, seed), bits=data.draw(st.sampled_from([4, 8])), group=32, dtype="F16")
    for part in data.draw(st.lists(st.sampled_from(sorted(parts)), max_size=2)):
        dtype = data.draw(st.sampled_from(["U32", "F16", "BF16", "F32", "U8"]))
        shape = data.draw(st.lists(st.sampled_from([0, 1, 2, 4, 8, 16, 32]), max_size=3))
        parts[part] = (dtype, np.random.default_rng(seed).integers(0, 2**16, shape))
    try:
        tensor, opened = opened_mlx(parts, bits=bits, group=group)
        found = opened.values(np.arange(tensor.shape[1]))
    except EdgeRTError:
        return
    assert np.isfinite(found).all()
