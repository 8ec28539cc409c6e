"""CPUs, memory and caches that this process may use, returning freed memory to the system, installing what lacks."""

from __future__ import annotations

import functools
import gc
import os
import platform
import re
import shlex
import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

# What Linux tells in files is read there: importing psutil takes as long as opening a package.
ROOT: Final = Path("/sys/fs/cgroup")
MEMBERSHIP: Final = Path("/proc/self/cgroup")
_CPUS: Final = Path("/sys/devices/system/cpu")
_MEMORY: Final = Path("/proc/meminfo")
_UNLIMITED: Final = 1 << 60
"""Version 1 writes "no limit" as the largest multiple of a page."""
_SET_ASIDE: Final = threading.Event()
"""Whether ``collecting_what_is_new`` has set objects aside."""


def cgroup_cpus(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int | None:
    """Return the whole CPUs granted by quotas, rounded up; None when unlimited or unknown."""
    granted = [_quota(folder / "cpu.max") for folder in _version2(root, membership)]
    for folder in _version1(root, membership, "cpu"):
        granted += [_quota(folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us")]
    return min((cpus for cpus in granted if cpus is not None), default=None)


def cgroup_memory_bytes(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int | None:
    """Return how much memory the limits still allow, in bytes; None when unlimited or unknown."""
    left = [
        _left(folder, "memory.max", "memory.current", "inactive_file") for folder in _version2(root, membership)
    ] + [
        _left(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        for folder in _version1(root, membership, "memory")
    ]
    return min((size for size in left if size is not None), default=None)


def _version2(root: Path, membership: Path) -> Iterator[Path]:
    """Yield the folders of the process's group and of its parents, the root last."""
    found = next((path for number, _, path in _groups(membership) if number == "0"), "/")
    for base in (root, root / "unified"):
        yield from _upwards(base, found)


def _version1(root: Path, membership: Path, controller: str) -> Iterator[Path]:
    names = {"cpu": ("cpu", "cpu,cpuacct"), "memory": ("memory",)}[controller]
    found = next((path for _, kinds, path in _groups(membership) if controller in kinds.split(",")), "/")
    for name in names:
        yield from _upwards(root / name, found)


def _upwards(base: Path, group: str) -> Iterator[Path]:
    parts = [part for part in group.split("/") if part not in ("", ".", "..")]
    for count in range(len(parts), -1, -1):
        yield base.joinpath(*parts[:count])


def _groups(membership: Path) -> list[tuple[str, str, str]]:
    """Return (number of the hierarchy, controllers, path) of every line."""
    try:
        lines = membership.read_text().splitlines()
    except (OSError, UnicodeError):
        return []
    fields = [line.split(":", 2) for line in lines]
    return [(entry[0], entry[1], entry[2]) for entry in fields if len(entry) == 3]


def _quota(*files: Path) -> int | None:
    try:
        quota, period = " ".join(file.read_text() for file in files).split()
        if quota == "max" or int(quota) <= 0:
            return None
        return max(1, -(-int(quota) // int(period)))
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _left(folder: Path, limit: str, used: str, inactive: str) -> int | None:
    try:
        text = (folder / limit).read_text().strip()
        if text == "max" or int(text) >= _UNLIMITED:
            return None
        in_use = int((folder / used).read_text())
        return max(0, int(text) - max(0, in_use - _statistic(folder, inactive)))
    except (OSError, ValueError):
        return None


def _statistic(folder: Path, name: str) -> int:
    """Return a number of ``memory.stat``, such as the cached files that the kernel drops before it refuses memory."""
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0)


_CACHE_UNITS: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_M_ARENA_MAX: Final = -8  # of glibc's malloc.h


def usable_cpus(cgroup: Path = ROOT) -> int:
    """Return how many CPUs this process may use: affinity, cgroup quota and physical cores, whichever is least."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return max(1, min(allowed, _physical_cpus() or allowed, cgroup_cpus(cgroup) or allowed))


@functools.cache
def _physical_cpus() -> int | None:
    with suppress(OSError):
        # Threads of one core have the same list.
        if cores := {path.read_bytes() for path in _CPUS.glob("cpu[0-9]*/topology/core_cpus_list")}:
            return len(cores)
    import psutil

    return psutil.cpu_count(logical=False)


def is_running(pid: int) -> bool:
    """Return whether a process of this machine has that id."""
    import psutil

    try:
        return psutil.pid_exists(pid)
    except OverflowError:  # larger than any process id
        return False


def available_memory_bytes(cgroup: Path = ROOT) -> int:
    """Return the memory available without swapping, in bytes: the machine's or the cgroup's, whichever is less."""
    machine = machine_memory()[1]
    granted = cgroup_memory_bytes(cgroup)
    return machine if granted is None else min(machine, granted)


def machine_memory() -> tuple[int, int]:
    """Return the machine's memory, and what of it is available without swapping, in bytes."""
    with suppress(OSError, ValueError, LookupError):
        told = dict(line.split(":", 1) for line in _MEMORY.read_text(encoding="ascii").splitlines())
        total, available = (int(told[name].split()[0]) << 10 for name in ("MemTotal", "MemAvailable"))
        return total, min(total, available)
    import psutil

    memory = psutil.virtual_memory()
    return int(memory.total), int(memory.available)


@contextmanager
def collector_paused() -> Generator[None]:
    """Look for no garbage while modules are imported and a model is loaded: what they make stays."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


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


@contextmanager
def collecting_what_is_new() -> Generator[None]:
    """Let collections of garbage inside walk through what is made there alone: libraries, which stay, take longer.

    Leaves it as it is where somebody else has set objects aside (``gc.freeze``).
    """
    # Ours is asked for first, as counting walks through all that is set aside: whoever exports again and again, as our
    # tests do, is inside once.
    if _SET_ASIDE.is_set() or gc.get_freeze_count():
        yield
        return
    gc.collect()
    try:
        gc.freeze()
        _SET_ASIDE.set()
        yield
    finally:
        _SET_ASIDE.clear()
        gc.unfreeze()


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


_OF_EXTRA: Final = re.compile(r"(?P<requirement>[^;]+);.*\bextra\s*==\s*[\"'](?P<extra>[\w-]+)[\"'].*")


def install_command(*extras: str, upgrade: bool = False, requirements: Sequence[str] | None = None) -> str:
    """Return the command that installs the packages of extras, such as ``pip install 'matplotlib>=3.8'``.

    Args:
        requirements: of edge-rt, as its metadata states them; None: those of the one that runs.
    """
    if requirements is None:
        requirements = _own_requirements()
    matches = filter(None, map(_OF_EXTRA.fullmatch, requirements))
    names = [match["requirement"].strip() for match in matches if match["extra"] in extras]
    # Of files that were never installed nothing is known: they are a checkout.
    wanted = names or [f".[{','.join(extras)}]"]
    return shlex.join(["pip", "install", *(["--upgrade"] if upgrade else []), *wanted])


def _own_requirements() -> Sequence[str]:
    import importlib.metadata

    try:
        return importlib.metadata.requires("edge-rt") or ()
    except importlib.metadata.PackageNotFoundError:
        return ()
