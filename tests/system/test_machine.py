from __future__ import annotations

import gc
import os
import platform
import subprocess
import sys
from contextlib import suppress

import psutil
import pytest

from edge_rt.system.machine import (
    available_memory_bytes,
    cgroup_cpus,
    cgroup_memory_bytes,
    collector_paused,
    is_running,
    last_level_cache_bytes,
    machine_memory,
    usable_cpus,
)
from edge_rt.system.process_memory import own_bytes


def test_usable_cpus_are_at_most_those_of_the_process():
    assert 1 <= usable_cpus() <= len(os.sched_getaffinity(0))


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs affinity")
def test_affinity_counts():
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert usable_cpus() == 1
    finally:
        os.sched_setaffinity(0, before)


def test_memory_and_cores_are_those_that_psutil_tells():
    total, available = machine_memory()
    told = psutil.virtual_memory()
    assert total == told.total
    assert 0.5 < available / told.available < 2
    assert usable_cpus() <= (psutil.cpu_count(logical=False) or os.cpu_count())
    assert 0.5 < own_bytes() / psutil.Process().memory_info().rss < 2


@pytest.mark.parametrize("was_on", [True, False])
def test_the_collector_is_paused_and_then_as_it_was(was_on):
    before = gc.isenabled()
    try:
        (gc.enable if was_on else gc.disable)()
        with suppress(ZeroDivisionError), collector_paused():
            assert not gc.isenabled()
            raise ZeroDivisionError
        assert gc.isenabled() is was_on
    finally:
        (gc.enable if before else gc.disable)()


def test_a_process_runs_until_it_has_ended():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert is_running(child.pid)
        child.communicate(b"\n")
    assert not is_running(child.pid)
    assert is_running(os.getpid())
    assert not is_running(10**18)


def test_available_memory_is_less_than_there_is():
    assert 0 < available_memory_bytes() <= psutil.virtual_memory().total


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps freed memory and gives it back")
def test_freed_memory_goes_back_to_the_system():
    program = """
from edge_rt.system.machine import return_free_memory
from edge_rt.system.process_memory import own_bytes

blocks = [bytes(2000) for _ in range(50_000)]
last = blocks[-1]  # it keeps the heap from shrinking by itself
del blocks
before = own_bytes()
assert return_free_memory()
print(before - own_bytes(), len(last))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[0]) > 50 << 20


class TestCgroup:
    """Limits of a folder that stands for the kernel's."""

    @pytest.mark.parametrize(
        ("text", "cpus"),
        [
            ("max 100000\n", None), ("200000 100000\n", 2), ("150000 100000\n", 2), ("1000 100000\n", 1),
            ("no numbers at all", None), ("x 100000\n", None), ("100000 0\n", None),
        ],
    )  # fmt: skip
    def test_cpus(self, tmp_path, text, cpus):
        (tmp_path / "cpu.max").write_text(text)
        assert cgroup_cpus(tmp_path) == cpus

    def test_no_cgroup(self, tmp_path):
        assert cgroup_cpus(tmp_path) is None
        assert cgroup_memory_bytes(tmp_path) is None
        assert usable_cpus(tmp_path) >= 1
        assert available_memory_bytes(tmp_path) > 0

    @pytest.mark.alone  # other tests have a share of the CPUs
    @pytest.mark.skipif(usable_cpus() < 2, reason="needs two CPUs")
    def test_the_quota_counts(self, tmp_path):
        (tmp_path / "cpu.max").write_text("100000 100000\n")
        assert usable_cpus(tmp_path) == 1

    @pytest.mark.parametrize(
        ("limit", "used", "stat", "left"),
        [
            ("max\n", "5\n", None, None),
            ("1000\n", "300\n", None, 700),
            ("1000\n", "300\n", "anon 200\ninactive_file 100\n", 800),
            ("1000\n", "1200\n", None, 0),
            ("1000\n", "no number", None, None),
        ],
    )
    def test_memory(self, tmp_path, limit, used, stat, left):
        (tmp_path / "memory.max").write_text(limit)
        (tmp_path / "memory.current").write_text(used)
        if stat is not None:
            (tmp_path / "memory.stat").write_text(stat)
        assert cgroup_memory_bytes(tmp_path) == left

    def test_the_least_memory_counts(self, tmp_path):
        (tmp_path / "memory.current").write_text("300\n")
        (tmp_path / "memory.max").write_text("1000\n")
        assert available_memory_bytes(tmp_path) == 700
        (tmp_path / "memory.max").write_text(f"{1 << 60}\n")
        assert available_memory_bytes(tmp_path) <= psutil.virtual_memory().total


def test_the_last_level_cache_is_the_largest_that_is_told(tmp_path):
    for place, size in enumerate(("48K", "2048K", "32M", "odd")):
        (tmp_path / f"index{place}").mkdir()
        (tmp_path / f"index{place}" / "size").write_text(size + "\n")
    assert last_level_cache_bytes(tmp_path) == 32 << 20
    assert last_level_cache_bytes(tmp_path / "none") is None


COLLECTIONS = """
import gc
from edge_rt.system.machine import collecting_what_is_new

with collecting_what_is_new():
    assert gc.get_freeze_count() > 1000
    with collecting_what_is_new():
        pass
    # Some of what is set aside may be gone meanwhile.
    assert gc.get_freeze_count() > 1000
assert gc.get_freeze_count() == 0
gc.freeze()
with collecting_what_is_new():
    pass
assert gc.get_freeze_count() > 1000
"""


def test_collections_look_at_what_is_new_unless_somebody_has_set_objects_aside():
    # In a process of its own: here a fixture has set aside what there is.
    subprocess.run([sys.executable, "-c", COLLECTIONS], check=True)
