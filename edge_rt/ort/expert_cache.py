"""A cache of fixed bytes for experts that are larger than the memory (``csrc/ops/experts/expert_cache.h``)."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import statistics
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from edge_rt.errors import MemoryBudgetExceeded, UnsupportedModel
from edge_rt.ort.errors import of_system
from edge_rt.ort.op_library import NativeLibrary
from edge_rt.system.files import forget_read, read_at

ReadAt = Callable[[int, int, int], int]
"""``read(address, bytes, offset)`` of a file to memory; returns how many bytes, or the negative number of an error."""
_READ_AT: Final = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
_PAGE: Final = 4096
_READERS: Final = 2
_PIECE: Final = 1 << 20
_MEASURED: Final = 48
_LEAST_MEASURED: Final = 5


@dataclass(frozen=True)
class ExpertReads:
    """What a cache has done since it was opened.

    Attributes:
        hits: experts of a layer and pass that were there.
        misses: those that were read.
        bytes: that were read.
        waited_ms: passes waited for reads.
        reading_ms: of all reads; those at the same time count each.
        failures: reads that failed.
    """

    hits: int = 0
    misses: int = 0
    bytes: int = 0
    waited_ms: float = 0.0
    reading_ms: float = 0.0
    failures: int = 0

    def plus(self, other: ExpertReads, sign: int = 1) -> ExpertReads:
        """Return the sum."""
        return ExpertReads(
            self.hits + sign * other.hits,
            self.misses + sign * other.misses,
            self.bytes + sign * other.bytes,
            self.waited_ms + sign * other.waited_ms,
            self.reading_ms + sign * other.reading_ms,
            self.failures + sign * other.failures,
        )

    def since(self, before: ExpertReads) -> ExpertReads:
        """Return what was done after an earlier moment."""
        return self.plus(before, -1)

    @property
    def hit_share(self) -> float:
        """Share of the experts that were there; 1 if none was wanted."""
        return self.hits / wanted if (wanted := self.hits + self.misses) else 1.0


class ExpertCache:
    """Reads experts into memory of its own when passes want them, and never at the addresses of the mapped file.

    It is given back when nothing holds it any longer: sessions hold what they read.

    Args:
        base: address at which the file is mapped, and ``size`` bytes of it.
        pools: bytes of a slot, and slots, for experts of each size.
        read: takes the place of reading the file; None: the file is read.
    """

    def __init__(
        self,
        library: NativeLibrary,
        path: Path,
        base: int,
        size: int,
        pools: Sequence[tuple[int, int]],
        read: ReadAt | None = None,
    ) -> None:
        _require_reads(path, size)
        file, self.is_direct = open_direct(path)
        numbers = (ctypes.c_int64 * (2 * len(pools)))(*(number for pool in pools for number in pool))
        # The library calls it as long as the cache is open.
        callback = _READ_AT() if read is None else _READ_AT(lambda _, to, count, at: read(to, count, at))
        pointer, word = ctypes.c_void_p, ctypes.c_int64
        opened = library.function(
            "experts_open", pointer, pointer, word, ctypes.c_int, ctypes.c_int, pointer, ctypes.c_int, _READ_AT, pointer
        )
        handle = opened(base, size, file, int(self.is_direct), numbers, len(pools), callback, None)
        if not handle:
            os.close(file)
            raise MemoryBudgetExceeded(
                "There is no memory for the cache of experts.",
                f"It takes {sum(slot * count for slot, count in pools)} bytes.",
                "Give a smaller one (--experts, experts=), or free memory.",
            )
        self._handle = handle
        self._stop = library.function("experts_stop", None, pointer, ctypes.c_int)
        self._counts = library.function("experts_counts", None, pointer, pointer)
        self._finalizer = weakref.finalize(
            self, _close, library.function("experts_close", None, pointer), handle, file, callback
        )

    def stop(self, *, is_stopped: bool) -> None:
        """Let passes that wait for reads fail, and those to come, until it is taken back."""
        if self._finalizer.alive:
            self._stop(self._handle, int(is_stopped))

    def counts(self) -> ExpertReads:
        """Return what it has done so far."""
        found = (ctypes.c_int64 * 6)()
        self._counts(self._handle, found)
        hits, misses, read, waited, reading, failures = found
        return ExpertReads(hits, misses, read, waited / 1e3, reading / 1e3, failures)


def _require_reads(path: Path, size: int) -> None:
    if sys.platform == "win32":
        raise UnsupportedModel(
            "Experts cannot be read while a model runs on Windows.",
            f"{path.name} has {size} bytes.",
            "Give more memory, or keep them resident (--experts, experts=).",
        )


def _close(close: Callable[[int], None], handle: int, file: int, callback: Any) -> None:
    """Give a cache back; ``callback`` must live until then."""
    close(handle)
    os.close(file)
    del callback


def open_direct(path: Path) -> tuple[int, bool]:
    """Open a file to be read past the system's cache; return its number, and whether that is so.

    Where a file system refuses that, what was read is dropped from its cache afterwards.
    """
    direct = getattr(os, "O_DIRECT", 0)
    try:
        if direct:
            with suppress(OSError):
                file = os.open(path, os.O_RDONLY | direct)
                if _can_read(file):
                    return file, True
                os.close(file)
        file = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise of_system(error.errno or errno.EIO) from error
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(file, fcntl.F_NOCACHE, 1)
        return file, True
    return file, False


def _can_read(file: int) -> bool:
    with mmap.mmap(-1, _PAGE) as page:
        try:
            return read_at(file, page, 0) >= 0
        except OSError:
            return False


def read_speed(path: Path, size: int, *, budget: float = 0.5, clock: Callable[[], float] = time.perf_counter) -> float:
    """Measure how fast a file is read as a cache reads it, in bytes per second: pieces of it, by two threads.

    Args:
        size: bytes of the file.
        budget: most seconds, but for a few pieces of each thread. Their median counts: other work may hold up some for
            long.
    """
    file, is_direct = open_direct(path)
    places = max(1, size // _PIECE)
    # The same pieces at every measurement, far from one another.
    begins = [(number * 7919 % places) * _PIECE for number in range(_MEASURED)]
    begun = clock()

    def read(own: Sequence[int]) -> list[float]:
        seconds: list[float] = []
        with mmap.mmap(-1, _PIECE) as memory:
            for number, begin in enumerate(own, 1):
                started = clock()
                read_at(file, memory, begin)
                seconds.append(clock() - started)
                if not is_direct:
                    forget_read(file, begin, _PIECE)
                if number >= _LEAST_MEASURED and clock() - begun > budget:
                    break
        return seconds

    try:
        with ThreadPoolExecutor(_READERS) as threads:
            parts = list(threads.map(read, [begins[number::_READERS] for number in range(_READERS)]))
    except OSError as error:
        raise of_system(error.errno or errno.EIO) from error
    finally:
        os.close(file)
    return _READERS * min(_PIECE, size) / statistics.median(seconds for part in parts for seconds in part)
