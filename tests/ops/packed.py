"""Random packed matrices and what they stand for."""

from __future__ import annotations

import numpy as np

from edge_rt.export.weights.tiles import TILE_BLOCK_BYTES, unpack_rows

CODE_BYTES = {"w4m": 256, "w4": 256, "w8": 512}


def random_matrix(rng, form, rows, columns):
    """Return the packed bytes ``[tiles, blocks, bytes]`` and the weights, float32 ``[rows, columns]``."""
    tiles, blocks = -(-rows // 16), -(-columns // 32)
    if form in CODE_BYTES:
        packed = rng.integers(0, 256, (tiles, blocks, TILE_BLOCK_BYTES[form]), np.uint8)
        numbers = (TILE_BLOCK_BYTES[form] - CODE_BYTES[form]) // 2
        halves = (rng.standard_normal((tiles, blocks, numbers)) * 0.02).astype(np.float16)
        packed[..., CODE_BYTES[form] :] = halves.view(np.uint8)
    else:
        dtype = np.float16 if form == "f16" else np.float32
        values = (rng.standard_normal((tiles, blocks, 32, 16)) * 0.1).astype(dtype)
        values[:, -1, columns - 32 * (blocks - 1) :] = 0
        packed = values.reshape(tiles, blocks, -1).view(np.uint8)
    return packed, unpack_rows(packed, form)[:rows, :columns]


def rounded_rows(x):
    """Return x as the kernels see it: int8 per block of 32, times its scale, float64."""
    blocks = x.reshape(x.shape[0], -1, 32)
    peak = np.abs(blocks).max(-1, keepdims=True).astype(np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):
        up = np.where(peak > 0, np.float32(127) / peak, np.float32(0))
    codes = np.rint((blocks * up).astype(np.float32))
    return (codes.astype(np.float64) * (peak / np.float32(127))).reshape(x.shape)
