"""Matrices of bitsandbytes: values by an independent reading, the bytes of the layout, and one error for each fault."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from edge_rt.errors import EdgeRTError, InvalidModelFile
from tests.helpers.converted_factory import bitsandbytes, opened_bitsandbytes

STATE = "weight.quant_state.bitsandbytes__nf4"


def matrix(rows, inputs, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, inputs)).astype(np.float32)


def document(value):
    """Return a stored JSON object, or whatever text is given."""
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return "U8", np.frombuffer(text, np.uint8)


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("nested_block", [0, 256, 3])
@pytest.mark.parametrize(
    ("rows", "inputs", "block"), [(16, 64, 64), (24, 192, 64), (6, 96, 64), (5, 34, 64), (3, 22, 128), (8, 128, 32)]
)
def test_values_are_numbers_times_scales(rows, inputs, block, nested_block, kind):
    """Blocks go on from row to row where inputs are no multiple of them."""
    parts, expected = bitsandbytes(matrix(rows, inputs), kind=kind, block=block, nested_block=nested_block)
    tensor, opened = opened_bitsandbytes(parts, kind=kind)
    assert (tensor.shape, tensor.nbytes, tensor.type_name) == ((inputs, rows), rows * inputs // 2, "F32")
    every = np.arange(rows)
    for some in (every, every[::-1].copy(), every[-1:], np.array([0, rows // 2, rows // 2, rows - 1])):
        found = opened.values(some)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, expected[some])
    # Not only the same as another computation, but near what was stored.
    assert np.sqrt(np.mean((expected - matrix(rows, inputs)) ** 2)) < 0.25


def test_bytes_of_the_layout():
    """The first value is in the high half; the third byte of scales is that of the last two values."""
    numbers = np.arange(16, dtype=np.float32) - 8
    nested = np.linspace(0, 255, 256, dtype=np.float32)
    state = {
        "quant_type": "nf4", "blocksize": 4, "dtype": "float16", "shape": [2, 6], "nested_blocksize": 2,
        "nested_dtype": "float32", "nested_offset": 0.5,
    }  # fmt: skip
    parts = {
        "weight": ("U8", np.frombuffer(bytes.fromhex("0f187f3ac4d2"), np.uint8)[:, None]),
        "weight.quant_map": ("F32", numbers),
        "weight.absmax": ("U8", np.array([1, 2, 200], np.uint8)),
        "weight.nested_absmax": ("F32", np.array([2.0, 0.25], np.float32)),
        "weight.nested_quant_map": ("F32", nested),
        STATE: document(state),
    }
    # Scales: 1 x 2 + 0.5, 2 x 2 + 0.5, 200 x 0.25 + 0.5.
    expected = [
        [-8 * 2.5, 7 * 2.5, -7 * 2.5, 0, -1 * 4.5, 7 * 4.5],
        [-5 * 4.5, 2 * 4.5, 4 * 50.5, -4 * 50.5, 5 * 50.5, -6 * 50.5],
    ]
    _, opened = opened_bitsandbytes(parts, kind="nf4")
    np.testing.assert_array_equal(opened.values(np.arange(2)), np.array(expected, np.float32))


def shaped(dtype, *shape):
    return dtype, np.zeros(shape, np.int64)


class TestMisfits:
    """One thing that is wrong, one error; a matrix of 16 rows and 64 inputs."""

    @pytest.mark.parametrize(
        ("nested_block", "part", "wrong", "message"),
        [
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
        ],
    )
    def test_refused(self, nested_block, part, wrong, message):
        parts, _ = bitsandbytes(matrix(16, 64), nested_block=nested_block)
        with pytest.raises(InvalidModelFile, match=message):
            opened_bitsandbytes({**parts, part: wrong}, kind="nf4")

    @pytest.mark.parametrize(
        ("nested_block", "key", "value", "message"),
        [
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
        ],
    )
    def test_a_state_that_does_not_fit(self, nested_block, key, value, message):
        parts, _ = bitsandbytes(matrix(16, 64), nested_block=nested_block, state={key: value})
        with pytest.raises(InvalidModelFile, match=message):
            opened_bitsandbytes(parts, kind="nf4")

    def test_a_kind_that_config_json_does_not_say(self):
        parts, _ = bitsandbytes(matrix(16, 64), kind="fp4")
        with pytest.raises(InvalidModelFile, match=r"its name and config\.json say nf4"):
            opened_bitsandbytes(parts, kind="nf4")

    @pytest.mark.parametrize("count", [0, 2])
    def test_no_state_or_two(self, count):
        parts, _ = bitsandbytes(matrix(16, 64))
        state = parts.pop(STATE)
        parts |= dict.fromkeys((STATE, STATE.replace("nf4", "fp4"))[:count], state)
        with pytest.raises(InvalidModelFile, match=f"It has {count} tensors named weight.quant_state, must have one"):
            opened_bitsandbytes(parts, kind="nf4")


def test_a_product_beyond_float32():
    parts, _ = bitsandbytes(matrix(16, 64))
    parts["weight.absmax"] = ("F32", np.full(16, 3e38, np.float32))
    parts["weight.quant_map"] = ("F32", np.linspace(-9, 9, 16).astype(np.float32))
    with pytest.raises(InvalidModelFile, match="'m' holds a value that is not finite"):
        opened_bitsandbytes(parts, kind="nf4")[1].values(np.arange(16))


@settings(max_examples=150)
@given(st.data(), st.sampled_from([0, 4]), st.integers(0, 2**32 - 1))
def test_whatever_the_tensors_say_nothing_else_is_raised(data, nested_block, seed):
    """Types, shapes and values of one or two parts, and of the JSON object, are drawn anew."""
    sizes = st.sampled_from([1, 2, 16, 32, 64, 512, 1024, -1, 0, 1 << 62, None, "64", [16, 64], [1, 1024], [2, 2]])
    state = data.draw(st.dictionaries(st.sampled_from(["blocksize", "shape", "nested_blocksize"]), sizes))
    parts, _ = bitsandbytes(matrix(16, 64, seed), nested_block=nested_block, state=state)
    for part in data.draw(st.lists(st.sampled_from(sorted(parts)), max_size=2)):
        dtype = data.draw(st.sampled_from(["I32", "F16", "BF16", "F32", "U8"]))
        shape = data.draw(st.lists(st.sampled_from([0, 1, 4, 16, 64, 256, 512]), max_size=3))
        if np.prod(shape) <= 1 << 16:
            parts[part] = (dtype, np.random.default_rng(seed).integers(0, 2**16, shape))
    try:
        tensor, opened = opened_bitsandbytes(parts, kind="nf4")
        found = opened.values(np.arange(tensor.shape[1]))
    except EdgeRTError:
        return
    assert np.isfinite(found).all()
