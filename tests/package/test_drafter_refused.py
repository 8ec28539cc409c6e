"""Drafters that are not opened: one cause, one error. What their files share with those of packages is tested there."""

from __future__ import annotations

import contextlib
import os
import re

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from edge_rt.errors import EdgeRTError, InvalidDrafter, ModelNotFound, StorageError, UnsupportedModel, VersionMismatch
from edge_rt.package.drafter import MAX_DRAFTER_BYTES
from edge_rt.package.drafter_reader import open_drafter
from tests.helpers.examples import share_of
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
            (b"{", "is not JSON"),
            (b'{"format": "edge-rt drafter", "format": "edge-rt drafter"}', "'format' twice"),
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

    def test_one_flipped_bit(self, drafter):
        data = bytearray((drafter / "weights.bin").read_bytes())
        data[5] ^= 4
        (drafter / "weights.bin").write_bytes(data)
        opened = open_drafter(drafter)
        with pytest.raises(InvalidDrafter, match=r"file 'weights\.bin' is damaged"):
            opened.verify()

    @pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everywhere")
    def test_a_folder_that_cannot_be_read(self, drafter):
        (drafter / "drafter.json").chmod(0)
        refused(drafter, "cannot be read", StorageError)


setter = manifest_setter
OF_HEAD = "'drafter.head' contradicts itself.*"
WRONG_TYPE = "has the wrong type|must be an object"
NO_EXITS = "do not lie between the model's layers in rising order.*the model has 6 layers"
OF_TILES = "the tensor 'fc.tiles' "


def of_file(name):
    """Return a change that lists another file, an empty one."""
    return lambda document: document["files"].update({name: {"size": 0, "sha256": "0" * 64}})


def of_tensor(name, **changed):
    return lambda document: document["head"]["tensors"][name].update(changed)


def of_exits(*layers):
    def change(document):
        for one, layer in zip(document["exits"], layers, strict=True):
            one["layer"] = layer

    return change


def out_of_range(field, value, path=None):
    return setter(path or field, value), re.escape(f"'drafter.{field}' is out of range")


# A change of drafter.json, and what is said of it.
CHANGES = [
    (of_file("../x"), "a path that leaves the drafter"),
    (setter("files", {}), r"does not list weights\.bin"),
    *(
        (setter(f"{where}extra", 1), r"has the wrong fields.*unknown: extra\.")
        for where in ["", "target.", "head.", "training.", "acceptance.", "head.tensors.vocabulary."]
    ),
    *(
        (setter(field, KeyError), rf"Missing: {field.rpartition('.')[2]};")
        for field in [
            "producer", "name", "kind", "target", "head", "training", "acceptance", "license", "target.name",
        ]
    ),
    (setter("kind", 3), WRONG_TYPE),
    (setter("name", None), WRONG_TYPE),
    (setter("target", []), WRONG_TYPE),
    (setter("target.hidden_size", "64"), WRONG_TYPE),
    (setter("target.quantisation", ["Q8_0"]), WRONG_TYPE),
    (setter("target.quantisation", "Q8_0"), WRONG_TYPE),
    (setter("head.formats", "w4"), WRONG_TYPE),
    (setter("files", ""), WRONG_TYPE),
    (setter("head.formats.fc", 4), WRONG_TYPE),
    (setter("head.tensors", [1]), WRONG_TYPE),
    (setter("training.tokens", 1.5), WRONG_TYPE),
    (setter("training.seed", True), WRONG_TYPE),
    (setter("acceptance.positions", {}), WRONG_TYPE),
    (setter("acceptance.positions", ["0.5"]), WRONG_TYPE),
    (setter("license", 1), WRONG_TYPE),
    (lambda document: document["files"].update({"weights.bin": 7}), WRONG_TYPE),
    out_of_range("name", ""),
    out_of_range("name", "../up"),
    out_of_range("name", "a" * 65),
    out_of_range("name", "a\x1b[31m"),
    out_of_range("target.source_sha256", "0" * 63),
    out_of_range("target.source_sha256", "A" * 64),
    out_of_range("target.tokenizer_sha256", ""),
    out_of_range("target.hidden_size", 0),
    out_of_range("target.hidden_size", 1 << 25),
    out_of_range("target.vocab_size", -1),
    out_of_range("target.num_layers", 0),
    out_of_range("head.blocks", 0),
    out_of_range("head.intermediate_size", 10**400),
    out_of_range("head.vocabulary_size", 0),
    out_of_range("head.vocabulary_size", 420),
    out_of_range("head.epsilon", -1e-9),
    out_of_range("head.epsilon", 2),
    out_of_range("training.tokens", -1),
    out_of_range("training.hours", -0.5),
    out_of_range("training.hours", 1e300),
    out_of_range("training.seed", -1),
    out_of_range("acceptance.top2", 1.5),
    out_of_range("acceptance.positions[1]", [0.5, -0.1], "acceptance.positions"),
    (setter("acceptance.positions", []), "Found 0, wanted 1 to 16"),
    (setter("acceptance.positions", [0.5] * 17), "Found 17, wanted 1 to 16"),
    (setter("head.blocks", 5), f"{OF_HEAD}5 blocks"),
    (setter("head.intermediate_size", 24), f"{OF_HEAD}no multiple of 16"),
    (setter("head.formats", {"fc": "w4", "down": "w4"}), f"{OF_HEAD}Formats are of down, fc"),
    (setter("head.formats", dict.fromkeys(["fc", "gate_up", "down", "more"], "w4")), f"{OF_HEAD}Formats are of"),
    (setter("head.formats.fc", "w7"), f"{OF_HEAD}no format 'w7'"),
    (setter("head.formats.fc", "w8n"), f"{OF_HEAD}no format 'w8n'"),
    (setter("head.formats.gate_up", "w4k"), f"{OF_HEAD}no multiple of the 256"),
    (lambda document: document["head"]["tensors"].pop("fc.tiles") and None, r"Missing: fc\.tiles;"),
    (
        lambda document: document["head"]["tensors"].update(more=document["head"]["tensors"]["vocabulary"]),
        r"unknown: more\.",
    ),
    (of_tensor("fc.tiles", dtype="float16"), f"{OF_TILES}has the wrong type or shape"),
    (of_tensor("fc.tiles", dtype="pickle"), f"{OF_TILES}has the wrong type or shape"),
    *(
        (of_tensor("fc.tiles", shape=shape), f"{OF_TILES}has the wrong type or shape")
        for shape in [[], [4, 4, 321], [4, 4, -320], [1 << 62, 1 << 62, 1 << 62], [20, 4, 64]]
    ),
    *(
        (of_tensor("fc.tiles", length=length), f"{OF_TILES}has the wrong length")
        for length in [0, -5120, 5119, 5121, 1 << 63, 10**300]
    ),
    *(
        (of_tensor("fc.tiles", offset=offset), f"{OF_TILES}lies outside the file, or is not aligned")
        for offset in [-64, 1, 32, 1 << 20, 1 << 62, 10**300]
    ),
    (of_tensor("state_norm", offset=64), "the tensors 'fc.tiles' and 'state_norm' overlap"),
]  # fmt: skip
EXITS = [
    (setter("kind", "head"), "'drafter.exits' has the wrong length.*Found 2; a drafter of the kind head has none"),
    (setter("exits", []), "Found 0; a drafter of the kind exit has 1 to 8"),
    (
        lambda document: document.update(exits=document["exits"][:1] * 9),
        "Found 9; a drafter of the kind exit has 1 to 8",
    ),
    (setter("exits", KeyError), "Found 0; a drafter of the kind exit has 1 to 8"),
    *((of_exits(*layers), NO_EXITS) for layers in [(4, 1), (1, 1), (0, 4), (1, 6), (-1, 4)]),
    *(
        (setter(f"exits.1.{name}", 1.5), re.escape(f"'drafter.exits[1].{name}' is out of range"))
        for name in ["top1", "top2", "top4"]
    ),
    *(
        (setter(f"exits.0.{name}", KeyError), rf"'drafter\.exits\[0\]' has the wrong fields.*Missing: {name};")
        for name in ["layer", "top1", "top2", "top4"]
    ),
    (setter("exits.1.layer", 5), r"Missing: exit5.*unknown: exit4"),
]


@pytest.mark.parametrize(("change", "match"), CHANGES)
def test_a_description_that_does_not_fit(drafter, change, match):
    edit_description(drafter, change)
    refused(drafter, match)


@pytest.mark.parametrize(("change", "match"), EXITS)
def test_exits_that_do_not_fit(tmp_path, change, match):
    drafter = write_drafter(tmp_path / "tiny", EXIT_INFO).path
    edit_description(drafter, change)
    refused(drafter, match)


@pytest.mark.parametrize("version", [0, 2, 10**30])
def test_another_version(drafter, version):
    edit_description(drafter, setter("format_version", version))
    refused(drafter, f"has format_version {str(version)[:20]}", VersionMismatch)


def test_another_kind(drafter):
    edit_description(drafter, setter("head", KeyError))
    edit_description(drafter, setter("kind", "table"))
    refused(drafter, "Found 'table', supported: head, exit", UnsupportedModel)


@pytest.mark.parametrize(
    ("ids", "match"),
    [
        ([5, *range(19)], "names a token twice"),
        ([*range(19), 419], "Found 0 to 419, the model has 419 tokens"),
        ([-1, *range(19)], "Found -1 to 18"),
        ([2**31 - 1, *range(19)], "Found 0 to 2147483647"),
    ],
)
def test_a_vocabulary_that_is_none(drafter, ids, match):
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
@settings(max_examples=share_of(300), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
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
@settings(max_examples=share_of(200), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
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
