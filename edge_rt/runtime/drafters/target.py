"""The matrices of a model that a head drafts with: its embedding and its LM head."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from edge_rt.errors import ConfigError
from edge_rt.package.graph_tensors import stored_tensors
from edge_rt.package.manifest import WEIGHTS_FILE
from edge_rt.package.reader import Package
from edge_rt.package.tile_units import FORMAT_OF_TYPE, NESTED_TILES, tiles_shape
from edge_rt.runtime.drafters.mapped_file import map_bytes
from edge_rt.runtime.drafters.stored_tiles import StoredTiles

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class TargetMatrices:
    """Matrices of a native package with a row for every token, in ``weights.bin``.

    Attributes:
        embedding: tiles, uint8 ``[tiles, units, bytes]``, mapped, read-only: a step reads the row of any token.
        lm_head: its tiles; the file's, because rows are copied once, and pages of a mapping would stay resident.
        embedding_format, lm_head_format: names of their formats.
    """

    embedding: Array
    lm_head: StoredTiles
    embedding_format: str
    lm_head_format: str


def target_matrices(package: Package) -> TargetMatrices:
    """Return the embedding and the LM head of a native package.

    Raises:
        ConfigError: a matrix has rows of several types, is not stored as tiles, or its tiles are nested.
        StorageError: a file cannot be read or mapped.
    """
    manifest = package.manifest
    places = stored_tensors(package.file(manifest.segments[-1].graph))
    places |= stored_tensors(package.file(manifest.segments[0].graph))

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
    if not manifest.model.tied_embedding:
        offset, shape, head_form = place_of("head")
        return TargetMatrices(embedding, StoredTiles(weights, offset, shape), form, head_form)
    return TargetMatrices(embedding, StoredTiles(weights, offset, shape), form, form)
