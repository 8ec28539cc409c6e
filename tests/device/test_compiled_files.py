from __future__ import annotations

import os
import time

import pytest

from edge_rt.device.compiled_files import held, mark_used
from edge_rt.errors import StorageError

DAY = 24 * 3600
NOW = float(int(time.time()))


def kept(folder, ages, *, most_bytes=1000):
    """Marks a new file in a folder of files (name -> days since its last use, bytes); returns the names left."""
    for name, (days, size) in ages.items():
        (folder / name).write_bytes(b"x" * size)
        os.utime(folder / name, (NOW - days * DAY,) * 2)
    mark_used(folder / name_of("f"), NOW, most_bytes)
    return {path.name for path in folder.iterdir()}


def name_of(letter):
    return letter * 32 + ".bin"


def test_files_that_nobody_used_for_long_make_room_for_a_new_one(tmp_path):
    ages = {name_of("a"): (91, 1), name_of("b"): (89, 1), name_of("c") + ".77": (2, 1), name_of("d") + ".78": (0.5, 1)}
    ages |= {"notes.txt": (500, 1)}  # not ours
    assert kept(tmp_path, ages) == {name_of("b"), name_of("d") + ".78", "notes.txt"}


def test_beyond_a_size_those_go_that_were_not_used_for_longest_but_none_in_use(tmp_path):
    ages = {name_of("a"): (3, 600), name_of("b"): (30, 600), name_of("c"): (2, 300), name_of("d"): (0.5, 600)}
    assert kept(tmp_path, ages, most_bytes=1000) == {name_of("c"), name_of("d")}
    in_use = {name_of("a"): (0.1, 600), name_of("b"): (0.9, 600)}
    assert kept(tmp_path, in_use, most_bytes=100) == {name_of("a"), name_of("b"), name_of("d")}


def test_a_file_that_is_there_is_marked_and_nothing_goes(tmp_path):
    ages = {name_of("a"): (200, 1), name_of("f"): (80, 1)}
    assert kept(tmp_path, ages) == set(ages)
    assert (tmp_path / name_of("f")).stat().st_mtime == NOW


def test_a_folder_that_is_not_there_is_no_error(tmp_path):
    mark_used(tmp_path / "nowhere" / name_of("a"))
    (tmp_path / "file").write_bytes(b"")
    mark_used(tmp_path / "file" / name_of("a"))


def test_what_is_held_is_counted(tmp_path):
    assert held(tmp_path / "none") == (0, 0)
    for name, size in ((name_of("a"), 700), (name_of("b") + ".77", 20), ("notes.txt", 5)):
        (tmp_path / name).write_bytes(b"x" * size)
    assert held(tmp_path) == (2, 720)
    with pytest.raises(StorageError, match="cache of compiled Vulkan kernels"):
        held(tmp_path / "notes.txt")
