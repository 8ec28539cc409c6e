"""Files and folders that are as before or whole: written beside their place, forced to disk, then renamed."""

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
"""Windows' codes where a file is open or mapped: access denied (also for a folder that holds such a file), sharing
violation, lock violation, user-mapped section."""
_SHOWN_NAME: Final = 32  # characters of the name that a part's name begins with: both fit every file system


def write_atomically(
    path: Path, parts: Iterable[bytes], *, private: bool = False, durable: bool = True, parents: bool = False
) -> None:
    """Write a file; it is as before, or absent, until it is whole.

    Args:
        path: the file; replaced if it exists.
        parts: its content.
        private: readable by its owner only, where the system has such a thing.
        durable: forced to the disk before it takes its name, so that a power failure leaves one or the other. Without
            it a file may be empty then: for what can be made again.
        parents: make the folders that it lies in.

    Raises:
        StorageError: it cannot be written, or Windows keeps the old file, which somebody has open.
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
    """Write all of the data; a single call of the system may write less.

    Unbuffered: a buffered file would repeat a failed write when it is closed, and hide the first error.

    Raises:
        OSError: it cannot be written.
    """
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def replace(source: Path, target: Path) -> None:
    """Give a file, or a folder whose new name is free, another name in one step; a file replaces another one.

    Raises:
        StorageError: Windows refuses, because somebody has the target open, or a file in the folder.
        OSError: it cannot be renamed.
    """
    try:
        # The only call that replaces on every system.
        source.replace(target)
    except OSError as error:
        raise in_use(target, error) or error from error


def in_use(path: Path, error: OSError) -> StorageError | None:
    """Return what an error says about a file that is open elsewhere; None if it says something else.

    Only Windows has such errors: it neither renames nor deletes a file that is open or mapped, as a loaded model's is.

    Args:
        path: what was to be renamed or deleted.
        error: of the system.
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
    """Put a folder in the place of another one, which then lies aside; both have their places, or none has moved.

    Args:
        new: a complete folder on the same disk.
        final: what is replaced.
        aside: where it goes; nothing may be there.

    Raises:
        StorageError: Windows refuses, because somebody has a file of it open.
        OSError: it cannot be renamed.
    """
    try:
        replace(final, aside)
        replace(new, final)
    except BaseException:
        # An interrupt may come between the two as well.
        if occupied(aside) and not occupied(final):
            aside.replace(final)
        raise


def occupied(path: Path) -> bool:
    """Tell whether anything lies there, a dangling link included."""
    return path.exists() or path.is_symlink()


def sync(path: Path, *, is_windows: bool = sys.platform == "win32") -> None:
    """Force a file or folder to disk; a folder carries the names of its files.

    Args:
        path: what is synced.
        is_windows: as the system is.

    Raises:
        OSError: the disk refused.
    """
    if is_windows and path.is_dir():
        return  # folders cannot be opened there; its file system logs names itself
    # There a file that is only read is not synced either.
    descriptor = os.open(path, os.O_RDWR if is_windows else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
