"""Checkpoints that llama.cpp's gguf-split has cut into several files."""

from __future__ import annotations

import hashlib

import pytest

from edge_rt.errors import InvalidModelFile, ModelNotFound
from edge_rt.export import export_model
from edge_rt.export.sources.gguf_header import read_header
from edge_rt.export.sources.gguf_split import read_gguf
from edge_rt.package.reader import open_package
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.gguf_split import split


@pytest.fixture
def whole(tmp_path):
    return write_llama_gguf(tmp_path / "whole.gguf").path


def test_a_split_model_becomes_the_package_of_the_whole_one(whole, tmp_path):
    paths = split(whole, tmp_path, 3)
    one = export_model(whole, tmp_path / "one", profile="portable")
    other = export_model(paths[1], tmp_path / "other", profile="portable")
    assert (one.path / "weights.bin").read_bytes() == (other.path / "weights.bin").read_bytes()
    source = open_package(other.path).manifest.source
    lines = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in paths)
    assert source.sha256 == hashlib.sha256(lines.encode()).hexdigest()
    assert (source.name, source.size) == (paths[0].name, sum(path.stat().st_size for path in paths))


def test_any_part_stands_for_all(whole, tmp_path):
    headers = [read_gguf(path) for path in split(whole, tmp_path, 2)]
    assert headers[0] == headers[1]
    assert set(headers[0].tensors) == set(read_header(whole).tensors)
    assert headers[0].paths == tuple(sorted(headers[0].paths))


def test_a_missing_part(whole, tmp_path):
    paths = split(whole, tmp_path, 3)
    paths[1].unlink()
    with pytest.raises(ModelNotFound, match=r"m-00002-of-00003.gguf: this part of a split model is missing"):
        read_gguf(paths[0])


def test_a_part_with_another_name(whole, tmp_path):
    path = split(whole, tmp_path, 2)[0]
    with pytest.raises(InvalidModelFile, match="name of this part"):
        read_gguf(path.rename(tmp_path / "renamed.gguf"))


@pytest.mark.parametrize(("key", "value"), [("split.no", 0), ("split.count", 3)])
def test_a_part_that_says_something_else_than_its_name(key, value, whole, tmp_path):
    def change(number, keys, names):
        if number == 1:
            keys[key] = value

    with pytest.raises(InvalidModelFile, match=f"'{key}' contradicts the file's name"):
        read_gguf(split(whole, tmp_path, 2, change=change)[0])


def test_a_tensor_in_two_parts(whole, tmp_path):
    with pytest.raises(InvalidModelFile, match="is in another part of the model, too"):
        read_gguf(split(whole, tmp_path, 2, change=lambda number, keys, names: names.append("token_embd.weight"))[0])


def test_a_tensor_in_no_part(whole, tmp_path):
    def change(number, keys, names):
        if number == 1:
            names.pop()

    with pytest.raises(InvalidModelFile, match="parts of the split model are not of one model"):
        read_gguf(split(whole, tmp_path, 2, change=change)[0])


def test_too_many_parts(whole, tmp_path):
    paths = split(whole, tmp_path, 1, change=lambda number, keys, names: keys.update({"split.count": 1001}))
    with pytest.raises(InvalidModelFile, match=r"split\.count"):
        read_gguf(paths[0])
