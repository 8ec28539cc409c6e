"""Tiles that are read from a file: those of an array, or an error that says why not."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from edge_rt.errors import StorageError
from edge_rt.runtime.speculation.head_matrices import StoredTiles


@pytest.fixture
def tiles():
    return np.random.default_rng(3).integers(0, 256, (9, 2, 5), np.uint8)


@pytest.fixture
def path(tiles, tmp_path):
    found = tmp_path / "weights.bin"
    found.write_bytes(b"before" + tiles.tobytes() + b"behind")
    return found


@pytest.mark.parametrize("numbers", [[], [0], [8, 0, 3, 3], list(range(9))])
def test_they_are_those_of_an_array(tiles, path, numbers):
    stored, numbers = StoredTiles(path, 6, tiles.shape), np.asarray(numbers, np.int64)
    assert stored.shape == tiles.shape
    np.testing.assert_array_equal(stored[numbers], tiles[numbers])


@pytest.mark.parametrize("number", [-1, 9])
def test_there_are_no_others(tiles, path, number):
    with pytest.raises(IndexError, match=f"tiles {number} to {number} of 9"):
        StoredTiles(path, 6, tiles.shape)[np.asarray([number])]


def test_a_file_that_is_gone_or_too_short(tiles, path, tmp_path):
    with pytest.raises(StorageError, match=r"other\.bin cannot be read"):
        StoredTiles(tmp_path / "other.bin", 6, tiles.shape)
    stored = StoredTiles(path, 6, tiles.shape)
    path.write_bytes(path.read_bytes()[:90])
    with pytest.raises(StorageError, match="It has 4 of 10 bytes from 86 on"):
        stored[np.asarray([8])]
    np.testing.assert_array_equal(stored[np.asarray([7])], tiles[7:8])


def test_the_file_is_closed_with_them(tiles, path, recwarn):
    stored = StoredTiles(path, 6, tiles.shape)
    file = stored._file
    del stored
    gc.collect()
    assert file.closed
    assert not recwarn.list
