"""The tensors of a trained head or of adapters of exits: which there are, and where they may be in ``weights.bin``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from edge_rt.package.documents import Refusal
from edge_rt.package.drafter import DraftTensor, HeadInfo
from edge_rt.package.layer_sizes import NESTED_TILES, TILE_ROWS, TILE_UNITS, tiles_shape

VOCABULARY: Final = "vocabulary"
"""The tensor with the ids of the tokens that a head can guess."""
ITEM_BYTES: Final[Mapping[str, int]] = {"uint8": 1, "int32": 4, "float32": 4}
MAX_BLOCKS: Final = 4
MATRICES: Final = ("fc", "gate_up", "down")
OWN_HEAD: Final = "head"
"""The matrix that a head may have of its own, instead of rows of the model's."""
_ALIGNMENT: Final = 64
_PAGE, _LARGE = 4096, 1 << 16
_NORMS: Final = ("state_norm", "token_norm", "output_norm")

Wanted = dict[str, tuple[str, tuple[int, ...]]]


def exit_prefix(layer: int) -> str:
    """Return what the names of the tensors of an exit's adapter begin with."""
    return f"exit{layer}."


def head_tensors(head: HeadInfo, hidden_size: int, exits: Sequence[int] = ()) -> Wanted:
    """Return name -> type and shape of the tensors of a drafter, in their order in the file.

    Args:
        exits: layers before the exits that have an adapter each; none for a head.
    """
    formats, wide = head.formats, head.intermediate_size
    if not {*MATRICES} <= set(formats) <= {*MATRICES, OWN_HEAD}:
        raise ValueError(f"formats are of {', '.join(sorted(formats))!s:.100}")
    if unknown := sorted(set(formats.values()) - (TILE_UNITS.keys() - NESTED_TILES)):
        raise ValueError(f"there is no format {unknown[0]!r:.40}")
    if not 1 <= head.blocks <= MAX_BLOCKS:
        raise ValueError(f"it has {head.blocks} blocks, 1 to {MAX_BLOCKS} are allowed")
    if wide < TILE_ROWS or wide % TILE_ROWS:
        raise ValueError(f"the intermediate size {wide} is no multiple of {TILE_ROWS}")
    matrices: dict[str, tuple[int, ...]] = {}
    norms: list[str] = []
    for prefix in map(exit_prefix, exits) if exits else ("",):
        matrices[f"{prefix}fc.tiles"] = tiles_shape(hidden_size, 2 * hidden_size, formats["fc"])
        norms += (f"{prefix}{name}" for name in _NORMS)
        for block in range(head.blocks):
            norms.append(f"{prefix}block{block}.norm")
            matrices[f"{prefix}block{block}.gate_up.tiles"] = tiles_shape(2 * wide, hidden_size, formats["gate_up"])
            matrices[f"{prefix}block{block}.down.tiles"] = tiles_shape(hidden_size, wide, formats["down"])
    if OWN_HEAD in formats:
        matrices[f"{OWN_HEAD}.tiles"] = tiles_shape(head.vocabulary_size, hidden_size, formats[OWN_HEAD])
    return {
        **{name: ("uint8", shape) for name, shape in matrices.items()},
        **dict.fromkeys(norms, ("float32", (hidden_size,))),
        VOCABULARY: ("int32", (head.vocabulary_size,)),
    }


def tensor_bytes(dtype: str, shape: Iterable[int]) -> int:
    """Return the bytes of a tensor."""
    return ITEM_BYTES[dtype] * math.prod(shape)


def placed(wanted: Wanted) -> tuple[dict[str, DraftTensor], int]:
    """Return the places of tensors in a file, in their order, and the size of the file."""
    places, end = {}, 0
    for name, (dtype, shape) in wanted.items():
        length = tensor_bytes(dtype, shape)
        alignment = _PAGE if length >= _LARGE else _ALIGNMENT
        offset = -(-end // alignment) * alignment
        places[name] = DraftTensor(offset, length, dtype, shape)
        end = offset + length
    return places, end


def check_tensors(tensors: Mapping[str, DraftTensor], wanted: Wanted, size: int, refuse: Refusal) -> None:
    """Refuse tensors that are not those of a head, or not inside the file.

    Args:
        size: bytes of the file.
    """
    if set(tensors) != set(wanted):
        missing, unknown = sorted(set(wanted) - set(tensors)), sorted(set(tensors) - set(wanted))
        raise refuse("the drafter has the wrong tensors.", f"Missing: {_names(missing)}; unknown: {_names(unknown)}.")
    for name, (dtype, shape) in wanted.items():
        found = tensors[name]
        if (found.dtype, found.shape) != (dtype, shape):
            numbers = f"Found {found.dtype!r:.20} {list(found.shape)!s:.60}, wanted {dtype!r} {list(shape)}."
            raise refuse(f"the tensor '{name}' has the wrong type or shape.", numbers)
        if found.length != tensor_bytes(dtype, shape):
            numbers = f"Found {found.length!s:.40} bytes, its shape has {tensor_bytes(dtype, shape)}."
            raise refuse(f"the tensor '{name}' has the wrong length.", numbers)
        if found.offset % _ALIGNMENT or not 0 <= found.offset <= size - found.length:
            numbers = f"Offset {found.offset!s:.40}, length {found.length}; the file has {size} bytes."
            raise refuse(
                f"the tensor '{name}' lies outside the file, or is not aligned to {_ALIGNMENT} bytes.", numbers
            )
    end, before = 0, ""
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].offset):
        if tensor.offset < end:
            numbers = f"One begins at {tensor.offset}, the other ends at {end}."
            raise refuse(f"the tensors '{before}' and '{name}' overlap.", numbers)
        end, before = tensor.offset + tensor.length, name


def _names(found: list[str]) -> str:
    return f"{', '.join(found):.100}" or "none"
