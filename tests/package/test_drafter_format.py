"""The bytes of a drafter: what is written, where tensors are, and that the same input gives the same files."""

from __future__ import annotations

import dataclasses
import hashlib
import json

import pytest

from edge_rt.export.weights.tile_formats import FORMAT_OF_GGML, TILE_FORMATS
from edge_rt.package.drafter_reader import is_drafter, open_drafter
from edge_rt.package.layer_sizes import FLOAT_TILES, FORMAT_OF_TYPE, NESTED_TILES, TILE_UNITS, row_bytes, tiles_shape
from tests.helpers.packages import listing
from tests.helpers.tiny_drafter import EXIT_INFO, INFO, ids_bytes, tensors_of, write_drafter

# The format: change these bytes only together with FORMAT_VERSION.
PINNED = """\
{
  "format": "edge-rt drafter",
  "format_version": 1,
  "producer": "edge-rt 0.1.0",
  "name": "tiny-head",
  "kind": "head",
  "target": {
    "name": "Tiny ünï",
    "source_sha256": "0000000000000000000000000000000000000000000000000000000000000000",
    "quantisation": {
      "embedding": "Q8_0",
      "attention": "Q4_1"
    },
    "tokenizer_sha256": "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
    "hidden_size": 64,
    "vocab_size": 419,
    "num_layers": 2
  },
"""
PINNED_EXITS = """\
  "exits": [
    {
      "layer": 1,
      "top1": 0.25,
      "top2": 0.375,
      "top4": 0.5
    },
    {
      "layer": 4,
      "top1": 0.5,
      "top2": 0.6,
      "top4": 0.75
    }
  ]
}
"""


@pytest.fixture
def drafter(tmp_path):
    return write_drafter(tmp_path / "tiny")


def test_the_bytes_of_the_description(drafter):
    data = (drafter.path / "drafter.json").read_bytes()
    assert data.decode().startswith(PINNED)
    assert data == drafter.info.to_bytes()
    assert drafter.id == hashlib.sha256(data).hexdigest()
    assert hashlib.sha256(data).hexdigest() == "dd6bed0b6cf4cdd5164042b5905a11f81ea16982c85a22979aa30b59067570db"
    assert (
        drafter.info.files["weights.bin"].sha256 == "4c03a1a0ba5e70dd57713da96e1e382ba24a44501f1c8b98ad3570b9d61f4445"
    )


def test_what_was_written_is_read(drafter):
    head = dataclasses.replace(drafter.info.head, tensors={})
    assert dataclasses.replace(drafter.info, head=head, files={}) == INFO
    assert drafter.vocabulary == (*range(19, -1, -1),)
    assert is_drafter(drafter.path)
    assert not is_drafter(drafter.path.parent)
    assert listing(drafter.path) == ["drafter.json", "weights.bin"]
    assert drafter.size_bytes == sum(path.stat().st_size for path in drafter.path.iterdir())
    drafter.verify()


def test_tensors_lie_one_behind_the_other_and_gaps_are_zero(drafter):
    wanted, data = tensors_of(INFO), drafter.weights.read_bytes()
    places = drafter.info.head.tensors
    assert [(name, place.dtype, place.shape) for name, place in places.items()] == [
        ("fc.tiles", "uint8", (4, 4, 320)),
        ("block0.gate_up.tiles", "uint8", (4, 2, 288)),
        ("block0.down.tiles", "uint8", (4, 1, 544)),
        ("state_norm", "float32", (64,)),
        ("token_norm", "float32", (64,)),
        ("output_norm", "float32", (64,)),
        ("block0.norm", "float32", (64,)),
        ("vocabulary", "int32", (20,)),
    ]
    end = 0
    for name, place in places.items():
        assert place.offset % 64 == 0
        assert data[place.offset : place.offset + place.length] == wanted[name]
        assert not any(data[end : place.offset])
        end = place.offset + place.length
    assert end == len(data) == drafter.weights_bytes


def test_large_tensors_begin_at_pages(tmp_path):
    target = dataclasses.replace(INFO.target, hidden_size=256)
    large = write_drafter(tmp_path / "large", dataclasses.replace(INFO, target=target))
    places = large.info.head.tensors
    assert {name for name, place in places.items() if place.length >= 1 << 16} == {"fc.tiles"}
    two = dataclasses.replace(INFO, target=target, head=dataclasses.replace(INFO.head, blocks=2, intermediate_size=512))
    places = write_drafter(tmp_path / "two", two).info.head.tensors
    large_ones = [place for place in places.values() if place.length >= 1 << 16]
    assert len(large_ones) == 5
    assert all(place.offset % 4096 == 0 for place in large_ones)


def test_a_head_of_its_own(tmp_path):
    head = dataclasses.replace(INFO.head, formats={**INFO.head.formats, "head": "w8"})
    places = write_drafter(tmp_path / "own", dataclasses.replace(INFO, head=head)).info.head.tensors
    assert places["head.tiles"].shape == (2, 2, 544)


def test_adapters_of_exits_have_tensors_of_their_own_and_one_vocabulary(tmp_path):
    drafter = write_drafter(tmp_path / "exits", EXIT_INFO)
    of_a_head = [*tensors_of(INFO)][:-1]
    places = drafter.info.head.tensors
    assert set(places) == {f"exit{layer}.{name}" for layer in (1, 4) for name in of_a_head} | {"vocabulary"}
    assert [*places][:3] == ["exit1.fc.tiles", "exit1.block0.gate_up.tiles", "exit1.block0.down.tiles"]
    assert [*places][-1] == "vocabulary"
    assert drafter.info.layers == (1, 4)
    data = (drafter.path / "drafter.json").read_bytes()
    assert data.decode().endswith(PINNED_EXITS)
    assert hashlib.sha256(data).hexdigest() == "a16c03425ba278dd6cd733054f245aa1734f59c4612d6d92bfc6903daf080829"
    assert open_drafter(drafter.path) == drafter
    drafter.verify()


def test_the_same_input_gives_the_same_files(tmp_path):
    one, two = (write_drafter(tmp_path / name) for name in ("one", "two"))
    assert one.id == two.id
    assert one.weights.read_bytes() == two.weights.read_bytes()


def test_arrays_are_written_as_they_lie_in_memory(tmp_path):
    tensors = tensors_of(INFO)
    views = {
        name: memoryview(bytearray(data)).cast("i" if len(data) % 4 == 0 else "B") for name, data in tensors.items()
    }
    assert write_drafter(tmp_path / "views", tensors=views).id == write_drafter(tmp_path / "bytes").id


def test_the_exporter_packs_tiles_of_the_same_sizes():
    for name, (inputs, size) in TILE_UNITS.items():
        form = TILE_FORMATS[name]
        assert (form.unit_inputs, form.unit_bytes, form.is_float) == (inputs, size, name in FLOAT_TILES)
    assert TILE_UNITS.keys() == TILE_FORMATS.keys()
    assert FORMAT_OF_TYPE == FORMAT_OF_GGML
    assert {name for name, form in TILE_FORMATS.items() if form.is_nested} == NESTED_TILES


def test_bytes_of_a_row():
    assert row_bytes(576, "Q8_0") == 612
    assert row_bytes(576, "Q4_1+Q8_0") == 612
    assert row_bytes(576, "W8N") == 648
    assert row_bytes(576, "F16") == 1152
    assert row_bytes(576, "what is not known") == 4 * 576
    assert tiles_shape(17, 40, "f32") == (2, 2, 2048)
    with pytest.raises(ValueError, match="no multiple of the 256"):
        tiles_shape(16, 64, "w4k")


def test_opened_by_a_relative_path(drafter, monkeypatch):
    monkeypatch.chdir(drafter.path.parent)
    assert open_drafter(drafter.path.relative_to(drafter.path.parent)) == drafter
    assert json.loads((drafter.path / "drafter.json").read_text())["files"].keys() == {"weights.bin"}
    assert ids_bytes([1, -1]) == b"\x01\0\0\0\xff\xff\xff\xff"
