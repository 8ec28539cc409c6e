"""Checks which files a graph may read, and which operators it may have: walks the protobuf of ``model.onnx``.

ONNX Runtime opens any file that a tensor's ``external_data`` names, in old versions even outside the package. Some
operators make tensors as large as a number in the graph says; graphs of our own builders may not have them where they
would be computed while the graph is opened. How much memory a run takes is not checked here. This check reads only the
fields that lead to tensors and operators, and needs neither ONNX Runtime nor ``onnx``. In passing it notes where the
constants of our own graphs lie, so that all graphs of a package can be given one mapping of their file.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from edge_rt.errors import InvalidPackage
from edge_rt.package.op_list import DOMAIN, OPS
from edge_rt.system.byte_size import show_size

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
_FOREIGN: Final[Mapping[str, Mapping[int, str]]] = {
    "model": {20: "training", 25: "function"},
    "graph": {15: "sparse tensor"},
    "attribute": {6: "graph", 11: "graph", 22: "sparse tensor", 23: "sparse tensor"},
}
"""Message -> field number -> what our own builders never write there: functions and graphs in nodes are copied into the
graph while it is opened, behind this check's back, and sparse tensors get the size that they say."""
_NODE_INPUT, _NODE_OUTPUT, _NODE_OPERATOR, _NODE_ATTRIBUTE, _NODE_DOMAIN = 1, 2, 4, 5, 7
_ATTRIBUTE_NAME, _ATTRIBUTE_INTEGER = 1, 3
_TENSOR_DIMS, _TENSOR_TYPE, _TENSOR_NAME, _TENSOR_BYTES = 1, 2, 8, 9
_CONSTANT_DEPTH: Final = 2
"""Level of the constants of the outermost graph."""
_MOST_PADDING: Final = 7
"""Zeros that are put behind a head, to make its size a multiple of 8."""
_OPERATORS: Final[Mapping[bytes, frozenset[bytes]]] = {
    b"": frozenset(
        {
            *(b"Add", b"Cast", b"Concat", b"Div", b"Gather", b"Gelu", b"Gemm", b"LayerNormalization", b"Mul", b"Range"),
            *(b"Pad", b"ReduceSum", b"Relu", b"Reshape", b"SimplifiedLayerNormalization", b"Size", b"Slice", b"Split"),
            *(b"Sub", b"Tanh", b"Unsqueeze"),
        }
    ),
    b"com.microsoft": frozenset(
        {
            *(b"GatherBlockQuantized", b"GroupQueryAttention", b"MatMulNBits", b"QuickGelu", b"RotaryEmbedding"),
            b"SkipSimplifiedLayerNormalization",
        }
    ),
    DOMAIN.encode(): frozenset(op.name.encode() for op in OPS),
}
"""Operators in graphs of our own builders, by domain; ours check what they are given."""
_EXTERNAL_DATA: Final = (13, _BYTES)
_ENTRY_KEY, _ENTRY_VALUE = 1, 2
_KEYS: Final = (b"location", b"offset", b"length")
_NUMBER = re.compile(rb"[0-9]{1,18}")


class StoredTensor(NamedTuple):
    """A constant of a graph: bytes of ``weights.bin``, which nobody has compared with its type and shape.

    Attributes:
        type: a number of ONNX's ``TensorProto.DataType``.
        shape: as the graph says; a negative number is a huge one here.
    """

    offset: int
    length: int
    type: int
    shape: tuple[int, ...]


_Part = tuple[int, int, int, int]
"""Of a message, see ``_parts``."""


class _Refused(Exception):
    """Carries the first two sentences of the error."""


def check_graph(path: Path, weights_name: str, weights_bytes: int, *, is_own: bool = False) -> dict[str, StoredTensor]:
    """Refuse a graph that reads anything but the weights beside it, or is large only once it is opened.

    Of our own builders' graphs nothing but casts may be computed while they are opened; of others, the outputs of every
    ``Split`` are counted, and the rest is not bounded.

    Args:
        is_own: whether our own builders wrote it, with the few operators that they use.

    Returns:
        Name -> the constants of such a graph that lie in the weights; empty for others.
    """
    with path.open("rb") as stream:
        data = stream.read(MAX_GRAPH_BYTES + 1)
    try:
        if len(data) > MAX_GRAPH_BYTES:
            raise _Refused("the graph is too large.", f"The limit is {show_size(MAX_GRAPH_BYTES)}.")
        return _walk(data, weights_name.encode(), weights_bytes, is_own)
    except _Refused as refused:
        what, numbers = refused.args
        raise InvalidPackage(f"{path}: {what}", numbers, "Export or pull the model again.") from None


def _walk(data: bytes, weights_name: bytes, weights_bytes: int, is_own: bool) -> dict[str, StoredTensor]:
    tensors: dict[str, StoredTensor] = {}
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
            parts = _parts(data, start, end)
            place = _check_tensor(data, start, parts, weights_name, weights_bytes)
            if place is not None and is_own and depth == _CONSTANT_DEPTH:
                _note(tensors, data, start, parts, place)
            continue
        if message == "node":
            _check_node(data, start, end, is_own)
        if message == "graph" and is_own:
            _check_constants(data, start, end)
        children = _CHILDREN[message]
        found = fields(data, start, end)
        if is_own:
            _check_parts(message, found)
        for number, first, last in found:
            if (child := children.get(number)) is not None:
                waiting.append((child, first, last, depth + 1))
    return tensors


def _check_parts(message: str, parts: Sequence[tuple[int, int, int]]) -> None:
    foreign = _FOREIGN.get(message, {})
    graphs = [first for number, first, _ in parts if message == "model" and _CHILDREN[message].get(number) == "graph"]
    found = [(first, f"a {foreign[number]} in a {message}") for number, first, _ in parts if number in foreign]
    # Parsers merge several graphs: operators of one would compute with constants of another.
    found += [(first, "a second graph") for first in graphs[1:]]
    for position, what in found[:1]:
        raise _Refused("the graph has a part that such packages do not have.", f"At byte {position}: {what}.")


def _check_node(data: bytes, start: int, end: int, is_own: bool) -> None:
    parts = fields(data, start, end)
    domain, operator = (_last(data, parts, number) for number in (_NODE_DOMAIN, _NODE_OPERATOR))
    # Two names of ONNX's own domain.
    domain = b"" if domain == b"ai.onnx" else domain
    if is_own and operator not in _OPERATORS.get(domain, ()):
        raise _Refused(
            "the graph has an operator that such packages do not have.",
            f"At byte {start}: {repr(operator)[1:]:.80} of the domain {repr(domain)[1:]:.80}.",
        )
    if operator != b"Split":
        return
    outputs = sum(number == _NODE_OUTPUT for number, _, _ in parts)
    for number, first, last in parts:
        if number != _NODE_ATTRIBUTE or _last(data, fields(data, first, last), _ATTRIBUTE_NAME) != b"num_outputs":
            continue
        wanted = [value for field, value in _integers(data, first, last) if field == _ATTRIBUTE_INTEGER]
        # ONNX Runtime makes so many shapes before it counts the outputs.
        if wanted != [outputs]:
            raise _Refused(
                "the graph splits a tensor into another number of parts than it has.",
                f"At byte {start}: num_outputs is {wanted!s:.40}, there are {outputs}.",
            )


def _check_constants(data: bytes, start: int, end: int) -> None:
    """Refuse what would be computed from constants alone, of any size, while the graph is opened; casts are all right.

    Nodes are in the order in which they compute: ONNX Runtime refuses others.
    """
    children = [(_CHILDREN["graph"].get(number), first, last) for number, first, last in fields(data, start, end)]
    tensors = [fields(data, first, last) for child, first, last in children if child == "tensor"]
    stored = {_last(data, parts, _TENSOR_NAME): _last(data, parts, _TENSOR_BYTES) for parts in tensors}
    known = set(stored)
    for child, first, last in children:
        if child != "node":
            continue
        parts = fields(data, first, last)
        inputs = [data[begin:stop] for number, begin, stop in parts if number == _NODE_INPUT]
        operator = _last(data, parts, _NODE_OPERATOR)
        if operator == b"Pad":
            _check_padding(stored.get(inputs[1], b"") if len(inputs) > 1 else b"", first)
        if not known.issuperset(name for name in inputs if name):
            continue
        if operator != b"Cast":
            raise _Refused(
                "the graph computes with constants alone.", f"At byte {first}: an operator {repr(operator)[1:]:.80}."
            )
        known.update(data[begin:stop] for number, begin, stop in parts if number == _NODE_OUTPUT)


def _check_padding(values: bytes, position: int) -> None:
    """Refuse zeros around a tensor whose numbers are not int64 in the graph, or large."""
    numbers = struct.unpack(f"<{len(values) // 8}q", values[: len(values) // 8 * 8])
    if not numbers or max(map(abs, numbers)) > _MOST_PADDING:
        raise _Refused(
            "the graph pads a tensor too far.", f"At byte {position}: by {numbers!s:.80}, limit {_MOST_PADDING}."
        )


def _last(data: bytes, parts: Sequence[tuple[int, int, int]], wanted: int) -> bytes:
    """Return the bytes of a field; in protobuf the last of several values wins."""
    found = [data[first:last] for number, first, last in parts if number == wanted]
    return found[-1] if found else b""


def _check_tensor(
    data: bytes, start: int, parts: Sequence[_Part], weights_name: bytes, weights_bytes: int
) -> tuple[int, int] | None:
    """Return the offset and the bytes of a tensor in the weights; None if its values are in the graph."""
    entries = [_entry(data, first, last) for number, kind, first, last in parts if (number, kind) == _EXTERNAL_DATA]
    if not entries:
        return None
    # This check would read the one, and ONNX Runtime the other.
    if any((number, kind) == (_TENSOR_BYTES, _BYTES) for number, kind, _, _ in parts):
        raise _Refused(
            "the graph's external data is malformed.", f"At byte {start}: a tensor has its values in the graph as well."
        )
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
    return int(offset), int(length)


def _note(
    tensors: dict[str, StoredTensor], data: bytes, start: int, parts: Sequence[_Part], place: tuple[int, int]
) -> None:
    """Note a constant under its name; in protobuf the last of several values wins."""
    name, type_number = b"", 0
    # ONNX's own writers put a field around each of these numbers, which is what its syntax says, not one around all.
    shape = []
    for number, kind, first, last in parts:
        if kind == _BYTES and number == _TENSOR_NAME:
            name = data[first:last]
        elif kind == _VARINT and number == _TENSOR_DIMS:
            shape.append(first)
        elif kind == _VARINT and number == _TENSOR_TYPE:
            type_number = first
    try:
        tensors[name.decode()] = StoredTensor(*place, type_number, tuple(shape))
    except UnicodeDecodeError:
        raise _Refused(
            "a name in the graph is not text.", f"At byte {start}: a tensor is named {repr(name)[1:]:.80}."
        ) from None


def _entry(data: bytes, start: int, end: int) -> tuple[bytes, bytes]:
    """Return key and value; in protobuf the last of several values wins."""
    found = {number: data[first:last] for number, first, last in fields(data, start, end)}
    return found.get(_ENTRY_KEY, b""), found.get(_ENTRY_VALUE, b"")


def fields(data: bytes, position: int, end: int) -> list[tuple[int, int, int]]:
    """Return number, begin and end of each length-delimited field of one message; skip the other kinds.

    Groups, which ONNX does not use, are malformed here.
    """
    return [(number, first, last) for number, kind, first, last in _parts(data, position, end) if kind == _BYTES]


def _integers(data: bytes, position: int, end: int) -> list[tuple[int, int]]:
    """Return number and value of each field of one message that is an integer."""
    return [(number, value) for number, kind, value, _ in _parts(data, position, end) if kind == _VARINT]


def _parts(data: bytes, position: int, end: int) -> list[_Part]:
    """Return number, kind, begin and end of each field of one message; for an integer its value in place of begin."""
    found: list[_Part] = []
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
            found.append((tag >> 3, kind, position, position + size))
            position += size
        elif kind == _VARINT:
            value, position = _varint(data, position, end)
            found.append((tag >> 3, kind, value, position))
        elif kind in (_FIXED64, _FIXED32):
            position += 8 if kind == _FIXED64 else 4
        else:
            raise _malformed(start)
        if len(found) > MAX_MESSAGES:
            raise _too_many(start)
        if position > end:
            raise _malformed(start)
    return found


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
