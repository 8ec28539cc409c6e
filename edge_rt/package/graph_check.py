"""Checks which files a graph may read: walks the protobuf of ``model.onnx`` and finds every reference to external data.

ONNX Runtime opens any file that a tensor's ``external_data`` names, in old versions even outside the package. This
check reads only the fields that lead to tensors, and needs neither ONNX Runtime nor ``onnx``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from edge_rt.errors import InvalidPackage

MAX_GRAPH_BYTES: Final = 8 << 20
"""Largest graph that is read: it holds operators and names, no weights; 30 layers take 0.2 MiB."""
MAX_MESSAGES: Final = 1 << 17
"""Most messages that are read, and most fields in one of them: bounds time and memory; 30 layers take 4 thousand."""
MAX_DEPTH: Final = 16
"""Most levels of nested messages: a tensor of the outermost graph is at level 4, every subgraph adds 3."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_CONTINUED: Final = 0x80
_FIRST_TAG: Final = 1 << 3
_MAX_TAG: Final = (1 << 32) - 1
_MAX_VARINT_BYTES: Final = 10

_CHILDREN: Final[Mapping[str, Mapping[int, str]]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse tensor"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse tensor", 23: "sparse tensor"},
    "sparse tensor": {1: "tensor", 2: "tensor"},
}
"""Message -> field number -> message, along every path from a ModelProto to a TensorProto."""
_EXTERNAL_DATA: Final = 13
_ENTRY_KEY, _ENTRY_VALUE = 1, 2
_KEYS: Final = (b"location", b"offset", b"length")
_NUMBER = re.compile(rb"[0-9]{1,18}")


class _Refused(Exception):
    """Carries the first two sentences of the error."""


def check_graph(path: Path, weights_name: str, weights_bytes: int) -> None:
    """Refuse a graph that reads anything but the weights beside it.

    Args:
        path: the graph, an ONNX ModelProto.
        weights_name: the one file that its tensors may name.
        weights_bytes: size of that file.

    Raises:
        InvalidPackage: the graph is too large, malformed or too deep, or a tensor is outside the weights file.
        OSError: the graph cannot be read.
    """
    with path.open("rb") as stream:
        data = stream.read(MAX_GRAPH_BYTES + 1)
    try:
        if len(data) > MAX_GRAPH_BYTES:
            raise _Refused("the graph is too large.", f"The limit is {MAX_GRAPH_BYTES} bytes.")
        _walk(data, weights_name.encode(), weights_bytes)
    except _Refused as refused:
        what, numbers = refused.args
        raise InvalidPackage(f"{path}: {what}", numbers, "Export or pull the model again.") from None


def _walk(data: bytes, weights_name: bytes, weights_bytes: int) -> None:
    # A list instead of recursion: a deep hostile file cannot exhaust the interpreter's stack.
    waiting = [("model", 0, len(data), 0)]
    messages = 0
    while waiting:
        message, start, end, depth = waiting.pop()
        messages += 1
        if messages + len(waiting) > MAX_MESSAGES:
            raise _too_many(start)
        if depth > MAX_DEPTH:
            raise _Refused("the graph is nested too deeply.", f"At byte {start}: the limit is {MAX_DEPTH} messages.")
        if message == "tensor":
            _check_tensor(data, start, end, weights_name, weights_bytes)
            continue
        children = _CHILDREN[message]
        for number, first, last in fields(data, start, end):
            if (child := children.get(number)) is not None:
                waiting.append((child, first, last, depth + 1))


def _check_tensor(data: bytes, start: int, end: int, weights_name: bytes, weights_bytes: int) -> None:
    entries = [
        _entry(data, first, last) for number, first, last in fields(data, start, end) if number == _EXTERNAL_DATA
    ]
    if not entries:
        return
    values = dict(entries)
    # Exactly these keys, each once: readers interpret anything else differently.
    if len(entries) != len(_KEYS) or set(values) != set(_KEYS):
        found = ", ".join(repr(key)[1:] for key, _ in entries)
        raise _Refused(
            "the graph's external data is malformed.",
            f"At byte {start}: a tensor gives {found:.200}, wanted 'location', 'offset' and 'length'.",
        )
    location, offset, length = (values[key] for key in _KEYS)
    if location != weights_name:
        raise _Refused(
            "the graph reads a file it must not read.",
            f"At byte {start}: a tensor names {repr(location)[1:]:.200}, only {weights_name.decode()!r} is allowed.",
        )
    numbers = f"At byte {start}: offset {offset!r:.40}, length {length!r:.40}, size {weights_bytes} bytes."
    if not (_NUMBER.fullmatch(offset) and _NUMBER.fullmatch(length)):
        raise _Refused("the graph's external data is malformed.", numbers)
    if int(offset) + int(length) > weights_bytes:
        raise _Refused(f"a tensor of the graph lies outside '{weights_name.decode()}'.", numbers)


def _entry(data: bytes, start: int, end: int) -> tuple[bytes, bytes]:
    """Return key and value; in protobuf the last of several values wins."""
    found = {number: data[first:last] for number, first, last in fields(data, start, end)}
    return found.get(_ENTRY_KEY, b""), found.get(_ENTRY_VALUE, b"")


def fields(data: bytes, position: int, end: int) -> list[tuple[int, int, int]]:
    """Return number, begin and end of each length-delimited field of one message; skip the other kinds.

    Groups, which ONNX does not use, are malformed here.
    """
    fields: list[tuple[int, int, int]] = []
    while position < end:
        start = position
        tag = data[position]
        position += 1
        if tag >= _CONTINUED:
            tag, position = _varint(data, start, end)
        kind = tag & 7
        # Parsers cut longer tags to 32 bits, so such a tag could hide a field from this check.
        if tag < _FIRST_TAG or tag > _MAX_TAG:
            raise _malformed(start)
        if kind == _BYTES:
            size, position = _varint(data, position, end)
            if len(fields) >= MAX_MESSAGES:
                raise _too_many(start)
            fields.append((tag >> 3, position, position + size))
            position += size
        elif kind == _VARINT:
            _, position = _varint(data, position, end)
        elif kind in (_FIXED64, _FIXED32):
            position += 8 if kind == _FIXED64 else 4
        else:
            raise _malformed(start)
        if position > end:
            raise _malformed(start)
    return fields


def _varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Return an unsigned varint (7 bits per byte, low bits first) and the position where it ends."""
    if position < end and data[position] < _CONTINUED:
        return data[position], position + 1
    start, value = position, 0
    for shift in range(0, 7 * _MAX_VARINT_BYTES, 7):
        if position >= end:
            break
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < _CONTINUED:
            return value, position
    raise _malformed(start)


def _too_many(position: int) -> _Refused:
    return _Refused("the graph has too many parts.", f"At byte {position}: the limit is {MAX_MESSAGES}.")


def _malformed(position: int) -> _Refused:
    return _Refused("the graph is not an ONNX file, or damaged.", f"At byte {position}: malformed protobuf.")
