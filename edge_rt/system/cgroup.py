"""Limits set by Linux control groups (cgroups): version 2, version 1, and nested groups.

The parents of a process's group may have limits too, so all of them are read, and the lowest limit applies. Inside a
container the kernel often reports a path of the host, which does not exist there. Then the root of the mounted
hierarchy is the container's group.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path("/sys/fs/cgroup")
MEMBERSHIP: Final = Path("/proc/self/cgroup")
_UNLIMITED: Final = 1 << 60
"""Version 1 writes "no limit" as the largest multiple of a page."""


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
