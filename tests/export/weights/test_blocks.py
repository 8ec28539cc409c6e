from __future__ import annotations

import io
import struct

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize

from edge_rt.errors import InvalidModelFile, StorageError
from edge_rt.export.sources.gguf_types import TensorInfo
from edge_rt.export.weights.blocks import (
    BLOCK_BYTES,
    CODE_BITS,
    PIECE_BYTES,
    convert_rows,
    float_rows,
    iter_rows,
    read_rows,
    rope_factors,
    unpermuted_rows,
)

ROWS, COLUMNS = 7, 96


def tensor_of(type_name, shape=(COLUMNS, ROWS), offset=0, nbytes=None):
    kind = gguf.GGMLQuantizationType[type_name]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    elements = int(np.prod(shape))
    return TensorInfo(
        name="t", shape=shape, type_id=int(kind), type_name=type_name, offset=offset,
        nbytes=elements // block * size if nbytes is None else nbytes,
    )  # fmt: skip


def raw_rows(type_name, seed=0):
    values = np.random.default_rng(seed).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    return quantize(values, gguf.GGMLQuantizationType[type_name]).reshape(ROWS, -1)


def unpack(codes, bits):
    """Return the codes of a row in order, uint8 ``[rows, blocks, 32]``."""
    if bits == 8:
        return codes
    return np.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:2], 32)


@pytest.mark.parametrize("type_name", BLOCK_BYTES)
class TestConversion:
    def test_weights_keep_their_exact_values(self, type_name):
        """``scale * (code - middle) + minimum`` in float64 is what the file says, bit for bit."""
        raw = raw_rows(type_name)
        rows = convert_rows(tensor_of(type_name), raw)
        bits = CODE_BITS[type_name]
        centred = unpack(rows.codes, bits).astype(np.float64) - (1 << (bits - 1))
        found = rows.scale.astype(np.float64)[:, :, None] * centred
        if rows.minimum is not None:
            found += rows.minimum.astype(np.float64)[:, :, None]

        exact = exact_values(type_name, raw)

        np.testing.assert_array_equal(found.reshape(ROWS, COLUMNS), exact)
        library = dequantize(raw, gguf.GGMLQuantizationType[type_name])
        np.testing.assert_array_equal(exact.astype(np.float32), library)

    def test_dtypes_and_shapes(self, type_name):
        rows = convert_rows(tensor_of(type_name), raw_rows(type_name))
        assert rows.codes.shape == (ROWS, COLUMNS // 32, 4 * CODE_BITS[type_name])
        assert rows.codes.dtype == np.uint8
        assert rows.scale.dtype == np.float32
        assert rows.scale.shape == (ROWS, COLUMNS // 32)
        assert (rows.minimum is not None) == (type_name == "Q4_1")

    @pytest.mark.parametrize("bits", [0x7E00, 0xFE00, 0x7C00, 0xFC00], ids=["nan", "-nan", "inf", "-inf"])
    @pytest.mark.parametrize("block", [0, 20])
    def test_scales_that_are_no_numbers(self, type_name, bits, block):
        raw = raw_rows(type_name).copy()
        raw.reshape(-1, BLOCK_BYTES[type_name])[block, 0:2] = list(struct.pack("<H", bits))
        with pytest.raises(InvalidModelFile, match="scale that is not finite"):
            convert_rows(tensor_of(type_name), raw)


def exact_values(type_name, raw):
    """Return what the bytes say, in float64, by the formulas of the format."""
    blocks = raw.reshape(-1, BLOCK_BYTES[type_name])
    scale = np.ascontiguousarray(blocks[:, 0:2]).view("<f2").astype(np.float64)
    if type_name == "Q8_0":
        return (scale * blocks[:, 2:].view(np.int8)).reshape(ROWS, COLUMNS)
    codes = np.concatenate([blocks[:, -16:] & 15, blocks[:, -16:] >> 4], axis=1).astype(np.float64)
    if type_name == "Q4_0":
        return (scale * (codes - 8)).reshape(ROWS, COLUMNS)
    minimum = np.ascontiguousarray(blocks[:, 2:4]).view("<f2").astype(np.float64)
    return (scale * codes + minimum).reshape(ROWS, COLUMNS)


def test_a_minimum_that_is_not_finite():
    raw = raw_rows("Q4_1").copy()
    raw[2, 2:4] = list(struct.pack("<e", float("nan")))
    with pytest.raises(InvalidModelFile, match="not finite"):
        convert_rows(tensor_of("Q4_1"), raw)


def test_extreme_scales_of_q4_1_round_the_minimum_once():
    raw = np.zeros((1, 20), np.uint8)
    raw[0, 0:2] = list(struct.pack("<e", 65504.0))
    raw[0, 2:4] = list(struct.pack("<e", 2.0**-24))
    rows = convert_rows(tensor_of("Q4_1", (32, 1)), raw)
    assert rows.minimum[0, 0] == np.float32(8 * 65504.0 + 2.0**-24)


class TestFloats:
    @pytest.mark.parametrize(("type_name", "dtype"), [("F32", "<f4"), ("F16", "<f2")])
    def test_stay_as_they_are(self, type_name, dtype):
        values = np.arange(12, dtype=dtype).reshape(3, 4)
        found = float_rows(tensor_of(type_name, (4, 3)), values.view(np.uint8))
        assert found.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(found, values)

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize(("type_name", "dtype"), [("F32", "<f4"), ("F16", "<f2")])
    def test_that_are_no_numbers(self, type_name, dtype, bad):
        values = np.asarray([[1, bad]], dtype)
        with pytest.raises(InvalidModelFile, match="not finite"):
            float_rows(tensor_of(type_name, (2, 1)), values.view(np.uint8))

    @pytest.mark.parametrize("bad", [0.0, -1.0])
    def test_rope_factors_are_positive(self, bad):
        with pytest.raises(InvalidModelFile, match="not positive"):
            rope_factors(tensor_of("F32", (2,)), np.asarray([[1.0, bad]], "<f4").view(np.uint8))


class TestReading:
    def test_pieces_are_whole_rows_in_order(self):
        row_bytes = PIECE_BYTES // 3
        data = np.repeat(np.arange(8, dtype=np.uint8), row_bytes)
        tensor = tensor_of("F32", (row_bytes // 4, 8), offset=5, nbytes=data.nbytes)
        pieces = list(iter_rows(io.BytesIO(bytes(5) + data.tobytes()), tensor))
        assert [piece.shape for piece in pieces] == [(3, row_bytes), (3, row_bytes), (2, row_bytes)]
        assert [int(row[0]) for piece in pieces for row in piece] == list(range(8))

    def test_a_vector_is_one_row(self):
        values = np.arange(6, dtype="<f4")
        assert read_rows(io.BytesIO(values.tobytes()), tensor_of("F32", (6,))).shape == (1, 24)

    def test_a_file_that_became_shorter(self):
        with pytest.raises(StorageError, match="20 of 24 bytes came"):
            read_rows(io.BytesIO(bytes(20)), tensor_of("F32", (6,)))


class TestUnpermute:
    def test_undoes_what_converters_do(self):
        heads, head_dim = 3, 8
        rows = np.arange(heads * head_dim)
        # The permutation of llama.cpp's converter: halves of a head become adjacent pairs.
        permuted = rows.reshape(heads, 2, head_dim // 2).swapaxes(1, 2).reshape(-1)
        np.testing.assert_array_equal(permuted[unpermuted_rows(heads, head_dim)], rows)
