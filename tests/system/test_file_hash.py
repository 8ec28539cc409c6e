from __future__ import annotations

import hashlib

import pytest

from edge_rt.errors import StorageError
from edge_rt.system.files import CHUNK, sha256_file


def test_the_hash_of_a_file_and_how_far_it_was_read(tmp_path):
    data = bytes(range(256)) * (CHUNK // 128)
    (tmp_path / "x").write_bytes(data)
    seen = []
    assert sha256_file(tmp_path / "x", seen.append) == hashlib.sha256(data).hexdigest()
    assert seen == [CHUNK, 2 * CHUNK]


@pytest.mark.parametrize("name", ["none", "."])
def test_what_cannot_be_read(tmp_path, name):
    with pytest.raises(StorageError, match="cannot be read"):
        sha256_file(tmp_path / name)
