"""The folder of what Vulkan's drivers made of kernels: a file a device, driver and version of edge-rt.

Drivers and versions change, and nothing else takes their files away. A file's time is that of its last use.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from edge_rt.errors import StorageError

UNUSED_SECONDS: Final = 90 * 24 * 3600
"""Files that nobody has used for longer are dropped."""
MOST_BYTES: Final = 1 << 30
"""Of all files; beyond it those go that were not used for longest."""
RECENT_SECONDS: Final = 24 * 3600
"""Files that were used since are in use, and stay."""

_NAME: Final = re.compile(r"[0-9a-f]{32}\.bin(\.[0-9]+)?")  # with a process's number: not whole yet


def mark_used(file: Path, now: float | None = None, most_bytes: int = MOST_BYTES) -> None:
    """Mark a file as used; where it is not there, and will be written, make room for it first.

    Any number of processes may do so at once: whoever has read a file needs it no more, and one that is gone is written
    again. Nothing that fails is an error.
    """
    now = time.time() if now is None else now
    try:
        os.utime(file, (now, now))
    except FileNotFoundError:
        _drop_unused(file.parent, now, most_bytes)
    except OSError:
        pass  # the folder cannot be written


def held(folder: Path) -> tuple[int, int]:
    """Return how many files a folder holds, and their bytes; one that does not exist holds nothing."""
    try:
        sizes = [size for _, size, _ in _files(folder)]
    except FileNotFoundError:
        return 0, 0
    except OSError as error:
        raise StorageError(
            f"The cache of compiled Vulkan kernels, {folder}, cannot be read.",
            f"{error.strerror}.",
            "Check its permissions, or delete it: the driver compiles kernels again.",
        ) from error
    return len(sizes), sum(sizes)


def _files(folder: Path) -> list[tuple[float, int, Path]]:
    """Return the time of the last use, the bytes and the path of every file."""
    found: list[tuple[float, int, Path]] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if _NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                # Another process may delete it now.
                with suppress(FileNotFoundError):
                    facts = entry.stat(follow_symlinks=False)
                    found.append((facts.st_mtime, facts.st_size, Path(entry.path)))
    return found


def _drop_unused(folder: Path, now: float, most_bytes: int) -> None:
    try:
        found = _files(folder)
    except OSError:
        return
    total = sum(size for _, size, _ in found)
    for used, size, path in sorted(found):
        unused = now - used
        is_old = unused > (UNUSED_SECONDS if path.suffix == ".bin" else RECENT_SECONDS)
        if not is_old and (total <= most_bytes or unused <= RECENT_SECONDS):
            continue
        try:
            path.unlink()
        except OSError:
            continue  # another process was faster, or it is not ours to delete
        total -= size
