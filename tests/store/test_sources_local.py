from __future__ import annotations

import os
import sys

import pytest

from edge_rt.errors import DownloadError, InvalidModelFile, ModelNotFound, StorageError, UnsupportedModel
from edge_rt.store.recipes import LocalSource
from edge_rt.store.sources_local import check_gguf, fetch_from_file, read_checkpoint
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.gguf_split import split
from tests.helpers.hf_factory import write_hf_folder
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
    found = read_checkpoint(tmp_path / "x.gguf", lambda *_: None)
    assert (found.path, found.name) == (tmp_path / "x.gguf", "x")
    assert (found.size, found.sha256) == (len(MODEL), sha256(MODEL))


def test_any_part_of_a_split_file_describes_all(small_gguf, tmp_path):
    parts = split(small_gguf, tmp_path, 3)
    seen = []
    found = [read_checkpoint(path, lambda *counts: seen.append(counts)) for path in parts]
    assert found[0] == found[1] == found[2]
    assert (found[0].path, found[0].name) == (parts[0], "m")
    assert found[0].size == sum(path.stat().st_size for path in parts)
    assert seen[-1] == (found[0].size, found[0].size)
    parts[1].unlink()
    with pytest.raises(ModelNotFound, match=r"m-00002-of-00003.gguf: this part of a split model is missing"):
        read_checkpoint(parts[0], lambda *_: None)


@pytest.mark.parametrize("files", [1, 2])
def test_a_folder_is_known_by_all_of_its_files(hf_model, tmp_path, files):
    folder = write_hf_folder(tmp_path / "my-model", hf_model, files=files)
    (folder / "generation_config.json").write_text("{}")
    (folder / "training.log").write_text("not read")
    first = read_checkpoint(folder, lambda *_: None)
    assert (first.path, first.name) == (folder, "my-model")
    assert read_checkpoint(tmp_path / "my-model" / ".." / "my-model", lambda *_: None) == first
    for path in sorted(folder.iterdir()):
        if path.name == "training.log":
            continue
        data = path.read_bytes()
        # A blank at the end of a JSON file; another number in a file of tensors.
        changed = data[:-1] + b"?" if path.suffix == ".safetensors" else data + b" "
        path.write_bytes(changed)
        assert read_checkpoint(folder, lambda *_: None).sha256 != first.sha256, path.name
        path.write_bytes(data)
    (folder / "training.log").write_text("still not read")
    assert read_checkpoint(folder, lambda *_: None) == first


def test_what_is_not_exported_is_refused_before_it_is_read(hf_model, tmp_path):
    folder = write_hf_folder(tmp_path / "m", hf_model, config={"model_type": "novel"})
    write_llama_gguf(tmp_path / "m.gguf", architecture="novel")
    seen = []
    for path in (folder, tmp_path / "m.gguf"):
        with pytest.raises(UnsupportedModel, match="'novel' is not supported"):
            read_checkpoint(path, lambda *counts: seen.append(counts))
    assert seen == []


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(MODEL)

    def write_more(done, total):
        path.write_bytes(MODEL * 2)

    with pytest.raises(StorageError, match="changed while it was read"):
        read_checkpoint(path, write_more)
