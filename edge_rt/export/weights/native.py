"""Matrices in tiles of 16 rows ("tile16"): their positions in the file, writing them, and checking them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from edge_rt.errors import InvalidPackage
from edge_rt.export.sources.compound import CompoundTensor, MatrixValues
from edge_rt.export.sources.gguf_types import TensorInfo
from edge_rt.export.sources.model_file import TensorReader
from edge_rt.export.weights.blocks import Array, piece_rows
from edge_rt.export.weights.linear import Linear, Part, stack as stack_of_one_type
from edge_rt.export.weights.matrices import CheckpointMatrices, is_rounded
from edge_rt.export.weights.rows import RowReader
from edge_rt.export.weights.tile_formats import TILE_ROWS, TileFormat, tile_format
from edge_rt.export.weights.tiles import pack_rows, tile_count, unit_count, unpack_rows
from edge_rt.export.weights.weights_file import Slot, WeightsFile, WeightsLayout


@dataclass(frozen=True)
class Region:
    """Tiles of one format that follow each other."""

    begin: int
    tiles: int
    units: int
    form: TileFormat

    @property
    def nbytes(self) -> int:
        """Bytes of the region."""
        return self.tiles * self.units * self.form.unit_bytes

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of a unit at each place: all of it, or what lies before the finer codes, and these."""
        finer = self.form.finer_bytes
        return (self.form.unit_bytes - finer, finer) if finer else (self.form.unit_bytes,)

    def places(self) -> Iterator[tuple[int, int]]:
        """Yield the byte of the matrix where each place begins, and the bytes of a tile there."""
        begin = self.begin
        for size in self.sizes:
            yield begin, self.units * size
            begin += self.tiles * self.units * size

    def read(self, weights: Path, matrix: int, tile: int, tiles: int = 1) -> Array:
        """Return tiles, uint8 ``[tiles, units, unit_bytes]``; the matrix begins at that byte of the file."""
        parts = [
            np.memmap(weights, np.uint8, "r", offset=matrix + begin + tile * size, shape=(tiles, self.units, unit))
            for (begin, size), unit in zip(self.places(), self.sizes, strict=True)
        ]
        return np.concatenate(parts, axis=2)


class RegionWriter:
    """Writes the regions of a matrix, the tiles of each from the first to the last."""

    def __init__(self, slot: Slot, regions: Sequence[Region], layout: WeightsLayout, out: WeightsFile) -> None:
        self._out = out
        self._regions = regions
        self._places = [
            [
                layout.add_part(slot, f"{number}.{place}", begin, region.tiles * size)
                for place, (begin, size) in enumerate(region.places())
            ]
            for number, region in enumerate(regions)
        ]
        self._at = [[0] * len(places) for places in self._places]

    def write(self, number: int, tiles: Array) -> None:
        """Write the next tiles of a region, uint8 ``[tiles, units, unit_bytes]``."""
        begin = 0
        for place, size in enumerate(self._regions[number].sizes):
            piece = np.ascontiguousarray(tiles[:, :, begin : begin + size]).reshape(-1)
            self._out.write(self._places[number][place], self._at[number][place], piece)
            self._at[number][place] += len(piece)
            begin += size


CHECKED_TILES: Final = 4
"""Tiles per matrix whose values are compared, evenly spread, in addition to those at the ends of pieces."""


def tiles_of(linear: Linear) -> str:
    """Return the name of the tensor of tiles."""
    return f"{linear.name}.tiles"


def stack(name: str, parts: Sequence[Part]) -> tuple[Linear, ...]:
    """Return one matrix of parts, each in its own format; several for floats, or where a part ends within a tile."""
    if _may_be_mixed(parts) and all(_ends_with_tile(part) for part in parts[:-1]):
        return (Linear(name, tuple(parts)),)
    return stack_of_one_type(name, parts, ends=lambda part: not _ends_with_tile(part))


def _ends_with_tile(part: Part) -> bool:
    return part.tensor.shape[1] % TILE_ROWS == 0


def gate_up(name: str, gate: Part, up: Part) -> tuple[Linear, ...]:
    """Return gate and up as one matrix with alternating tiles; as two if that cannot be."""
    if _ends_with_tile(gate) and _may_be_mixed((gate, up)):
        return (Linear(name, (gate, up), interleaved=True),)
    return (Linear(f"{name}.gate", (gate,)), Linear(f"{name}.up", (up,)))


def _may_be_mixed(parts: Sequence[Part]) -> bool:
    """Return whether parts can be one matrix: of one type, or all of codes, whose inputs are rounded alike."""
    types = {part.type_name for part in parts}
    return len(types) == 1 or not any(tile_format(name).is_float for name in types)


def place(linear: Linear, layout: WeightsLayout) -> None:
    """Add a matrix to the layout."""
    assert all(_ends_with_tile(part) for part in linear.parts[:-1]), linear.name
    shapes = [_part_shape(part) for part in linear.parts]
    if linear.is_mixed:
        layout.add(tiles_of(linear), np.uint8, (sum(math.prod(shape) for shape in shapes),))
    else:
        _, units, unit_bytes = shapes[0]
        layout.add(tiles_of(linear), np.uint8, (tile_count(linear.out_features), units, unit_bytes))


def _part_shape(part: Part) -> tuple[int, int, int]:
    """Return tiles, units of a row, and bytes of a unit."""
    inputs, rows = part.tensor.shape
    form = tile_format(part.type_name)
    return tile_count(rows), unit_count(inputs, form), form.unit_bytes


def tile_bytes(tensor: TensorInfo, type_name: str) -> int:
    """Return the bytes of a matrix in the tiles of a type."""
    return math.prod(_part_shape(Part(tensor, None, type_name)))


def key_constant_names(layer: int) -> tuple[str, str, str]:
    """Return the names of a layer's constants of 4-bit keys, in the order in which operators take them."""
    return f"layer{layer}.key_centre", f"layer{layer}.key_balance", f"layer{layer}.key_feedback"


def place_key_constants(layout: WeightsLayout, layer: int, kv_heads: int, head_dim: int) -> None:
    """Add a layer's constants of 4-bit keys to the layout; see ``edge_rt.export.calibration.key_constants``."""
    centre, balance, feedback = key_constant_names(layer)
    layout.add(centre, np.float32, (kv_heads, head_dim))
    layout.add(balance, np.float32, (kv_heads, head_dim))
    layout.add(feedback, np.float32, (kv_heads, head_dim, head_dim))


def fill(
    linear: Linear, source: RowReader, layout: WeightsLayout, out: WeightsFile, on_bytes: Callable[[int], None]
) -> None:
    """Read the parts of a matrix, pack them and write them to their slot."""
    slot, at, regions = layout.slots[tiles_of(linear)], 0, _regions(linear)
    nested = None
    if any(region.form.finer_bytes for region in regions):
        nested = RegionWriter(slot, regions, layout, out)
    for number, tiles, read in _packed(source, linear):
        if nested is not None:
            nested.write(number, tiles)
        else:
            piece = tiles.reshape(-1) if linear.is_mixed else tiles
            out.write(slot, at, piece)
            at += len(piece)
        on_bytes(read)


def _packed(source: RowReader, linear: Linear) -> Iterator[tuple[int, Array, int]]:
    """Yield the number of a region, its next tiles, and the bytes that were read for them."""
    if linear.alternates:
        for parts in zip(linear.parts[::2], linear.parts[1::2], strict=True):
            for pieces in zip(*(source.rows(part, multiple=TILE_ROWS) for part in parts), strict=True):
                pair = [pack_rows(found, linear.form) for found, _ in pieces]
                yield 0, np.stack(pair, axis=1).reshape(-1, *pair[0].shape[1:]), sum(read for _, read in pieces)
        return
    for number, part in enumerate(linear.parts):
        for found, read in source.rows(part, multiple=TILE_ROWS):
            yield number if linear.is_mixed else 0, pack_rows(found, tile_format(part.type_name)), read


def _regions(linear: Linear) -> list[Region]:
    """Return the stretches of a matrix: one, or one for each part if these have formats of their own."""
    shapes = [_part_shape(part) for part in linear.parts]
    if not linear.is_mixed:
        tiles = sum(shape[0] for shape in shapes)
        return [Region(0, tiles, shapes[0][1], linear.form)]
    found: list[Region] = []
    for part, (tiles, units, _) in zip(linear.parts, shapes, strict=True):
        begin = found[-1].begin + found[-1].nbytes if found else 0
        found.append(Region(begin, tiles, units, tile_format(part.type_name)))
    return found


def verify(linear: Linear, source: TensorReader, layout: WeightsLayout, weights: Path) -> None:
    """Compare values in ``weights.bin`` with the checkpoint: tiles at the ends of what is packed at once, and more."""
    verify_values(linear, source, layout, weights, _checked_tiles(linear))


def _checked_tiles(linear: Linear) -> list[int]:
    count = sum(_part_shape(part)[0] for part in linear.parts)
    tiles = {*np.linspace(0, count - 1, CHECKED_TILES).astype(np.int64).tolist()}
    first = 0
    for number, part in enumerate(linear.parts):
        own = _part_shape(part)[0]
        step = own if part.row_order is not None else piece_rows(part.tensor, multiple=TILE_ROWS) // TILE_ROWS
        for begin in range(0, own, step):
            last = min(begin + step, own) - 1
            if linear.alternates:
                tiles |= {2 * begin + first, 2 * last + first}
            else:
                tiles |= {first + begin, first + last}
        if not linear.alternates:
            first += own
        else:
            first += 2 * own - 1 if number % 2 else 1
    return sorted(tiles)


@dataclass(frozen=True)
class StoredTiles:
    """Matrices that were written."""

    weights: Path
    layout: WeightsLayout

    def tile(self, linear: Linear, number: int) -> tuple[Part, int, Array]:
        """Return the part that a tile of a matrix belongs to, its number there, and its values, ``[16, inputs]``."""
        part, own, region, at = _find_tile(linear, number)
        return part, own, self._values(linear, region, at)

    def rows(self, linear: Linear, part: Part, numbers: Sequence[int]) -> Array:
        """Return rows of a part, in the package's order, float32 ``[len(numbers), inputs]``."""
        region, first, step = _tiles_of_part(linear, part)
        found = np.empty((len(numbers), part.tensor.shape[0]), np.float32)
        tiles = np.asarray(numbers) // TILE_ROWS
        for tile in np.unique(tiles).tolist():
            values = self._values(linear, region, first + tile * step)
            taken = np.flatnonzero(tiles == tile)
            found[taken] = values[np.asarray(numbers)[taken] % TILE_ROWS, : found.shape[1]]
        return found

    def _values(self, linear: Linear, region: Region, tile: int) -> Array:
        slot = self.layout.slots[tiles_of(linear)]
        return unpack_rows(region.read(self.weights, slot.offset, tile), region.form)


def verify_values(
    linear: Linear, source: TensorReader, layout: WeightsLayout, weights: Path, tiles: Sequence[int]
) -> None:
    """Compare the values of tiles with the dequantised ones of the checkpoint: finds faults in packing."""
    stored = StoredTiles(weights, layout)
    tensors = [part.tensor for part in linear.parts]
    matrices = {tensor.name: tensor.open(source) for tensor in tensors if isinstance(tensor, CompoundTensor)}
    for tile in tiles:
        part, number, found = stored.tile(linear, tile)
        expected = np.zeros_like(found)
        rows = range(number * TILE_ROWS, min((number + 1) * TILE_ROWS, part.tensor.shape[1]))
        values = _dequantised(source, part, rows, matrices.get(part.tensor.name))
        expected[: len(values), : values.shape[1]] = values
        wrong = int(np.count_nonzero(found != expected))
        if part.quantised_to is not None and is_rounded(found, expected):
            wrong = 0
        if wrong:
            raise InvalidPackage(
                "The packed weights are not the checkpoint's, so they were not published.",
                f"'{linear.name}', tile {tile}: {wrong} of {found.size} values differ.",
                "Report this with the name of the checkpoint.",
            )


def _find_tile(linear: Linear, tile: int) -> tuple[Part, int, Region, int]:
    """Return the part that a tile of the matrix belongs to and its number there, its region and its number there."""
    if linear.alternates:
        own = _part_shape(linear.parts[0])[0]
        pair, rest = divmod(tile, 2 * own)
        return linear.parts[2 * pair + rest % 2], rest // 2, _regions(linear)[0], tile
    rest = tile
    for part in linear.parts:
        tiles = _part_shape(part)[0]
        if rest < tiles:
            region, first, _ = _tiles_of_part(linear, part)
            return part, rest, region, first + rest
        rest -= tiles
    raise IndexError(tile)


def _tiles_of_part(linear: Linear, part: Part) -> tuple[Region, int, int]:
    """Return the region of a part, its first tile there, and how many tiles further its next one lies."""
    regions = _regions(linear)
    at = next(index for index, other in enumerate(linear.parts) if other is part)
    if linear.alternates:
        return regions[0], at // 2 * 2 * _part_shape(part)[0] + at % 2, 2
    if linear.is_mixed:
        return regions[at], 0, 1
    return regions[0], sum(_part_shape(other)[0] for other in linear.parts[:at]), 1


def _dequantised(source: TensorReader, part: Part, rows: range, matrix: MatrixValues | None) -> Array:
    """Return rows of a part, in its order, float32 ``[rows, in_features]``; from the open matrix, if there is one."""
    tensor = part.tensor
    if matrix is not None:
        return matrix.values(np.asarray(rows) if part.row_order is None else part.row_order[rows])
    numbers = rows if part.row_order is None else part.row_order[rows].tolist()
    return CheckpointMatrices(source, {tensor.name: tensor}).rows(tensor.name, numbers)
