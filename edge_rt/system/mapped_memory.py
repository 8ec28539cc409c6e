"""Advice to the kernel about mapped memory, on systems that support it."""

from __future__ import annotations

import mmap


def advise(memory: mmap.mmap, advice: str) -> bool:
    """Give advice about a whole mapping; return whether the system accepted it.

    Args:
        memory: the mapping.
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
