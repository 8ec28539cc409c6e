"""Packs matrices into tiles of 16 output rows ("tile16"), the layout that the native kernels read, and unpacks them.

A matrix of N rows and K inputs is uint8 ``[ceil(N / 16), ceil(K / 32), bytes]``: 16 rows by 32 inputs to a block, rows
and inputs beyond the matrix are zero.

====== ======= ===== =============================================================================
format GGUF    bytes block
====== ======= ===== =============================================================================
w4m    Q4_1    320   256 code bytes, 16 fp16 scales d, 16 fp16 minima m; weight = ``d * q + m``
w4     Q4_0    288   256 code bytes, 16 fp16 scales d; weight = ``d * (q - 8)``
w8     Q8_0    544   512 code bytes, 16 fp16 scales d; weight = ``d * q``, q in two's complement
f16    F16     1024  fp16 ``[32 inputs, 16 rows]``
f32    F32     2048  fp32 ``[32 inputs, 16 rows]``
====== ======= ===== =============================================================================

Byte ``64 i + 4 r + j`` of the codes (r < 16, j < 4) belongs to row r. 4 bit, i < 4: input ``8 i + j`` in the low
nibble and ``8 i + 4 + j`` in the high one. 8 bit, i < 8: input ``4 i + j``.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from edge_rt.export.sources.gguf_types import TensorInfo
from edge_rt.export.weights.blocks import BLOCK, BLOCK_BYTES, FLOAT_TYPES, Array, check_finite, float_rows

TILE_ROWS: Final = 16
FORMATS: Final = {"Q4_1": "w4m", "Q4_0": "w4", "Q8_0": "w8", "F16": "f16", "F32": "f32"}
"""ggml type -> format of its tiles."""
TILE_BLOCK_BYTES: Final = {"w4m": 320, "w4": 288, "w8": 544, "f16": 1024, "f32": 2048}
_HALVES: Final = {"w4m": 2, "w4": 1, "w8": 1}
"""fp16 numbers per row that follow the codes."""


def tile_count(rows: int) -> int:
    """Return the number of tiles that ``rows`` rows fill."""
    return -(-rows // TILE_ROWS)


def block_count(in_features: int) -> int:
    """Return how many blocks a row of ``in_features`` fills."""
    return -(-in_features // BLOCK)


def pack_rows(tensor: TensorInfo, raw: Array) -> Array:
    """Pack rows of a matrix.

    Args:
        tensor: its name and type.
        raw: uint8 ``[rows, bytes per row]`` as in the checkpoint; the last tile is filled up with zero rows.

    Returns:
        uint8 ``[tiles, blocks, bytes]``.

    Raises:
        InvalidModelFile: a scale, a minimum or a value is NaN or infinite.
    """
    if tensor.type_name in FLOAT_TYPES:
        return _pack_floats(float_rows(tensor, raw))
    numbers = 2 * _HALVES[FORMATS[tensor.type_name]]
    block_bytes = BLOCK_BYTES[tensor.type_name]
    blocks = _whole_tiles(raw).reshape(-1, TILE_ROWS, raw.shape[1] // block_bytes, block_bytes)
    check_finite(tensor, blocks[..., :numbers])
    codes = _pack_bytes(blocks[..., numbers:]) if tensor.type_name == "Q8_0" else _pack_nibbles(blocks[..., numbers:])
    # [tile, row, block, number] -> [tile, block, number, row]: all scales of a block, then all minima.
    halves = np.ascontiguousarray(blocks[..., :numbers]).view("<u2").transpose(0, 2, 3, 1)
    tail = np.ascontiguousarray(halves).view(np.uint8).reshape(*codes.shape[:2], TILE_ROWS * numbers)
    return np.concatenate([codes, tail], axis=2)


def _whole_tiles(rows: Array) -> Array:
    """Return the rows padded with zero rows to whole tiles."""
    missing = -len(rows) % TILE_ROWS
    return np.concatenate([rows, np.zeros((missing, rows.shape[1]), rows.dtype)]) if missing else rows


def _pack_floats(values: Array) -> Array:
    rows, inputs = values.shape
    tiles, blocks = tile_count(rows), block_count(inputs)
    padded = np.zeros((tiles * TILE_ROWS, blocks * BLOCK), values.dtype)
    padded[:rows, :inputs] = values
    turned = padded.reshape(tiles, TILE_ROWS, blocks, BLOCK).transpose(0, 2, 3, 1)
    packed: Array = np.ascontiguousarray(turned).view(np.uint8).reshape(tiles, blocks, -1)
    return packed


def _pack_bytes(codes: Array) -> Array:
    """[tile, row, block, 32] -> [tile, block, 8, row, 4], with the axes after the block flattened."""
    tiles, rows, blocks, _ = codes.shape
    turned = codes.reshape(tiles, rows, blocks, BLOCK // 4, 4).transpose(0, 2, 3, 1, 4)
    packed: Array = turned.reshape(tiles, blocks, BLOCK * rows)
    return packed


def _pack_nibbles(codes: Array) -> Array:
    """Byte j of a GGUF block holds elements j and j + 16; here 4 neighbours and the next 4 share 4 bytes."""
    tiles, rows, blocks, _ = codes.shape
    elements = np.concatenate([codes & np.uint8(15), codes >> np.uint8(4)], axis=3)
    groups = elements.reshape(tiles, rows, blocks, BLOCK // 8, 2, 4)
    pairs = groups[..., 0, :] | (groups[..., 1, :] << np.uint8(4))
    packed: Array = pairs.transpose(0, 2, 3, 1, 4).reshape(tiles, blocks, BLOCK // 2 * rows)
    return packed


def unpack_rows(tiles: Array, form: str) -> Array:
    """Return the values of packed rows, float32 ``[16 * tiles, 32 * blocks]``, padding included.

    They are computed as the checkpoint defines them: one rounding per operation.
    """
    count, blocks, _ = tiles.shape
    if form in ("f16", "f32"):
        values = np.ascontiguousarray(tiles).view("<f2" if form == "f16" else "<f4").astype(np.float32)
        turned = values.reshape(count, blocks, BLOCK, TILE_ROWS).transpose(0, 3, 1, 2)
        return turned.reshape(count * TILE_ROWS, blocks * BLOCK)
    size = TILE_BLOCK_BYTES[form] - 2 * TILE_ROWS * _HALVES[form]
    codes = _unpack_codes(tiles[..., :size], form)
    halves = np.ascontiguousarray(tiles[..., size:]).view("<f2").reshape(count, blocks, _HALVES[form], TILE_ROWS)
    # [tile, block, number, row] -> [tile, row, block, number]
    numbers = halves.transpose(0, 3, 1, 2).astype(np.float32)
    values = numbers[..., :1] * codes
    if form == "w4m":
        values = values + numbers[..., 1:]
    return values.reshape(count * TILE_ROWS, blocks * BLOCK)


def _unpack_codes(codes: Array, form: str) -> Array:
    """Return the codes as float32 ``[tile, row, block, 32]``, without their offset."""
    count, blocks, _ = codes.shape
    groups = codes.reshape(count, blocks, -1, TILE_ROWS, 4).transpose(0, 3, 1, 2, 4)
    if form == "w8":
        values = groups.reshape(count, TILE_ROWS, blocks, BLOCK).view(np.int8).astype(np.float32)
    else:
        nibbles = np.stack([groups & np.uint8(15), groups >> np.uint8(4)], axis=4)
        values = nibbles.reshape(count, TILE_ROWS, blocks, BLOCK).astype(np.float32)
    return values - np.float32(8) if form == "w4" else values
