"""Tiles of 16 rows: the bytes of the contract, and exact values back."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize
from hypothesis import given, strategies as st

from edge_rt.errors import InvalidModelFile
from edge_rt.export.sources.gguf_types import EXPORTABLE_TYPES
from edge_rt.export.weights.codes import Codes, upper_codes
from edge_rt.export.weights.tile_formats import FORMAT_OF_GGML, tile_format
from edge_rt.export.weights.tiles import pack_rows, stored_order, tile_count, unit_count, unpack_rows
from tests.helpers.ggml_blocks import (
    BLOCK_TYPES,
    FLOAT_TYPES,
    HALVES,
    exact_values,
    packed_raw,
    random_rows,
    tensor_of,
    wide,
)

ZERO_TYPES = {"W4Z32": 32, "W4Z64": 64, "W4Z128": 128}
"""Types with zero points -> inputs that share one."""


def quantised(type_name, values):
    """Return the checkpoint's bytes of a matrix, and the values that they stand for."""
    kind = gguf.GGMLQuantizationType[type_name]
    data = quantize(values, kind)
    exact = dequantize(data, kind).reshape(values.shape).astype(np.float32)
    return data.view(np.uint8).reshape(len(values), -1), exact


def test_every_type_has_a_format():
    assert set(BLOCK_TYPES) | set(FLOAT_TYPES) == set(EXPORTABLE_TYPES)
    assert set(FORMAT_OF_GGML) == {*EXPORTABLE_TYPES, *ZERO_TYPES, "W8N"}


@given(st.integers(1, 70), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_nested_codes_come_back_exactly_and_so_do_their_upper_halves(rows, blocks, seed):
    rng, form = np.random.default_rng(seed), tile_format("W8N")
    codes = rng.integers(0, 256, (rows, 32 * blocks), dtype=np.uint8)
    d, m = ((rng.standard_normal((rows, blocks)) * 0.02).astype(np.float16) for _ in range(2))
    found = Codes(codes, d=d, m=m)
    tiles = pack_rows(found, form)
    assert tiles.shape == (tile_count(rows), blocks, 576)
    scale, minimum = (np.repeat(part.astype(np.float64), 32, axis=1) for part in (d, m))
    np.testing.assert_allclose(unpack_rows(tiles, form)[:rows], scale / 16 * codes + minimum - scale / 2, atol=1e-8)
    # What is stored begins with a matrix of 4 bits as it is; behind it lie the finer codes.
    stored = stored_order(tiles, form).reshape(-1)
    upper = stored[: 320 * tile_count(rows) * blocks].reshape(tile_count(rows), blocks, 320)
    np.testing.assert_array_equal(upper, pack_rows(upper_codes(found), tile_format("Q4_1")))
    row, index = int(rng.integers(rows)), int(rng.integers(32 * blocks))
    at = upper.size + 256 * (row // 16 * blocks + index // 32) + 64 * (index % 32 // 8) + 4 * (row % 16) + index % 4
    assert (stored[at] >> 4 if index % 8 > 3 else stored[at] & 15) == codes[row, index] & 15


@given(st.sampled_from(sorted(ZERO_TYPES)), st.integers(1, 70), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_codes_with_zero_points_come_back_exactly(type_name, rows, units, seed):
    rng, form, unit = np.random.default_rng(seed), tile_format(type_name), ZERO_TYPES[type_name]
    codes = rng.integers(0, 16, (rows, unit * units), dtype=np.uint8)
    zeros = rng.integers(0, 17, (rows, units), dtype=np.uint8)
    d = rng.integers(0, 0x7C00, (rows, units), dtype=np.uint16).view(np.float16)
    tiles = pack_rows(Codes(codes, zeros=zeros, d=d), form)
    assert tiles.shape == (tile_count(rows), units, 8 * unit + 48)
    # The layout, spelt out for one row and unit.
    row, place = int(rng.integers(rows)), int(rng.integers(units))
    tile = tiles[row // 16, place]
    assert tile[8 * unit + row % 16] == zeros[row, place]
    assert tile[8 * unit + 16 :].view(np.float16)[row % 16] == d[row, place]
    index = int(rng.integers(unit))
    byte = tile[256 * (index // 32) + 64 * (index % 32 // 8) + 4 * (row % 16) + index % 4]
    assert (byte >> 4 if index % 8 > 3 else byte & 15) == codes[row, unit * place + index]
    found = unpack_rows(tiles, form)
    less = codes.reshape(rows, units, unit).astype(np.int32) - zeros[..., None]
    expected = (less * d[..., None].astype(np.float64)).reshape(rows, -1)
    np.testing.assert_array_equal(found[:rows].astype(np.float64), expected)
    assert not found[rows:].any()


@given(st.sampled_from(BLOCK_TYPES), st.integers(1, 70), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_blocks_come_back_exactly(type_name, rows, blocks, seed):
    inputs, form = wide(type_name, 32 * blocks), tile_format(type_name)
    raw = random_rows(np.random.default_rng(seed), type_name, rows, inputs)
    tiles = packed_raw(tensor_of(type_name, rows, inputs), raw)
    assert tiles.shape == (tile_count(rows), unit_count(inputs, form), form.unit_bytes)
    found = unpack_rows(tiles, form)
    np.testing.assert_array_equal(found[:rows], exact_values(type_name, raw, inputs))
    assert not found[rows:].any()


@pytest.mark.parametrize(
    ("type_name", "bits"),
    [("Q4_K", 4.625), ("Q5_K", 5.625), ("Q6_K", 6.5625), ("Q5_0", 5.5), ("Q5_1", 6), ("IQ4_NL", 4.5), ("MXFP4", 4.25)],
)
def test_packed_weights_take_at_most_3_percent_more_than_the_file(type_name, bits):
    raw = random_rows(np.random.default_rng(0), type_name, 16, 512)
    packed = packed_raw(tensor_of(type_name, 16, 512), raw).nbytes
    assert (packed * 8 / (16 * 512), packed <= 1.03 * raw.nbytes) == (bits, True)


@given(st.sampled_from(FLOAT_TYPES), st.integers(1, 40), st.integers(1, 100), st.integers(0, 2**32 - 1))
def test_floats_come_back_exactly_whatever_their_length(type_name, rows, inputs, seed):
    form = tile_format(type_name)
    values = np.random.default_rng(seed).standard_normal((rows, inputs)).astype(np.float32)
    raw, expected = quantised(type_name, values)
    tiles = packed_raw(tensor_of(type_name, rows, inputs), raw)
    assert tiles.shape == (tile_count(rows), unit_count(inputs, form), form.unit_bytes)
    found = unpack_rows(tiles, form)
    np.testing.assert_array_equal(found[:rows, :inputs], expected)
    assert not found[rows:].any()
    assert not found[:, inputs:].any()


class TestBytes:
    """The layout as the kernels read it, spelt out byte by byte."""

    ROWS, BLOCKS = 37, 3

    def packed(self, type_name):
        raw = random_rows(np.random.default_rng(1), type_name, self.ROWS, 32 * self.BLOCKS)
        return raw.reshape(self.ROWS, self.BLOCKS, -1), packed_raw(tensor_of(type_name, self.ROWS, 96), raw)

    def places(self):
        return [(row, block) for row in range(self.ROWS) for block in range(self.BLOCKS)]

    @pytest.mark.parametrize(("type_name", "numbers"), [("Q4_0", 1), ("Q4_1", 2)])
    def test_four_bits(self, type_name, numbers):
        raw, tiles = self.packed(type_name)

        def element(row, block, index):
            byte = raw[row, block, 2 * numbers + index % 16]
            return byte & 15 if index < 16 else byte >> 4

        for row, block in self.places():
            codes = tiles[row // 16, block, :256]
            for i in range(4):
                for j in range(4):
                    byte = codes[64 * i + 4 * (row % 16) + j]
                    assert byte & 15 == element(row, block, 8 * i + j)
                    assert byte >> 4 == element(row, block, 8 * i + 4 + j)
            for number in range(numbers):
                at = 256 + 32 * number + 2 * (row % 16)
                assert bytes(tiles[row // 16, block, at : at + 2]) == bytes(
                    raw[row, block, 2 * number : 2 * number + 2]
                )

    def test_eight_bits(self):
        raw, tiles = self.packed("Q8_0")
        for row, block in self.places():
            codes = tiles[row // 16, block, :512]
            found = [codes[64 * i + 4 * (row % 16) + j] for i in range(8) for j in range(4)]
            assert found == list(raw[row, block, 2:])
            at = 512 + 2 * (row % 16)
            assert bytes(tiles[row // 16, block, at : at + 2]) == bytes(raw[row, block, :2])

    @pytest.mark.parametrize(("type_name", "dtype"), [("F16", "<f2"), ("F32", "<f4")])
    def test_floats(self, type_name, dtype):
        raw, values = quantised(type_name, np.arange(37 * 40, dtype=np.float32).reshape(37, 40))
        tiles = packed_raw(tensor_of(type_name, 37, 40), raw).view(dtype)
        for row in range(37):
            for column in range(40):
                assert tiles[row // 16, column // 32, 16 * (column % 32) + row % 16] == values[row, column]


@pytest.mark.parametrize(("type_name", "place"), [(name, at) for name in HALVES for at in HALVES[name]])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_number_that_is_none_is_refused(type_name, place, value):
    inputs = wide(type_name, 64)
    raw = random_rows(np.random.default_rng(0), type_name, 20, inputs)
    raw[17, place : place + 2] = np.array([value], "<f2").view(np.uint8)
    with pytest.raises(InvalidModelFile, match="'m' holds a scale that is not finite"):
        packed_raw(tensor_of(type_name, 20, inputs), raw)


def test_an_exponent_that_is_too_large_is_refused():
    raw = random_rows(np.random.default_rng(0), "MXFP4", 20, 64)
    raw[3, 17] = 201
    with pytest.raises(InvalidModelFile, match="exponent is 201, at most 200"):
        packed_raw(tensor_of("MXFP4", 20, 64), raw)


@pytest.mark.parametrize("type_name", FLOAT_TYPES)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_none_is_refused(type_name, value):
    values = np.ones((3, 32), np.float32)
    values[1, 5] = value
    with pytest.raises(InvalidModelFile, match="not finite"):
        packed_raw(tensor_of(type_name, 3, 32), quantised(type_name, values)[0])
