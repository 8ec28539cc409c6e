"""The tensors of a folder of ``*.safetensors``, where their data lies, and nothing believed that was not checked.

Format: https://huggingface.co/docs/safetensors. A file is 8 bytes of length, a JSON object of that length, and data.
The object has for each tensor its dtype, shape and ``data_offsets``, which must cover the data without gaps and without
overlaps. Of a model in several files, ``model.safetensors.index.json`` names the file of every tensor.
"""

from __future__ import annotations

import functools
import math
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from edge_rt.errors import InvalidModelFile, ModelNotFound, UnsupportedModel
from edge_rt.export.sources.gguf_types import shown
from edge_rt.export.sources.model_file import open_model_file, unreadable
from edge_rt.system.checkpoint_names import ADAPTER_FILE, INDEX_FILE, SINGLE_FILE, is_blob_link
from edge_rt.system.json_files import parse_object, read_object

WEIGHTS_PATTERN: Final = "*.safetensors"
MAX_HEADER_BYTES: Final = 32 << 20
MAX_INDEX_BYTES: Final = 32 << 20
MAX_TENSORS: Final = 1 << 17
MAX_FILES: Final = 1000
MAX_AXES: Final = 8
MAX_ELEMENTS: Final = 1 << 40
MAX_NAME_BYTES: Final = 255
"""Of a file's name, on the systems that have the least."""

DTYPE_BYTES: Final = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip
"""Type of an element -> its bytes."""


@dataclass(frozen=True)
class StoredTensor:
    """One tensor; ``offset`` is that of its data in the file, ``file`` its number in ``SafetensorsFolder.paths``."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    file: int


@dataclass(frozen=True)
class SafetensorsFolder:
    """The tensors of a folder."""

    paths: tuple[Path, ...]
    tensors: dict[str, StoredTensor]


def read_folder(folder: Path) -> SafetensorsFolder:
    """Read and check the headers of the files that an index names, of ``model.safetensors``, or of the only file."""
    index = folder / INDEX_FILE
    mapped: dict[str, str] | None = None
    if index.exists():
        mapped = read_index(index)
        paths = [folder / name for name in sorted(set(mapped.values()))]
        _require_files(index, paths)
    elif (folder / SINGLE_FILE).exists():
        paths = [folder / SINGLE_FILE]
    else:
        paths = sorted(path for path in folder.glob(WEIGHTS_PATTERN) if path.name != ADAPTER_FILE)
        if len(paths) != 1:
            names = ", ".join(path.name for path in paths[:5]) or "none"
            raise ModelNotFound(
                f"{folder} holds no weights that edge-rt can find.",
                f"There is no {SINGLE_FILE} and no {INDEX_FILE}; other {WEIGHTS_PATTERN} files: {names}.",
                "Fetch the model's safetensors files with their index.",
            )
    tensors: dict[str, StoredTensor] = {}
    for number, path in enumerate(paths):
        for tensor in read_file(path, number):
            if tensor.name in tensors:
                raise malformed(
                    path, f"the tensor {shown(tensor.name)} is in {paths[tensors[tensor.name].file].name}, too"
                )
            tensors[tensor.name] = tensor
    if mapped is not None:
        _check_index(index, mapped, tensors, paths)
    return SafetensorsFolder(tuple(paths), tensors)


def read_index(index: Path) -> dict[str, str]:
    """Return the file of every tensor that an index names; files are names alone, never paths."""
    refuse_link(index)
    mapped = read_json(index, MAX_INDEX_BYTES, is_foreign=False).get("weight_map")
    if not isinstance(mapped, dict) or not mapped:
        raise malformed(index, "it has no weight_map")
    for name in mapped.values():
        if not _is_file_name(name):
            raise malformed(index, f"it names the file {name!r:.60}")
    if len(set(mapped.values())) > MAX_FILES:
        raise malformed(index, f"it names {len(set(mapped.values()))} files, at most {MAX_FILES} are read")
    return mapped


def _is_file_name(name: object) -> bool:
    """Return whether a file can have this name: no folder, nothing that a system takes for one, and not too long."""
    if not isinstance(name, str) or not name.endswith(".safetensors") or Path(name).name != name:
        return False
    # A lone surrogate cannot be encoded; the system would refuse a NUL character.
    if "\\" in name or not name.isprintable():
        return False
    return len(name.encode()) <= MAX_NAME_BYTES


def _require_files(index: Path, paths: list[Path]) -> None:
    missing = [path.name for path in paths if not path.is_symlink() and not path.exists()]
    if missing:
        raise ModelNotFound(
            f"{index.parent} lacks files that {INDEX_FILE} names.",
            f"{len(missing)} of {len(paths)} are missing, the first is {missing[0]:.80}.",
            "Fetch the model again, all of its files.",
        )


def _check_index(index: Path, mapped: dict[str, str], tensors: dict[str, StoredTensor], paths: list[Path]) -> None:
    for name, file in mapped.items():
        if name not in tensors or paths[tensors[name].file].name != file:
            raise malformed(index, f"the tensor {shown(name)} is not in {file}, which it names")
    for name, tensor in tensors.items():
        if name not in mapped:
            raise malformed(index, f"it does not name the tensor {shown(name)}, which is in {paths[tensor.file].name}")


def read_json(path: Path, most_bytes: int, *, is_foreign: bool = True) -> dict[str, Any]:
    """Return the object of a JSON file of at most ``most_bytes``; ``is_foreign`` as in ``parse_json``."""
    return read_object(path, most_bytes, functools.partial(malformed, path), is_foreign=is_foreign)


def malformed(path: Path, reason: str) -> InvalidModelFile:
    """Return the error for a malformed file."""
    sentence = reason[:1].upper() + reason[1:200].rstrip(".")
    return InvalidModelFile(f"{path.name} is malformed.", f"{sentence}.", "Fetch the model again.")


def refuse_link(path: Path) -> None:
    """Refuse a file of a checkpoint that is a symbolic link, but for those of the hub library's cache."""
    # A link in a model that was fetched could lead to any file of this machine.
    if path.is_symlink() and not is_blob_link(path):
        raise InvalidModelFile(
            f"{path.name} is a link.",
            f"{path} leads to {path.readlink()!s:.200}.",
            "Copy the folder with its links resolved: cp -rL FOLDER COPY.",
        )


def read_file(path: Path, number: int) -> list[StoredTensor]:
    """Return the tensors of one file, its header checked; they get ``number`` as ``StoredTensor.file``."""
    refuse_link(path)
    with open_model_file(path) as stream:
        try:
            size = os.fstat(stream.fileno()).st_size
            prefix = stream.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
            if not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
                raise malformed(path, f"its header says {length} bytes, the file has {size}")
            data = stream.read(length)
        except OSError as error:
            raise unreadable(path, error.strerror or str(error)) from error
    if len(data) < length:
        raise malformed(path, f"its header says {length} bytes, {len(data)} came")
    entries = _parse(path, data)
    begin = 8 + length
    tensors = [_tensor(path, number, name, entry, begin, size - begin) for name, entry in entries.items()]
    _check_ranges(path, tensors, begin, size)
    return tensors


def _parse(path: Path, data: bytes) -> dict[str, Any]:
    document = parse_object(data, lambda reason: malformed(path, f"its header is no JSON object: {reason}"))
    document.pop("__metadata__", None)
    if not 1 <= len(document) <= MAX_TENSORS:
        raise malformed(path, f"it has {len(document)} tensors, 1 to {MAX_TENSORS} are read")
    return document


def _tensor(path: Path, number: int, name: str, entry: Any, begin: int, available: int) -> StoredTensor:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise malformed(path, f"the entry of {shown(name)} is not dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise UnsupportedModel(
            f"{path.name}: the type of the tensor {shown(name)} is unknown.",
            f"It is {dtype!r:.40}; known are {', '.join(DTYPE_BYTES)}.",
            "Get the model in another type.",
        )
    if not _is_shape(shape):
        raise malformed(path, f"the shape of {shown(name)} is {shape!r:.60}")
    is_range = isinstance(offsets, list) and len(offsets) == 2 and all(type(at) is int for at in offsets)
    if not is_range or not 0 <= offsets[0] <= offsets[1] <= available:
        raise malformed(path, f"the data of {shown(name)} lies at {offsets!r:.60}, there are {available} bytes")
    nbytes = math.prod(shape) * DTYPE_BYTES[dtype]
    if offsets[1] - offsets[0] != nbytes:
        raise malformed(path, f"{shown(name)} has {offsets[1] - offsets[0]} bytes, its shape and type make {nbytes}")
    return StoredTensor(name, dtype, tuple(shape), begin + offsets[0], nbytes, number)


def _is_shape(shape: object) -> bool:
    if not isinstance(shape, list) or len(shape) > MAX_AXES:
        return False
    product = 1
    for count in shape:
        if type(count) is not int or not 0 <= count <= MAX_ELEMENTS:
            return False
        product *= count
    return product <= MAX_ELEMENTS


def _check_ranges(path: Path, tensors: list[StoredTensor], begin: int, end: int) -> None:
    """Require tensors to cover all bytes of the data once."""
    at = begin
    for tensor in sorted(tensors, key=lambda tensor: (tensor.offset, tensor.nbytes)):
        if tensor.offset != at:
            what = "overlaps another tensor" if tensor.offset < at else "leaves a gap before it"
            raise malformed(
                path, f"the data of {shown(tensor.name)} {what}: it begins at byte {tensor.offset}, not {at}"
            )
        at += tensor.nbytes
    if at != end:
        raise malformed(path, f"its tensors end at byte {at}, the file at {end}")
