"""Reads numbers, strings and arrays of a GGUF header, each within a limit and within the bytes of the file.

Arrays stay bytes until they are asked for. Every string is UTF-8 (byte-level vocabularies spell raw bytes in printable
characters, sentencepiece ones as "<0xE2>"). Arrays of arrays, which the format allows and no model uses, are refused.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Mapping, Sequence
from typing import Final

from edge_rt.errors import InvalidTokenizer, kind_of
from edge_rt.export.sources.gguf_types import MAX_ARRAY_ITEMS, SCALAR_STRUCTS, MetadataArray, Scalar, ValueType, shown
from edge_rt.export.sources.model_file import HeaderBytes

Metadata = Mapping[str, object]


def inconsistent(what: str, numbers: str) -> InvalidTokenizer:
    """Return the error for metadata that contradict themselves."""
    return InvalidTokenizer(what, numbers, "Fetch the file again, or convert the model again.")


def metadata_array(metadata: Metadata, key: str, limit: int) -> Sequence[object]:
    """Return an array of at most ``limit`` values."""
    if key not in metadata:
        raise inconsistent("The tokenizer is incomplete.", f"The key '{key}' is missing.")
    value = metadata[key]
    if not isinstance(value, list | tuple):
        raise inconsistent(f"'{key}' is not an array.", f"It is {kind_of(value)}.")
    if len(value) > limit:
        raise inconsistent(f"'{key}' is too long.", f"{len(value)} elements of at most {limit}.")
    return value


def strings(metadata: Metadata, key: str, limit: int) -> list[str]:
    """Return an array of texts."""
    result: list[str] = []
    for index, value in enumerate(metadata_array(metadata, key, limit)):
        if not isinstance(value, str):
            raise inconsistent(f"'{key}' holds an item that is not text.", f"Element {index} is {kind_of(value)}.")
        result.append(value)
    return result


def floats(metadata: Metadata, key: str, count: int) -> list[float]:
    """Return an array of ``count`` numbers."""
    values = metadata_array(metadata, key, count)
    if len(values) != count:
        raise inconsistent(f"'{key}' has the wrong length.", f"{len(values)} values for {count} tokens.")
    result: list[float] = []
    for index, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise inconsistent(f"'{key}' holds an item that is no number.", f"Element {index}: {repr(value)[:40]}.")
        result.append(float(value))
    return result


def text(metadata: Metadata, key: str) -> str | None:
    """Return a text, or None if there is none."""
    value = metadata.get(key)
    if value is not None and not isinstance(value, str):
        raise inconsistent(f"'{key}' is not text.", f"It is {kind_of(value)}.")
    return value


def flag(metadata: Metadata, key: str, *, default: bool) -> bool:
    """Return a boolean."""
    value = metadata.get(key, default)
    if not isinstance(value, bool):
        raise inconsistent(f"'{key}' is not a boolean.", f"It is {kind_of(value)}.")
    return value


def token_id(metadata: Metadata, name: str, count: int) -> tuple[int | None, str | None]:
    """Return the id of a special token, and a warning if it names none, as 4294967295 does that converters write."""
    key = f"tokenizer.ggml.{name}_token_id"
    value = metadata.get(key)
    if value is None:
        return None, None
    if isinstance(value, bool) or not isinstance(value, int):
        raise inconsistent(f"'{key}' is not a token.", f"It is {repr(value)[:40]}, tokens are 0 to {count - 1}.")
    if not 0 <= value < count:
        return None, f"'{key}' is {value}, which is no token (they are 0 to {count - 1}): it is ignored."
    return value, None


MAX_TEXT_BYTES: Final = 2 << 20  # keys and single strings: a template or licence takes up to 100 KB
MAX_STRING_BYTES: Final = 1 << 20
MAX_STRING_ITEMS: Final = 3 << 19  # in all arrays together: twice the largest known; can be checked in a second
U32: Final = struct.Struct("<I")
U64: Final = struct.Struct("<Q")


class GGUFReader:
    """Reads the header of a file from start to end; methods raise ``InvalidModelFile`` for invalid data.

    ``field`` is the name of what is being read, for errors.

    Args:
        source: the bytes of the header.
    """

    def __init__(self, source: HeaderBytes) -> None:
        self.source = source
        self.at = 0
        self._text_bytes = 0
        self._array_items = 0
        self._string_items = 0

    def number(self, layout: struct.Struct, field: str) -> int:
        """Read an unsigned number."""
        at, end = self.at, self.at + layout.size
        self.source.require(at, end, field)
        self.at = end
        value: int = layout.unpack_from(self.source.buffer, at)[0]
        return value

    def count(self, field: str, limit: int, min_bytes: int) -> int:
        """Read a count of things that take at least `min_bytes` each."""
        at = self.at
        value = self.number(U64, field)
        remaining = self.source.size - self.at
        if value > limit or value * min_bytes > remaining:
            limit = min(limit, remaining // min_bytes)
            raise self.source.invalid(
                f"{field} is too large", at, f"{value}, limit {limit} with {remaining} bytes remaining"
            )
        return value

    def text(self, field: str, limit: int) -> str:
        """Read a string of at most `limit` bytes."""
        at = self.at
        length = self.number(U64, f"the length of {field}")
        if length > limit:
            raise self.source.invalid(f"{field} is too long", at, f"{length} bytes, limit {limit}")
        start, end = self.at, self.at + length
        self.source.require(start, end, field)
        self._text_bytes += length
        if self._text_bytes > MAX_TEXT_BYTES:
            raise self.source.invalid(
                f"keys and strings of the header are too long, at {field}",
                at,
                f"{self._text_bytes} bytes together, limit {MAX_TEXT_BYTES}",
            )
        self.at = end
        return self._decode(start, end, field)

    def _decode(self, start: int, end: int, field: str) -> str:
        try:
            return self.source.buffer[start:end].decode()
        except UnicodeDecodeError as error:
            raise self.source.invalid(
                f"{field} is not UTF-8",
                start + error.start,
                f"byte 0x{error.object[error.start]:02x}, {error.reason}, limit: UTF-8 text",
            ) from error

    def name(self, field: str, limit: int) -> str:
        """Read a string that names something: neither empty nor with control characters."""
        at = self.at
        name = self.text(field, limit)
        if not name:
            raise self.source.invalid(f"{field} is empty", at, f"0 bytes, limit 1 to {limit}")
        for position, character in enumerate(name):
            if character < " " or character == "\x7f":
                raise self.source.invalid(
                    f"{field} holds a control character",
                    at,
                    f"{shown(name)}, character {position} is 0x{ord(character):02x}, limit: printable characters",
                )
        return name

    def value_type(self, field: str) -> ValueType:
        """Read the type of a value."""
        at = self.at
        number = self.number(U32, field)
        if number > max(ValueType):
            raise self.source.invalid(f"{field} is unknown", at, f"type {number}, limit {int(max(ValueType))}")
        return ValueType(number)

    def scalar(self, kind: ValueType, field: str) -> Scalar:
        """Read one value that is not an array."""
        if kind is ValueType.STRING:
            return self.text(f"the value of {field}", MAX_STRING_BYTES)
        layout = SCALAR_STRUCTS[kind]
        start, end = self.at, self.at + layout.size
        self.source.require(start, end, f"the value of {field}")
        if kind is ValueType.BOOL:
            self._check_bools(start, end, field)
        self.at = end
        value: Scalar = layout.unpack_from(self.source.buffer, start)[0]
        return value

    def _check_bools(self, start: int, end: int, field: str) -> None:
        values = self.source.buffer[start:end]
        bad = values.translate(None, b"\x00\x01")
        if bad:
            at = start + values.index(bad[:1])
            raise self.source.invalid(f"{field} holds a bool that is neither 0 nor 1", at, f"{bad[0]}, limit 1")

    def metadata_array(self, field: str) -> MetadataArray:
        """Check an array and record its position; its items are read when they are asked for."""
        source = self.source
        type_at = self.at
        kind = self.value_type(f"the item type of {field}")
        if kind is ValueType.ARRAY:
            raise source.invalid(f"{field} is an array of arrays", type_at, "nesting depth 2, limit 1")
        item_bytes = 8 if kind is ValueType.STRING else SCALAR_STRUCTS[kind].size
        left = MAX_ARRAY_ITEMS - self._array_items
        if kind is ValueType.STRING:
            left = min(left, MAX_STRING_ITEMS - self._string_items)
        length = self.count(f"the array length of {field}", left, item_bytes)
        self._array_items += length
        start, starts = self.at, array("I")
        if kind is ValueType.STRING:
            self._string_items += length
            self._skip_strings(length, starts, field)
        else:
            end = start + length * item_bytes
            source.require(start, end, f"the items of {field}")
            if kind is ValueType.BOOL:
                self._check_bools(start, end, field)
            self.at = end
        return MetadataArray(kind, length, source.buffer, start, starts)

    def _skip_strings(self, count: int, starts: array[int], field: str) -> None:
        """Check `count` strings and record where each begins."""
        source = self.source
        buffer, require, length_at = source.buffer, source.require, U64.unpack_from
        at, loaded = self.at, len(buffer)
        # This loop runs a hundred thousand times for a common vocabulary: it avoids unnecessary calls.
        for index in range(count):
            start = at + 8
            if start > loaded:
                require(at, start, f"the length of item {index} of {field}")
                loaded = len(buffer)
            length = length_at(buffer, at)[0]
            end = start + length
            if end > loaded or length > MAX_STRING_BYTES:
                if length > MAX_STRING_BYTES:
                    raise source.invalid(
                        f"item {index} of {field} is too long", at, f"{length} bytes, limit {MAX_STRING_BYTES}"
                    )
                require(start, end, f"item {index} of {field}")
                loaded = len(buffer)
            try:
                buffer[start:end].decode()
            except UnicodeDecodeError:
                self._decode(start, end, f"item {index} of {field}")
            starts.append(at)
            at = end
        self.at = at
