"""Folders of safetensors: what is read, and one error for each thing that can be wrong."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from edge_rt.errors import EdgeRTError, InvalidModelFile, ModelNotFound, UnsupportedModel
from edge_rt.export.sources.safetensors_folder import read_folder
from tests.helpers.examples import share_of

GOOD = {
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
}


def write(path, header, data=bytes(32), *, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def write_index(folder, weight_map):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_a_single_file(tmp_path):
    path = write(tmp_path / "model.safetensors", {"__metadata__": {"format": "pt"}, **GOOD})
    found = read_folder(tmp_path)
    assert found.paths == (path,)
    begin = path.stat().st_size - 32
    assert [(t.name, t.dtype, t.shape, t.offset, t.nbytes, t.file) for t in found.tensors.values()] == [
        ("a", "F32", (2, 3), begin, 24, 0),
        ("b", "BF16", (4,), begin + 24, 8, 0),
    ]


def test_what_the_library_writes_is_read(tmp_path):
    numpy = pytest.importorskip("safetensors.numpy", reason="the oldest versions are tested without it")
    values = {
        "x": np.arange(6, dtype=np.float16).reshape(2, 3),
        "y": np.ones(5, np.uint8),
        "z": np.zeros((0, 3), "<f4"),
    }
    numpy.save_file(values, tmp_path / "model.safetensors", {"format": "np"})
    tensors = read_folder(tmp_path).tensors
    data = (tmp_path / "model.safetensors").read_bytes()
    for name, array in values.items():
        tensor = tensors[name]
        assert data[tensor.offset : tensor.offset + tensor.nbytes] == array.tobytes()
        assert tensor.shape == array.shape


def test_several_files_with_an_index(tmp_path):
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    write(tmp_path / names[0], {"a": GOOD["a"]}, bytes(24))
    write(tmp_path / names[1], {"b": {**GOOD["b"], "data_offsets": [0, 8]}}, bytes(8))
    write_index(tmp_path, {"a": names[0], "b": names[1]})
    found = read_folder(tmp_path)
    assert [path.name for path in found.paths] == names
    assert {name: tensor.file for name, tensor in found.tensors.items()} == {"a": 0, "b": 1}


WRONG = {
    "an entry that is no object": ({**GOOD, "b": 3}, "entry of 'b'"),
    "another field": ({**GOOD, "b": {**GOOD["b"], "x": 1}}, "entry of 'b'"),
    "a missing field": ({"a": {"dtype": "F32", "shape": [8]}}, "entry of 'a'"),
    "a negative dimension": ({"a": {**GOOD["a"], "shape": [-8]}}, "shape of 'a'"),
    "a dimension that is true": ({"a": {**GOOD["a"], "shape": [True]}}, "shape of 'a'"),
    "too many elements": ({"a": {**GOOD["a"], "shape": [1 << 30, 1 << 30]}}, "shape of 'a'"),
    "a range beyond the file": ({"a": {**GOOD["a"], "data_offsets": [16, 40]}}, "there are 32 bytes"),
    "a range that ends before it begins": ({"a": {**GOOD["a"], "data_offsets": [24, 0]}}, "lies at"),
    "a range of three": ({"a": {**GOOD["a"], "data_offsets": [0, 24, 32]}}, "lies at"),
    "a range of floats": ({"a": {**GOOD["a"], "data_offsets": [0.0, 24.0]}}, "lies at"),
    "a range that is too short": ({"a": {**GOOD["a"], "data_offsets": [0, 20]}}, "its shape and type make 24"),
    "an overlap": ({**GOOD, "b": {**GOOD["b"], "data_offsets": [20, 28]}}, "overlaps another tensor"),
    "a gap": ({"a": {**GOOD["a"], "data_offsets": [4, 28]}}, "leaves a gap before it"),
    "bytes behind the last": ({"a": GOOD["a"]}, "Its tensors end"),
    "no tensors": ({}, "0 tensors"),
    "no object": ([1], "no JSON object: It holds an array"),
    "no JSON": (b"{nonsense", "no JSON object"),
    "no UTF-8": (b'{"\xff": 1}', "no JSON object"),
    "a key twice": (b'{"a": {"dtype": "F32", "dtype": "F32", "shape": [8], "data_offsets": [0, 32]}}', "'dtype' twice"),
    "deep nesting": (b'{"a":' + b"[" * 100_000, "nested too deeply"),
}  # fmt: skip


@pytest.mark.parametrize(("header", "message"), WRONG.values(), ids=WRONG)
def test_a_malformed_header(tmp_path, header, message):
    write(tmp_path / "model.safetensors", header)
    with pytest.raises(InvalidModelFile, match=message):
        read_folder(tmp_path)


def test_a_type_that_is_unknown(tmp_path):
    write(tmp_path / "model.safetensors", {"a": {**GOOD["a"], "dtype": "F4"}})
    with pytest.raises(UnsupportedModel, match="It is 'F4'; known are"):
        read_folder(tmp_path)


@pytest.mark.parametrize("length", [0, 1, 1000, 1 << 40, (1 << 64) - 1])
def test_a_header_that_is_longer_than_the_file(tmp_path, length):
    write(tmp_path / "model.safetensors", GOOD, length=length)
    with pytest.raises(InvalidModelFile, match=f"Its header says {length} bytes|no JSON object"):
        read_folder(tmp_path)


@pytest.mark.parametrize("data", [b"", b"1234567", b"12345678"])
def test_a_file_without_a_header(tmp_path, data):
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(InvalidModelFile, match="Its header says"):
        read_folder(tmp_path)


def test_no_weights(tmp_path):
    with pytest.raises(ModelNotFound, match="holds no weights"):
        read_folder(tmp_path)


def test_a_link_is_refused(tmp_path):
    target = write(tmp_path / "elsewhere", GOOD)
    (tmp_path / "model.safetensors").symlink_to(target)
    with pytest.raises(InvalidModelFile, match=r"model.safetensors is a link"):
        read_folder(tmp_path)


class TestIndex:
    @pytest.mark.parametrize(
        "name",
        [
            *("../a.safetensors", "/a.safetensors", "x/a.safetensors", "a.bin", 3, "..", "a\\b.safetensors"),
            *("a\0.safetensors", "\ud800.safetensors", "é" * 122 + "ab.safetensors"),
        ],
    )
    def test_files_outside_the_folder_or_with_names_that_none_can_have(self, tmp_path, name):
        write_index(tmp_path, {"a": name})
        with pytest.raises(InvalidModelFile, match="names the file"):
            read_folder(tmp_path)

    @pytest.mark.parametrize("document", ["[]", "{}", '{"weight_map": {}}', '{"weight_map": []}', "nonsense"])
    def test_malformed(self, tmp_path, document):
        (tmp_path / "model.safetensors.index.json").write_text(document)
        with pytest.raises(InvalidModelFile, match=r"index.json is malformed"):
            read_folder(tmp_path)

    @pytest.mark.parametrize(
        "document",
        [
            '{"weight_map": {"a": "m.safetensors", "a": "n.safetensors"}}',
            '{"weight_map": {}, "weight_map": {"a": "m.safetensors"}}',
        ],
    )
    def test_a_key_twice(self, tmp_path, document):
        (tmp_path / "model.safetensors.index.json").write_text(document)
        with pytest.raises(InvalidModelFile, match=r"the field '.*' twice"):
            read_folder(tmp_path)

    def test_a_missing_file(self, tmp_path):
        write_index(tmp_path, {"a": "model-1.safetensors", "b": "model-2.safetensors"})
        write(tmp_path / "model-1.safetensors", GOOD)
        with pytest.raises(ModelNotFound, match=r"1 of 2 are missing, the first is model-2\.safetensors"):
            read_folder(tmp_path)

    @pytest.mark.parametrize(
        "weight_map", [{"a": "m.safetensors"}, {"a": "m.safetensors", "b": "m.safetensors", "c": "m.safetensors"}]
    )
    def test_tensors_that_it_does_not_name_or_that_are_not_there(self, tmp_path, weight_map):
        write(tmp_path / "m.safetensors", GOOD)
        write_index(tmp_path, weight_map)
        with pytest.raises(InvalidModelFile, match=r"does not name the tensor 'b'|The tensor 'c' is not in"):
            read_folder(tmp_path)

    def test_a_tensor_in_two_files(self, tmp_path):
        for name in ("m.safetensors", "n.safetensors"):
            write(tmp_path / name, GOOD)
        write_index(tmp_path, {"a": "m.safetensors", "b": "n.safetensors"})
        with pytest.raises(InvalidModelFile, match=r"'a' is in m\.safetensors, too"):
            read_folder(tmp_path)


@settings(max_examples=share_of(300))
@given(st.data())
def test_whatever_a_file_holds_the_error_is_ours(tmp_path_factory, data):
    """Good files with a few bytes changed, cut or put in."""
    folder = tmp_path_factory.mktemp("fuzz")
    content = bytearray(write(folder / "model.safetensors", GOOD).read_bytes())
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(content)))
        cut = data.draw(st.integers(0, 3))
        content[at : at + cut] = data.draw(st.binary(max_size=3))
    (folder / "model.safetensors").write_bytes(content)
    try:
        found = read_folder(folder)
    except EdgeRTError:
        return
    assert sum(tensor.nbytes for tensor in found.tensors.values()) <= len(content)
