"""Makes a value inside a graph one of its outputs, without a library for ONNX: by appending to its protobuf.

Parsers merge a message that occurs several times, so a second ``graph`` field that holds only an output adds that
output to the graph before it. The package on disk stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_GRAPH: Final = 7  # of ModelProto
_OUTPUT: Final = 12  # of GraphProto
_NAME, _TYPE = 1, 2  # of ValueInfoProto
_TENSOR_TYPE: Final = 1  # of TypeProto
_ELEMENT_TYPE, _SHAPE = 1, 2  # of TypeProto.Tensor
_DIMENSION: Final = 1  # of TensorShapeProto
_SIZE, _SYMBOL = 1, 2  # of its Dimension
_FLOAT: Final = 1  # TensorProto.FLOAT
_LOW_BITS, _CONTINUED = 0x7F, 0x80


def with_float_output(model: bytes, name: str, shape: Sequence[int | str]) -> bytes:
    """Return a model with a further output.

    Args:
        model: a serialised ModelProto.
        name: of a value inside its graph, float32.
        shape: of the value: a number or a symbol for every dimension.
    """
    dimensions = b"".join(_message(_DIMENSION, _dimension(size)) for size in shape)
    tensor = _number(_ELEMENT_TYPE, _FLOAT) + _message(_SHAPE, dimensions)
    output = _message(_NAME, name.encode()) + _message(_TYPE, _message(_TENSOR_TYPE, tensor))
    return model + _message(_GRAPH, _message(_OUTPUT, output))


def _dimension(size: int | str) -> bytes:
    return _message(_SYMBOL, size.encode()) if isinstance(size, str) else _number(_SIZE, size)


def _message(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _varint(value: int) -> bytes:
    """Return an unsigned number as protobuf writes it: 7 bits per byte, low bits first."""
    result = bytearray()
    while value > _LOW_BITS:
        result.append(value & _LOW_BITS | _CONTINUED)
        value >>= 7
    result.append(value)
    return bytes(result)
