"""Atomic writes of files and folders: written under a temporary name, synced to disk, then renamed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from edge_rt.errors import StorageError

O_BINARY: Final[int] = getattr(os, "O_BINARY", 0)
"""Flag of ``os.open`` that keeps Windows from changing line ends."""
_IN_USE: Final = {5, 32, 33, 1224}
"""Windows' error codes for a file that is open or mapped: access denied (also for a folder that holds such a file),
sharing violation, lock violation, user-mapped section."""
_SHOWN_NAME: Final = 32  # characters of the file's name in its temporary name, so that both fit every file system


def write_atomically(
    path: Path, parts: Iterable[bytes], *, private: bool = False, durable: bool = True, parents: bool = False
) -> None:
    """Write a file atomically; until it is complete, the old file stays, or the file is absent.

    Args:
        path: the file; replaced if it exists.
        private: readable by its owner only, on systems with such permissions.
        durable: sync to disk before the rename, so that a power failure leaves the old file or the new one. Without it
            the file may be empty after a power failure: only for files that can be made again.

    Raises:
        StorageError: it cannot be written, or the old file is open on Windows and cannot be replaced.
    """
    try:
        if parents:
            path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, parts, private=private, durable=durable)
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(
            f"{path} could not be written.",
            f"{error.strerror or error}.",
            "Check the folder, its permissions and its disk, or choose another place.",
        ) from error


def _write(path: Path, parts: Iterable[bytes], *, private: bool, durable: bool) -> None:
    part = path.with_name(f".{path.name[:_SHOWN_NAME]}.{os.urandom(6).hex()}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | O_BINARY
    descriptor = os.open(part, flags, 0o600 if private else 0o666)
    try:
        try:
            for data in parts:
                write_all(descriptor, data)
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        replace(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of the data; a single system call may write less.

    Unbuffered: a buffered file would retry a failed write when it is closed, and hide the first error.
    """
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def replace(source: Path, target: Path) -> None:
    """Rename a file or folder atomically. A file replaces an existing file; the new name of a folder must be free.

    Raises:
        StorageError: Windows refuses, because the target or a file in the folder is open.
    """
    try:
        # The only call that replaces on every system.
        source.replace(target)
    except OSError as error:
        raise in_use(target, error) or error from error


def in_use(path: Path, error: OSError) -> StorageError | None:
    """Return the ``StorageError`` for a file that another program has open; None if ``error`` has another cause.

    Only Windows has such errors. It neither renames nor deletes a file that is open or mapped, such as the weights of a
    loaded model.

    Args:
        path: the file or folder that could not be renamed or deleted.
        error: error that the system raised.
    """
    code = getattr(error, "winerror", None)
    if code not in _IN_USE:
        return None
    return StorageError(
        f"{path} cannot be replaced or removed while it is in use.",
        f"Windows error {code}: {error.strerror or error}. Nothing was changed.",
        "Close the programs that have it open, such as those that have loaded the model; else check its permissions.",
    )


def replace_folder(new: Path, final: Path, aside: Path) -> None:
    """Replace a folder by another one and move the old one aside; if one rename fails, neither folder has moved.

    Args:
        final: the folder that is replaced.
        aside: new path of the replaced folder; nothing may exist there.

    Raises:
        StorageError: Windows refuses, because a file in the folder is open.
    """
    try:
        replace(final, aside)
        replace(new, final)
    except BaseException:
        # An interrupt may also come between the two renames.
        if occupied(aside) and not occupied(final):
            aside.replace(final)
        raise


def occupied(path: Path) -> bool:
    """Return whether anything exists at a path, including a dangling link."""
    return path.exists() or path.is_symlink()


def sync(path: Path, *, is_windows: bool = sys.platform == "win32") -> None:
    """Sync a file or folder to disk; syncing a folder makes the names of its files durable.

    Args:
        path: the file or folder.
        is_windows: whether the system is Windows.

    Raises:
        OSError: it could not be synced.
    """
    if is_windows and path.is_dir():
        return  # Windows cannot open folders; its file system journals names itself
    # Windows syncs a file only through a descriptor that can write.
    descriptor = os.open(path, os.O_RDWR if is_windows else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
