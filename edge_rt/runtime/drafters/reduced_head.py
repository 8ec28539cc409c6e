"""The rows of a model's LM head that a drafter guesses with: its vocabulary, and the tokens of a prompt."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence as Items
from contextlib import contextmanager
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from edge_rt.errors import ConfigError, InferenceError, InvalidPackage
from edge_rt.op_list import TILE_ROWS
from edge_rt.ops import NativeLibrary
from edge_rt.runtime.drafters.head_graph import HeadShape

Array = npt.NDArray[Any]


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
        shape: sizes, and the head's format.
        lm_head: the target's LM head.
        head_ids: int32, ascending: the tokens that can always be guessed.
        prompt_rows: most distinct tokens that ``add_tokens`` adds.
        library: library of edge-rt's operators.

    Attributes:
        ids, tiles: of the tokens that can always be guessed.
        more_ids, more_tiles: of those added.

    Raises:
        InvalidPackage: a tensor does not fit the shape, or a token id the vocabulary.
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
