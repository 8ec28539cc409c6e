"""The matrices of a model that a head drafts with: its embedding and its LM head."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence as Items
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from edge_rt.errors import ConfigError, InferenceError, InvalidPackage, StorageError, is_out_of_memory, out_of_memory
from edge_rt.ort.op_library import NativeLibrary
from edge_rt.package.layer_sizes import FORMAT_OF_TYPE, NESTED_TILES, stored_tensors, tiles_shape
from edge_rt.package.manifest import WEIGHTS_FILE
from edge_rt.package.op_list import TILE_ROWS
from edge_rt.package.reader import Package
from edge_rt.runtime.speculation.head_graph import HeadShape


def map_bytes(path: Path, offset: int = 0, length: int | None = None) -> npt.NDArray[Any]:
    """Map a file.

    Args:
        length: bytes that are mapped; None: up to the end.

    Returns:
        uint8 ``[length]``, read-only. Nothing is read until it is used.
    """
    try:
        return np.memmap(path, np.uint8, "r", offset, None if length is None else (length,))
    except (OSError, ValueError) as error:
        if is_out_of_memory(error):
            raise out_of_memory(error) from error
        raise StorageError(f"{path} cannot be mapped.", f"{error}.", "Check the file, and the memory.") from error


_MOST_COPIED: Final = 1 << 18  # bytes of tiles that rows are copied from at once, if 16 of them are not more


class Tiles(Protocol):
    """Tiles of a matrix: an array uint8 ``[tiles, units, bytes]``, or something that is indexed as one."""

    @property
    def shape(self) -> tuple[int, ...]:
        """``[tiles, units, bytes of a unit]``."""

    def __getitem__(self, numbers: Array, /) -> Array:
        """Return copies of the tiles of these numbers, uint8 ``[count, units, bytes]``."""


class ReducedHead:
    """Rows of an LM head, copied into tiles of their own.

    Args:
        head_ids: int32, ascending: the tokens that can always be guessed.
    """

    def __init__(
        self, shape: HeadShape, lm_head: Tiles, head_ids: Array, *, prompt_rows: int, library: NativeLibrary
    ) -> None:
        self._shape, self._lm_head, self._library = shape, lm_head, library
        self.ids = np.ascontiguousarray(head_ids, np.int32)
        self._can_be_guessed = np.zeros(shape.vocabulary, np.bool_)
        with misfits_refused():
            self._can_be_guessed[self.ids] = True
            self.tiles = self._rows(self.ids, self._empty(len(self.ids)))
            self._room = self._empty(prompt_rows)
        self.more_ids, self.more_tiles = np.zeros(0, np.int32), self._room[:0]

    def add_tokens(self, token_ids: Items[int]) -> None:
        """Take in the rows of these tokens, too, instead of those added before; the last ones if they are too many."""
        backwards = np.asarray(token_ids, np.int64)[::-1]
        distinct, first = np.unique(backwards, return_index=True)
        new = np.flatnonzero(~self._can_be_guessed[distinct])
        new = new[np.argsort(first[new])][: len(self._room) * TILE_ROWS]
        self.more_ids = np.sort(distinct[new]).astype(np.int32)
        self.more_tiles = self._rows(self.more_ids, self._room[: _tiles_of(len(self.more_ids))])

    @property
    def columns(self) -> int:
        """Logits of a row, at most."""
        return TILE_ROWS * (len(self.tiles) + len(self._room))

    @property
    def memory_bytes(self) -> int:
        """Bytes of the tiles, and of a byte for every token."""
        return self.tiles.nbytes + self._room.nbytes + len(self._can_be_guessed)

    def _empty(self, rows: int) -> Array:
        """Return zeroed tiles for so many rows."""
        size = self._library.tile_bytes(self._shape.head, self._shape.hidden)
        tiles, units, unit_bytes = self._lm_head.shape
        if size != units * unit_bytes:
            raise misfit(f"A tile of the LM head has {units * unit_bytes} bytes, {size} are described.")
        if tiles != _tiles_of(self._shape.vocabulary):
            raise misfit(f"The LM head has {tiles} tiles, a vocabulary of {self._shape.vocabulary} is described.")
        return np.zeros((_tiles_of(rows), units, unit_bytes), np.uint8)

    def _rows(self, ids: Array, tiles: Array) -> Array:
        """Copy rows of the LM head, from a few of its tiles at a time."""
        tile_bytes = math.prod(self._lm_head.shape[1:])
        step = TILE_ROWS * max(1, _MOST_COPIED // (TILE_ROWS * tile_bytes))
        for first in range(0, len(ids), step):
            part = ids[first : first + step]
            numbers, places = np.unique(part // TILE_ROWS, return_inverse=True)
            rows = (places * TILE_ROWS + part % TILE_ROWS).astype(np.int32)
            into = tiles[first // TILE_ROWS :][: _tiles_of(len(part))]
            sizes = (TILE_ROWS * len(numbers), self._shape.hidden)
            self._library.gather_rows(self._shape.head, self._lm_head[numbers], sizes, rows, into)
        return tiles


def misfit(numbers: str) -> InvalidPackage:
    """Return the error of tensors that do not fit together, given its numbers."""
    return InvalidPackage(
        "The tensors of the draft head do not fit its description or the model.",
        numbers,
        "Use a drafter that was made for this model.",
    )


@contextmanager
def misfits_refused() -> Iterator[None]:
    """Context manager: whatever does not fit together is the drafter's fault."""
    try:
        yield
    except (ConfigError, InferenceError) as error:
        raise misfit(error.numbers) from error
    except (IndexError, ValueError) as error:
        raise misfit(f"{error}.") from error


def _tiles_of(rows: int) -> int:
    return -(-rows // TILE_ROWS)


class StoredTiles:
    """Tiles of a matrix, read when they are asked for. Unlike pages of a mapping, nothing of them stays resident.

    Args:
        path: the file, which is open as long as this object lives.
        shape: ``[tiles, units, bytes of a unit]``.
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


Array = npt.NDArray[Any]


@dataclass(frozen=True)
class TargetMatrices:
    """Matrices of a native package with a row for every token, in ``weights.bin``.

    Attributes:
        embedding: tiles, uint8 ``[tiles, units, bytes]``, mapped, read-only: a step reads the row of any token.
        lm_head: its tiles; the file's, because rows are copied once, and pages of a mapping would stay resident.
    """

    embedding: Array
    lm_head: StoredTiles
    embedding_format: str
    lm_head_format: str


def target_matrices(package: Package) -> TargetMatrices:
    """Return the embedding and the LM head of a native package."""
    manifest = package.manifest
    places: dict[str, tuple[int, int]] = {}
    for graph in {manifest.segments[-1].graph, manifest.segments[0].graph}:
        places |= stored_tensors(package.file(graph), ("embedding.tiles", "head.tiles"))

    def place_of(name: str) -> tuple[int, tuple[int, int, int], str]:
        kind = manifest.quantisation.get(name, "")
        place, form = places.get(f"{name}.tiles"), FORMAT_OF_TYPE.get(kind)
        model = manifest.model
        # Rows of nested tiles cannot be copied alone.
        shape = None if form is None or form in NESTED_TILES else tiles_shape(model.vocab_size, model.hidden_size, form)
        if place is None or form is None or shape is None or place[1] != shape[0] * shape[1] * shape[2]:
            raise ConfigError(
                f"A head cannot draft with the {name} of this package.",
                f"Its type is {kind or 'not stated'}; {name}.tiles is at {place}.",
                "Choose another mode of speculation.",
            )
        return place[0], shape, form

    weights = package.file(WEIGHTS_FILE)
    offset, shape, form = place_of("embedding")
    embedding = map_bytes(weights, offset, math.prod(shape)).reshape(shape)
    if not manifest.model.is_tied:
        offset, shape, head_form = place_of("head")
        return TargetMatrices(embedding, StoredTiles(weights, offset, shape), form, head_form)
    return TargetMatrices(embedding, StoredTiles(weights, offset, shape), form, form)
