"""Copying a model from a file on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edge_rt.errors import DownloadError, InvalidModelFile, StorageError
from edge_rt.store.files import FileSpec, storage_errors, write_checked
from edge_rt.store.recipes import LocalSource
from edge_rt.system.file_hash import read_chunks, sha256_file

GGUF_MAGIC = b"GGUF"


def fetch_from_file(
    source: LocalSource, spec: FileSpec, folder: Path, on_bytes: Callable[[int, int | None], None]
) -> str:
    """Copy a local file to ``folder/spec.name``.

    Args:
        source: the file.
        spec: size and hash that it must have.
        folder: existing private folder.
        on_bytes: called with the bytes copied so far and in total.

    Returns:
        The sha256 of the file.

    Raises:
        DownloadError: the file does not exist, or its size or hash differ.
        StorageError: the file cannot be read, or the copy cannot be written.
    """
    with storage_errors(source.path):
        is_file = source.path.is_file()
    if not is_file:
        raise DownloadError(f"{source.path} does not exist.", "It is not a regular file.", "Use another source.")
    return write_checked(read_chunks(source.path), folder / spec.name, spec, lambda done: on_bytes(done, spec.size))


def check_gguf(path: Path) -> None:
    """Refuse a file that cannot be a GGUF file, before all of it is read.

    Raises:
        InvalidModelFile: not a regular file, or not one that starts with the GGUF magic.
        StorageError: the file cannot be read.
    """
    with storage_errors(path):
        is_file = path.is_file()
    if not is_file:
        raise InvalidModelFile(f"{path} is not a regular file.", "A GGUF file is needed.", "Give the path of a file.")
    with storage_errors(path), path.open("rb") as file:
        magic = file.read(len(GGUF_MAGIC))
    if magic != GGUF_MAGIC:
        raise InvalidModelFile(
            f"{path} is not a GGUF file.",
            f"At byte 0: {magic.hex(' ') or 'end of file'}, expected {GGUF_MAGIC.hex(' ')} ('GGUF').",
            "Give a GGUF file, or fetch this one again.",
        )


def describe_file(path: Path, on_bytes: Callable[[int, int | None], None]) -> FileSpec:
    """Return name, size and hash of a GGUF file that stays where it is.

    Raises:
        InvalidModelFile: it is not a GGUF file.
        StorageError: it cannot be read, or changes while it is read.
    """
    check_gguf(path)
    with storage_errors(path):
        before = path.stat()
    digest = sha256_file(path, lambda done: on_bytes(done, before.st_size))
    with storage_errors(path):
        after = path.stat()
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise StorageError(
            f"{path} changed while it was read.",
            f"{before.st_size} bytes before, {after.st_size} after.",
            "Wait until it is complete.",
        )
    return FileSpec(path.name, before.st_size, digest)
