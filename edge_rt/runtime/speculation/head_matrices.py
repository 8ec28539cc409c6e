"""The matrices of a model that a head drafts with: its embedding and its LM head."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence as Items
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.errors import ConfigError, InferenceError, InvalidPackage
from edge_rt.ort.mapped_weights import MappedWeights
from edge_rt.ort.op_library import NativeLibrary
from edge_rt.package.graph_check import StoredTensor
from edge_rt.package.layer_sizes import FORMAT_OF_TYPE, NESTED_TILES, tiles_shape
from edge_rt.package.op_list import TILE_ROWS
from edge_rt.package.reader import Package
from edge_rt.runtime.speculation.head_graph import HeadShape

_MOST_COPIED: Final = 1 << 18  # bytes of tiles that rows are copied from before these are given back, or 16 of them


class ReducedHead:
    """Rows of an LM head, copied into tiles of their own.

    Args:
        lm_head: tiles, uint8 ``[tiles, units, bytes]``.
        head_ids: int32, ascending: the tokens that can always be guessed.
        give_back: called whenever some rows were copied, so that no more of the LM head stays resident.
    """

    def __init__(
        self,
        shape: HeadShape,
        lm_head: Array,
        head_ids: Array,
        *,
        prompt_rows: int,
        library: NativeLibrary,
        give_back: Callable[[], None] | None = None,
    ) -> None:
        self._shape, self._lm_head, self._library, self._give_back = shape, lm_head, library, give_back
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
        """Copy rows of the LM head, a few at a time if its pages are given back."""
        tile_bytes = math.prod(self._lm_head.shape[1:])
        few = TILE_ROWS * max(1, _MOST_COPIED // (TILE_ROWS * tile_bytes))
        step = max(1, len(ids)) if self._give_back is None else few
        for first in range(0, len(ids), step):
            part = ids[first : first + step]
            into = tiles[first // TILE_ROWS :][: _tiles_of(len(part))]
            sizes = (self._shape.vocabulary, self._shape.hidden)
            self._library.gather_rows(self._shape.head, self._lm_head, sizes, part, into)
            if self._give_back is not None:
                self._give_back()
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


Array = npt.NDArray[Any]


@dataclass(frozen=True)
class TargetMatrices:
    """Matrices of a native package with a row for every token, in ``weights.bin``.

    Attributes:
        embedding, lm_head: tiles, uint8 ``[tiles, units, bytes]``, read-only; the same array if they are tied.
        give_back: lets pages of the LM head be resident no longer; None: they are anyway, because passes read them.
    """

    embedding: Array
    lm_head: Array
    embedding_format: str
    lm_head_format: str
    give_back: Callable[[], None] | None


def target_matrices(package: Package, weights: MappedWeights, *, is_resident: bool) -> TargetMatrices:
    """Return the embedding and the LM head of a native package.

    Args:
        is_resident: whether passes read them in this process.
    """
    manifest = package.manifest
    places = {**package.tensors[manifest.segments[-1].graph], **package.tensors[manifest.segments[0].graph]}

    def matrix(name: str) -> tuple[StoredTensor, Array, str]:
        kind = manifest.quantisation.get(name, "")
        place, form = places.get(f"{name}.tiles"), FORMAT_OF_TYPE.get(kind)
        model = manifest.model
        # Rows of nested tiles cannot be copied alone.
        shape = None if form is None or form in NESTED_TILES else tiles_shape(model.vocab_size, model.hidden_size, form)
        if place is None or form is None or shape is None or place.length != math.prod(shape):
            raise ConfigError(
                f"A head cannot draft with the {name} of this package.",
                f"Its type is {kind or 'not stated'}; {name}.tiles is at {place}.",
                "Choose another mode of speculation.",
            )
        return place, weights.array(place.offset, place.length, np.uint8, shape), form

    _, embedding, embedding_format = matrix("embedding")
    place, lm_head, lm_head_format = matrix("embedding" if manifest.model.is_tied else "head")
    give_back = None if is_resident else partial(weights.file.give_back, place.offset, place.length)
    return TargetMatrices(embedding, lm_head, embedding_format, lm_head_format, give_back)
