"""How much of an array's memory is there, whatever else the process holds."""

from __future__ import annotations

import ctypes
import mmap


def touched_bytes(*arrays):
    """Return the bytes of the pages of these arrays that have memory; POSIX only."""
    return sum(_touched_pages(array) for array in arrays) * mmap.PAGESIZE


def _touched_pages(array):
    start = array.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
    pages = -(-(array.ctypes.data + array.nbytes - start) // mmap.PAGESIZE)
    flags = (ctypes.c_ubyte * pages)()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(pages * mmap.PAGESIZE), flags) != 0:
        raise OSError(ctypes.get_errno(), "mincore")
    return sum(flag & 1 for flag in flags)
