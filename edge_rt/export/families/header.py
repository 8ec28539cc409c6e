"""A GGUF header as a described decoder with its tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from edge_rt.errors import InvalidModelFile
from edge_rt.export.decoder.tensors import (
    ahead_shapes,
    check_tensors,
    expected_shapes,
    held_by,
    name_in_layer,
    split_fused,
    unread_tensors,
)
from edge_rt.export.families.family import Family
from edge_rt.export.families.header_reader import HeaderReader
from edge_rt.export.families.registry import family_of_header
from edge_rt.export.sources.gguf_types import FETCH_AGAIN, GGUFHeader, TensorInfo
from edge_rt.package.ahead import with_block
from edge_rt.package.decoder import Decoder

_FLAT: Final = (".ssm_a.weight", ".ssm_d.weight", ".ssm_norm.weight", ".ffn_gate_inp_shexp.weight")
_PARTS: Final = re.compile(r"((?:blk\.\d+\.)?)(.*?)((?:\.(?:weight|bias))?)", re.DOTALL)
"""A layer, a module, and what of it a tensor is."""


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
    expected = expected_shapes(decoder)
    skipped, described = [f"blk.{decoder.num_layers + number}." for number in range(reader.num_blocks_ahead)], decoder
    if family.ahead is not None and len(skipped) == 1:
        layer = family.ahead(decoder)
        shapes, experts = ahead_shapes(decoder, layer), 0 if layer.experts is None else layer.experts.count
        names = [_our_name(name, family, decoder) for name in header.tensors if name.startswith(skipped[0])]
        # One with an embedding or a head of its own has more of them.
        if sorted(one for name in names for one in held_by(name, experts)) == sorted(shapes):
            skipped, expected, described = [], expected | shapes, with_block(decoder, layer)
    stored = {}
    for name, one in _joined(header).items():
        # str.startswith of no beginnings is false.
        if not name.startswith((*family.skipped_tensors, *skipped)):
            ours = _our_name(name, family, decoder)
            # A file that has both names keeps a surplus tensor.
            ours = name if ours in header.tensors else ours
            # Some vectors have a second axis in files.
            shape = (one.elements,) if ours.endswith(_FLAT) else one.shape
            stored[ours] = replace(one, name=ours, shape=shape)
    tensors = split_fused(header.path.name, stored, described)
    check_tensors(header, tensors, decoder, expected)
    unread = unread_tensors(decoder)
    return family, decoder, {name: one for name, one in tensors.items() if name not in unread}


def _joined(header: GGUFHeader) -> Mapping[str, TensorInfo]:
    """Return a file's tensors, of which some have their scales in others."""
    if all(tensor.type_name != "NVFP4" for tensor in header.tensors.values()):
        return header.tensors
    # Headers of other files are read without numpy.
    from edge_rt.export.sources.float4 import join_scales

    return join_scales(header.path.name, header.tensors)


def _our_name(name: str, family: Family, decoder: Decoder) -> str:
    """Return the name of a tensor as other families have it."""
    parts = _PARTS.fullmatch(name)
    assert parts is not None
    layer, module, suffix = parts.groups()
    ours = family.header_names.get(module, module)
    if layer and (number := int(layer.split(".")[1])) < decoder.num_layers:
        ours = name_in_layer(ours, decoder.layers[number])
    # Some files leave out the end of some names.
    return f"{layer}{ours}" if ours.endswith(".weight") and suffix == ".weight" else f"{layer}{ours}{suffix}"
