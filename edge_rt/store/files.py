"""Writing files so that they are either absent or complete: checked while written, synced, renamed by the caller."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from edge_rt.errors import DownloadError, EdgeRTError, StorageError
from edge_rt.system.atomic_files import O_BINARY, in_use, write_all
from edge_rt.system.byte_size import human_bytes

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(frozen=True)
class FileSpec:
    """A file to be fetched.

    Attributes:
        name: file name, or relative path in POSIX form.
        size: bytes; None if not known beforehand.
        sha256: hexadecimal digest; None if not known beforehand.
    """

    name: str
    size: int | None = None
    sha256: str | None = None


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn an ``OSError`` of the file system into a `StorageError` that names ``path``."""
    try:
        yield
    except EdgeRTError:
        raise
    except OSError as error:
        if (open_elsewhere := in_use(path, error)) is not None:
            raise open_elsewhere from error
        reason = error.strerror or str(error)
        if error.errno in _FULL:
            raise StorageError(
                f"{path} could not be written: the disk is full or a limit is reached.",
                f"{reason}; {human_bytes(free_bytes(path))} free.",
                "Free space, or choose another folder with --store.",
            ) from error
        raise StorageError(
            f"{path} cannot be read or written.",
            f"{reason}.",
            "Check the folder, its permissions and its disk.",
        ) from error


def free_bytes(path: Path) -> int:
    """Return the free bytes of the disk that holds ``path``, or would hold it."""
    for folder in (path, *path.parents):
        if folder.exists():
            return shutil.disk_usage(folder).free
    return 0


def check_space(folder: Path, needed: int, what: str) -> None:
    """Refuse to write what cannot fit on the disk.

    Args:
        folder: where the files would be written.
        needed: bytes that they need.
        what: a noun that names them in the message.

    Raises:
        StorageError: fewer than ``needed`` bytes are free.
    """
    free = free_bytes(folder)
    if free < needed:
        raise StorageError(
            f"There is not enough space for {what} in {folder}.",
            f"{human_bytes(needed)} needed, {human_bytes(free)} free.",
            "Free space, or choose another folder with --store.",
        )


def write_checked(chunks: Iterable[bytes], target: Path, spec: FileSpec, on_bytes: Callable[[int], None]) -> str:
    """Write a new file from chunks, check it against ``spec`` and sync it to disk.

    Args:
        chunks: the content; errors raised by the iterator pass through.
        target: path that must not exist yet; absent again after an error.
        spec: expected size and hash; never more bytes than the size are written.
        on_bytes: called with the number of bytes written so far.

    Returns:
        The sha256 of the content, in hexadecimal.

    Raises:
        StorageError: the file could not be written.
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


def tree_bytes(path: Path) -> int:
    """Return the bytes of all files at and below ``path`` without following links; 0 if it is absent."""
    try:
        if path.is_symlink() or not path.is_dir():
            return path.lstat().st_size
        return sum(tree_bytes(child) for child in path.iterdir())
    except FileNotFoundError:  # another process may be writing or removing this folder
        return 0
