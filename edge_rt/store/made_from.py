"""``made-from/NAME.json``: the local checkpoint that a package was made of, so that it is not hashed at every start.

A hash is believed as long as every file has its path, size, times of modification and change, and inode. Files that
changed a moment before they were hashed are not recorded: on many file systems a second change in the same tick leaves
no trace.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any, Final

from edge_rt.errors import StorageError
from edge_rt.system.checkpoint_names import TEXT_FILES, WEIGHTS_SUFFIX, part_names
from edge_rt.system.files import NOT_READ, storage_errors, write_atomically
from edge_rt.system.json_files import read_object

FORMAT_VERSION: Final = 2
MAX_RECORD_BYTES: Final = 1 << 20
_TICK_NS: Final = 2_000_000_000
"""Coarsest step of modification times; file systems for memory cards have it."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FileState:
    """What shows, without reading it, that a file is still the same.

    Attributes:
        name: its name, relative to the folder of the checkpoint.
        size: bytes.
        ctime_ns: time of the last change to the file or its metadata. Nobody can put it back, so it shows a rewrite in
            place that kept the modification time; ``chmod`` and new hard links change it, too. On Windows: of creation.
        inode: number of the file on its disk; another file in its place has another.
    """

    name: str
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int


@dataclass(frozen=True)
class LocalCheckpoint:
    """A checkpoint that stays where it is, and its hash.

    Attributes:
        path: the GGUF file, the first part of a split one, or the folder; absolute.
        name: of the model: the stem of the file, or the folder's name.
        size: bytes of all files that an export reads.
        sha256: their hash, as the manifest of the package has it.
        states: of all files that an export may read, before they were hashed.
    """

    path: Path
    name: str
    size: int
    sha256: str
    states: tuple[FileState, ...] = field(default=(), compare=False)
    is_settled: bool = field(default=True, compare=False)


def file_states(path: Path) -> tuple[FileState, ...]:
    """Return the states of all files that an export of a checkpoint may read.

    Args:
        path: a GGUF file, the first part of a split one, or a folder.
    """
    folder = path if path.is_dir() else path.parent
    with storage_errors(path, NOT_READ):
        if path.is_dir():
            texts = (name for name in TEXT_FILES if (path / name).exists())
            weights = (file.name for file in path.glob(f"*{WEIGHTS_SUFFIX}") if file.exists())
            names = sorted({*texts, *weights})
        else:
            names = list(part_names(path.name))
        found = [(name, (folder / name).stat()) for name in names]
    return tuple(
        FileState(name, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino) for name, status in found
    )


def are_settled(states: tuple[FileState, ...], now_ns: int | None = None) -> bool:
    """Return whether no file was changed just now; the time is given in tests."""
    now = time.time_ns() if now_ns is None else now_ns
    return all(abs(now - state.mtime_ns) > _TICK_NS for state in states)


def remember(folder: Path, name: str, checkpoint: LocalCheckpoint) -> None:
    """Record the checkpoint that the package ``name`` was made of; a store that cannot be written records nothing."""
    if not checkpoint.is_settled:
        return
    document = {
        "format_version": FORMAT_VERSION,
        "path": str(checkpoint.path),
        "name": checkpoint.name,
        "size": checkpoint.size,
        "sha256": checkpoint.sha256,
        "files": [astuple(state) for state in checkpoint.states],
    }
    try:
        data = json.dumps(document).encode("ascii") + b"\n"
        write_atomically(folder / f"{name}.json", [data], durable=False, parents=True)
    except StorageError as error:
        _log.info("%s", error)


def forget(folder: Path, name: str) -> None:
    """Remove the record of a package."""
    path = folder / f"{name}.json"
    with storage_errors(path):
        path.unlink(missing_ok=True)


def recall(folder: Path, path: Path) -> LocalCheckpoint | None:
    """Return what is recorded of a checkpoint, if no file of it has changed since; nothing of it is read."""
    try:
        states = file_states(path)
        return next((found for found in _records(folder) if found.path == path and found.states == states), None)
    except StorageError:
        return None


def recorded_path(folder: Path, name: str) -> Path | None:
    """Return the checkpoint that the package of that name was made of, if no file of it has changed since."""
    try:
        record = _parse(read_object(folder / f"{name}.json", MAX_RECORD_BYTES, ValueError))
        return record.path if file_states(record.path) == record.states else None
    except (StorageError, ValueError, KeyError, TypeError):
        return None


def _records(folder: Path) -> Iterator[LocalCheckpoint]:
    with storage_errors(folder, NOT_READ):
        paths = sorted(folder.glob("*.json"))
    for path in paths:
        try:
            yield _parse(read_object(path, MAX_RECORD_BYTES, ValueError))
        except (StorageError, ValueError, KeyError, TypeError) as error:
            _log.info("%s: %s", path, error)  # it is written again when the checkpoint has been hashed


def _parse(document: Any) -> LocalCheckpoint:
    if document["format_version"] != FORMAT_VERSION:
        raise ValueError(f"format version {document['format_version']}")
    name, size, sha256 = document["name"], document["size"], document["sha256"]
    if not isinstance(name, str) or not isinstance(size, int) or not isinstance(sha256, str):
        raise TypeError("name, size or sha256")
    states = tuple(FileState(*state) for state in document["files"])
    return LocalCheckpoint(Path(document["path"]), name, size, sha256, states)
