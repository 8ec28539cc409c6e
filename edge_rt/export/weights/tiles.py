"""Packs matrices into tiles of 16 output rows ("tile16"), the layout that the native kernels read, and unpacks them.

A matrix of N rows and K inputs is uint8 ``[ceil(N / 16), units, bytes]``: 16 rows by 32 inputs to a block, and one to
eight blocks to a unit; rows and inputs beyond the matrix are zero. A unit holds, in this order, the codes of its
blocks, their scales and minima as far as these are bytes, or zero points, and its numbers d and m; see
``tile_formats``. The finer halves of nested codes come last here; in ``weights.bin`` they lie behind all units
(``stored_order``, ``regions``).

Codes lie in lines of 64 bytes. Byte ``4 r + j`` of a line belongs to row r (r < 16, j < 4). Quartet k of a block is its
inputs ``4 k`` to ``4 k + 3``, which j counts:

======= ===================================================================================================
codes   lines of a block
======= ===================================================================================================
nibbles 4; line i holds quartet ``2 i`` in the low halves of its bytes and ``2 i + 1`` in the high ones
bytes   8; one for each quartet
five    nibbles of the low four bits; then 1 line of the highest: bit k of a byte is quartet k's
six     nibbles of the low four bits; then 2 lines of the highest two: bits ``2 (k % 4)`` of line ``k / 4``
two     2 lines, as the highest two bits of ``six``
three   as ``two``; then 1 line of the highest bit, as in ``five``
table   as nibbles
nested  nibbles of the upper four bits; and, behind the unit, nibbles of the lower four
floats  fp16, bfloat16 or fp32 ``[32 inputs, 16 rows]``
======= ===================================================================================================
"""

from __future__ import annotations

from typing import Final

import numpy as np

from edge_rt.export.weights.blocks import float_values
from edge_rt.export.weights.codes import Array, Codes, values
from edge_rt.export.weights.rows import Rows
from edge_rt.export.weights.tile_formats import BLOCK, TILE_ROWS, TileFormat

_QUARTETS: Final = BLOCK // 4
_LINE: Final = 64
_FLOATS: Final = {"f16": "<f2", "f32": "<f4", "bf16": "<u2"}


def tile_count(rows: int) -> int:
    """Return the number of tiles that ``rows`` rows fill."""
    return -(-rows // TILE_ROWS)


def unit_count(in_features: int, form: TileFormat) -> int:
    """Return how many units a row of ``in_features`` fills."""
    return -(-in_features // form.unit_inputs)


def pack_rows(found: Rows, form: TileFormat) -> Array:
    """Pack rows of a matrix, uint8 ``[tiles, units, bytes]``; the last tile is filled up with zero rows."""
    return _pack_codes(found, form) if isinstance(found, Codes) else _pack_floats(found)


def _pack_codes(found: Codes, form: TileFormat) -> Array:
    tiles, units = tile_count(len(found.codes)), found.codes.shape[1] // form.unit_inputs
    scales, minima = found.scales, found.minima
    if form.scales == "nibble":
        assert scales is not None
        assert minima is not None
        scales, minima = scales | minima << np.uint8(4), None
    # Four codes of a row stay together: they are moved as one number.
    quartets = _by_tile(np.ascontiguousarray(found.codes).view(np.uint32))
    lines = quartets.view(np.uint8).reshape(tiles, -1, _QUARTETS, _LINE)
    numbers = [_by_tile(part) for part in (scales, minima, found.zeros, found.d, found.m) if part is not None]
    planes = (lines >> np.uint8(4), lines & np.uint8(15)) if form.is_nested else (lines,)
    first, *finer = (_pack_lines(plane, form) for plane in planes)
    parts = [part.view(np.uint8).reshape(tiles, units, -1) for part in (first, *numbers, *finer)]
    return np.concatenate(parts, axis=2)


def stored_order(tiles: Array, form: TileFormat) -> Array:
    """Return all tiles of a matrix as they are stored, in the same shape: finer codes behind all units."""
    if not form.finer_bytes:
        return tiles
    first = form.unit_bytes - form.finer_bytes
    places = [np.ascontiguousarray(tiles[:, :, :first]).reshape(-1), tiles[:, :, first:].reshape(-1)]
    return np.concatenate(places).reshape(tiles.shape)


def _by_tile(rows: Array) -> Array:
    """``[rows, count]`` -> ``[tiles, count, 16]``; the last tile is filled up with zero rows."""
    if missing := -len(rows) % TILE_ROWS:
        rows = np.concatenate([rows, np.zeros((missing, rows.shape[1]), rows.dtype)])
    return np.ascontiguousarray(rows.reshape(-1, TILE_ROWS, rows.shape[1]).transpose(0, 2, 1))


def _by_row(tiles: Array) -> Array:
    """``[tiles, count, 16]`` -> ``[rows, count]``."""
    return np.ascontiguousarray(tiles.transpose(0, 2, 1)).reshape(-1, tiles.shape[1])


def _pack_lines(quartets: Array, form: TileFormat) -> Array:
    """``[tiles, blocks, 8, 64]`` -> ``[tiles, blocks, lines, 64]``."""
    if form.codes == "bytes":
        return quartets
    if form.codes in ("two", "three"):
        planes = [_pack_pairs(quartets, 0)]
    else:
        low = quartets & np.uint8(15)
        planes = [low[:, :, 0::2] | low[:, :, 1::2] << np.uint8(4)]
    if form.codes == "five":
        planes.append(_pack_bits(quartets, 4))
    if form.codes == "three":
        planes.append(_pack_bits(quartets, 2))
    if form.codes == "six":
        planes.append(_pack_pairs(quartets, 4))
    return np.concatenate(planes, axis=2)


def _pack_bits(quartets: Array, bit: int) -> Array:
    """Gather one bit of every code, ``[tiles, blocks, 1, 64]``."""
    return np.packbits(quartets >> np.uint8(bit) & np.uint8(1), axis=2, bitorder="little")


def _pack_pairs(quartets: Array, bit: int) -> Array:
    """Gather two bits of every code, ``[tiles, blocks, 2, 64]``."""
    shifts = (2 * np.arange(4, dtype=np.uint8))[:, None]
    pairs = (quartets >> np.uint8(bit) & np.uint8(3)).reshape(*quartets.shape[:2], 2, 4, _LINE) << shifts
    joined: Array = np.bitwise_or.reduce(pairs, axis=3)
    return joined


def _pack_floats(numbers: Array) -> Array:
    rows, inputs = numbers.shape
    tiles, blocks = tile_count(rows), -(-inputs // BLOCK)
    padded = np.zeros((tiles * TILE_ROWS, blocks * BLOCK), numbers.dtype)
    padded[:rows, :inputs] = numbers
    turned = padded.reshape(tiles, TILE_ROWS, blocks, BLOCK).transpose(0, 2, 3, 1)
    packed: Array = np.ascontiguousarray(turned).view(np.uint8).reshape(tiles, blocks, -1)
    return packed


def unpack_rows(tiles: Array, form: TileFormat) -> Array:
    """Return the values of packed rows, float32 ``[16 * tiles, inputs]``, with padding, one rounding an operation."""
    return _unpack_floats(tiles, form) if form.is_float else values(unpack_codes(tiles, form), form)


def unpack_codes(tiles: Array, form: TileFormat) -> Codes:
    """Return the codes that were packed, padding included."""
    count, units, _ = tiles.shape

    def plane(begin: int) -> Array:
        lines = tiles[:, :, begin : begin + form.code_bytes].reshape(count, units * form.unit_blocks, -1, _LINE)
        return _unpack_lines(lines, form)

    bytes_of = plane(0)
    if form.is_nested:
        bytes_of = bytes_of << np.uint8(4) | plane(form.unit_bytes - form.finer_bytes)
    quartets = np.ascontiguousarray(bytes_of).reshape(count, -1, _LINE).view(np.uint32)
    at = form.code_bytes

    def take(kind: type[np.generic], wanted: bool) -> Array | None:
        """Return the numbers that come next in the units."""
        nonlocal at
        if not wanted:
            return None
        size = form.scale_bytes if kind in (np.uint8, np.int8) else TILE_ROWS * np.dtype(kind).itemsize
        part = np.ascontiguousarray(tiles[:, :, at : at + size]).view(kind)
        at += size
        return _by_row(part.reshape(count, -1, TILE_ROWS))

    zeros = take(np.uint8, form.has_zeros)
    scales = take(np.int8 if form.scales == "signed" else np.uint8, form.scale_bytes > 0 and not form.has_zeros)
    minima = take(np.uint8, form.scales == "byte" and form.has_minimum)
    d = take(np.float32 if form.scales == "float8" else np.float16, form.scales != "exponent")
    m = take(np.float16, form.has_minimum)
    if form.scales == "nibble":
        assert scales is not None
        scales, minima = scales & np.uint8(15), scales >> np.uint8(4)
    return Codes(_by_row(quartets).view(np.uint8), scales, minima, d, m, zeros)


def _unpack_lines(lines: Array, form: TileFormat) -> Array:
    """``[tiles, blocks, lines, 64]`` -> ``[tiles, blocks, 8, 64]``."""
    if form.codes == "bytes":
        return lines
    if form.codes in ("two", "three"):
        low, rest = _unpack_pairs(lines[:, :, :2]), lines[:, :, 2:]
    else:
        nibbles, rest = lines[:, :, :4], lines[:, :, 4:]
        low = np.stack([nibbles & np.uint8(15), nibbles >> np.uint8(4)], axis=3)
        low = low.reshape(*lines.shape[:2], _QUARTETS, _LINE)
    if form.codes == "five":
        low = low | _unpack_bits(rest) << np.uint8(4)
    if form.codes == "three":
        low = low | _unpack_bits(rest) << np.uint8(2)
    if form.codes == "six":
        low = low | _unpack_pairs(rest) << np.uint8(4)
    return low


def _unpack_bits(line: Array) -> Array:
    return np.unpackbits(line, axis=2, bitorder="little")


def _unpack_pairs(lines: Array) -> Array:
    shifts = (2 * np.arange(4, dtype=np.uint8))[:, None]
    pairs: Array = lines[:, :, :, None] >> shifts & np.uint8(3)
    return pairs.reshape(*lines.shape[:2], _QUARTETS, _LINE)


def _unpack_floats(tiles: Array, form: TileFormat) -> Array:
    count, blocks, _ = tiles.shape
    numbers = float_values(np.ascontiguousarray(tiles).view(_FLOATS[form.name]))
    turned = numbers.reshape(count, blocks, BLOCK, TILE_ROWS).transpose(0, 3, 1, 2)
    return turned.reshape(count * TILE_ROWS, blocks * BLOCK)
