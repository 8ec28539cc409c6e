"""Which memory is asked to be huge, and that the kernel hears it."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from edge_rt.system.process_memory import HUGE_PAGE_BYTES, anonymous_ranges, huge_pages_for_new_memory, subtract

THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")
linux = pytest.mark.skipif(sys.platform != "linux", reason="madvise of Linux")


@st.composite
def range_lists(draw):
    """Ascending ranges without overlaps."""
    bounds = sorted(draw(st.sets(st.integers(0, 60), max_size=16)))
    return [(start, end) for start, end in zip(bounds[::2], bounds[1::2], strict=False)]


def points(ranges):
    return {point for start, end in ranges for point in range(start, end)}


@given(range_lists(), range_lists())
def test_what_is_left_is_what_no_hole_covers(ranges, holes):
    left = subtract(ranges, holes)
    assert points(left) == points(ranges) - points(holes)
    assert left == sorted(left)
    assert all(start < end for start, end in left)


@linux
def test_new_anonymous_memory_is_found():
    before = anonymous_ranges()
    with mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS):
        new = subtract(anonymous_ranges(), before)
        assert sum(end - start for start, end in new) >= 8 << 20


@linux
@pytest.mark.skipif(not THP.exists() or "[never]" in THP.read_text(), reason="this kernel gives no huge pages")
def test_memory_mapped_inside_the_block_is_advised_and_older_memory_is_not():
    size = 8 * HUGE_PAGE_BYTES
    old = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    old.madvise(mmap.MADV_NOHUGEPAGE)
    with huge_pages_for_new_memory():
        new = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    flags = advised_ranges()
    assert any(end - start >= size - 2 * HUGE_PAGE_BYTES for start, end in flags["hg"])
    assert any(end - start >= size for start, end in flags["nh"])
    old.close()
    new.close()


def advised_ranges():
    """Ranges that the kernel marks as advised for (hg) and against (nh) huge pages."""
    found = {"hg": [], "nh": []}
    current = (0, 0)
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            current = tuple(int(part, 16) for part in first.split("-"))
        elif first == "VmFlags:":
            for flag in found.keys() & set(line.split()):
                found[flag].append(current)
    return found
