"""What each layer of a native package takes, so that its layers can be divided between the CPU and a GPU.

A graph is divided before the first node of a layer, as edge-rt's provider for GPUs divides it
(``leave_early_layers`` in ``csrc/gpu/provider_session.cc``): the nodes before that are the CPU's, all others the GPU's.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from edge_rt.errors import StorageError
from edge_rt.package.graph_tensors import nodes_in_order, stored_tensors
from edge_rt.package.reader import Package

_LAYER: Final = re.compile(r"layer([0-9]+)")
_ROTATION: Final = re.compile(r"rope[0-9]*\.(cos|sin)")


@dataclass(frozen=True)
class LayerSizes:
    """Bytes on both sides of a division before layer 0, 1, ... and before the end: an entry more than there are layers.

    Attributes:
        before: bytes of ``weights.bin`` that nodes before the division read.
        behind: bytes that the other nodes read. What both read, as an embedding that is the head, counts on both sides.
        rotations_before: of the bytes before, those of tables of rotations, of which a context needs a part.
        windows: sliding window of every layer in tokens; 0: it has none.
    """

    before: tuple[int, ...]
    behind: tuple[int, ...]
    rotations_before: tuple[int, ...]
    windows: tuple[int, ...]


def layer_sizes(package: Package) -> LayerSizes | None:
    """Return the sizes of a package's layers; None if they cannot be divided.

    Those of native packages with one graph can be, if its nodes are named after layers.

    Raises:
        StorageError: the graph cannot be read.
    """
    manifest = package.manifest
    if manifest.op_profile != "native" or len(manifest.segments) != 1:
        return None
    graph = package.file(manifest.segments[0].graph)
    try:
        tensors = {name: size for name, (_, size) in stored_tensors(graph).items()}
        parts = parts_of(nodes_in_order(graph), manifest.model.num_layers)
    except OSError as error:
        raise StorageError(
            "The graph of the package cannot be read.", f"{graph.name}: {error}.", "Check the package's folder."
        ) from error
    if parts is None:
        return None
    rotations = {name: size for name, size in tensors.items() if _ROTATION.fullmatch(name)}
    from_the_end = _sums(parts[:0:-1], tensors)
    windows = manifest.model.layer_windows
    return LayerSizes(_sums(parts, tensors), (*from_the_end[::-1], 0), _sums(parts, rotations), windows)


def parts_of(nodes: Sequence[tuple[str, Sequence[str]]], layers: int) -> list[set[str]] | None:
    """Return what nodes before layer 0 read, those from its first node to that of layer 1, and so on.

    Args:
        nodes: names of the nodes and of their inputs, in an order in which they can run.
        layers: how many there are.

    Returns:
        Names of inputs, for one part more than there are layers; None if a layer has no node, or if the layers do not
        follow one another.
    """
    parts: list[set[str]] = [set()]
    for name, read in nodes:
        found = _LAYER.match(name)
        number = -1 if found is None else int(found[1])
        if number >= len(parts):
            return None
        if number == len(parts) - 1:
            parts.append(set())
        parts[-1].update(read)
    return parts if len(parts) == layers + 1 else None


def _sums(parts: Sequence[set[str]], tensors: Mapping[str, int]) -> tuple[int, ...]:
    """Return the bytes of the tensors that the first part reads, the first two parts, and so on, each counted once."""
    return tuple(sum(tensors.get(name, 0) for name in names) for names in accumulate(parts, operator.or_))
