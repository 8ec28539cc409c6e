"""The matrices of a model that a head drafts with: its embedding and its LM head, where they lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from edge_rt.errors import ConfigError
from edge_rt.package.graph_tensors import stored_tensors
from edge_rt.package.manifest import WEIGHTS_FILE
from edge_rt.package.reader import Package
from edge_rt.package.tile_units import FORMAT_OF_TYPE, NESTED_TILES, tiles_shape
from edge_rt.runtime.drafters.mapped_file import map_bytes

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class TargetMatrices:
    """Matrices of a native package with a row for every token, mapped from ``weights.bin``.

    Attributes:
        embedding, lm_head: tiles, uint8 ``[tiles, units, bytes]``, read-only; the same array if they are tied.
        embedding_format, lm_head_format: names of their formats.
    """

    embedding: Array
    lm_head: Array
    embedding_format: str
    lm_head_format: str


def target_matrices(package: Package) -> TargetMatrices:
    """Map the embedding and the LM head of a native package.

    Raises:
        ConfigError: a matrix has rows of several types, is not stored as tiles, or its tiles are nested.
        StorageError: a file cannot be read or mapped.
    """
    manifest = package.manifest
    places = stored_tensors(package.file(manifest.segments[-1].graph))
    places |= stored_tensors(package.file(manifest.segments[0].graph))

    def mapped(name: str) -> tuple[Array, str]:
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
        return map_bytes(package.file(WEIGHTS_FILE), place[0], place[1]).reshape(shape), form

    embedding, form = mapped("embedding")
    if manifest.model.tied_embedding:
        return TargetMatrices(embedding, embedding, form, form)
    lm_head, head_form = mapped("head")
    return TargetMatrices(embedding, lm_head, form, head_form)
