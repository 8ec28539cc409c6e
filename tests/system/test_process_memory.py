"""Reading /proc: sums of kinds, of a file, of the mappings of addresses."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from edge_rt.errors import RuntimeUnavailable
from edge_rt.system.process_memory import (
    Mapping,
    counted_memory,
    file_bytes,
    peak_rss_bytes,
    range_bytes,
    read_mappings,
    read_memory,
)

MIB = 1 << 20


TOUCHED = """
import json, mmap
from edge_rt.system.process_memory import read_memory

before = read_memory()
shared = mmap.mmap(-1, 32 << 20)
private = mmap.mmap(-1, 16 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for memory in (shared, private):
    for at in range(0, len(memory), mmap.PAGESIZE):
        memory[at] = 1
names = ("shmem", "anon", "private", "resident", "file", "peak")
held = [{name: getattr(memory, f"{name}_bytes") for name in names} for memory in (before, read_memory())]
print(json.dumps(held))
"""


def test_memory_that_is_touched_is_counted_as_what_it_is():
    """In a process of its own: others take memory and give it back meanwhile."""
    done = subprocess.run([sys.executable, "-c", TOUCHED], capture_output=True, text=True, check=True)
    before, after = json.loads(done.stdout)
    assert after["shmem"] - before["shmem"] == pytest.approx(32 * MIB, abs=MIB)
    assert after["anon"] - before["anon"] == pytest.approx(16 * MIB, abs=MIB)
    assert after["private"] - before["private"] == pytest.approx(48 * MIB, abs=2 * MIB)
    assert after["resident"] == after["anon"] + after["file"] + after["shmem"]
    assert after["peak"] >= after["resident"] - MIB


def test_only_touched_pages_of_a_mapping_count():
    memory = mmap.mmap(-1, 64 * MIB)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    array = np.frombuffer(memory, np.uint8)
    address = array.ctypes.data
    assert range_bytes(read_mappings(), [address]) == 0
    array[: 5 * MIB] = 1
    assert range_bytes(read_mappings(), [address]) == 5 * MIB
    assert range_bytes(read_mappings(), [address, address + 30 * MIB]) == 5 * MIB


def test_a_mapped_file_is_found_through_links_and_with_strange_names(tmp_path):
    file = tmp_path / "a name with  spaces and ü"
    file.write_bytes(bytes(8 * MIB))
    link = tmp_path / "link"
    link.symlink_to(file)
    with file.open("rb") as handle, mmap.mmap(handle.fileno(), 0, prot=mmap.PROT_READ) as memory:
        assert sum(memory[:: mmap.PAGESIZE]) == 0
        assert file_bytes(read_mappings(), link) == 8 * MIB
        assert file_bytes(read_mappings(), tmp_path / "another") == 0


def test_mappings_beside_an_address_are_not_counted():
    mappings = [Mapping(0, 100, "", 1), Mapping(100, 200, "", 2), Mapping(200, 300, "", 4), Mapping(400, 500, "", 8)]
    assert range_bytes(mappings, [100]) == 2
    assert range_bytes(mappings, [199, 200]) == 6
    assert range_bytes(mappings, [300, 399]) == 0
    assert range_bytes(mappings, []) == 0


def test_another_process_can_be_read():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        memory = read_memory(Path(f"/proc/{child.pid}"))
        assert memory.peak_bytes > 0
        child.communicate(b"\n")
    with pytest.raises(RuntimeUnavailable, match="cannot be read"):
        read_memory(Path(f"/proc/{child.pid}"))


@pytest.mark.parametrize("text", ["", "VmHWM:\t12 kB\n", "VmHWM:\n", "VmHWM:\tmany kB\n"])
def test_a_status_that_lacks_a_figure_is_refused(tmp_path, text):
    (tmp_path / "status").write_text(text)
    with pytest.raises(RuntimeUnavailable, match="cannot be read"):
        read_memory(tmp_path)


def test_this_process_is_the_default():
    mappings = read_mappings()
    assert any(mapping.path == os.path.realpath(sys.executable) for mapping in mappings)
    assert sum(mapping.resident_bytes for mapping in mappings) == pytest.approx(read_memory().resident_bytes, rel=0.1)


def test_the_peak_does_not_fall():
    before = peak_rss_bytes()
    np.ones(1 << 22, np.uint8)
    assert peak_rss_bytes() >= before > 1 << 20
    assert peak_rss_bytes() >= psutil.Process().memory_info().rss - (1 << 20)


def test_the_peak_is_not_that_of_the_parent():
    ballast = np.ones(200 << 20, np.uint8)
    program = "from edge_rt.system.process_memory import peak_rss_bytes; print(peak_rss_bytes())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) < ballast.nbytes


def test_counters_of_other_systems_tell_much_the_same():
    told, counted = read_memory(), counted_memory()
    assert counted.resident_bytes == pytest.approx(told.resident_bytes, rel=0.1)
    assert 0 < counted.private_bytes <= counted.resident_bytes <= counted.peak_bytes + MIB
