"""What this process may use of the machine, and what it has used."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Final

import psutil

CGROUP: Final = Path("/sys/fs/cgroup")
"""Where Linux shows the limits of this process's cgroup (v2)."""


def usable_cpus(cgroup: Path = CGROUP) -> int:
    """Return how many CPUs this process may use: affinity, cgroup quota and physical cores, whichever is least."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    physical = psutil.cpu_count(logical=False) or allowed
    return max(1, min(allowed, physical, cgroup_cpus(cgroup) or allowed))


def cgroup_cpus(cgroup: Path = CGROUP) -> int | None:
    """Return the whole CPUs granted by the cgroup's ``cpu.max``, rounded up; None when unlimited or unknown."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        return None if quota == "max" else max(1, -(-int(quota) // int(period)))
    except (OSError, ValueError, ZeroDivisionError):
        return None


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


def available_memory_bytes(cgroup: Path = CGROUP) -> int:
    """Return the memory that can be had without swapping, in bytes: the machine's or the cgroup's, the lesser."""
    machine = int(psutil.virtual_memory().available)
    granted = cgroup_memory_bytes(cgroup)
    return machine if granted is None else min(machine, granted)


def cgroup_memory_bytes(cgroup: Path = CGROUP) -> int | None:
    """Return what ``memory.max`` leaves to the cgroup, in bytes; None when unlimited or unknown."""
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        if limit == "max":
            return None
        used = int((cgroup / "memory.current").read_text())
        return max(0, int(limit) - max(0, used - _inactive_file_bytes(cgroup)))
    except (OSError, ValueError):
        return None


def _inactive_file_bytes(cgroup: Path) -> int:
    """Return the bytes of cached files, which count as used but which the kernel drops before it refuses any."""
    try:
        lines = (cgroup / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), 0)


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the name of the CPU, as far as the system tells it."""
    try:
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Model", "CPU part"):
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
