"""Packed matrices: values by an independent reading, the bytes of every layout, and one error for each fault."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from edge_rt.errors import EdgeRTError, InvalidModelFile, UnsupportedModel
from tests import fuzz_packed
from tests.helpers.examples import share_of
from tests.helpers.packed_factory import (
    AWQ_ORDER,
    awq,
    compressed,
    gptq,
    opened,
    random_matrix,
    stored,
)

WRITERS = {
    "gptq": (gptq, {"zero_added": 1}),
    "awq": (awq, {}),
    "compressed-tensors": (compressed, {}),
}
LEAST_ZERO = {"gptq": 1, "awq": 0, "compressed-tensors": 0}


def written(layout, rng, rows, inputs, group, **options):
    """Return a random matrix, what a tool writes of it, and the settings to read it with."""
    write, more = WRITERS[layout]
    matrix = random_matrix(rng, rows, inputs, group, zeros=(LEAST_ZERO[layout], 15), **options)
    return matrix, write(matrix), {"group": group, **more}


def slow_values(layout, parts, group, zero_added=0):
    """Return the weights of a matrix, read word by word as the formats are described, ``[rows, inputs]``."""
    found, source = stored(parts)

    def word(name, *at):
        tensor = found[name]
        index = 0
        for place, count in zip(at, tensor.shape, strict=True):
            index = index * count + place
        kind, size = {"I32": ("<I", 4), "F16": ("<e", 2), "F32": ("<f", 4)}[tensor.dtype]
        return struct.unpack(kind, source.read(tensor, index * size, size))[0]

    def nibble(value, place):
        return value // 16**place % 16

    def group_of(name, column):
        return word(name, column) if name in found else column // group

    if layout == "compressed-tensors":
        rows, inputs = struct.unpack("<qq", source.read(found["weight_shape"], 0, 16))
    else:
        rows = found["scales"].shape[1]
        inputs = found["qweight"].shape[0] * (8 if layout == "gptq" else 1)
    values = np.empty((rows, inputs), np.float32)
    for row in range(rows):
        for column in range(inputs):
            if layout == "gptq":
                code = nibble(word("qweight", column // 8, row), column % 8)
                at = group_of("g_idx", column)
                zero = nibble(word("qzeros", at, row // 8), row % 8) + zero_added
                scale = word("scales", at, row)
            elif layout == "awq":
                place, at = AWQ_ORDER.index(row % 8), column // group
                code = nibble(word("qweight", column, row // 8), place)
                zero = nibble(word("qzeros", at, row // 8), place)
                scale = word("scales", at, row)
            else:
                code = nibble(word("weight_packed", row, column // 8), column % 8) - 8
                at, zero = group_of("weight_g_idx", column), 0
                if "weight_zero_point" in found:
                    zero = nibble(word("weight_zero_point", row // 8, at), row % 8) - 8
                scale = word("weight_scale", row, at)
            values[row, column] = (code - zero) * scale
    return values


def package_values(found, unit):
    """Return the weights of rows for packing."""
    scales = np.repeat(found.scales.astype(np.float64), unit, axis=1)
    less = found.codes.astype(np.int64) - np.repeat(found.zeros.astype(np.int64), unit, axis=1)
    return (less * scales).astype(np.float32)


@pytest.mark.parametrize("layout", WRITERS)
@pytest.mark.parametrize(
    ("rows", "inputs", "group", "unit"),
    [(8, 64, 32, 32), (24, 128, 128, 128), (16, 192, 64, 64), (8, 320, 128, 64), (8, 96, 0, 32), (16, 512, 256, 128)],
)
def test_values_are_those_of_a_reading_word_by_word(layout, rows, inputs, group, unit):
    matrix, parts, options = written(layout, np.random.default_rng(rows + inputs), rows, inputs, group or inputs)
    options["group"] = group
    expected = slow_values(layout, parts, group or inputs, options.get("zero_added", 0))
    np.testing.assert_array_equal(expected, matrix.values)
    tensor, packed = opened(layout, parts, **options)
    assert (tensor.shape, tensor.type_name, tensor.nbytes) == ((inputs, rows), f"W4Z{unit}", rows * inputs // 2)
    for some in (np.arange(rows), np.array([rows - 1, 0, 3]), np.array([5])):
        np.testing.assert_array_equal(packed.values(some), expected[some])
        found = packed.rows(some)
        assert (found.codes.dtype, found.zeros.dtype, found.scales.dtype) == (np.uint8, np.uint8, np.float16)
        np.testing.assert_array_equal(package_values(found, unit), expected[some])


def test_rows_that_are_no_multiple_of_eight_with_compressed_tensors():
    matrix = random_matrix(np.random.default_rng(0), 13, 64, 32, zeros=(0, 15))
    _, packed = opened("compressed-tensors", compressed(matrix), group=32)
    np.testing.assert_array_equal(packed.values(np.arange(13)), matrix.values)
    np.testing.assert_array_equal(package_values(packed.rows(np.arange(13)), 32), matrix.values)


@settings(max_examples=share_of(60))
@given(
    st.sampled_from(sorted(WRITERS)), st.integers(1, 5), st.integers(1, 12), st.sampled_from([32, 64, 96, 128, 256]),
    st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_both_ways_to_read_agree_whatever_the_sizes(layout, rows, blocks, group, seed):
    matrix, parts, options = written(layout, np.random.default_rng(seed), 8 * rows, 32 * blocks, group)
    tensor, packed = opened(layout, parts, **options)
    every = np.arange(8 * rows)
    np.testing.assert_array_equal(packed.values(every), matrix.values)
    np.testing.assert_array_equal(package_values(packed.rows(every), tensor.unit), matrix.values)


GOLDEN = {
    "gptq": (
        "qweight", (4, 8),
        (
            "103254762143658732547698436587a9547698ba6587a9cb7698badc87a9cbed98badcfea9cbed0fbadcfe10cbed0f21"
            "dcfe1032ed0f2143fe1032540f214365103254762143658732547698436587a9547698ba6587a9cb7698badc87a9cbed"
            "98badcfea9cbed0fbadcfe10cbed0f21dcfe1032ed0f2143fe1032540f214365"
        ),
        "qzeros", (1, 1), "10325476",
    ),
    "awq": (
        "qweight", (32, 1),
        (
            "206431753175428642865397539764a864a875b975b986ca86ca97db97dba8eca8ecb9fdb9fdca0eca0edb1fdb1fec20"
            "ec20fd31fd310e420e421f531f532064206431753175428642865397539764a864a875b975b986ca86ca97db97dba8ec"
            "a8ecb9fdb9fdca0eca0edb1fdb1fec20ec20fd31fd310e420e421f531f532064"
        ),
        "qzeros", (1, 1), "31754286",
    ),
    "compressed-tensors": (
        "weight_packed", (8, 4),
        (
            "1032547698badcfe1032547698badcfe21436587a9cbed0f21436587a9cbed0f32547698badcfe1032547698badcfe10"
            "436587a9cbed0f21436587a9cbed0f21547698badcfe1032547698badcfe10326587a9cbed0f21436587a9cbed0f2143"
            "7698badcfe1032547698badcfe10325487a9cbed0f21436587a9cbed0f214365"
        ),
        "weight_zero_point", (1, 1), "21436587",
    ),
}  # fmt: skip
"""Layout -> codes and zero points as they are stored: name, shape, bytes."""


class TestBytes:
    """The bytes of each layout: eight rows, 32 inputs, code (row + input) % 16, zero point of row r is r + 1."""

    @pytest.mark.parametrize("layout", WRITERS)
    def test_golden(self, layout):
        name, shape, codes, zeros_name, zeros_shape, zeros = GOLDEN[layout]
        parts = {
            name: ("I32", np.frombuffer(bytes.fromhex(codes), "<u4").reshape(shape)),
            zeros_name: ("I32", np.frombuffer(bytes.fromhex(zeros), "<u4").reshape(zeros_shape)),
        }
        if layout == "compressed-tensors":
            parts["weight_scale"] = ("F16", np.full((8, 1), 0.5))
            parts["weight_shape"] = ("I64", np.array([8, 32]))
        else:
            parts["scales"] = ("F16", np.full((1, 8), 0.5))
        _, packed = opened(layout, parts, group=32, **WRITERS[layout][1])
        found = packed.rows(np.arange(8))
        np.testing.assert_array_equal(found.codes, np.add.outer(np.arange(8), np.arange(32)) % 16)
        np.testing.assert_array_equal(found.zeros[:, 0], np.arange(1, 9))
        assert (found.scales == 0.5).all()


def test_the_first_format_of_gptq_stores_zero_points_less_1():
    matrix = random_matrix(np.random.default_rng(1), 16, 64, 32, zeros=(1, 16))
    matrix.zeros[0, 0] = 16
    _, packed = opened("gptq", gptq(matrix), group=32, zero_added=1)
    np.testing.assert_array_equal(packed.rows(np.arange(16)).zeros, matrix.zeros)
    matrix.zeros %= 16
    _, packed = opened("gptq", gptq(matrix, less=0), group=32)
    np.testing.assert_array_equal(packed.rows(np.arange(16)).zeros, matrix.zeros)


def test_symmetric_weights_have_the_zero_point_8():
    matrix = random_matrix(np.random.default_rng(1), 16, 64, 32, zeros=(8, 8))
    _, packed = opened("compressed-tensors", compressed(matrix, symmetric=True), group=32, has_zeros=False)
    assert (packed.rows(np.arange(16)).zeros == 8).all()
    np.testing.assert_array_equal(packed.values(np.arange(16)), matrix.values)


class TestOrder:
    """Groups of inputs that are no neighbours."""

    @pytest.mark.parametrize("layout", ["gptq", "compressed-tensors"])
    def test_inputs_are_brought_together(self, layout):
        rng = np.random.default_rng(2)
        order = rng.permutation(128)
        matrix = random_matrix(rng, 16, 128, 32, zeros=(1, 15), order=order)
        write = gptq if layout == "gptq" else compressed
        parts = write(matrix, with_order=True)
        tensor, packed = opened(layout, parts, group=32, zero_added=int(layout == "gptq"), needs_order=True)
        assert sorted(tensor.input_order) == list(range(128))
        assert (np.diff(matrix.groups_of[tensor.input_order]) >= 0).all()
        expected = matrix.values[:, tensor.input_order]
        np.testing.assert_array_equal(packed.values(np.arange(16)), expected)
        np.testing.assert_array_equal(package_values(packed.rows(np.arange(16)), 32), expected)
        np.testing.assert_array_equal(slow_values(layout, parts, 32, int(layout == "gptq")), matrix.values)

    def test_groups_in_order_need_no_moves(self):
        matrix = random_matrix(np.random.default_rng(2), 16, 128, 32)
        for with_order in (True, False):
            tensor, _ = opened("gptq", gptq(matrix, with_order=with_order), group=32, zero_added=1)
            assert tensor.input_order is None

    def test_an_order_of_minus_ones_is_none(self):
        matrix = random_matrix(np.random.default_rng(2), 16, 128, 32, zeros=(0, 15))
        parts = compressed(matrix, with_order=True)
        parts["weight_g_idx"] = ("I32", np.full(128, -1))
        tensor, packed = opened("compressed-tensors", parts, group=32)
        assert tensor.input_order is None
        np.testing.assert_array_equal(packed.values(np.arange(16)), matrix.values)

    @pytest.mark.parametrize(
        ("groups", "message"),
        [([-1, *[0] * 31, *[1] * 32], "groups -1 to 1, it has 2"), ([2, *[0] * 31, *[1] * 32], "groups 0 to 2, it")],
    )
    def test_groups_that_do_not_exist(self, groups, message):
        parts = gptq(random_matrix(np.random.default_rng(3), 8, 64, 32))
        parts["g_idx"] = ("I32", np.array(groups))
        with pytest.raises(InvalidModelFile, match=message):
            opened("gptq", parts, group=32, zero_added=1)

    def test_groups_of_other_sizes(self):
        parts = gptq(random_matrix(np.random.default_rng(3), 8, 64, 32))
        parts["g_idx"] = ("I32", np.array([0] * 33 + [1] * 31))
        with pytest.raises(UnsupportedModel, match="31 to 33 inputs, 32 are read"):
            opened("gptq", parts, group=32, zero_added=1)

    @pytest.mark.parametrize("layout", ["gptq", "compressed-tensors"])
    def test_an_order_that_is_missing(self, layout):
        _, parts, options = written(layout, np.random.default_rng(3), 8, 64, 32)
        parts.pop("g_idx", None)
        with pytest.raises(InvalidModelFile, match="has no tensor"):
            opened(layout, parts, **options, needs_order=True)


class TestScales:
    @pytest.mark.parametrize("dtype", ["F16", "BF16", "F32"])
    def test_types(self, dtype):
        """Numbers that all three types have."""
        matrix = random_matrix(np.random.default_rng(4), 16, 64, 32, zeros=(0, 15))
        values = (np.random.default_rng(4).integers(-255, 256, (16, 2)) * 2.0**-14).astype(np.float32)
        matrix.scales = values.astype(np.float16)
        raw = values.view(np.uint32) >> 16 if dtype == "BF16" else values
        _, packed = opened("compressed-tensors", {**compressed(matrix), "weight_scale": (dtype, raw)}, group=32)
        np.testing.assert_array_equal(packed.rows(np.arange(16)).scales, matrix.scales)
        np.testing.assert_array_equal(packed.values(np.arange(16)), matrix.values)

    @pytest.mark.parametrize(("value", "wrong"), [(0.1, 0.1), (1e5, 1e5), (2.0**-25, 2.0**-25)])
    def test_numbers_that_fp16_does_not_have(self, value, wrong):
        scales = np.full((16, 2), 0.25, np.float32)
        scales[3, 1] = value
        matrix = random_matrix(np.random.default_rng(4), 16, 64, 32, zeros=(0, 15))
        parts = {**compressed(matrix), "weight_scale": ("F32", scales)}
        message = f"^The scales in 'layer.weight_scale' .* 1 of 32 are not exact in float16; .* {np.float32(wrong)}"
        with pytest.raises(UnsupportedModel, match=message):
            opened("compressed-tensors", parts, group=32)

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_numbers_that_are_none(self, value):
        matrix = random_matrix(np.random.default_rng(4), 16, 64, 32, zeros=(0, 15))
        matrix.scales[0, 0] = value
        with pytest.raises(InvalidModelFile, match="a scale that is not finite"):
            opened("compressed-tensors", compressed(matrix), group=32)


def shaped(dtype, *shape):
    return dtype, np.zeros(shape, np.int64)


class TestMisfits:
    """One thing that is wrong, one error; a matrix of 16 rows and 64 inputs in groups of 32."""

    @pytest.mark.parametrize(
        ("layout", "part", "wrong", "message"),
        [
            ("gptq", "qweight", shaped("F32", 8, 16), "F32"),
            ("gptq", "qweight", shaped("I32", 8, 16, 1), "two dimensions"),
            ("gptq", "qweight", shaped("I32", 0, 16), "two dimensions"),
            ("gptq", "qweight", shaped("I32", 9, 16), r"must have \[3, 2\]"),
            ("gptq", "qzeros", shaped("I32", 2, 3), r"must have \[2, 2\]"),
            ("gptq", "qzeros", shaped("F16", 2, 2), "must be I32"),
            ("gptq", "scales", shaped("F16", 16, 2), r"must have \[2, 16\]"),
            ("gptq", "scales", shaped("I32", 2, 16), "must be F16 or BF16 or F32"),
            ("gptq", "g_idx", shaped("I32", 63), r"must have \[64\]"),
            ("gptq", "g_idx", shaped("F32", 64), "must be I32 or I64"),
            ("awq", "qweight", shaped("I32", 64, 3), r"must have \[2, 3\]"),
            ("awq", "qzeros", shaped("I32", 2, 1), r"must have \[2, 2\]"),
            ("awq", "scales", shaped("F16", 2, 8), r"must have \[2, 16\]"),
            ("compressed-tensors", "weight_packed", shaped("I32", 15, 8), "says 16 x 64, the codes are 15 x 8"),
            ("compressed-tensors", "weight_packed", shaped("U8", 16, 8), "must be I32"),
            ("compressed-tensors", "weight_shape", ("I64", np.array([16, 0])), "says 16 x 0"),
            ("compressed-tensors", "weight_shape", ("I64", np.array([16, 65])), "says 16 x 65"),
            ("compressed-tensors", "weight_shape", ("I64", np.array([16, 2**62])), "says 16 x 4611686018427387904"),
            ("compressed-tensors", "weight_shape", shaped("I64", 3), r"must have \[2\]"),
            ("compressed-tensors", "weight_scale", shaped("F16", 16, 3), r"must have \[16, 2\]"),
            ("compressed-tensors", "weight_zero_point", shaped("I32", 16, 2), r"must have \[2, 2\]"),
            ("compressed-tensors", "weight_zero_point", shaped("U8", 2, 2), "must be I32"),
        ],
    )
    def test_refused(self, layout, part, wrong, message):
        _, parts, options = written(layout, np.random.default_rng(5), 16, 64, 32)
        with pytest.raises(InvalidModelFile, match=message):
            opened(layout, {**parts, part: wrong}, **options)

    @pytest.mark.parametrize("has_zeros", [True, False])
    def test_zero_points_and_the_configuration_contradict_each_other(self, has_zeros):
        matrix = random_matrix(np.random.default_rng(5), 16, 64, 32, zeros=(0, 15))
        message = "zero points are missing" if has_zeros else "zero points are there"
        with pytest.raises(InvalidModelFile, match=f"(?i){message}"):
            opened("compressed-tensors", compressed(matrix, symmetric=has_zeros), group=32, has_zeros=has_zeros)

    @pytest.mark.parametrize(("inputs", "group"), [(40, 32), (48, 0)])
    def test_inputs_that_are_no_multiple_of_32(self, inputs, group):
        matrix = random_matrix(np.random.default_rng(5), 8, inputs, group or inputs)
        with pytest.raises(UnsupportedModel, match=f"It has {inputs} inputs in groups of"):
            opened("gptq", gptq(matrix), group=group, zero_added=1)


@settings(max_examples=share_of(200))
@given(st.sampled_from(sorted(WRITERS)), st.data(), st.integers(0, 1 << 40), st.booleans(), st.integers(0, 2**32 - 1))
def test_whatever_the_tensors_say_nothing_else_is_raised(layout, data, group, needs_order, seed):
    """Types, shapes and values of one or two parts are drawn anew."""
    _, parts, _ = written(layout, np.random.default_rng(seed), 16, 64, 32)
    for part in data.draw(st.lists(st.sampled_from(sorted(parts)), min_size=1, max_size=2)):
        dtype = data.draw(st.sampled_from(["I32", "I64", "F16", "BF16", "F32", "U8"]))
        shape = data.draw(st.lists(st.integers(0, 70), max_size=3))
        values = np.random.default_rng(seed).integers(-(2**31), 2**31, shape)
        parts[part] = (dtype, values % data.draw(st.sampled_from([1, 2, 200, 2**31])))
    try:
        tensor, packed = opened(
            layout, parts, group=data.draw(st.sampled_from([group - group % 32, 0, 32, 64])), needs_order=needs_order
        )
        packed.rows(np.arange(tensor.shape[1]))
        packed.values(np.arange(tensor.shape[1]))
    except EdgeRTError:
        pass


@pytest.mark.parametrize("layout", WRITERS)
def test_the_first_inputs_of_the_script_that_makes_many(layout):
    counts = fuzz_packed.run(layout, 400, 2)
    refused = sum(count for kind, count in counts.items() if kind.endswith("refused"))
    assert counts["good"] > 100
    assert refused > 50
