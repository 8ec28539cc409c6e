"""CPUs, memory and caches that this process may use, and returning freed memory to the system."""

from __future__ import annotations

import os
import platform
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from edge_rt.system.cgroup import ROOT, cgroup_cpus, cgroup_memory_bytes

_CACHE_UNITS: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_M_ARENA_MAX: Final = -8  # of glibc's malloc.h


def usable_cpus(cgroup: Path = ROOT) -> int:
    """Return how many CPUs this process may use: affinity, cgroup quota and physical cores, whichever is least."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    physical = psutil.cpu_count(logical=False) or allowed
    return max(1, min(allowed, physical, cgroup_cpus(cgroup) or allowed))


def is_running(pid: int) -> bool:
    """Return whether a process of this machine has that id."""
    try:
        return psutil.pid_exists(pid)
    except OverflowError:  # larger than any process id
        return False


def available_memory_bytes(cgroup: Path = ROOT) -> int:
    """Return the memory available without swapping, in bytes: the machine's or the cgroup's, whichever is less."""
    machine = int(psutil.virtual_memory().available)
    granted = cgroup_memory_bytes(cgroup)
    return machine if granted is None else min(machine, granted)


def return_free_memory() -> bool:
    """Return freed heap memory to the system; return whether there was any.

    glibc keeps freed memory for later. After a tokenizer was read this is a third of the total memory of a small model.
    Other systems have no such call, or nothing to return.
    """
    if sys.platform != "linux":
        return False
    import ctypes

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return bool(trim(0)) if trim is not None else False


def use_one_heap() -> bool:
    """Let all threads allocate from one heap; return whether the system can. Call it before the first thread starts.

    glibc gives each thread a separate heap. If every model is loaded in another thread, memory freed by the previous
    thread stays in that thread's heap: 8 MiB more after a few loads of a small model.
    """
    if sys.platform != "linux":
        return False
    import ctypes

    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    return bool(set_option(_M_ARENA_MAX, 1)) if set_option is not None else False


def last_level_cache_bytes(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int | None:
    """Return the size of the largest cache of the first CPU in bytes; None where the system does not report it."""
    sizes = []
    for path in folder.glob("index*/size"):
        try:
            text = path.read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            continue
        number, unit = (text[:-1], _CACHE_UNITS[text[-1]]) if text[-1:] in _CACHE_UNITS else (text, 1)
        if number.isdecimal():
            sizes.append(int(number) * unit)
    return max(sizes, default=None)


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the name of the CPU, as far as the system reports it."""
    # Systems without the file name their CPU themselves.
    with suppress(OSError):
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Model", "CPU part"):
                return value.strip()
    return platform.processor() or platform.machine()
