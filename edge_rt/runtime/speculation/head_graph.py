"""The graph of a draft head: one node of the operator ``DraftHead``, all of whose tensors are inputs.

It is written as protobuf bytes, because the runtime has no ONNX library, and made when a drafter is opened: no file
could disagree with the weights, or would have to be checked.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from edge_rt.package.op_list import DOMAIN, MAX_HEAD_BLOCKS, OPS, Port

_IR_VERSION: Final = 10
_OPSET: Final = 21
_ELEMENT_TYPES: Final = {"float": 1, "uint8": 2, "int32": 6, "int64": 7}
_FLOAT, _INT, _STRING = 1, 2, 3
_BYTES, _FIXED32 = 2, 5


@dataclass(frozen=True)
class HeadShape:
    """Sizes and formats of a head.

    Attributes:
        blocks: how many, 1 to 4.
    """

    hidden: int
    intermediate: int
    vocabulary: int
    blocks: int
    nodes: int
    epsilon: float
    embedding: str
    fc: str
    gate_up: str
    down: str
    head: str


def block_inputs(blocks: int) -> tuple[str, ...]:
    """Return the names of the inputs that are weights of the blocks."""
    return tuple(f"{name}_{block}" for block in range(1, blocks + 1) for name in ("norm", "gate_up", "down"))


def head_graph(shape: HeadShape) -> bytes:
    """Return the graph as an ONNX ModelProto; inputs and outputs have the names of the operator's."""
    op = next(op for op in OPS if op.name == "DraftHead")
    unused = set(block_inputs(MAX_HEAD_BLOCKS)) - set(block_inputs(shape.blocks))
    inputs = [port for port in op.inputs if port.name not in unused]
    attributes = [
        *(_integer(name, getattr(shape, name)) for name in ("hidden", "intermediate", "vocabulary", "nodes", "blocks")),
        _real("epsilon", shape.epsilon),
        *(_text(f"{name}_format", getattr(shape, name)) for name in ("embedding", "fc", "gate_up", "down", "head")),
    ]
    node = _message(
        *(_field(1, port.name) for port in inputs),
        *(_field(2, port.name) for port in op.outputs),
        _field(4, op.name),
        *(_field(5, attribute) for attribute in attributes),
        _field(7, DOMAIN),
    )
    graph = _message(
        _field(1, node),
        _field(2, "draft head"),
        *(_field(11, _value(port)) for port in inputs),
        *(_field(12, _value(port)) for port in op.outputs),
    )
    return _message(
        _number(1, _IR_VERSION),
        _field(7, graph),
        _field(8, _message(_field(1, ""), _number(2, _OPSET))),
        _field(8, _message(_field(1, DOMAIN), _number(2, 1))),
    )


def _value(port: Port) -> bytes:
    """Return a ValueInfoProto whose dimensions may be any."""
    rank = 3 if port.dtype == "uint8" else 2 if port.name == "hidden" else 1
    shape = _field(2, _field(1, b"") * rank)
    return _field(1, port.name) + _field(2, _field(1, _number(1, _ELEMENT_TYPES[port.dtype]) + shape))


def _integer(name: str, value: int) -> bytes:
    return _field(1, name) + _number(3, value) + _number(20, _INT)


def _real(name: str, value: float) -> bytes:
    return _field(1, name) + _varint(2 << 3 | _FIXED32) + struct.pack("<f", value) + _number(20, _FLOAT)


def _text(name: str, value: str) -> bytes:
    return _field(1, name) + _field(4, value) + _number(20, _STRING)


def _message(*fields: bytes) -> bytes:
    return b"".join(fields)


def _field(tag: int, value: bytes | str) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return _varint(tag << 3 | _BYTES) + _varint(len(data)) + data


def _number(tag: int, value: int) -> bytes:
    return _varint(tag << 3) + _varint(value)


def _varint(value: int) -> bytes:
    assert value >= 0, value
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)
