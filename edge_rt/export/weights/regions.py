"""Stretches of a packed matrix in ``weights.bin``, and writing and reading their tiles.

The first halves of all nested codes lie before all finer ones: such tiles are in two places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edge_rt.export.weights.blocks import Array
from edge_rt.export.weights.tile_formats import TileFormat
from edge_rt.export.weights.weights_file import Slot, WeightsFile, WeightsLayout


@dataclass(frozen=True)
class Region:
    """Tiles of one format that follow each other.

    Attributes:
        begin: byte of the matrix where they begin.
        tiles: their number.
        units: of a tile.
        form: their format.
    """

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
    """Writes the regions of a matrix, the tiles of each from the first to the last.

    Args:
        slot: the matrix.
        regions: of it.
        layout: gets the places as parts of the slot, so that what was written can be verified.
        out: the open file.
    """

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
