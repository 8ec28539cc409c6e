"""Memory of a process: resident bytes by kind and, on Linux, of single mappings; huge pages for what it maps.

Packed weights are read from end to end for every token: with pages of 4 KiB a pass over a small model spends 3 to 9 %
of its time on address translation. Linux gives huge pages to programs that request them with ``madvise``, and ONNX
Runtime does not. On other systems, and where the kernel refuses, nothing happens.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edge_rt.errors import RuntimeUnavailable

OWN: Final = Path("/proc/self")
"""The folder of this process; for another process it is ``/proc/PID``."""
_KIB: Final = 1024


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Resident memory of one process at one moment, in bytes.

    Attributes:
        file_bytes: pages of mapped files, which processes share and the kernel can drop: programs and weights.
        shmem_bytes: shared memory without a file, such as the KV cache's.
    """

    anon_bytes: int
    file_bytes: int
    shmem_bytes: int
    peak_bytes: int

    @property
    def private_bytes(self) -> int:
        """Bytes not backed by files: what the process needs even if other processes share the model's files."""
        return self.anon_bytes + self.shmem_bytes

    @property
    def resident_bytes(self) -> int:
        """All resident bytes."""
        return self.private_bytes + self.file_bytes


def read_memory(process: Path = OWN) -> ProcessMemory:
    """Return the current memory of a process; takes about 30 microseconds. Outside Linux only for this process.

    Raises:
        RuntimeUnavailable: the system does not report it, or the process has ended.
    """
    if sys.platform != "linux" and process == OWN:
        return counted_memory()
    names = ("RssAnon", "RssFile", "RssShmem", "VmHWM")
    try:
        found = _status_bytes(process, names)
    except (OSError, ValueError, IndexError) as error:
        raise _unknown(process, str(error)) from error
    if missing := set(names) - found.keys():
        raise _unknown(process, f"no {min(missing)}")
    return ProcessMemory(*(found[name] for name in names))


def peak_rss_bytes() -> int:
    """Return the highest resident memory of this process so far, in bytes."""
    with suppress(OSError, ValueError, LookupError):
        return _status_bytes(OWN, ("VmHWM",))["VmHWM"]
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    # On Linux ``getrusage`` would start from the memory of the parent process.
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * _KIB


def counted_memory() -> ProcessMemory:
    """Return the current memory of this process on systems without ``/proc``; takes a few milliseconds.

    These systems do not distinguish mapped files from shared memory: memory that only this process has counts as
    private, the rest as files.
    """
    import psutil

    counters = psutil.Process().memory_full_info()
    unique = min(int(counters.uss), int(counters.rss))
    return ProcessMemory(unique, int(counters.rss) - unique, 0, peak_rss_bytes())


def _status_bytes(process: Path, names: Collection[str]) -> dict[str, int]:
    found = {}
    for line in (process / "status").read_text(encoding="ascii", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name in names:
            found[name] = int(value.split()[0]) * _KIB
    return found


@dataclass(frozen=True, slots=True)
class Mapping:
    """One mapping in a process's address space.

    Attributes:
        path: the mapped file as the kernel writes it; empty for memory without a file.
        resident_bytes: bytes of it that are resident.
    """

    start: int
    end: int
    path: str
    resident_bytes: int


def read_mappings(process: Path = OWN) -> list[Mapping]:
    """Return all mappings of a process, in the order of their addresses; takes about a millisecond.

    Raises:
        RuntimeUnavailable: the system has no such file, or the process has ended.
    """
    try:
        text = (process / "smaps").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise _unknown(process, str(error)) from error
    result = []
    start = end = 0
    path = ""
    for line in text.splitlines():
        name, *rest = line.split(maxsplit=5)
        if not name.endswith(":"):
            start, end = (int(address, 16) for address in name.split("-"))
            path = rest[4] if len(rest) > 4 else ""
        elif name == "Rss:":
            result.append(Mapping(start, end, path, int(rest[0]) * _KIB))
    return result


def file_bytes(mappings: Iterable[Mapping], file: Path) -> int:
    """Return the resident bytes of a mapped file."""
    # The kernel writes a newline in a name as octal digits.
    name = os.path.realpath(file).replace("\n", "\\012")
    return sum(mapping.resident_bytes for mapping in mappings if mapping.path == name)


def range_bytes(mappings: Iterable[Mapping], addresses: Iterable[int]) -> int:
    """Return the resident bytes of the mappings that hold some addresses; each mapping counts once.

    Args:
        addresses: addresses in mappings that hold nothing else, such as those of ``mmap``.
    """
    wanted = set(addresses)
    return sum(m.resident_bytes for m in mappings if any(m.start <= address < m.end for address in wanted))


def _unknown(process: Path, why: str) -> RuntimeUnavailable:
    return RuntimeUnavailable(
        "The memory of a process cannot be read.",
        f"{process}: {why.rstrip('.')}.",
        "Measure on Linux, which reports it in /proc, while the process runs.",
    )


def own_bytes() -> int:
    """Return the resident memory of this process."""
    with suppress(OSError, ValueError, LookupError):
        return _status_bytes(OWN, ("VmRSS",))["VmRSS"]
    import psutil

    return int(psutil.Process().memory_info().rss)


HUGE_PAGE_BYTES: Final = 2 << 20
_MADV_HUGEPAGE: Final = 14
_MADV_COLLAPSE: Final = 25  # Linux 6.1: collapses pages at once, not later in the background

Range = tuple[int, int]


@contextmanager
def huge_pages_for_new_memory() -> Iterator[None]:
    """Request huge pages for the anonymous memory that any thread maps inside the block."""
    before = anonymous_ranges()
    yield
    for start, end in subtract(anonymous_ranges(), before):
        _advise(-(-start // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES, end // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES)


def anonymous_ranges() -> list[Range]:
    """Return the address ranges of this process's private writable anonymous memory, ascending; empty if unknown."""
    if sys.platform != "linux":
        return []
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    ranges = []
    for fields in (line.split() for line in lines):
        is_anonymous = len(fields) == 5 or fields[5] == "[heap]"
        if fields[1] == "rw-p" and is_anonymous:
            start, end = fields[0].split("-")
            ranges.append((int(start, 16), int(end, 16)))
    return ranges


def subtract(ranges: list[Range], holes: list[Range]) -> list[Range]:
    """Return the parts of ``ranges`` outside ``holes``; both ascending, without overlaps."""
    left = []
    for start, end in ranges:
        for hole_start, hole_end in holes:
            if hole_end <= start or hole_start >= end:
                continue
            if hole_start > start:
                left.append((start, hole_start))
            start = min(hole_end, end)
        if start < end:
            left.append((start, end))
    return left


def _advise(start: int, end: int) -> None:
    if end <= start:
        return
    madvise = ctypes.CDLL(None).madvise
    for advice in (_MADV_HUGEPAGE, _MADV_COLLAPSE):
        madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), advice)


def advise(memory: mmap.mmap, advice: str, begin: int = 0, length: int | None = None) -> bool:
    """Give advice about a mapping, or a part of it; return whether the system accepted it.

    Args:
        advice: name of one of ``mmap``'s constants, such as ``"MADV_RANDOM"``. Windows has none of them, macOS few, and
            a kernel may be built without support for one.
        begin: byte of the mapping, the first of a page.
        length: bytes; None: up to the end.
    """
    value, call = getattr(mmap, advice, None), getattr(memory, "madvise", None)
    if value is None or call is None:
        return False
    try:
        call(value, begin, *(() if length is None else (length,)))
    except OSError:
        return False
    return True
