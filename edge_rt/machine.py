"""What this process may use of the machine, and what it has used."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil


def usable_cpus() -> int:
    """Return how many CPUs this process may use: affinity, cgroup quota and physical cores, whichever is least."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    physical = psutil.cpu_count(logical=False) or allowed
    return max(1, min(allowed, physical, _cgroup_quota() or allowed))


def _cgroup_quota() -> int | None:
    """Whole CPUs granted by the cgroup's ``cpu.max`` (v2), rounded up; None when unlimited or unknown."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else max(1, -(-int(quota) // int(period)))


def peak_rss_bytes() -> int:
    """Return the highest resident memory of this process so far, in bytes."""
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    if (peak := _linux_peak_rss_bytes()) is not None:
        return peak
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _linux_peak_rss_bytes() -> int | None:
    """Peak from ``/proc``: that of getrusage begins with the memory of the parent process."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), None)


def available_memory_bytes() -> int:
    """Return the memory that can be had without swapping, in bytes."""
    return int(psutil.virtual_memory().available)
