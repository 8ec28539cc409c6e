"""Reads the header of a GGUF file and trusts nothing in it.

Every count, length, dimension and offset is checked against a limit and against the bytes that the file really has,
before anything is allocated or looped over. Python integers cannot wrap, and the file is read, never mapped, so a file
that shrinks meanwhile is an error and not a SIGBUS. Whatever the file holds, reading takes less than a second and
64 MiB: the header's bytes are kept once, and arrays stay bytes until they are asked for.

The whole file must follow the format, with which some readers are lenient; :mod:`edge_rt.export.sources.gguf_reader`
says what that means for strings and arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edge_rt.export.sources.gguf_reader import U32, U64, GGUFReader
from edge_rt.export.sources.gguf_types import (
    GGML_TYPES,
    REMOVED_GGML_TYPES,
    BlockFormat,
    GGUFHeader,
    MetadataArray,
    TensorInfo,
    Value,
    ValueType,
    shown,
)
from edge_rt.export.sources.model_file import HeaderBytes, open_model_file

VERSIONS: Final = (2, 3)
DEFAULT_ALIGNMENT: Final = 32
MIN_ALIGNMENT: Final = 8  # of the format
MAX_ALIGNMENT: Final = 1 << 16  # the largest page size in use (arm64 Linux)

MAX_KEYS: Final = 1 << 12  # real files: about 50
MAX_TENSORS: Final = 1 << 14  # real files: up to a few thousand
MAX_KEY_BYTES: Final = 65_535  # of the format
MAX_NAME_BYTES: Final = 64  # of the format
MAX_DIMS: Final = 4  # of the format
MAX_ELEMENTS: Final = 1 << 40
MAX_SLACK_BYTES: Final = 1 << 20  # bytes after and between the tensors, beyond their padding

_MIN_KEY_BYTES: Final = 8 + 1 + 4 + 1
_MIN_TENSOR_BYTES: Final = 8 + 1 + 4 + 8 + 4 + 8


def read_header(path: Path, *, may_be_part: bool = False) -> GGUFHeader:
    """Read and check everything that the file says before its tensor data, and that the data is all there."""
    with open_model_file(path) as file:
        return _Parser(HeaderBytes(file, path), may_be_part=may_be_part).parse()


@dataclass(frozen=True, slots=True)
class _TensorEntry:
    """A tensor description: `at` is its own position in the file, `offset` counts from the start of the data."""

    at: int
    name: str
    shape: tuple[int, ...]
    type_id: int
    format: BlockFormat
    nbytes: int
    offset: int


class _Parser:
    """Reads the parts of a header in order."""

    def __init__(self, source: HeaderBytes, *, may_be_part: bool) -> None:
        self._may_be_part = may_be_part
        self._reader = GGUFReader(source)
        self._source = source
        self._values: dict[str, Value] = {}
        self._value_offsets: dict[str, int] = {}
        self._alignment = DEFAULT_ALIGNMENT

    def parse(self) -> GGUFHeader:
        version = self._magic_and_version()
        tensor_count = self._reader.count("the number of tensors", MAX_TENSORS, _MIN_TENSOR_BYTES)
        key_count = self._reader.count("the number of metadata keys", MAX_KEYS, _MIN_KEY_BYTES)
        for index in range(key_count):
            self._metadata_entry(index)
        self._refuse_split()
        self._check_vocabulary()
        entries: dict[str, _TensorEntry] = {}
        for index in range(tensor_count):
            entry = self._tensor_entry(index)
            if entry.name in entries:
                raise self._source.invalid(
                    f"the tensor name {shown(entry.name)} occurs twice",
                    entry.at,
                    f"tensor {index}, first at byte {entries[entry.name].at}, limit 1",
                )
            entries[entry.name] = entry
        data_offset = -(-self._reader.at // self._alignment) * self._alignment
        self._check_layout(list(entries.values()), data_offset)
        tensors = {
            e.name: TensorInfo(e.name, e.shape, e.type_id, e.format.name, data_offset + e.offset, e.nbytes)
            for e in entries.values()
        }
        source = self._source
        return GGUFHeader(
            source.path, source.size, version, self._alignment, data_offset, self._values, self._value_offsets, tensors
        )

    # --- the parts of the header --------------------------------------------------------------

    def _magic_and_version(self) -> int:
        source = self._source
        source.require(0, 4, "the magic number")
        magic = bytes(source.buffer[:4])
        big_endian = magic == b"FUGG"
        if magic != b"GGUF" and not big_endian:
            raise source.invalid(
                "this is not a GGUF file", 0, f"magic number {magic!r}, limit b'GGUF'", "Give the path of a GGUF file."
            )
        self._reader.at = 4
        version = self._reader.number(U32, "the format version")
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        if big_endian or 0 < swapped <= max(VERSIONS) < version:
            raise source.unsupported(
                "the file is big-endian",
                0 if big_endian else 4,
                f"magic number {magic!r}, format version {swapped} with its bytes swapped, limit: little-endian",
                "Get the little-endian file of this model, or convert it with gguf_convert_endian.py of llama.cpp.",
            )
        if version not in VERSIONS:
            raise source.unsupported(
                "the format version is not supported",
                4,
                f"version {version}, limit {VERSIONS[0]} to {VERSIONS[-1]}",
                "Convert the model again with a current llama.cpp.",
            )
        return version

    def _metadata_entry(self, index: int) -> None:
        source, at = self._source, self._reader.at
        key = self._reader.name(f"the name of metadata key {index}", MAX_KEY_BYTES)
        if key in self._values:
            raise source.invalid(
                f"the metadata key {shown(key)} occurs twice",
                at,
                f"key {index}, first at byte {self._value_offsets[key]}, limit 1",
            )
        field = f"the metadata key {shown(key)}"
        type_at = self._reader.at
        kind = self._reader.value_type(f"the value type of {field}")
        self._values[key] = (
            self._reader.metadata_array(field) if kind is ValueType.ARRAY else self._reader.scalar(kind, field)
        )
        self._value_offsets[key] = at
        if key == "general.alignment":
            self._alignment = self._checked_alignment(kind, self._values[key], type_at)

    def _checked_alignment(self, kind: ValueType, value: Value, at: int) -> int:
        if kind is not ValueType.UINT32 or not isinstance(value, int):
            raise self._source.invalid(
                "the metadata key 'general.alignment' has the wrong type", at, f"{kind.name}, limit UINT32"
            )
        if not MIN_ALIGNMENT <= value <= MAX_ALIGNMENT or value & (value - 1):
            raise self._source.invalid(
                "the metadata key 'general.alignment' is not a usable alignment",
                at,
                f"{value}, limit: a power of two from {MIN_ALIGNMENT} to {MAX_ALIGNMENT}",
            )
        return value

    def _refuse_split(self) -> None:
        if "split.count" not in self._values:
            return
        count, at = self._values["split.count"], self._value_offsets["split.count"]
        if not isinstance(count, int) or isinstance(count, bool):
            raise self._source.invalid(
                "the metadata key 'split.count' has the wrong type", at, f"{type(count).__name__}, limit: an integer"
            )
        if count > 1 and not self._may_be_part:
            raise self._source.unsupported(
                "the file is one part of a model that was split",
                at,
                f"split.count {count}, limit 1",
                "Merge the parts with `llama-gguf-split --merge` of llama.cpp.",
            )

    def _check_vocabulary(self) -> None:
        tokens = self._values.get("tokenizer.ggml.tokens")
        if not isinstance(tokens, MetadataArray):
            return
        for key in ("tokenizer.ggml.token_type", "tokenizer.ggml.scores"):
            other = self._values.get(key)
            if isinstance(other, MetadataArray) and other.length != tokens.length:
                raise self._source.invalid(
                    f"the metadata key {shown(key)} does not have one item per token",
                    self._value_offsets[key],
                    f"{other.length} items, limit {tokens.length} as in 'tokenizer.ggml.tokens'",
                )

    def _tensor_entry(self, index: int) -> _TensorEntry:
        source, at = self._source, self._reader.at
        name = self._reader.name(f"the name of tensor {index}", MAX_NAME_BYTES)
        field = f"tensor {shown(name)}"
        if "/" in name or "\\" in name:
            raise source.invalid(f"the name of tensor {index} is a path", at, f"{shown(name)}, limit: no / and no \\")
        shape = self._shape(field)
        type_at = self._reader.at
        type_id = self._reader.number(U32, f"the type of {field}")
        block = self._block_format(type_id, type_at, field)
        if shape[0] % block.items:
            raise source.invalid(
                f"the rows of {field} are not whole blocks",
                type_at,
                f"{shape[0]} elements a row, limit: multiples of {block.items} for {block.name}",
            )
        elements = 1
        for dim in shape:
            elements *= dim
        offset_at = self._reader.at
        offset = self._reader.number(U64, f"the offset of {field}")
        if offset % self._alignment:
            raise source.invalid(
                f"the offset of {field} is not aligned", offset_at, f"{offset}, limit: multiples of {self._alignment}"
            )
        return _TensorEntry(at, name, shape, type_id, block, elements // block.items * block.size, offset)

    def _shape(self, field: str) -> tuple[int, ...]:
        at = self._reader.at
        n_dims = self._reader.number(U32, f"the number of dimensions of {field}")
        if not 1 <= n_dims <= MAX_DIMS:
            raise self._source.invalid(
                f"the number of dimensions of {field} is impossible", at, f"{n_dims}, limit 1 to {MAX_DIMS}"
            )
        shape: list[int] = []
        elements = 1
        for axis in range(n_dims):
            dim_at = self._reader.at
            dim = self._reader.number(U64, f"dimension {axis} of {field}")
            elements *= dim
            if dim < 1 or elements > MAX_ELEMENTS:
                raise self._source.invalid(
                    f"dimension {axis} of {field} is impossible",
                    dim_at,
                    f"{dim}, for {elements} elements so far, limit 1 to {MAX_ELEMENTS} elements",
                )
            shape.append(dim)
        return tuple(shape)

    def _block_format(self, type_id: int, at: int, field: str) -> BlockFormat:
        block = GGML_TYPES.get(type_id)
        if block is not None:
            return block
        if type_id in REMOVED_GGML_TYPES:
            raise self._source.unsupported(
                f"the quantisation of {field} was removed from GGUF",
                at,
                f"ggml type {type_id} ({REMOVED_GGML_TYPES[type_id]}), limit: types in use",
                "Get a newer file of this model, for example in Q4_0, Q4_1 or Q8_0.",
            )
        raise self._source.unsupported(
            f"the quantisation of {field} is unknown",
            at,
            f"ggml type {type_id}, limit {max(GGML_TYPES)}",
            "Get the model in a known quantisation, for example Q4_0, Q4_1 or Q8_0.",
        )

    # --- the tensor data ----------------------------------------------------------------------

    def _check_layout(self, entries: list[_TensorEntry], data_offset: int) -> None:
        """Check that every tensor is inside the file, that none overlap, and that little else is in the file."""
        source = self._source
        available = source.size - data_offset
        previous: _TensorEntry | None = None
        used = 0
        for entry in sorted(entries, key=lambda entry: entry.offset):
            end = entry.offset + entry.nbytes
            if end > available:
                raise source.invalid(
                    f"the data of tensor {shown(entry.name)} ends beyond the file",
                    entry.at,
                    f"offset {data_offset + entry.offset} + {entry.nbytes} bytes, limit {source.size}",
                )
            if previous is not None and entry.offset < previous.offset + previous.nbytes:
                raise source.invalid(
                    f"the data of tensor {shown(entry.name)} overlaps that of {shown(previous.name)}",
                    entry.at,
                    f"offset {data_offset + entry.offset}, limit {data_offset + previous.offset + previous.nbytes}",
                )
            previous = entry
            used += entry.nbytes
        slack_limit = MAX_SLACK_BYTES + self._alignment * len(entries)
        if available - used > slack_limit:
            raise source.invalid(
                "most of the file belongs to no tensor" if available > 2 * used else "parts of the file are unused",
                data_offset,
                f"{available - used} bytes of {source.size} belong to no tensor, limit {slack_limit}",
            )
