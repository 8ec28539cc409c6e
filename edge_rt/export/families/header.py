"""A GGUF header as a described decoder with its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from edge_rt.errors import InvalidModelFile
from edge_rt.export.decoder.tensors import check_tensors, split_fused
from edge_rt.export.families.family import Family
from edge_rt.export.families.header_reader import HeaderReader
from edge_rt.export.families.registry import family_of_header
from edge_rt.export.sources.gguf_types import FETCH_AGAIN, GGUFHeader, TensorInfo
from edge_rt.package.decoder import Decoder


def read_header_decoder(header: GGUFHeader) -> tuple[Family, Decoder, Mapping[str, TensorInfo]]:
    """Read the description of a GGUF file's model, and check that every tensor is present in the right shape."""
    architecture = header.get_str("general.architecture")
    family = family_of_header(header.path.name, architecture)
    reader = HeaderReader(header, architecture)
    decoder = family.from_header(reader)
    reader.refuse_variants(family.skipped_keys)
    try:
        decoder.check()
    except ValueError as error:
        raise InvalidModelFile(
            f"{header.path.name}: its numbers contradict each other.", f"{error}.", FETCH_AGAIN
        ) from error
    # str.startswith of no beginnings is false.
    # A file that has both names keeps a surplus tensor.
    names = {theirs: ours for theirs, ours in family.header_names.items() if ours not in header.tensors}
    stored = {
        names.get(name, name): replace(one, name=names.get(name, name))
        for name, one in header.tensors.items()
        if not name.startswith(family.skipped_tensors)
    }
    tensors = split_fused(header.path.name, stored, decoder)
    check_tensors(header, tensors, decoder)
    return family, decoder, tensors
