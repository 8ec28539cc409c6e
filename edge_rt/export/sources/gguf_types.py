"""The contents of a GGUF header as plain data: `GGUFHeader` with its typed getters, and the tables of the format.

Standard library only: a malformed file is refused before numpy or any GGUF library is loaded.
"""

from __future__ import annotations

import enum
import math
import struct
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, cast

from edge_rt.errors import InvalidModelFile

FETCH_AGAIN: Final = "Fetch the file again from a trusted source."

MAX_ARRAY_ITEMS: Final = 1 << 22
"""Items in all arrays of a file together. The largest vocabularies known (262,144 tokens with their scores, types and
514,906 merges) need 1.3 million."""


class BlockFormat(NamedTuple):
    """Storage of a ggml type: `items` consecutive elements of a row take `size` bytes."""

    name: str
    items: int
    size: int


GGML_TYPES: Final[Mapping[int, BlockFormat]] = {
    0: BlockFormat("F32", 1, 4),
    1: BlockFormat("F16", 1, 2),
    2: BlockFormat("Q4_0", 32, 18),
    3: BlockFormat("Q4_1", 32, 20),
    6: BlockFormat("Q5_0", 32, 22),
    7: BlockFormat("Q5_1", 32, 24),
    8: BlockFormat("Q8_0", 32, 34),
    9: BlockFormat("Q8_1", 32, 40),
    10: BlockFormat("Q2_K", 256, 84),
    11: BlockFormat("Q3_K", 256, 110),
    12: BlockFormat("Q4_K", 256, 144),
    13: BlockFormat("Q5_K", 256, 176),
    14: BlockFormat("Q6_K", 256, 210),
    15: BlockFormat("Q8_K", 256, 292),
    16: BlockFormat("IQ2_XXS", 256, 66),
    17: BlockFormat("IQ2_XS", 256, 74),
    18: BlockFormat("IQ3_XXS", 256, 98),
    19: BlockFormat("IQ1_S", 256, 50),
    20: BlockFormat("IQ4_NL", 32, 18),
    21: BlockFormat("IQ3_S", 256, 110),
    22: BlockFormat("IQ2_S", 256, 82),
    23: BlockFormat("IQ4_XS", 256, 136),
    24: BlockFormat("I8", 1, 1),
    25: BlockFormat("I16", 1, 2),
    26: BlockFormat("I32", 1, 4),
    27: BlockFormat("I64", 1, 8),
    28: BlockFormat("F64", 1, 8),
    29: BlockFormat("IQ1_M", 256, 56),
    30: BlockFormat("BF16", 1, 2),
    34: BlockFormat("TQ1_0", 256, 54),
    35: BlockFormat("TQ2_0", 256, 66),
    39: BlockFormat("MXFP4", 32, 17),
    40: BlockFormat("NVFP4", 64, 36),
    41: BlockFormat("Q1_0", 128, 18),
    42: BlockFormat("Q2_0", 64, 18),
}
"""Every ggml type that a GGUF file may hold, by id. The exporter decides which of them can be exported."""

REMOVED_GGML_TYPES: Final[Mapping[int, str]] = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}
"""Types that were removed from ggml."""


class ValueType(enum.IntEnum):
    """Type of a metadata value, by the id that the file stores."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


SCALAR_STRUCTS: Final[Mapping[int, struct.Struct]] = {
    int(kind): struct.Struct("<" + code)
    for kind, code in {
        ValueType.UINT8: "B",
        ValueType.INT8: "b",
        ValueType.UINT16: "H",
        ValueType.INT16: "h",
        ValueType.UINT32: "I",
        ValueType.INT32: "i",
        ValueType.FLOAT32: "f",
        ValueType.BOOL: "?",
        ValueType.UINT64: "Q",
        ValueType.INT64: "q",
        ValueType.FLOAT64: "d",
    }.items()
}
"""How values of a fixed size are stored, by `ValueType`."""


COMPOUND_TYPE_ID: Final = -1
"""Of matrices that several tensors of a folder hold together: no type of ggml."""
EXPORTABLE_TYPES: Final = (
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4"),
    *("F16", "BF16", "F32"),
)
"""Types of matrices that a package can hold."""


def shown(text: str, limit: int = 80) -> str:
    """Return text from a file, quoted, its control characters escaped and no longer than `limit` characters."""
    return repr(text if len(text) <= limit else text[: limit - 3] + "...")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of the file.

    Attributes:
        shape: in ggml's order: the innermost (contiguous) dimension first, 1 to 4 dimensions.
        offset: bytes from the start of the file.
        file: number of the file that holds it, where a checkpoint has several.
        stored_name: in the file, where it has another name there.
    """

    name: str
    shape: tuple[int, ...]
    type_id: int
    type_name: str
    offset: int
    nbytes: int
    file: int = 0
    stored_name: str = field(default="", compare=False)

    @property
    def label(self) -> str:
        """The name that its file has for it."""
        return self.stored_name or self.name

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def not_finite(tensor: TensorInfo, what: str = "value") -> InvalidModelFile:
    """Return the error for a tensor with an infinity or NaN in it."""
    action = "Fetch the model again; if it is your own, look at its training." if tensor.stored_name else FETCH_AGAIN
    return InvalidModelFile(
        f"The tensor '{tensor.label}' holds a {what} that is not finite.",
        f"It begins at byte {tensor.offset} of the file.",
        action,
    )


@dataclass(frozen=True, slots=True)
class MetadataArray:
    """An array of the metadata: checked, and kept as the bytes of the file until its items are asked for."""

    item_type: ValueType
    length: int
    _buffer: bytearray = field(repr=False)
    _start: int
    _string_starts: array[int] = field(repr=False)

    def to_list(self) -> list[Any]:
        """Return the items as str, bool, int or float."""
        if self.item_type != ValueType.STRING:
            code = SCALAR_STRUCTS[self.item_type].format[1:]
            return list(struct.unpack_from(f"<{self.length}{code}", self._buffer, self._start))
        buffer, length_at = self._buffer, struct.Struct("<Q").unpack_from
        return [buffer[at + 8 : at + 8 + length_at(buffer, at)[0]].decode() for at in self._string_starts]


Scalar = int | float | bool | str
Value = Scalar | MetadataArray


class _Required(enum.Enum):
    """Marker: this key has no default."""

    REQUIRED = enum.auto()


REQUIRED: Final = _Required.REQUIRED
_Default = TypeVar("_Default")
_Item = TypeVar("_Item", int, float, bool, str)


@dataclass(frozen=True)
class GGUFHeader:
    """Everything in a GGUF file before its tensor data; every number in it has been checked against the file.

    Attributes:
        alignment: of the tensor data, in bytes.
        value_offsets: where in the file the entry of each key begins.
        more_paths: the other files of a split model; ``file_size`` counts them, the other numbers are the first one's.
    """

    path: Path
    file_size: int
    version: int
    alignment: int
    data_offset: int
    values: Mapping[str, Value] = field(repr=False)
    value_offsets: Mapping[str, int] = field(repr=False)
    tensors: dict[str, TensorInfo] = field(repr=False)
    more_paths: tuple[Path, ...] = ()

    @property
    def paths(self) -> tuple[Path, ...]:
        """All files, in the order that ``TensorInfo.file`` counts."""
        return (self.path, *self.more_paths)

    @cached_property
    def metadata(self) -> dict[str, object]:
        """Metadata as a plain dict, made when first asked for, and kept: tens of megabytes for a large vocabulary."""
        return {
            key: value.to_list() if isinstance(value, MetadataArray) else value for key, value in self.values.items()
        }

    def get_int(
        self,
        key: str,
        *,
        default: _Default | _Required = REQUIRED,
        minimum: int | None = None,
        maximum: int | None = None,
    ) -> int | _Default:
        """Return an integer within the bounds (inclusive), or `default` if the key is absent."""
        if key not in self.values and not isinstance(default, _Required):
            return default
        value = self._require(key)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong_type(key, value, "an integer")
        self._check_bounds(key, value, minimum, maximum)
        return value

    def get_float(
        self,
        key: str,
        *,
        default: _Default | _Required = REQUIRED,
        minimum: float | None = None,
        maximum: float | None = None,
    ) -> float | _Default:
        """Return a finite number within the bounds (inclusive), or `default` if the key is absent."""
        if key not in self.values and not isinstance(default, _Required):
            return default
        value = self._require(key)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._wrong_type(key, value, "a number")
        if not math.isfinite(value):
            raise self._refuse(key, "is not finite", f"{value}, limit: a finite number")
        self._check_bounds(key, value, minimum, maximum)
        return float(value)

    def get_str(self, key: str, *, default: _Default | _Required = REQUIRED) -> str | _Default:
        """Return a string, or `default` if the key is absent."""
        if key not in self.values and not isinstance(default, _Required):
            return default
        value = self._require(key)
        if not isinstance(value, str):
            raise self._wrong_type(key, value, "a string")
        return value

    def get_bool(self, key: str, *, default: _Default | _Required = REQUIRED) -> bool | _Default:
        """Return a bool, or `default` if the key is absent."""
        if key not in self.values and not isinstance(default, _Required):
            return default
        value = self._require(key)
        if not isinstance(value, bool):
            raise self._wrong_type(key, value, "a truth value")
        return value

    def get_list(
        self,
        key: str,
        item_type: type[_Item],
        *,
        default: _Default | _Required = REQUIRED,
        max_length: int = MAX_ARRAY_ITEMS,
    ) -> list[_Item] | _Default:
        """Return an array of `item_type` (str, int, float or bool), or `default` if the key is absent."""
        if key not in self.values and not isinstance(default, _Required):
            return default
        value = self._require(key)
        if not isinstance(value, MetadataArray):
            raise self._wrong_type(key, value, f"an array of {item_type.__name__}")
        if value.length > max_length:
            raise self._refuse(key, "is too long", f"{value.length} items, limit {max_length}")
        if _python_type(value.item_type) is not item_type:
            raise self._wrong_type(key, value, f"an array of {item_type.__name__}")
        return cast("list[_Item]", value.to_list())

    def _require(self, key: str) -> Value:
        value = self.values.get(key)
        if value is None:
            raise InvalidModelFile(
                f"{self.path.name}: the required metadata key {shown(key)} is missing.",
                f"The header has {len(self.values)} other keys.",
                FETCH_AGAIN,
            )
        return value

    def _check_bounds(self, key: str, value: float, minimum: float | None, maximum: float | None) -> None:
        if minimum is not None and value < minimum:
            raise self._refuse(key, "is too small", f"{value}, limit {minimum}")
        if maximum is not None and value > maximum:
            raise self._refuse(key, "is too large", f"{value}, limit {maximum}")

    def _wrong_type(self, key: str, value: Value, wanted: str) -> InvalidModelFile:
        if isinstance(value, MetadataArray):
            found = f"an array of {value.length} {value.item_type.name.lower()}"
        else:
            found = f"{type(value).__name__} {shown(value) if isinstance(value, str) else value}"
        return self._refuse(key, "has the wrong type", f"{found}, wanted {wanted}")

    def _refuse(self, key: str, fault: str, numbers: str) -> InvalidModelFile:
        return InvalidModelFile(
            f"{self.path.name}: the metadata key {shown(key)} {fault}.",
            f"At byte {self.value_offsets[key]}: {numbers}.",
            FETCH_AGAIN,
        )


def _python_type(kind: ValueType) -> type:
    match kind:
        case ValueType.STRING:
            return str
        case ValueType.BOOL:
            return bool
        case ValueType.FLOAT32 | ValueType.FLOAT64:
            return float
        case _:
            return int
