"""What each layer of a native package takes, so that its layers can be divided between the CPU and a GPU.

A graph is divided before the first node of a layer, as edge-rt's provider for GPUs divides it
(``leave_early_layers`` in ``csrc/gpu/provider_session.cc``): the nodes before that are the CPU's, all others the GPU's.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise, takewhile
from pathlib import Path
from typing import Final

from edge_rt.errors import StorageError
from edge_rt.package.graph_check import fields
from edge_rt.package.reader import Package

_GRAPH: Final = 7  # of ModelProto
_NODE: Final = 1  # of GraphProto
_INPUT, _NODE_NAME = 1, 3  # of NodeProto


def nodes_in_order(graph: Path) -> list[tuple[str, list[str]]]:
    """Return every node's name and the names of its inputs, in the order of the file, which is one to run them in."""
    data = graph.read_bytes()
    found = []
    for _, start, end in _of(data, 0, len(data), _GRAPH):
        for _, first, last in _of(data, start, end, _NODE):
            inputs = [_text(data, [place]) for place in _of(data, first, last, _INPUT)]
            found.append((_text(data, _of(data, first, last, _NODE_NAME)[-1:]), inputs))
    return found


def _text(data: bytes, places: list[tuple[int, int, int]]) -> str:
    return b"".join(data[first:last] for _, first, last in places).decode()


def _of(data: bytes, start: int, end: int, number: int) -> list[tuple[int, int, int]]:
    return [field for field in fields(data, start, end) if field[0] == number]


_LAYER: Final = re.compile(r"layer([0-9]+)")
_ROTATION: Final = re.compile(r"rope[0-9]*\.(cos|sin)")


def is_rotation(name: str) -> bool:
    """Return whether a tensor is a table of rotations, of which a context needs the rows of its positions."""
    return _ROTATION.fullmatch(name) is not None


@dataclass(frozen=True)
class LayerSizes:
    """Bytes on both sides of a division before layer 0, 1, ... and before the end: an entry more than there are layers.

    Attributes:
        before: bytes of ``weights.bin`` that nodes before the division read.
        behind: bytes that the other nodes read. What both read, as an embedding that is the head, counts on both sides.
        rotations_before: of the bytes before, those of tables of rotations, of which a context needs a part.
        tensors_before: how many tensors these nodes read.
        copied_again: of packages with exits, bytes of what nodes on both sides of the graph that is divided read, and
            later graphs as well: on a GPU they lie twice.
        first_layers: of every graph of layers, the first one.
    """

    before: tuple[int, ...]
    behind: tuple[int, ...]
    rotations_before: tuple[int, ...]
    tensors_before: tuple[int, ...]
    copied_again: tuple[int, ...] = ()
    first_layers: tuple[int, ...] = (0,)


def layer_sizes(package: Package) -> LayerSizes | None:
    """Return the sizes of a package's layers; None if they cannot be divided.

    Those of native packages can be, if nodes are named after layers; before which layers ``Decoder.divisions`` says.
    """
    manifest, decoder = package.manifest, package.manifest.decoder
    if manifest.op_profile != "native" or decoder is None:
        return None
    graphs = [segment.graph for segment in manifest.segments]
    tensors = {name: place.length for graph in graphs for name, place in package.tensors[graph].items()}
    nodes: list[tuple[str, list[str]]] = []
    try:
        for segment in manifest.segments:
            own = nodes_in_order(package.file(segment.graph))
            # What a further graph begins with is computed where its first layer is.
            leading = len(list(takewhile(lambda node: layer_of(node[0]) < 0, own))) if segment.first_layer else 0
            nodes += [(f"layer{segment.first_layer}", read) for _, read in own[:leading]] + own[leading:]
    except OSError as error:
        raise StorageError(
            "A graph of the package cannot be read.", f"{error}.", "Check the package's folder."
        ) from error
    parts = parts_of(nodes, decoder.num_layers)
    if parts is None:
        return None
    rotations = {name: size for name, size in tensors.items() if is_rotation(name)}
    from_the_end = _sums(parts[:0:-1], tensors)
    counts = _sums(parts, dict.fromkeys(tensors, 1))
    starts = tuple(segment.first_layer for segment in manifest.segments)
    again = _copied_again(parts, starts, tensors) if len(graphs) > 1 else ()
    return LayerSizes(_sums(parts, tensors), (*from_the_end[::-1], 0), _sums(parts, rotations), counts, again, starts)


def _copied_again(parts: Sequence[set[str]], starts: Sequence[int], tensors: Mapping[str, int]) -> tuple[int, ...]:
    """Return for every division the bytes of what both sides of its graph read, and graphs behind it as well."""
    found, nothing = [0] * (len(parts)), set[str]()
    for first, end in pairwise(starts):
        later = nothing.union(*parts[end + 1 :])
        for layer in range(first + 1, end):
            # The embedding is before the first layer.
            here = nothing.union(*parts[0 if first == 0 else first + 1 : layer + 1])
            there = nothing.union(*parts[layer + 1 : end + 1])
            found[layer] = sum(tensors.get(name, 0) for name in here & there & later)
    return tuple(found)


def layer_of(name: str) -> int:
    """Return the number of the layer that a node is named after; -1: none."""
    found = _LAYER.match(name)
    return -1 if found is None else int(found[1])


def names_of_host(nodes: Sequence[tuple[str, Sequence[str]]], host_layers: int) -> set[str]:
    """Return what nodes of a graph read that the CPU computes, before the first one of a layer beyond so many."""
    numbers = [layer_of(name) for name, _ in nodes]
    if min((number for number in numbers if number >= 0), default=host_layers) >= host_layers:
        return set()
    found: set[str] = set()
    for (_, read), number in zip(nodes, numbers, strict=True):
        if number >= host_layers:
            break
        found.update(read)
    return found


def parts_of(nodes: Sequence[tuple[str, Sequence[str]]], layers: int) -> list[set[str]] | None:
    """Return what nodes before layer 0 read, those from its first node to that of layer 1, and so on.

    Args:
        nodes: names of the nodes and of their inputs, in an order in which they can run.

    Returns:
        Names of inputs, for one part more than there are layers; None if a layer has no node, or if the layers do not
        follow one another.
    """
    parts: list[set[str]] = [set()]
    for name, read in nodes:
        number = layer_of(name)
        if number >= len(parts):
            return None
        if number == len(parts) - 1:
            parts.append(set())
        parts[-1].update(read)
    return parts if len(parts) == layers + 1 else None


def _sums(parts: Sequence[set[str]], tensors: Mapping[str, int]) -> tuple[int, ...]:
    """Return the sizes of the tensors that the first part reads, the first two parts, and so on, each counted once."""
    return tuple(sum(tensors.get(name, 0) for name in names) for names in accumulate(parts, operator.or_))


TILE_ROWS: Final = 16

TILE_UNITS: Final[Mapping[str, tuple[int, int]]] = {
    "w4m": (32, 320),
    "w4": (32, 288),
    "w8": (32, 544),
    "f16": (32, 1024),
    "f32": (32, 2048),
    "w5m": (32, 384),
    "w5": (32, 352),
    "w4k": (256, 2368),
    "w5k": (256, 2880),
    "w6k": (256, 3360),
    "w3k": (256, 1824),
    "w2k": (256, 1344),
    "t4": (32, 288),
    "t4k": (256, 2208),
    "mx4": (32, 272),
    "nv4": (64, 640),
    "bf16": (32, 1024),
    "w4z32": (32, 304),
    "w4z64": (64, 560),
    "w4z128": (128, 1072),
    "w8n": (32, 576),
}
"""Format -> inputs of a unit, and bytes of a unit of 16 rows."""
FLOAT_TILES: Final = frozenset({"f16", "f32", "bf16"})
"""Formats whose rows need not have a multiple of a unit's inputs."""
NESTED_TILES: Final = frozenset({"w8n"})
"""Formats whose finer codes lie behind all units of a matrix, so that its tiles cannot be taken out one by one."""

FORMAT_OF_TYPE: Final[Mapping[str, str]] = {
    "Q4_1": "w4m", "Q4_0": "w4", "Q8_0": "w8", "F16": "f16", "F32": "f32", "Q5_1": "w5m", "Q5_0": "w5", "Q4_K": "w4k",
    "Q5_K": "w5k", "Q6_K": "w6k", "Q3_K": "w3k", "Q2_K": "w2k", "IQ4_NL": "t4", "IQ4_XS": "t4k", "MXFP4": "mx4",
    "NVFP4": "nv4",
    "BF16": "bf16", "W4Z32": "w4z32", "W4Z64": "w4z64", "W4Z128": "w4z128", "W8N": "w8n",
}  # fmt: skip
"""Type of a matrix, as in ``quantisation`` of a manifest -> format of its tiles."""


def tiles_shape(rows: int, inputs: int, form: str) -> tuple[int, int, int]:
    """Return the shape of the tiles of a matrix, uint8 ``[tiles, units, bytes of a unit]``."""
    unit_inputs, unit_bytes = TILE_UNITS[form]
    if form not in FLOAT_TILES and inputs % unit_inputs:
        raise ValueError(f"{inputs} inputs are no multiple of the {unit_inputs} that {form} needs")
    return -(-rows // TILE_ROWS), -(-inputs // unit_inputs), unit_bytes


@lru_cache(maxsize=512)  # layers are alike
def row_bytes(inputs: int, types: str) -> int:
    """Return the bytes that a row of a matrix takes in tiles, rounded up: the most of several types.

    Args:
        types: as in ``quantisation`` of a manifest: one type, or several joined by ``+``; a type that is not known
            counts as floats.
    """
    forms = [FORMAT_OF_TYPE.get(name, "f32") for name in types.split("+")]
    return max(-(-(-(-inputs // TILE_UNITS[form][0]) * TILE_UNITS[form][1]) // TILE_ROWS) for form in forms)
