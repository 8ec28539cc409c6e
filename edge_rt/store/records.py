"""``source.json``: the files in one folder of ``sources/``, where they came from, and their hashes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edge_rt.errors import InvalidModelFile
from edge_rt.store.naming import is_safe_path
from edge_rt.system.checkpoint_names import TEXT_FILES, WEIGHTS_SUFFIX
from edge_rt.system.files import NOT_READ, combined_sha256, sha256_file, storage_errors, write_atomically
from edge_rt.system.json_files import read_object

RECORD_FILE = "source.json"
FORMAT_VERSION = 1
MAX_RECORD_BYTES = 4 << 20


@dataclass(frozen=True)
class RecordedFile:
    """One fetched file.

    Attributes:
        size: bytes.
        mtime_ns: its modification time then; if it has changed, the digest must be computed again.
    """

    name: str
    size: int
    sha256: str
    mtime_ns: int


@dataclass(frozen=True)
class SourceRecord:
    """The files in one folder of ``sources/``.

    Attributes:
        origin: what was requested: ``recipe NAME`` or ``hub org/name[:file]``.
        kind: kind of the source that delivered it: ``pip-wheel``, ``hub`` or ``local``.
        files: the files; GGUF files come first, the parts of a split one in their order.
    """

    origin: str
    kind: str
    license: str | None
    files: tuple[RecordedFile, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def sha256(self) -> str:
        """Hash of the files that an export reads, as the manifest of the package has it."""
        read = [file for file in self.files if _is_gguf(file.name)]
        if not read:
            weights = [file for file in self.files if file.name.endswith(WEIGHTS_SUFFIX)]
            texts = [file for file in self.files if file.name in TEXT_FILES]
            read = [*sorted(weights, key=_name), *sorted(texts, key=_name)]
        return combined_sha256([(file.name, file.sha256) for file in read])

    def model_path(self, folder: Path) -> Path:
        """Return the GGUF file, the first part of a split one, or the folder itself if it has none."""
        name = self.files[0].name
        return folder / name if _is_gguf(name) else folder


def _is_gguf(name: str) -> bool:
    return name.lower().endswith(".gguf")


def _name(file: RecordedFile) -> str:
    return file.name


def record_file(path: Path, sha256: str) -> RecordedFile:
    """Describe a file that was just written."""
    with storage_errors(path, NOT_READ):
        status = path.stat()
    return RecordedFile(path.name, status.st_size, sha256, status.st_mtime_ns)


def write_record(folder: Path, record: SourceRecord) -> None:
    """Write ``source.json`` into a private temporary folder."""
    path = folder / RECORD_FILE
    content = {"format_version": FORMAT_VERSION, **asdict(record)}
    write_atomically(path, [json.dumps(content, indent=2).encode() + b"\n"])


def read_record(folder: Path) -> SourceRecord:
    """Read ``source.json`` and check that every file exists with its recorded size."""
    path = folder / RECORD_FILE
    missing = [entry for entry in (folder, path) if not entry.exists()]
    if missing:
        raise _damaged(missing[0], "it does not exist")
    try:
        record = _parse(read_object(path, MAX_RECORD_BYTES, ValueError))
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from error
    for entry in record.files:
        if not (folder / entry.name).is_file():
            raise _damaged(folder / entry.name, "it does not exist")
        with storage_errors(folder / entry.name, NOT_READ):
            size = (folder / entry.name).stat().st_size
        if size != entry.size:
            raise _damaged(folder / entry.name, f"{size} bytes, {entry.size} were recorded")
    return record


def _parse(value: Any) -> SourceRecord:
    if value["format_version"] != FORMAT_VERSION:
        raise ValueError(f"format version {value['format_version']}")
    files = tuple(RecordedFile(**entry) for entry in value["files"])
    for file in files:
        if not is_safe_path(file.name) or "/" in file.name or not isinstance(file.size, int):
            raise ValueError(f"file name {file.name!r}")
    if not files or not isinstance(value["origin"], str) or not isinstance(value["kind"], str):
        raise ValueError("no files or no origin")
    return SourceRecord(value["origin"], value["kind"], value["license"], files)


def _damaged(path: Path, numbers: str) -> InvalidModelFile:
    return InvalidModelFile(f"{path} is damaged.", f"{numbers}.", "Fetch the model again with 'edge-rt pull'.")


def is_intact(folder: Path, record: SourceRecord, *, verify: bool = False) -> bool:
    """Return whether the files still have their hashes.

    Args:
        verify: read every file; else only those whose modification time differs from the recorded one.
    """
    for entry in record.files:
        path = folder / entry.name
        with storage_errors(path, NOT_READ):
            unchanged = path.stat().st_mtime_ns == entry.mtime_ns
        if (verify or not unchanged) and sha256_file(path) != entry.sha256:
            return False
    return True
