"""The tensors of a folder of ``*.safetensors``: names, shapes and types, from the files' headers alone.

Format: https://huggingface.co/docs/safetensors (8 bytes of length, then JSON); an index lists the files of a large
model.
"""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from edge_rt.errors import InvalidModelFile, StorageError
from edge_rt.system.checkpoint_names import ADAPTER_FILE, INDEX_FILE, SINGLE_FILE
from edge_rt.system.json_files import parse_object, read_object

WEIGHTS_PATTERN: Final = "*.safetensors"

_MAX_HEADER_BYTES: Final = 100 << 20
_HUGE: Final = 1 << 40
_MAX_AXES: Final = 8
_FLOATS: Final = ("F64", "F32", "F16", "BF16", "F8_")


@dataclass(frozen=True)
class Tensors:
    """The tensors of a checkpoint.

    Attributes:
        are_packed: whether matrices are stored as packed integers, whose shapes are not those of the model.
    """

    shapes: dict[str, tuple[int, ...]]
    are_packed: bool


def read_tensors(folder: Path) -> Tensors:
    """Return the tensors of a folder: of the files that its index names, of ``model.safetensors``, or of all.

    Raises:
        InvalidModelFile: a file is malformed, or one that the index names is missing.
        StorageError: a file cannot be read.
    """
    index = folder / INDEX_FILE
    expected: set[str] = set()
    if index.is_file():
        paths, expected = _indexed(index)
    elif (folder / SINGLE_FILE).is_file():
        paths = [folder / SINGLE_FILE]
    else:
        paths = sorted(path for path in folder.glob(WEIGHTS_PATTERN) if path.name != ADAPTER_FILE)
    shapes: dict[str, tuple[int, ...]] = {}
    are_packed = False
    for path in paths:
        for name, (shape, kind) in _read_header(path).items():
            shapes[name] = shape
            are_packed |= len(shape) > 1 and not kind.startswith(_FLOATS)
    if missing := sorted(expected - set(shapes)):
        raise InvalidModelFile(
            f"{folder.name} lacks tensors that {INDEX_FILE} names.",
            f"{len(missing)} of {len(expected)} are missing, the first is {missing[0]!r:.80}.",
            "Fetch the model again.",
        )
    return Tensors(shapes, are_packed)


def read_json(path: Path, most_bytes: int, *, is_foreign: bool = True) -> dict[str, Any]:
    """Return the object of a JSON file of at most ``most_bytes``; ``is_foreign`` as in ``parse_json``."""
    return read_object(path, most_bytes, functools.partial(malformed, path), is_foreign=is_foreign)


def malformed(path: Path, reason: str) -> InvalidModelFile:
    """Return the error for a malformed file."""
    sentence = reason[:1].upper() + reason[1:200].rstrip(".")
    return InvalidModelFile(f"{path.name} is malformed.", f"{sentence}.", "Fetch the model again.")


def _indexed(index: Path) -> tuple[list[Path], set[str]]:
    """Return the files that an index names, and the tensors that they hold."""
    weights = read_json(index, _MAX_HEADER_BYTES).get("weight_map")
    if not isinstance(weights, dict) or not weights:
        raise malformed(index, "it has no weight_map")
    names = set()
    for name in weights.values():
        if not isinstance(name, str) or not name.endswith(".safetensors") or Path(name).name != name:
            raise malformed(index, f"it names the file {name!r:.60}")
        names.add(name)
    paths = [index.parent / name for name in sorted(names)]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise InvalidModelFile(
            f"{index.parent.name} lacks files that {INDEX_FILE} names.",
            f"{len(missing)} of {len(paths)} are missing, the first is {missing[0]:.80}.",
            "Fetch the model again, all of its files.",
        )
    return paths, set(weights)


def _read_header(path: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return name -> shape and type."""
    try:
        with path.open("rb") as stream:
            prefix = stream.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
            if not 2 <= length <= _MAX_HEADER_BYTES:
                raise malformed(path, f"its header says {length} bytes")
            data = stream.read(length)
            if len(data) < length:
                raise malformed(path, f"its header says {length} bytes, {len(data)} are there")
    except OSError as error:
        raise _unreadable(path, error) from error
    document = parse_object(data, lambda reason: malformed(path, f"its header is no JSON object: {reason}"))
    try:
        entries = {
            name: (entry["shape"], str(entry["dtype"])) for name, entry in document.items() if name != "__metadata__"
        }
    except (KeyError, TypeError) as error:
        raise malformed(path, f"its header cannot be read ({type(error).__name__})") from error
    for name, (shape, _) in entries.items():
        if not _is_shape(shape):
            raise malformed(path, f"the shape of {name!r:.60} is {shape!r:.60}")
    return {name: (tuple(shape), kind) for name, (shape, kind) in entries.items()}


def _is_shape(shape: object) -> bool:
    if not isinstance(shape, list) or len(shape) > _MAX_AXES:
        return False
    product = 1
    for count in shape:
        if type(count) is not int or not 0 <= count <= _HUGE:
            return False
        product *= count
    return product <= _HUGE


def _unreadable(path: Path, error: OSError) -> StorageError:
    return StorageError(f"{path} cannot be read.", f"{error.strerror}.", "Check its permissions.")
