"""Nodes of a package's graph, and where its tensors lie in ``weights.bin``: read from its protobuf, once checked."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from edge_rt.package.graph_check import fields

_GRAPH: Final = 7  # of ModelProto
_NODE, _INITIALIZER = 1, 5  # of GraphProto
_INPUT, _NODE_NAME = 1, 3  # of NodeProto
_NAME, _EXTERNAL_DATA = 8, 13  # of TensorProto
_KEY, _VALUE = 1, 2  # of StringStringEntryProto


def stored_tensors(graph: Path) -> dict[str, tuple[int, int]]:
    """Return the offset and the bytes of every tensor that a graph reads from ``weights.bin``, by name.

    Args:
        graph: of an opened package: what is malformed was refused before.

    Raises:
        OSError: it cannot be read.
    """
    data = graph.read_bytes()
    found = {}
    for _, start, end in _of(data, 0, len(data), _GRAPH):
        for _, first, last in _of(data, start, end, _INITIALIZER):
            entries = dict(_entry(data, *place) for _, *place in _of(data, first, last, _EXTERNAL_DATA))
            if entries:
                name = _text(data, _of(data, first, last, _NAME)[-1:])
                found[name] = (int(entries[b"offset"]), int(entries[b"length"]))
    return found


def nodes_in_order(graph: Path) -> list[tuple[str, list[str]]]:
    """Return the name of every node and the names of its inputs, in the order of the file, which is one to run them in.

    Args:
        graph: as for ``stored_tensors``.

    Raises:
        OSError: it cannot be read.
    """
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


def _entry(data: bytes, start: int, end: int) -> tuple[bytes, bytes]:
    values = {number: data[first:last] for number, first, last in fields(data, start, end)}
    return values.get(_KEY, b""), values.get(_VALUE, b"")
