"""Tiles of 16 rows: the bytes of the contract, and exact values back."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize
from hypothesis import given, strategies as st

from edge_rt.errors import InvalidModelFile
from edge_rt.export.sources.gguf_types import TensorInfo
from edge_rt.export.weights.tiles import FORMATS, TILE_BLOCK_BYTES, block_count, pack_rows, tile_count, unpack_rows

BLOCK_TYPES = ("Q4_0", "Q4_1", "Q8_0")


def tensor_of(type_name, rows, inputs):
    return TensorInfo("m", (inputs, rows), int(gguf.GGMLQuantizationType[type_name]), type_name, 4096, 0)


def quantised(type_name, values):
    """Return the checkpoint's bytes of a matrix, and the values that they stand for."""
    kind = gguf.GGMLQuantizationType[type_name]
    data = quantize(values, kind)
    exact = dequantize(data, kind).reshape(values.shape).astype(np.float32)
    return data.view(np.uint8).reshape(len(values), -1), exact


def random_blocks(rng, type_name, rows, blocks):
    """Return raw rows with every code, and scales of every size that fp16 has."""
    size = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}[type_name]
    raw = rng.integers(0, 256, (rows, blocks, size), dtype=np.uint8)
    numbers = 4 if type_name == "Q4_1" else 2
    halves = rng.integers(0, 0x7C00, (rows, blocks, numbers // 2), dtype=np.uint16)
    halves |= rng.integers(0, 2, halves.shape, dtype=np.uint16) << np.uint16(15)
    raw[..., :numbers] = halves.view(np.uint8)
    return raw.reshape(rows, -1)


@given(st.sampled_from(BLOCK_TYPES), st.integers(1, 70), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_blocks_come_back_exactly(type_name, rows, blocks, seed):
    raw = random_blocks(np.random.default_rng(seed), type_name, rows, blocks)
    expected = dequantize(raw, gguf.GGMLQuantizationType[type_name]).reshape(rows, -1)
    tiles = pack_rows(tensor_of(type_name, rows, 32 * blocks), raw)
    assert tiles.shape == (tile_count(rows), blocks, TILE_BLOCK_BYTES[FORMATS[type_name]])
    found = unpack_rows(tiles, FORMATS[type_name])
    np.testing.assert_array_equal(found[:rows], expected)
    assert not found[rows:].any()


@given(st.sampled_from(("F16", "F32")), st.integers(1, 40), st.integers(1, 100), st.integers(0, 2**32 - 1))
def test_floats_come_back_exactly_whatever_their_length(type_name, rows, inputs, seed):
    values = np.random.default_rng(seed).standard_normal((rows, inputs)).astype(np.float32)
    raw, expected = quantised(type_name, values)
    tiles = pack_rows(tensor_of(type_name, rows, inputs), raw)
    assert tiles.shape == (tile_count(rows), block_count(inputs), TILE_BLOCK_BYTES[FORMATS[type_name]])
    found = unpack_rows(tiles, FORMATS[type_name])
    np.testing.assert_array_equal(found[:rows, :inputs], expected)
    assert not found[rows:].any()
    assert not found[:, inputs:].any()


class TestBytes:
    """The layout as the kernels read it, spelt out byte by byte."""

    ROWS, BLOCKS = 37, 3

    def packed(self, type_name):
        raw = random_blocks(np.random.default_rng(1), type_name, self.ROWS, self.BLOCKS)
        return raw.reshape(self.ROWS, self.BLOCKS, -1), pack_rows(tensor_of(type_name, self.ROWS, 96), raw)

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
        tiles = pack_rows(tensor_of(type_name, 37, 40), raw).view(dtype)
        for row in range(37):
            for column in range(40):
                assert tiles[row // 16, column // 32, 16 * (column % 32) + row % 16] == values[row, column]


@pytest.mark.parametrize(("type_name", "place"), [("Q4_0", 0), ("Q4_1", 0), ("Q4_1", 2), ("Q8_0", 0)])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_number_that_is_none_is_refused(type_name, place, value):
    raw = random_blocks(np.random.default_rng(0), type_name, 20, 2)
    raw[17, place : place + 2] = np.array([value], "<f2").view(np.uint8)
    with pytest.raises(InvalidModelFile, match="'m' holds a scale that is not finite"):
        pack_rows(tensor_of(type_name, 20, 64), raw)


@pytest.mark.parametrize("type_name", ["F16", "F32"])
def test_a_value_that_is_none_is_refused(type_name):
    values = np.ones((3, 32), np.float32)
    values[1, 5] = np.nan
    with pytest.raises(InvalidModelFile, match="not finite"):
        pack_rows(tensor_of(type_name, 3, 32), quantised(type_name, values)[0])
