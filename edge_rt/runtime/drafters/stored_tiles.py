"""Tiles of a matrix in a file, some of which are read."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_rt.errors import StorageError

Array = npt.NDArray[Any]


class StoredTiles:
    """Tiles of a matrix, read when they are asked for. Unlike pages of a mapping, nothing of them stays resident.

    Args:
        path: the file, which is open as long as this object lives.
        offset: its byte where the first tile begins.
        shape: ``[tiles, units, bytes of a unit]``.

    Attributes:
        shape: as given.

    Raises:
        StorageError: the file cannot be opened.
    """

    def __init__(self, path: Path, offset: int, shape: tuple[int, int, int]) -> None:
        self._path, self._offset, self.shape = path, offset, shape
        try:
            self._file = path.open("rb", buffering=0)
        except OSError as error:
            raise self._unreadable(str(error)) from error
        weakref.finalize(self, self._file.close)

    def __getitem__(self, numbers: Array) -> Array:
        """Return copies of some tiles, as an array of all tiles would.

        Args:
            numbers: ints ``[count]``.

        Returns:
            uint8 ``[count, units, bytes of a unit]``.

        Raises:
            IndexError: there is no such tile.
            StorageError: the file cannot be read, or is shorter.
        """
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < self.shape[0]:
            raise IndexError(f"tiles {numbers.min()} to {numbers.max()} of {self.shape[0]}")
        tiles = np.empty((len(numbers), *self.shape[1:]), np.uint8)
        for tile, number in zip(tiles, numbers.tolist(), strict=True):
            self._read(tile, self._offset + number * tile.nbytes)
        return tiles

    def _read(self, tile: Array, begin: int) -> None:
        room = tile.data.cast("B")
        try:
            self._file.seek(begin)
            count = self._file.readinto(room)
        except OSError as error:
            raise self._unreadable(str(error)) from error
        if count != len(room):
            raise self._unreadable(f"It has {count} of {len(room)} bytes from {begin} on")

    def _unreadable(self, why: str) -> StorageError:
        return StorageError(f"{self._path} cannot be read.", f"{why}.", "Check the file, or export the package again.")
