"""Private temporary folders, atomic publishing and removal, and the lock of one store entry.

A folder is built under the name ``.tmp-HOST-PID-RANDOM`` beside its destination and renamed when complete. A removed
one is first renamed to ``.trash-HOST-PID-RANDOM``. A process that is killed leaves only such names; the next start
reclaims them when that process is gone, or when nothing in them changed for a day.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import platform
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from edge_rt.errors import StorageError
from edge_rt.store.files import storage_errors, sync, tree_bytes

STALE_SECONDS = 24 * 3600.0
_PRIVATE = re.compile(r"\.(?:tmp|trash)-([0-9a-f]{8})-(\d{1,10})-[0-9a-f]{8}")
_LOCKS_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
_log = logging.getLogger(__name__)


def _host() -> str:
    # A store may be shared over a network, where another machine's process ids mean nothing here.
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]


def _private_path(parent: Path, role: str) -> Path:
    return parent / f".{role}-{_host()}-{os.getpid()}-{secrets.token_hex(4)}"


@contextmanager
def staging_folder(parent: Path, name: str | None = None) -> Iterator[Path]:
    """Create a private folder in ``parent``; whatever is left of it is removed at the end.

    Args:
        parent: existing folder, or one to be created.
        name: name of the folder where ``parent`` is private already; None for a unique one.

    Raises:
        StorageError: it cannot be created or removed.
    """
    path = _private_path(parent, "tmp") if name is None else parent / name
    with storage_errors(path):
        path.mkdir(parents=True)
    try:
        yield path
    finally:
        _delete(path)


def _delete(path: Path) -> None:
    with storage_errors(path):
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif path.exists():
            shutil.rmtree(path)


def publish(staged: Path, final: Path) -> None:
    """Rename a complete folder to its destination, replacing what is there, and sync.

    Raises:
        StorageError: the rename failed; the destination is then as before, or absent if it was being replaced.
    """
    sync(staged)
    with storage_errors(final):
        try:
            staged.rename(final)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EACCES) or not final.exists():
                raise
            discard(final)
            staged.rename(final)
    sync(final.parent)


def discard(path: Path) -> int:
    """Remove an entry: renamed away in one step, then deleted.

    Returns:
        The bytes freed; 0 if there was nothing.

    Raises:
        StorageError: it could not be renamed or deleted.
    """
    trash = _private_path(path.parent, "trash")
    with storage_errors(path):
        try:
            path.rename(trash)
        except FileNotFoundError:
            return 0
    freed = tree_bytes(trash)
    _delete(trash)
    return freed


def reclaim(parent: Path) -> list[Path]:
    """Delete the private folders of processes that are gone.

    Args:
        parent: folder that may hold some; it may be absent.

    Returns:
        The folders that were deleted.
    """
    removed = []
    for path in sorted(parent.glob(".t*-*")):
        match = _PRIVATE.fullmatch(path.name)
        if match is None or not _is_stale(path, match[1], int(match[2])):
            continue
        try:
            _delete(path)
        except StorageError as error:
            # Another process may be reclaiming it too, or an orphan still writes there: the next start tries again.
            _log.info("%s", error)
        else:
            removed.append(path)
    return removed


def _is_stale(path: Path, host: str, pid: int) -> bool:
    if host == _host() and not _is_alive(pid):
        return True
    return time.time() - _last_change(path) > STALE_SECONDS


def _is_alive(pid: int) -> bool:
    if sys.platform == "win32":  # signal 0 would be a Ctrl-C there; age alone decides
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _last_change(path: Path) -> float:
    try:
        newest = path.lstat().st_mtime
        if path.is_dir() and not path.is_symlink():
            newest = max([newest, *(_last_change(child) for child in path.iterdir())])
    except FileNotFoundError:
        return time.time()
    return newest


@contextmanager
def entry_lock(path: Path, *, on_wait: Callable[[], None] | None, poll_seconds: float = 0.2) -> Iterator[None]:
    """Hold the lock of one store entry.

    It is a hint that saves a second download: some network file systems grant a lock to everybody, so what is written
    stays correct without it.

    Args:
        path: the lock file; created if absent, and kept.
        on_wait: called once if somebody else holds the lock, which is then waited for; None does not wait.
        poll_seconds: time between two attempts.

    Raises:
        StorageError: somebody else holds the lock and ``on_wait`` is None, or the file cannot be opened.
    """
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    try:
        waited = False
        while not _try_lock(descriptor):
            if on_wait is None:
                raise StorageError(
                    f"Another process is working on {path.stem!r}.", f"It holds {path}.", "Try again when it is done."
                )
            if not waited:
                on_wait()
                waited = True
            time.sleep(poll_seconds)
        yield
    finally:
        os.close(descriptor)  # releases the lock


def _try_lock(descriptor: int) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # A file system without locks: go on without the hint.
        return error.errno in _LOCKS_UNSUPPORTED
    return True
