from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest

from edge_rt.errors import StorageError
from edge_rt.export.weights.weights_file import PAGE_BYTES, WeightsFile, WeightsLayout, verify_checksums


@pytest.fixture
def layout():
    layout = WeightsLayout()
    layout.add("small", np.float32, (3, 5))
    layout.add("large", np.uint8, (70, 1000))
    layout.add("after", np.float16, (4,))
    return layout


def test_small_tensors_begin_at_a_cache_line_large_ones_at_a_page(layout):
    assert [(slot.offset, slot.nbytes) for slot in layout.slots.values()] == [(0, 60), (4096, 70000), (74112, 8)]
    assert layout.size == 74120
    assert PAGE_BYTES == 4096


def test_names_are_unique(layout):
    with pytest.raises(AssertionError):
        layout.add("small", np.uint8, (1,))


def test_tensors_land_in_their_slots_in_any_order(layout, tmp_path):
    path = tmp_path / "weights.bin"
    large = np.random.default_rng(0).integers(0, 256, (70, 1000), np.uint8)
    small = np.arange(15, dtype=np.float32).reshape(3, 5)
    with WeightsFile(path, layout) as out:
        out.write(layout.slots["large"], 0, large[:30])
        out.write(layout.slots["small"], 0, small)
        out.write(layout.slots["large"], 30, large[30:])
    data = path.read_bytes()
    assert len(data) == layout.size
    assert data[:60] == small.tobytes()
    assert data[4096:74096] == large.tobytes()
    assert set(data[60:4096]) == {0}
    assert data[74112:] == bytes(8)


def test_rows_that_are_not_contiguous(layout, tmp_path):
    rows = np.arange(30, dtype=np.float32).reshape(5, 6).T[:3]
    with WeightsFile(tmp_path / "w", layout) as out:
        out.write(layout.slots["small"], 0, rows)
    assert (tmp_path / "w").read_bytes()[:60] == np.ascontiguousarray(rows).tobytes()


@pytest.mark.parametrize(
    ("first", "rows"),
    [
        (0, np.zeros((3, 5), np.float64)),
        (0, np.zeros((3, 4), np.float32)),
        (1, np.zeros((3, 5), np.float32)),
    ],
    ids=["dtype", "shape", "too many"],
)
def test_rows_that_do_not_fit_are_a_mistake_of_ours(layout, tmp_path, first, rows):
    with WeightsFile(tmp_path / "w", layout) as out, pytest.raises(AssertionError):
        out.write(layout.slots["small"], first, rows)


def test_an_existing_file_is_not_overwritten(layout, tmp_path):
    (tmp_path / "w").write_bytes(b"x")
    with pytest.raises(StorageError, match="could not be written"), WeightsFile(tmp_path / "w", layout):
        pass
    assert (tmp_path / "w").read_bytes() == b"x"


@pytest.mark.skipif(sys.platform == "win32", reason="needs resource limits")
def test_a_limit_on_file_sizes_is_met_before_the_work(tmp_path):
    program = f"""
import resource
from pathlib import Path
from edge_rt.errors import StorageError
from edge_rt.export.weights.weights_file import WeightsFile, WeightsLayout
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
layout = WeightsLayout()
layout.add("t", "u1", (100_000,))
try:
    WeightsFile(Path({str(tmp_path / "w")!r}), layout).__enter__()
except StorageError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "100.0 kB are needed" in done.stdout
    assert re.search(r"[kMGT]B are free", done.stdout)
    assert (tmp_path / "w").stat().st_size <= 50_000


class TestChecksums:
    @pytest.fixture
    def written(self, layout, tmp_path):
        rng = np.random.default_rng(0)
        with WeightsFile(tmp_path / "w", layout) as out:
            out.write(layout.slots["large"], 0, rng.integers(0, 256, (70, 1000), np.uint8))
            out.write(layout.slots["small"], 0, rng.standard_normal((3, 5)).astype(np.float32))
        return tmp_path / "w", out.checksums

    def test_tensors_as_written_pass(self, layout, written):
        path, checksums = written
        assert list(checksums) == ["large", "small"]
        verify_checksums(path, layout, checksums)

    @pytest.mark.parametrize(("at", "name"), [(0, "small"), (59, "small"), (4096, "large"), (74095, "large")])
    def test_a_changed_bit_is_found(self, layout, written, at, name):
        path, checksums = written
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)
        with pytest.raises(StorageError, match=f"'{name}'"):
            verify_checksums(path, layout, checksums)

    def test_pieces_count_together(self, layout, written, tmp_path):
        path, checksums = written
        stored = np.fromfile(path, np.uint8)[4096:74096].reshape(70, 1000)
        with WeightsFile(tmp_path / "again", layout) as out:
            for begin in range(0, 70, 9):
                out.write(layout.slots["large"], begin, stored[begin : begin + 9])
        assert out.checksums["large"] == checksums["large"]
