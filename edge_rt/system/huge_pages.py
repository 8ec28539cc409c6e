"""Huge pages for ONNX Runtime's allocations, because packed weights are read from end to end for every token.

With pages of 4 KiB a pass over a small model spends 3 to 9 % of its time on address translation. Linux gives huge pages
to programs that request them with ``madvise``, and ONNX Runtime does not. On other systems, and where the kernel
refuses, nothing happens.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

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


def advise(memory: mmap.mmap, advice: str) -> bool:
    """Give advice about a whole mapping; return whether the system accepted it.

    Args:
        advice: name of one of ``mmap``'s constants, such as ``"MADV_RANDOM"``. Windows has none of them, macOS few, and
            a kernel may be built without support for one.
    """
    value, call = getattr(mmap, advice, None), getattr(memory, "madvise", None)
    if value is None or call is None:
        return False
    try:
        call(value)
    except OSError:
        return False
    return True
