"""A GGUF checkpoint as a source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from edge_rt.export.sources.gguf_tokenizer import build_tokenizer
from edge_rt.export.sources.gguf_types import GGUFHeader, TensorInfo
from edge_rt.export.sources.sampling_advice import read_advice
from edge_rt.export.sources.source import Source


def gguf_source(header: GGUFHeader, tensors: Mapping[str, TensorInfo], *, has_halves: bool) -> Source:
    """Return the checkpoint that a header describes.

    Args:
        header: of the file.
        tensors: of the file; fused ones are apart.
        has_halves: as in ``Source``.

    Raises:
        InvalidModelFile: the licence is no text.
    """
    return Source(
        kind="gguf",
        path=header.path,
        paths=header.paths,
        size=header.file_size,
        tensors=tensors,
        has_halves=has_halves,
        license=cast("str | None", header.get_str("general.license", default=None)),
        build_tokenizer=lambda rows: build_tokenizer(header.metadata, rows),
        read_advice=lambda: read_advice(header),
    )
