"""Private temporary folders, atomic publishing and removal, and the lock of one store entry.

A folder is built under the name ``.tmp-HOST-PID-RANDOM`` beside its destination and renamed when complete. Before a
folder is deleted, it is renamed to ``.trash-HOST-PID-RANDOM``. A process that is killed leaves only such names. The
next start deletes them if that process has ended, or if nothing in them changed for a day.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import platform
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from edge_rt.errors import InputError, StorageError
from edge_rt.system.files import occupied, remove, replace_folder, storage_errors, sync, tree_bytes
from edge_rt.system.machine import is_running

STALE_SECONDS = 24 * 3600.0
_PRIVATE = re.compile(r"\.(?:tmp|trash)-([0-9a-f]{8})-(\d{1,10})-[0-9a-f]{8}")
_LOCKS_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
_log = logging.getLogger(__name__)


def _host() -> str:
    # A store may be shared over a network, and another machine's process ids cannot be checked here.
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]


def _private_path(parent: Path, role: str) -> Path:
    return parent / f".{role}-{_host()}-{os.getpid()}-{secrets.token_hex(4)}"


@contextmanager
def staging_folder(parent: Path, name: str | None = None) -> Iterator[Path]:
    """Create a private folder in ``parent``; if it still exists at the end of the block, it is removed.

    Args:
        name: name of the folder if ``parent`` is already private; None for a unique one.
    """
    path = _private_path(parent, "tmp") if name is None else parent / name
    with storage_errors(path):
        path.mkdir(parents=True)
    try:
        yield path
    finally:
        remove(path)


@contextmanager
def resumable_folder(parent: Path, kept: Path, is_useful: Callable[[Path], bool]) -> Iterator[Path]:
    """Create a private folder in ``parent``, with the files that an earlier attempt has left in ``kept``.

    If the block is stopped or fails, the folder is left in ``kept`` for the next attempt, unless the input is at fault.
    If it succeeds, the folder is removed, unless the block has moved it.

    Args:
        is_useful: whether a folder holds anything that the next attempt can use.
    """
    path = _private_path(parent, "tmp")
    with storage_errors(path):
        parent.mkdir(parents=True, exist_ok=True)
        try:
            # A rename: of two processes that have no lock between them only one gets the files.
            kept.rename(path)
        except FileNotFoundError:
            path.mkdir()
    try:
        yield path
    except InputError:
        raise  # the same files would be refused again
    except BaseException:
        _keep(path, kept, is_useful)
        raise
    finally:
        remove(path)


def _keep(path: Path, kept: Path, is_useful: Callable[[Path], bool]) -> None:
    try:
        if path.exists() and is_useful(path):
            path.rename(kept)
    except OSError as error:
        _log.info("%s", error)  # another process has left its files there


def publish(staged: Path, final: Path) -> None:
    """Rename a complete folder to its destination, replacing what is there, and sync."""
    with storage_errors(final):
        sync(staged)
        try:
            staged.rename(final)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EACCES) or not occupied(final):
                raise
            _replace(staged, final)
        sync(final.parent)


def _replace(staged: Path, final: Path) -> None:
    trash = _private_path(final.parent, "trash")
    replace_folder(staged, final, trash)
    try:
        remove(trash)
    except StorageError as error:
        _log.info("%s", error)  # the new one is in place; the next start deletes the old one


def discard(path: Path) -> int:
    """Remove an entry: rename it atomically, then delete it; return the bytes freed, 0 if there was nothing."""
    trash = _private_path(path.parent, "trash")
    with storage_errors(path):
        try:
            path.rename(trash)
        except FileNotFoundError:
            return 0
    freed = tree_bytes(trash)
    remove(trash)
    return freed


def reclaim(parent: Path) -> list[Path]:
    """Delete the private folders of processes that have ended from a folder, which may be absent; return them."""
    removed = []
    for path in sorted(parent.glob(".t*-*")):
        match = _PRIVATE.fullmatch(path.name)
        if match is None or not _is_stale(path, match[1], int(match[2])):
            continue
        try:
            remove(path)
        except StorageError as error:
            # Another process may be deleting it too, or an orphaned process still writes to it: the next start retries.
            _log.info("%s", error)
        else:
            removed.append(path)
    return removed


def _is_stale(path: Path, host: str, pid: int) -> bool:
    if host == _host() and not is_running(pid):
        return True
    return time.time() - _last_change(path) > STALE_SECONDS


def _last_change(path: Path) -> float:
    try:
        newest = path.lstat().st_mtime
        if path.is_dir() and not path.is_symlink():
            newest = max([newest, *(_last_change(child) for child in path.iterdir())])
    except FileNotFoundError:
        return time.time()
    return newest


def _file_lock(path: Path) -> BaseFileLock:
    # Not the library's ``SoftFileLock``, which stays held when a process is killed.
    return FileLock(path, fallback_to_soft=False)


@contextmanager
def entry_lock(
    path: Path,
    *,
    on_wait: Callable[[], None] | None,
    poll_seconds: float = 0.2,
    make: Callable[[Path], BaseFileLock] = _file_lock,
) -> Iterator[None]:
    """Hold the lock of one store entry.

    The lock only avoids a second download. Some network file systems grant a lock to every process, so writes are
    correct without it.

    Args:
        path: the lock file; created if absent, and removed at the end.
        on_wait: called once if another process holds the lock, before waiting for it; None raises instead of waiting.
    """
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    lock = make(path)
    try:
        waited = False
        while not _try_lock(lock, path):
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
        if lock.is_locked:
            # While it is held: whoever waits finds it gone and makes a new one. Windows keeps files that are open.
            with suppress(OSError):
                path.unlink()
        lock.release()


def _try_lock(lock: BaseFileLock, path: Path) -> bool:
    with storage_errors(path):
        try:
            lock.acquire(blocking=False)
        except Timeout:
            return False
        except OSError as error:
            # The file system has no locks: continue without one.
            if error.errno not in _LOCKS_UNSUPPORTED:
                raise
    return True
