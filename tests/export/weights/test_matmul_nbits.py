"""Codes, scales and minima as ONNX Runtime's operators read them."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from edge_rt.export.weights.gguf_blocks import read_codes
from edge_rt.export.weights.portable import block_rows, block_size, code_bits
from edge_rt.export.weights.tile_formats import tile_format
from tests.helpers.ggml_blocks import BLOCK_TYPES, exact_values, random_rows, tensor_of

ROWS, INPUTS = 7, 512


def converted(type_name, raw, rows=ROWS, inputs=INPUTS):
    return block_rows(read_codes(tensor_of(type_name, rows, inputs), raw), tile_format(type_name))


def unpack(codes, bits):
    """Return the codes of a row in order, uint8 ``[rows, blocks, weights]``."""
    if bits == 8:
        return codes
    return np.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:2], -1)


@pytest.mark.parametrize("type_name", BLOCK_TYPES)
def test_weights_keep_their_values(type_name):
    """``scale * (code - middle) + minimum`` is what gguf's library says; with a minimum but for one rounding."""
    form = tile_format(type_name)
    raw = random_rows(np.random.default_rng(0), type_name, ROWS, INPUTS, 0.01)
    rows, bits = converted(type_name, raw), code_bits(form)
    blocks = INPUTS // block_size(form)
    assert (rows.codes.dtype, rows.scale.dtype) == (np.uint8, np.float32)
    assert rows.codes.shape == (ROWS, blocks, block_size(form) * bits // 8)
    assert rows.scale.shape == (ROWS, blocks)
    assert (rows.minimum is not None) == form.has_minimum
    centred = unpack(rows.codes, bits).astype(np.float64) - (1 << (bits - 1))
    found = rows.scale.astype(np.float64)[:, :, None] * centred
    expected = exact_values(type_name, raw, INPUTS)
    if rows.minimum is None:
        np.testing.assert_array_equal(found.reshape(ROWS, INPUTS), expected)
    else:
        found += rows.minimum.astype(np.float64)[:, :, None]
        np.testing.assert_allclose(found.reshape(ROWS, INPUTS), expected, rtol=0, atol=2**-22 * np.abs(expected).max())


@pytest.mark.parametrize("type_name", ["Q4_0", "Q4_1", "Q8_0"])
def test_weights_of_the_first_types_are_exact(type_name):
    raw = random_rows(np.random.default_rng(0), type_name, ROWS, INPUTS, 0.01)
    rows, bits = converted(type_name, raw), code_bits(tile_format(type_name))
    centred = unpack(rows.codes, bits).astype(np.float64) - (1 << (bits - 1))
    found = rows.scale.astype(np.float64)[:, :, None] * centred
    if rows.minimum is not None:
        found += rows.minimum.astype(np.float64)[:, :, None]
    np.testing.assert_array_equal(found.reshape(ROWS, INPUTS).astype(np.float32), exact_values(type_name, raw, INPUTS))


def test_extreme_scales_of_q4_1_round_the_minimum_once():
    raw = np.zeros((1, 20), np.uint8)
    raw[0, 0:2] = list(struct.pack("<e", 65504.0))
    raw[0, 2:4] = list(struct.pack("<e", 2.0**-24))
    assert converted("Q4_1", raw, 1, 32).minimum[0, 0] == np.float32(8 * 65504.0 + 2.0**-24)
