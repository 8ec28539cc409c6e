"""Matrices in tiles of 16 rows ("tile16"): their positions in the file, writing them, and checking them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from edge_rt.errors import InvalidPackage
from edge_rt.export.sources.tensor_reader import TensorReader
from edge_rt.export.weights.blocks import Array
from edge_rt.export.weights.linear import Linear, Part, stack as stack_of_one_type
from edge_rt.export.weights.tile_formats import TILE_ROWS, tile_format
from edge_rt.export.weights.tiles import pack_rows, tile_count, unit_count, unpack_rows
from edge_rt.export.weights.weights_file import WeightsFile, WeightsLayout
from edge_rt.package.manifest import FIRST_TYPES

CHECKED_TILES: Final = 4
"""Tiles per matrix whose values are compared, evenly spread, in addition to those at the ends of pieces."""


def tiles_of(linear: Linear) -> str:
    """Return the name of the tensor of tiles."""
    return f"{linear.name}.tiles"


def stack(name: str, parts: Sequence[Part]) -> tuple[Linear, ...]:
    """Return one matrix of parts one behind the other, each in its own format; several where floats are among them."""
    if _may_be_mixed(parts):
        return (Linear(name, tuple(parts)),)
    return stack_of_one_type(name, parts)


def gate_up(name: str, gate: Part, up: Part) -> tuple[Linear, ...]:
    """Return gate and up as one matrix with alternating tiles; as two if that cannot be."""
    if gate.tensor.shape[1] % TILE_ROWS == 0 and _may_be_mixed((gate, up)):
        return (Linear(name, (gate, up), interleaved=True),)
    return (Linear(f"{name}.gate", (gate,)), Linear(f"{name}.up", (up,)))


def _may_be_mixed(parts: Sequence[Part]) -> bool:
    """Return whether parts can be one matrix: of one type, or all of codes, whose inputs are rounded alike.

    Matrices of the first types alone stay as they were, so that packages of them need no newer version to be read.
    """
    types = {part.tensor.type_name for part in parts}
    if len(types) == 1:
        return True
    return not types <= FIRST_TYPES and not any(tile_format(name).is_float for name in types)


def place(linear: Linear, layout: WeightsLayout) -> None:
    """Add a matrix to the layout."""
    # Stacked parts meet at a tile border, because a head has a multiple of 16 rows.
    assert all(part.tensor.shape[1] % TILE_ROWS == 0 for part in linear.parts[:-1]), linear.name
    shapes = [_part_shape(part) for part in linear.parts]
    if linear.is_mixed:
        layout.add(tiles_of(linear), np.uint8, (sum(math.prod(shape) for shape in shapes),))
    else:
        _, units, unit_bytes = shapes[0]
        layout.add(tiles_of(linear), np.uint8, (tile_count(linear.out_features), units, unit_bytes))


def _part_shape(part: Part) -> tuple[int, int, int]:
    """Return tiles, units of a row, and bytes of a unit."""
    inputs, rows = part.tensor.shape
    form = tile_format(part.tensor.type_name)
    return tile_count(rows), unit_count(inputs, form), form.unit_bytes


def key_constant_names(layer: int) -> tuple[str, str, str]:
    """Return the names of a layer's constants of 4-bit keys, in the order in which operators take them."""
    return f"layer{layer}.key_centre", f"layer{layer}.key_balance", f"layer{layer}.key_feedback"


def place_key_constants(layout: WeightsLayout, layers: int, kv_heads: int, head_dim: int) -> None:
    """Add the constants of 4-bit keys to the layout; see ``edge_rt.export.calibration.key_constants``."""
    for layer in range(layers):
        centre, balance, feedback = key_constant_names(layer)
        layout.add(centre, np.float32, (kv_heads, head_dim))
        layout.add(balance, np.float32, (kv_heads, head_dim))
        layout.add(feedback, np.float32, (kv_heads, head_dim, head_dim))


def fill(
    linear: Linear, source: TensorReader, layout: WeightsLayout, out: WeightsFile, on_bytes: Callable[[int], None]
) -> None:
    """Read the parts of a matrix, pack them and write them to their slot.

    Args:
        linear: the matrix.
        source: the open checkpoint.
        layout: where the matrix was placed.
        out: the open ``weights.bin``.
        on_bytes: called with the number of bytes read from the checkpoint.

    Raises:
        InvalidModelFile: a value is not finite.
        StorageError: reading or writing failed.
    """
    slot, at = layout.slots[tiles_of(linear)], 0
    for tiles, read in _packed(source, linear):
        piece = tiles.reshape(-1) if linear.is_mixed else tiles
        out.write(slot, at, piece)
        at += len(piece)
        on_bytes(read)


def _packed(source: TensorReader, linear: Linear) -> Iterator[tuple[Array, int]]:
    """Yield tiles in the order of the file, and the bytes that were read for them."""
    if linear.interleaved and not linear.is_mixed:
        gate, up = linear.parts
        for raws in zip(*(part.pieces(source, multiple=TILE_ROWS) for part in (gate, up)), strict=True):
            pair = [pack_rows(part.tensor, raw) for part, raw in zip(linear.parts, raws, strict=True)]
            yield np.stack(pair, axis=1).reshape(-1, *pair[0].shape[1:]), sum(raw.nbytes for raw in raws)
        return
    for part in linear.parts:
        for raw in part.pieces(source, multiple=TILE_ROWS):
            yield pack_rows(part.tensor, raw), raw.nbytes


def verify(linear: Linear, source: TensorReader, layout: WeightsLayout, weights: Path) -> None:
    """Read a matrix back from ``weights.bin`` and compare it with the checkpoint.

    Raises:
        InvalidPackage: a byte or a value differs.
    """
    ends = verify_bytes(linear, source, layout, weights)
    count = sum(_part_shape(part)[0] for part in linear.parts)
    spread = np.linspace(0, count - 1, CHECKED_TILES).astype(np.int64)
    verify_values(linear, source, layout, weights, sorted({*ends, *spread.tolist()}))


def verify_bytes(linear: Linear, source: TensorReader, layout: WeightsLayout, weights: Path) -> list[int]:
    """Require every byte to equal a second packing: finds faults in writing and reading.

    Returns:
        The first and the last tile of every piece that is packed at once.

    Raises:
        InvalidPackage: a byte differs.
    """
    stored, at, first, ends = _stored(linear, layout, weights), 0, 0, []
    for tiles, _ in _packed(source, linear):
        found = np.asarray(stored[at : at + tiles.size]).reshape(tiles.shape)
        _require_same(linear, first, found, tiles, "bytes")
        ends += [first, first + len(tiles) - 1]
        first += len(tiles)
        at += tiles.size
    return ends


def verify_values(
    linear: Linear, source: TensorReader, layout: WeightsLayout, weights: Path, tiles: Sequence[int]
) -> None:
    """Require the values of tiles to equal the checkpoint's, dequantised by ``gguf``: finds faults in packing.

    Raises:
        InvalidPackage: a value differs.
    """
    stored = _stored(linear, layout, weights)
    for tile in tiles:
        part, number, at = _find_tile(linear, tile)
        _, units, unit_bytes = _part_shape(part)
        packed = np.asarray(stored[at : at + units * unit_bytes]).reshape(1, units, unit_bytes)
        found = unpack_rows(packed, tile_format(part.tensor.type_name))
        expected = np.zeros_like(found)
        rows = range(number * TILE_ROWS, min((number + 1) * TILE_ROWS, part.tensor.shape[1]))
        values = _dequantised(source, part, rows)
        expected[: len(values), : values.shape[1]] = values
        _require_same(linear, tile, found[None], expected[None], "values")


def _find_tile(linear: Linear, tile: int) -> tuple[Part, int, int]:
    """Return the part that a tile of the matrix belongs to, its number there, and the byte where it begins."""
    if linear.interleaved and not linear.is_mixed:
        part = linear.parts[tile % 2]
        _, units, unit_bytes = _part_shape(part)
        return part, tile // 2, tile * units * unit_bytes
    begin = 0
    for part in linear.parts:
        tiles, units, unit_bytes = _part_shape(part)
        if tile < tiles:
            return part, tile, begin + tile * units * unit_bytes
        tile, begin = tile - tiles, begin + tiles * units * unit_bytes
    raise IndexError(tile)


def _stored(linear: Linear, layout: WeightsLayout, weights: Path) -> Array:
    slot = layout.slots[tiles_of(linear)]
    return np.memmap(weights, np.uint8, "r", offset=slot.offset, shape=(math.prod(slot.shape),))


def _require_same(linear: Linear, first: int, found: Array, expected: Array, what: str) -> None:
    """Compare tiles from number ``first`` on, ``[tiles, ...]``; the error names the first one that differs."""
    if np.array_equal(found, expected):
        return
    for index, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        if differing := np.count_nonzero(ours != theirs):
            raise InvalidPackage(
                "The packed weights are not the checkpoint's, so they were not published.",
                f"'{linear.name}', tile {first + index}: {differing} of {ours.size} {what} differ.",
                "Report this with the name of the checkpoint.",
            )


def _dequantised(source: TensorReader, part: Part, rows: range) -> Array:
    """Return rows of a part, in its order, float32 ``[rows, in_features]``."""
    tensor = part.tensor
    row_bytes = tensor.nbytes // tensor.shape[1]
    raw = np.empty((len(rows), row_bytes), np.uint8)
    for index, row in enumerate(rows if part.row_order is None else part.row_order[rows].tolist()):
        raw[index] = np.frombuffer(source.read(tensor, row * row_bytes, row_bytes), np.uint8)
    values: Array = dequantize(raw, GGMLQuantizationType(tensor.type_id)).reshape(len(rows), -1).astype(np.float32)
    return values
