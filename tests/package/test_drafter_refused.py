"""Drafters that are not opened: one cause, one error."""

from __future__ import annotations

import contextlib
import os
import re

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from edge_rt.errors import EdgeRTError, InvalidDrafter, ModelNotFound, StorageError, UnsupportedModel, VersionMismatch
from edge_rt.package.drafter import MAX_DRAFTER_BYTES
from edge_rt.package.drafter_reader import open_drafter
from tests.helpers.packages import copied, manifest_setter
from tests.helpers.tiny_drafter import EXIT_INFO, INFO, edit_description, ids_bytes, replace_weights, write_drafter


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A drafter that nobody may change."""
    return write_drafter(tmp_path_factory.mktemp("drafters") / "tiny").path


@pytest.fixture
def drafter(written, tmp_path):
    return copied(written, tmp_path)


def refused(path, match, error=InvalidDrafter):
    with pytest.raises(error, match=match):
        open_drafter(path)


class TestFiles:
    def test_no_folder(self, tmp_path):
        refused(tmp_path / "none", "There is no drafter at", ModelNotFound)

    def test_no_description(self, drafter):
        (drafter / "drafter.json").unlink()
        refused(drafter, "this is not a drafter")

    def test_a_description_that_is_a_link(self, drafter, tmp_path):
        (drafter / "drafter.json").rename(tmp_path / "elsewhere.json")
        (drafter / "drafter.json").symlink_to(tmp_path / "elsewhere.json")
        refused(drafter, "this is not a drafter")

    def test_a_description_without_end(self, drafter):
        (drafter / "drafter.json").write_bytes(b" " * (MAX_DRAFTER_BYTES + 1))
        refused(drafter, "the description is too large")

    def test_a_description_that_is_a_folder(self, drafter):
        (drafter / "drafter.json").unlink()
        (drafter / "drafter.json").mkdir()
        refused(drafter, "this is not a drafter")

    @pytest.mark.parametrize(
        ("data", "match"),
        [
            (b"\xff\xfe", "is not JSON"),
            (b"{", "is not JSON"),
            (b"[" * 100_000, "is not JSON"),
            (b'{"format": "edge-rt drafter", "format": "edge-rt drafter"}', "'format' twice"),
            (b'{"format": "edge-rt drafter", "format_version": NaN}', "NaN is no number of JSON"),
            (b'{"format": "edge-rt drafter", "format_version": ' + b"1" * 5000 + b"}", "is not JSON"),
            (b"[]", "not a drafter's"),
            (b'{"format": "edge-rt package"}', "not a drafter's"),
            (b'{"format": "edge-rt drafter"}', "'format_version' is missing"),
            (b'{"format": "edge-rt drafter", "format_version": true}', "'format_version' is missing"),
        ],
    )
    def test_a_description_that_is_none(self, drafter, data, match):
        (drafter / "drafter.json").write_bytes(data)
        refused(drafter, match)

    def test_a_file_in_place_of_the_folder(self, drafter):
        refused(drafter / "drafter.json", "A drafter is a folder")

    def test_a_package(self, small_package):
        refused(small_package, "is a package, not a trained drafter(.|\n)*model:")

    def test_a_file_that_is_missing(self, drafter):
        (drafter / "weights.bin").unlink()
        refused(drafter, "file 'weights.bin' is missing")

    def test_a_file_that_is_a_link(self, drafter, tmp_path):
        (drafter / "weights.bin").rename(tmp_path / "elsewhere")
        (drafter / "weights.bin").symlink_to(tmp_path / "elsewhere")
        refused(drafter, "not a regular file")

    @pytest.mark.parametrize("change", [-1, 1])
    def test_a_file_of_another_size(self, drafter, change):
        data = (drafter / "weights.bin").read_bytes()
        (drafter / "weights.bin").write_bytes((data + b"x")[: len(data) + change])
        refused(drafter, "file 'weights.bin' has the wrong size")

    def test_one_flipped_bit(self, drafter):
        data = bytearray((drafter / "weights.bin").read_bytes())
        data[5] ^= 4
        (drafter / "weights.bin").write_bytes(data)
        opened = open_drafter(drafter)
        with pytest.raises(InvalidDrafter, match=r"file 'weights\.bin' is damaged"):
            opened.verify()

    @pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "a//b", ".hidden", "nul", "a\\b", ""])
    def test_a_name_that_leaves_the_folder(self, drafter, name):
        edit_description(
            drafter, lambda document: document["files"].update({name: {"size": 0, "sha256": "0" * 64}}) or document
        )
        refused(drafter, "a path that leaves the drafter")

    def test_names_that_differ_in_case_alone(self, drafter):
        edit_description(
            drafter, lambda document: document["files"].update({"Weights.bin": document["files"]["weights.bin"]})
        )
        refused(drafter, "differ in case alone")

    def test_weights_that_are_not_listed(self, drafter):
        edit_description(drafter, manifest_setter("files", {}))
        refused(drafter, r"does not list weights\.bin")

    @pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everywhere")
    def test_a_folder_that_cannot_be_read(self, drafter):
        (drafter / "drafter.json").chmod(0)
        refused(drafter, "cannot be read", StorageError)


class TestFields:
    @pytest.mark.parametrize("version", [0, 2, 10**30])
    def test_another_version(self, drafter, version):
        edit_description(drafter, manifest_setter("format_version", version))
        refused(drafter, f"has format_version {str(version)[:20]}", VersionMismatch)

    def test_another_kind(self, drafter):
        edit_description(drafter, manifest_setter("head", KeyError))
        edit_description(drafter, manifest_setter("kind", "table"))
        refused(drafter, "Found 'table', supported: head, exit", UnsupportedModel)

    @pytest.mark.parametrize("where", ["", "target.", "head.", "training.", "acceptance.", "head.tensors.fc_tiles."])
    def test_a_field_that_is_not_known(self, drafter, where):
        edit_description(drafter, manifest_setter(where.replace("fc_tiles", "vocabulary") + "extra", 1))
        refused(drafter, r"has the wrong fields.*unknown: extra\.")

    @pytest.mark.parametrize(
        "field", ["producer", "name", "kind", "target", "head", "training", "acceptance", "license", "target.name"]
    )
    def test_a_field_that_is_missing(self, drafter, field):
        edit_description(drafter, manifest_setter(field, KeyError))
        refused(drafter, rf"Missing: {field.rpartition('.')[2]};")

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("kind", 3),
            ("name", None),
            ("target", []),
            ("target.hidden_size", "64"),
            ("target.quantisation", ["Q8_0"]),
            ("target.quantisation", "Q8_0"),
            ("head.formats", "w4"),
            ("files", ""),
            ("head.formats.fc", 4),
            ("head.tensors", [1]),
            ("training.tokens", 1.5),
            ("training.seed", True),
            ("acceptance.positions", {}),
            ("acceptance.positions", ["0.5"]),
            ("license", 1),
            ("files.weights.bin", 7),
        ],
    )
    def test_a_field_of_another_type(self, drafter, field, value):
        if field == "files.weights.bin":
            edit_description(drafter, lambda document: document["files"].update({"weights.bin": value}))
        else:
            edit_description(drafter, manifest_setter(field, value))
        refused(drafter, "has the wrong type|must be an object")

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("name", ""),
            ("name", "../up"),
            ("name", "a" * 65),
            ("name", "a\x1b[31m"),
            ("target.source_sha256", "0" * 63),
            ("target.source_sha256", "A" * 64),
            ("target.tokenizer_sha256", ""),
            ("target.hidden_size", 0),
            ("target.hidden_size", 1 << 25),
            ("target.vocab_size", -1),
            ("target.num_layers", 0),
            ("head.blocks", 0),
            ("head.intermediate_size", 10**400),
            ("head.vocabulary_size", 0),
            ("head.vocabulary_size", 420),
            ("head.epsilon", -1e-9),
            ("head.epsilon", 2),
            ("training.tokens", -1),
            ("training.hours", -0.5),
            ("training.hours", 1e300),
            ("training.seed", -1),
            ("acceptance.top2", 1.5),
            ("acceptance.positions.1", -0.1),
        ],
    )
    def test_a_value_out_of_range(self, drafter, field, value):
        if field == "acceptance.positions.1":
            edit_description(drafter, manifest_setter("acceptance.positions", [0.5, value]))
            field = "acceptance.positions[1]"
        else:
            edit_description(drafter, manifest_setter(field, value))
        refused(drafter, re.escape(f"'drafter.{field}' is out of range"))

    @pytest.mark.parametrize("count", [0, 17])
    def test_positions_of_another_number(self, drafter, count):
        edit_description(drafter, manifest_setter("acceptance.positions", [0.5] * count))
        refused(drafter, f"Found {count}, wanted 1 to 16")

    @pytest.mark.parametrize(
        ("field", "value", "match"),
        [
            ("head.blocks", 5, "5 blocks"),
            ("head.intermediate_size", 24, "no multiple of 16"),
            ("head.formats", {"fc": "w4", "down": "w4"}, "Formats are of down, fc"),
            ("head.formats", {"fc": "w4", "gate_up": "w4", "down": "w4", "more": "w4"}, "Formats are of"),
            ("head.formats.fc", "w7", "no format 'w7'"),
            ("head.formats.fc", "w8n", "no format 'w8n'"),
            ("head.formats.gate_up", "w4k", "no multiple of the 256"),
        ],
    )
    def test_a_head_that_contradicts_itself(self, drafter, field, value, match):
        edit_description(drafter, manifest_setter(field, value))
        refused(drafter, f"'drafter.head' contradicts itself.*{match}")


class TestExits:
    @pytest.fixture
    def drafter(self, tmp_path):
        return write_drafter(tmp_path / "tiny", EXIT_INFO).path

    def test_a_head_has_none(self, drafter):
        edit_description(drafter, manifest_setter("kind", "head"))
        refused(drafter, "'drafter.exits' has the wrong length.*Found 2; a drafter of the kind head has none")

    @pytest.mark.parametrize("count", [0, 9])
    def test_too_few_or_too_many(self, drafter, count):
        edit_description(drafter, lambda document: document.update(exits=document["exits"][:1] * count))
        refused(drafter, f"Found {count}; a drafter of the kind exit has 1 to 8")

    def test_not_stated(self, drafter):
        edit_description(drafter, manifest_setter("exits", KeyError))
        refused(drafter, "Found 0; a drafter of the kind exit has 1 to 8")

    @pytest.mark.parametrize("layers", [(4, 1), (1, 1), (0, 4), (1, 6), (-1, 4)], ids=str)
    def test_layers_that_are_no_exits(self, drafter, layers):
        def change(document):
            for one, layer in zip(document["exits"], layers, strict=True):
                one["layer"] = layer

        edit_description(drafter, change)
        refused(drafter, "do not lie between the model's layers in rising order.*the model has 6 layers")

    @pytest.mark.parametrize("name", ["top1", "top2", "top4"])
    def test_a_share_out_of_range(self, drafter, name):
        edit_description(drafter, lambda document: document["exits"][1].update({name: 1.5}))
        refused(drafter, re.escape(f"'drafter.exits[1].{name}' is out of range"))

    @pytest.mark.parametrize("name", ["layer", "top1", "top2", "top4"])
    def test_a_field_that_is_missing(self, drafter, name):
        edit_description(drafter, lambda document: document["exits"][0].pop(name) and None)
        refused(drafter, rf"'drafter\.exits\[0\]' has the wrong fields.*Missing: {name};")

    def test_tensors_of_another_exit(self, drafter):
        edit_description(drafter, lambda document: document["exits"][1].update(layer=5))
        refused(drafter, r"Missing: exit5.*unknown: exit4")


class TestTensors:
    def test_missing(self, drafter):
        edit_description(drafter, lambda document: document["head"]["tensors"].pop("fc.tiles") and None)
        refused(drafter, r"Missing: fc\.tiles;")

    def test_unknown(self, drafter):
        edit_description(
            drafter,
            lambda document: document["head"]["tensors"].update(more=document["head"]["tensors"]["vocabulary"]),
        )
        refused(drafter, r"unknown: more\.")

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("dtype", "float16"),
            ("dtype", "pickle"),
            ("shape", []),
            ("shape", [4, 4, 321]),
            ("shape", [4, 4, -320]),
            ("shape", [1 << 62, 1 << 62, 1 << 62]),
            ("shape", [20, 4, 64]),
        ],
    )
    def test_another_type_or_shape(self, drafter, name, value):
        edit_description(drafter, lambda document: document["head"]["tensors"]["fc.tiles"].update({name: value}))
        refused(drafter, re.escape("the tensor 'fc.tiles' has the wrong type or shape"))

    @pytest.mark.parametrize("length", [0, -5120, 5119, 5121, 1 << 63, 10**300])
    def test_another_length(self, drafter, length):
        edit_description(drafter, lambda document: document["head"]["tensors"]["fc.tiles"].update(length=length))
        refused(drafter, re.escape("the tensor 'fc.tiles' has the wrong length"))

    @pytest.mark.parametrize("offset", [-64, 1, 32, 1 << 20, 1 << 62, 10**300])
    def test_outside_the_file_or_not_aligned(self, drafter, offset):
        edit_description(drafter, lambda document: document["head"]["tensors"]["fc.tiles"].update(offset=offset))
        refused(drafter, re.escape("the tensor 'fc.tiles' lies outside the file, or is not aligned"))

    def test_overlapping(self, drafter):
        edit_description(drafter, lambda document: document["head"]["tensors"]["state_norm"].update(offset=64))
        refused(drafter, re.escape("the tensors 'fc.tiles' and 'state_norm' overlap"))

    @pytest.mark.parametrize(
        ("ids", "match"),
        [
            ([5, *range(19)], "names a token twice"),
            ([*range(19), 419], "Found 0 to 419, the model has 419 tokens"),
            ([-1, *range(19)], "Found -1 to 18"),
            ([2**31 - 1, *range(19)], "Found 0 to 2147483647"),
        ],
    )
    def test_a_vocabulary_that_is_none(self, drafter, ids, match):
        data = (drafter / "weights.bin").read_bytes()
        replace_weights(drafter, data[: -4 * len(ids)] + ids_bytes(ids))
        refused(drafter, match)


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=5),
    st.just([]),
    st.just({}),
    st.lists(st.integers(-1, 99), max_size=3),
)


@given(data=st.data())
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_descriptions_at_random(written, tmp_path_factory, data):
    """Whatever a field holds, the drafter opens or a typed error says why not."""
    drafter = tmp_path_factory.mktemp("random") / "copy"
    drafter.mkdir()
    (drafter / "weights.bin").hardlink_to(written / "weights.bin")
    (drafter / "drafter.json").write_bytes((written / "drafter.json").read_bytes())

    def change(document):
        for _ in range(data.draw(st.integers(1, 2))):
            place = document
            while True:
                key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
                if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.integers(0, 4)) == 0:
                    place[key] = data.draw(VALUES)
                    break
                place = place[key]

    edit_description(drafter, change)
    try:
        opened = open_drafter(drafter)
    except EdgeRTError:
        return
    size = (written / "weights.bin").stat().st_size
    assert all(0 <= place.offset <= size - place.length for place in opened.info.head.tensors.values())
    assert len(opened.vocabulary) == INFO.head.vocabulary_size


@given(
    edits=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255), st.integers(0, 3)), min_size=1, max_size=4)
)
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_bytes_at_random(written, tmp_path_factory, edits):
    """Whatever bytes a description has, the drafter opens or a typed error says why not."""
    drafter = tmp_path_factory.mktemp("bytes") / "copy"
    drafter.mkdir()
    (drafter / "weights.bin").hardlink_to(written / "weights.bin")
    data = bytearray((written / "drafter.json").read_bytes())
    for place, value, length in edits:
        at = place % (len(data) + 1)
        # Replaced, inserted, or cut out.
        data[at : at + length] = bytes([value]) if length < 3 else b""
    (drafter / "drafter.json").write_bytes(data)
    with contextlib.suppress(EdgeRTError):
        assert len(open_drafter(drafter).vocabulary) == INFO.head.vocabulary_size
