"""Advice to the kernel about mapped memory, where it takes any."""

from __future__ import annotations

import mmap


def advise(memory: mmap.mmap, advice: str) -> bool:
    """Give advice about a whole mapping; return whether it was taken.

    Args:
        memory: the mapping.
        advice: name of one of ``mmap``'s constants, such as ``"MADV_RANDOM"``. Windows has none of them, macOS few; a
            kernel may have been built without what a constant speaks of.
    """
    value, call = getattr(mmap, advice, None), getattr(memory, "madvise", None)
    if value is None or call is None:
        return False
    try:
        call(value)
    except OSError:
        return False
    return True
