"""Files and folders that are absent, as they were, or whole: written under another name, synced, renamed; and hashed.

Everything that the package writes for later goes through here. Errors of the system become a ``StorageError`` that
names the file, the free space where the disk is full, and on Windows the program that has it open.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from edge_rt.errors import EdgeRTError, InputError, StorageError
from edge_rt.system.byte_size import human_bytes, show_size

CHUNK: Final = 1 << 20
"""Bytes per read."""
O_BINARY: Final[int] = getattr(os, "O_BINARY", 0)
"""Flag of ``os.open`` that keeps Windows from changing line ends."""
_IN_USE: Final = {5, 32, 33, 1224}
"""Windows' error codes for a file that is open or mapped: access denied (also for a folder that holds such a file),
sharing violation, lock violation, user-mapped section."""
NOT_READ: Final = "cannot be read"
"""What is said of a file that is only read."""
_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_LOCKED: Final = {errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK}
_LOCKED_AT: Final = 1 << 62
_SHOWN_NAME: Final = 32  # characters of the file's name in its temporary name, so that both fit every file system


@contextmanager
def storage_errors(path: Path, what: str = "cannot be read or written") -> Iterator[None]:
    """Turn an ``OSError`` of the file system into a ``StorageError`` that names ``path``, and says ``what`` of it."""
    try:
        yield
    except EdgeRTError:
        raise
    except OSError as error:
        if (open_elsewhere := in_use(path, error, is_read=what == NOT_READ)) is not None:
            raise open_elsewhere from error
        reason = error.strerror or str(error)
        if error.errno in _FULL:
            raise StorageError(
                f"{path} could not be written: the disk is full or a limit is reached.",
                f"{reason}; {human_bytes(free_bytes(path))} free.",
                "Free space, or choose a folder on another disk.",
            ) from error
        raise StorageError(
            f"{path} {what}.", f"{reason}.", "Check the folder, its permissions and its disk."
        ) from error


def in_use(path: Path, error: OSError, *, is_read: bool = False) -> StorageError | None:
    """Return the error for a file that another program has open; None if ``error`` has another cause.

    Only Windows has such errors. It neither renames nor deletes a file that is open or mapped, such as the weights of a
    loaded model, and does not read one that another program keeps to itself.
    """
    code = getattr(error, "winerror", None)
    if code not in _IN_USE:
        return None
    if is_read:
        return StorageError(
            f"{path} {NOT_READ}.",
            f"Windows error {code}: {error.strerror or error}.",
            "Close the programs that have it open; else check its permissions.",
        )
    return StorageError(
        f"{path} cannot be replaced or removed while it is in use.",
        f"Windows error {code}: {error.strerror or error}. Nothing was changed.",
        "Close the programs that have it open, such as those that have loaded the model; else check its permissions.",
    )


def write_atomically(
    path: Path,
    parts: Iterable[bytes | memoryview],
    *,
    private: bool = False,
    durable: bool = True,
    parents: bool = False,
) -> None:
    """Write a file atomically; until it is complete, the old file stays, or the file is absent.

    Args:
        private: readable by its owner only, on systems with such permissions.
        durable: sync to disk before the rename, so that a power failure leaves the old file or the new one. Without it
            the file may be empty after a power failure: only for files that can be made again.
    """
    part = path.with_name(f".{path.name[:_SHOWN_NAME]}.{os.urandom(6).hex()}.tmp")
    with storage_errors(path, "could not be written"):
        if parents:
            path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | O_BINARY, 0o600 if private else 0o666)
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


def lock(descriptor: int) -> bool:
    """Keep other processes from locking a file until it is closed; return whether nobody else has locked it.

    Where the file system knows no locks, nobody is kept out.
    """
    try:
        if sys.platform == "win32":
            import msvcrt

            # Windows keeps others from reading what is locked: a byte that no file has.
            os.lseek(descriptor, _LOCKED_AT, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in _LOCKED
    return True


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


def replace_folder(new: Path, final: Path, aside: Path) -> None:
    """Replace a folder by another one and move the old one aside; if one rename fails, neither folder has moved.

    Args:
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


def remove(path: Path) -> None:
    """Remove a file, a folder with all that it holds, or a link but not its target; what is absent stays so."""
    with storage_errors(path):
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif path.exists():
            shutil.rmtree(path)


def sync(path: Path, *, is_windows: bool = sys.platform == "win32") -> None:
    """Sync a file or folder to disk; syncing a folder makes the names of its files durable."""
    if is_windows and path.is_dir():
        return  # Windows cannot open folders; its file system journals names itself
    # Windows syncs a file only through a descriptor that can write.
    descriptor = os.open(path, os.O_RDWR if is_windows else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_at(file: int, memory: mmap.mmap | memoryview, offset: int) -> int:
    """Read into memory from an offset of an open file; return how many bytes, 0 at its end. Not on Windows."""
    if sys.platform == "win32":
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    return os.preadv(file, [memory], offset)


def forget_read(file: int, offset: int, size: int) -> None:
    """Let the system drop what was read from its cache, where it takes such advice."""
    if sys.platform == "linux":
        os.posix_fadvise(file, offset, size, os.POSIX_FADV_DONTNEED)


def free_bytes(path: Path) -> int:
    """Return the free bytes of the disk that holds ``path``, or would hold it."""
    for folder in (path, *path.parents):
        if folder.exists():
            return shutil.disk_usage(folder).free
    return 0


def check_space(folder: Path, needed: int, what: str) -> None:
    """Refuse to write ``what``, a noun, into a folder on whose disk fewer than ``needed`` bytes are free."""
    free = free_bytes(folder)
    if free < needed:
        raise StorageError(
            f"There is not enough space for {what} in {folder}.",
            f"{human_bytes(needed)} needed, {human_bytes(free)} free.",
            "Free space, or choose another folder with --store.",
        )


def tree_bytes(path: Path) -> int:
    """Return the bytes of all files at and below ``path`` without following links; 0 if it is absent."""
    try:
        if path.is_symlink() or not path.is_dir():
            return path.lstat().st_size
        return sum(tree_bytes(child) for child in path.iterdir())
    except FileNotFoundError:  # another process may be writing or removing this folder
        return 0


def read_chunks(path: Path) -> Iterator[bytes]:
    """Yield the content of a file in chunks of 1 MiB."""
    with storage_errors(path, NOT_READ), path.open("rb", buffering=0) as file:
        while chunk := file.read(CHUNK):
            yield chunk


def sha256_file(path: Path, on_bytes: Callable[[int], None] | None = None) -> str:
    """Return the SHA-256 of a file in lower-case hexadecimal; ``on_bytes`` gets the number of bytes read so far."""
    return sha256_files([path], on_bytes)


def sha256_files(paths: Sequence[Path], on_bytes: Callable[[int], None] | None = None) -> str:
    """Return the SHA-256 of a file, or that of several, as ``combined_sha256`` defines it."""
    # Imported here: an answer hashes nothing.
    import hashlib

    digests = []
    done = 0
    for path in paths:
        digest = hashlib.sha256()
        for chunk in read_chunks(path):
            digest.update(chunk)
            done += len(chunk)
            if on_bytes is not None:
                on_bytes(done)
        digests.append((path.name, digest.hexdigest()))
    return combined_sha256(digests)


def combined_sha256(digests: Sequence[tuple[str, str]]) -> str:
    """Return the SHA-256 of one file; of several that of a line for each, ``HASH  NAME``, as ``sha256sum`` prints them.

    Args:
        digests: name and SHA-256 of every file, in their order.
    """
    import hashlib

    if len(digests) == 1:
        return digests[0][1]
    lines = "".join(f"{digest}  {name}\n" for name, digest in digests)
    return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()


MAX_TEXT_BYTES: Final = 16 << 20


def read_text(path: Path, limit: int = MAX_TEXT_BYTES, *, called: str = "") -> str:
    """Return the text of a file.

    Args:
        called: what errors call it before its path, such as ``"The calibration text "``.

    Raises:
        InputError: it is not UTF-8, or longer than ``limit`` bytes.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(limit + 1)
    except OSError as error:
        raise StorageError(f"{called}{path} cannot be read.", f"{error.strerror}.", "Check the path.") from error
    if len(data) > limit:
        raise InputError(f"{called}{path} is too large.", f"The limit is {show_size(limit)}.", "Choose a part of it.")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{called}{path} is not UTF-8 text.",
            f"Byte {error.start}: {error.reason}.",
            "Convert it, for example with iconv.",
        ) from error
