"""Where a tensor of a graph lies in ``weights.bin``, without a library for ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from edge_rt.package.graph_check import fields_of

_GRAPH: Final = 7  # of ModelProto
_TENSOR: Final = 5  # of GraphProto
_NAME, _EXTERNAL_DATA = 8, 13  # of TensorProto
_KEY, _VALUE = 1, 2  # of StringStringEntryProto


def place_of(graph: Path, name: str) -> tuple[int, int] | None:
    """Return offset and length in bytes of an initializer; None if the graph has none of this name.

    Args:
        graph: a graph that ``check_graph`` has accepted.
        name: of the initializer.

    Raises:
        OSError: the graph cannot be read.
    """
    data, wanted = graph.read_bytes(), name.encode()
    for number, start, end in fields_of(data, 0, len(data)):
        if number != _GRAPH:
            continue
        for part, first, last in fields_of(data, start, end):
            if part == _TENSOR and (found := _place(data, first, last, wanted)) is not None:
                return found
    return None


def _place(data: bytes, start: int, end: int, wanted: bytes) -> tuple[int, int] | None:
    fields = fields_of(data, start, end)
    if not any(number == _NAME and data[first:last] == wanted for number, first, last in fields):
        return None
    entries = {}
    for number, first, last in fields:
        if number == _EXTERNAL_DATA:
            entry = {part: data[begin:close] for part, begin, close in fields_of(data, first, last)}
            entries[entry.get(_KEY, b"")] = entry.get(_VALUE, b"")
    return (int(entries[b"offset"]), int(entries[b"length"])) if b"offset" in entries else None
