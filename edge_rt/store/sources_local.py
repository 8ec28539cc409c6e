"""Files of a model that are checked while they are written; and models on this machine, copied or used in place."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from edge_rt.errors import DownloadError, InvalidModelFile, StorageError
from edge_rt.store.made_from import LocalCheckpoint, are_settled, file_states
from edge_rt.store.recipes import FileSpec, LocalSource
from edge_rt.system.checkpoint_names import folder_name, parse_split_name, part_names
from edge_rt.system.files import NOT_READ, O_BINARY, read_chunks, sha256_files, storage_errors, write_all

GGUF_MAGIC = b"GGUF"


def fetch_from_file(
    source: LocalSource, spec: FileSpec, folder: Path, on_bytes: Callable[[int, int | None], None]
) -> str:
    """Copy a local file to ``folder/spec.name``.

    Returns:
        The sha256 of the file.
    """
    with storage_errors(source.path, NOT_READ):
        is_file = source.path.is_file()
    if not is_file:
        raise DownloadError(f"{source.path} does not exist.", "It is not a regular file.", "Use another source.")
    return write_checked(read_chunks(source.path), folder / spec.name, spec, lambda done: on_bytes(done, spec.size))


def write_checked(chunks: Iterable[bytes], target: Path, spec: FileSpec, on_bytes: Callable[[int], None]) -> str:
    """Write a new file from chunks, check it against ``spec`` and sync it to disk.

    Args:
        target: path that must not exist yet; absent again after an error.
        spec: never more bytes than its size are written.

    Returns:
        The sha256 of the content, in hexadecimal.
    """
    digest = hashlib.sha256()
    done = 0
    with storage_errors(target):
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | O_BINARY, 0o666)
    try:
        for chunk in chunks:
            done += len(chunk)
            if spec.size is not None and done > spec.size:
                raise _size_error(spec, f"more than {spec.size}")
            digest.update(chunk)
            with storage_errors(target):
                write_all(descriptor, chunk)
            on_bytes(done)
        with storage_errors(target):
            os.fsync(descriptor)
        check_content(spec, done, digest.hexdigest())
    except BaseException:
        os.close(descriptor)
        target.unlink(missing_ok=True)
        raise
    os.close(descriptor)
    return digest.hexdigest()


def check_content(spec: FileSpec, size: int, sha256: str) -> None:
    """Compare size and hash with the expected ones."""
    if spec.size is not None and size != spec.size:
        raise _size_error(spec, str(size))
    if spec.sha256 is not None and sha256 != spec.sha256:
        raise DownloadError(
            f"{spec.name} has the wrong content.",
            f"sha256 {sha256}, expected {spec.sha256}.",
            "Fetch it again; if that does not help, its source has changed or is not to be trusted.",
        )


def _size_error(spec: FileSpec, found: str) -> DownloadError:
    return DownloadError(
        f"{spec.name} has the wrong size.",
        f"{found} bytes, expected {spec.size}.",
        "Fetch it again; if that does not help, its source has changed or is not to be trusted.",
    )


def check_gguf(path: Path) -> None:
    """Refuse a file that cannot be a GGUF file, before all of it is read."""
    with storage_errors(path, NOT_READ):
        is_file = path.is_file()
    if not is_file:
        raise InvalidModelFile(f"{path} is not a regular file.", "A GGUF file is needed.", "Give the path of a file.")
    with storage_errors(path, NOT_READ), path.open("rb") as file:
        magic = file.read(len(GGUF_MAGIC))
    if magic != GGUF_MAGIC:
        raise InvalidModelFile(
            f"{path} is not a GGUF file.",
            f"At byte 0: {magic.hex(' ') or 'end of file'}, expected {GGUF_MAGIC.hex(' ')} ('GGUF').",
            "Give a GGUF file, or fetch this one again.",
        )


def local_path(path: Path) -> Path:
    """Return the absolute path by which a local checkpoint is known: of a split file that of its first part."""
    return path.resolve() if path.is_dir() else path.with_name(part_names(path.name)[0]).absolute()


def read_checkpoint(path: Path, on_bytes: Callable[[int, int | None], None]) -> LocalCheckpoint:
    """Hash a local checkpoint, which is judged by its headers first.

    Args:
        path: a GGUF file, any part of a split one, or a folder with ``config.json`` and safetensors.
    """
    from edge_rt.export.opening import open_checkpoint

    split = parse_split_name(path.name)
    paths = open_checkpoint(path)[0].paths
    known = local_path(path)
    before = file_states(known)
    settled = are_settled(before)
    with storage_errors(path, NOT_READ):
        size = sum(one.stat().st_size for one in paths)
    digest = sha256_files(paths, lambda done: on_bytes(done, size))
    if (after := file_states(known)) != before:
        changed = [one.name for one in {*before} ^ {*after}]
        raise StorageError(
            f"{path} changed while it was read.",
            f"The file that differs: {min(changed)}.",
            "Wait until it is complete.",
        )
    name = folder_name(path) if path.is_dir() else path.stem if split is None else split.stem
    return LocalCheckpoint(known, name, size, digest, before, settled)
