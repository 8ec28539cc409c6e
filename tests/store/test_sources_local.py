from __future__ import annotations

import os
import sys

import pytest

from edge_rt.errors import DownloadError, InvalidModelFile
from edge_rt.store.recipes import LocalSource
from edge_rt.store.sources_local import check_gguf, describe_file, fetch_from_file
from tests.store.builders import MODEL, make_recipe, sha256

SPEC = make_recipe().file


def test_a_file_is_copied_and_checked(tmp_path):
    (tmp_path / "x.gguf").write_bytes(MODEL)
    folder = tmp_path / "out"
    folder.mkdir()
    assert fetch_from_file(LocalSource(tmp_path / "x.gguf"), SPEC, folder, lambda *_: None) == sha256(MODEL)
    assert (folder / SPEC.name).read_bytes() == MODEL


def test_another_file_is_refused(tmp_path):
    (tmp_path / "x.gguf").write_bytes(MODEL[::-1])
    with pytest.raises(DownloadError, match="wrong content"):
        fetch_from_file(LocalSource(tmp_path / "x.gguf"), SPEC, tmp_path, lambda *_: None)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(DownloadError, match="does not exist"):
        fetch_from_file(LocalSource(tmp_path / "x.gguf"), SPEC, tmp_path, lambda *_: None)


@pytest.mark.parametrize("content", [b"", b"GGU", b"FUGG1234", b"PK\x03\x04"])
def test_what_is_no_gguf_is_refused(tmp_path, content):
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(InvalidModelFile, match="At byte 0"):
        check_gguf(tmp_path / "x.gguf")


@pytest.mark.skipif(sys.platform == "win32", reason="needs mkfifo")
def test_a_pipe_is_refused_without_waiting_for_it(tmp_path):
    os.mkfifo(tmp_path / "x.gguf")
    with pytest.raises(InvalidModelFile, match="not a regular file"):
        check_gguf(tmp_path / "x.gguf")


def test_a_file_that_stays_where_it_is_is_described(tmp_path):
    (tmp_path / "x.gguf").write_bytes(MODEL)
    spec = describe_file(tmp_path / "x.gguf", lambda *_: None)
    assert (spec.name, spec.size, spec.sha256) == ("x.gguf", len(MODEL), sha256(MODEL))
