"""Writing a drafter: the destination is absent or complete, and nothing that a reader refuses is put in its place."""

from __future__ import annotations

import dataclasses
import errno
import re

import pytest

from edge_rt.errors import InvalidDrafter, StorageError
from edge_rt.package.drafter_reader import open_drafter
from edge_rt.package.writer import DrafterWriter
from tests.helpers.packages import listing
from tests.helpers.tiny_drafter import INFO, ids_bytes, tensors_of, write_drafter
from tests.helpers.tiny_package import FILES, NEW, write as write_package


def test_parents_are_made_and_nothing_else_is_left(tmp_path):
    write_drafter(tmp_path / "package" / "drafters" / "tiny")
    assert listing(tmp_path / "package" / "drafters") == ["tiny"]


def test_leaving_without_publish_leaves_nothing(tmp_path):
    with DrafterWriter(tmp_path / "a" / "tiny"):
        pass
    assert listing(tmp_path) == []


def test_an_existing_drafter_is_replaced_only_if_asked(tmp_path):
    first = write_drafter(tmp_path / "tiny")
    other = dataclasses.replace(INFO, name="other")
    with pytest.raises(StorageError, match="exists already"):
        write_drafter(tmp_path / "tiny", other)
    assert open_drafter(tmp_path / "tiny") == first
    assert write_drafter(tmp_path / "tiny", other, force=True).info.name == "other"
    assert listing(tmp_path) == ["tiny"]


def test_a_package_is_not_replaced(tmp_path):
    package = write_package(tmp_path / "tiny")
    with pytest.raises(StorageError, match="exists and is not a drafter"):
        write_drafter(tmp_path / "tiny", force=True)
    package.verify()


def test_further_files_are_listed(tmp_path):
    with DrafterWriter(tmp_path / "tiny") as writer:
        (writer.folder / "recipe.json").write_text("{}")
        drafter = writer.publish(INFO, tensors_of(INFO))
    assert list(drafter.info.files) == ["recipe.json", "weights.bin"]
    drafter.verify()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda tensors: tensors.pop("fc.tiles"), "wanted"),
        (lambda tensors: tensors.update(more=b""), "wanted"),
        (lambda tensors: tensors.update({"fc.tiles": b"x"}), r"fc\.tiles has 1 bytes, wanted 5120"),
    ],
)
def test_tensors_that_are_not_those_of_the_head(tmp_path, change, match):
    tensors = tensors_of(INFO)
    change(tensors)
    with pytest.raises(ValueError, match=match):
        write_drafter(tmp_path / "tiny", tensors=tensors)
    assert listing(tmp_path) == []


def test_what_a_reader_refuses_replaces_nothing(tmp_path):
    first = write_drafter(tmp_path / "tiny")
    with pytest.raises(InvalidDrafter, match="names a token twice"):
        write_drafter(tmp_path / "tiny", tensors=tensors_of(INFO) | {"vocabulary": ids_bytes([3] * 20)}, force=True)
    assert open_drafter(tmp_path / "tiny") == first
    assert listing(tmp_path) == ["tiny"]


def test_a_full_disk_leaves_the_old_drafter(tmp_path):
    class FullDisk(DrafterWriter):
        """Has no room for descriptions."""

        def _listed(self):
            raise OSError(errno.ENOSPC, "No space left on device")

    first = write_drafter(tmp_path / "tiny")
    with (
        pytest.raises(StorageError, match=re.escape("No space left on device")),
        FullDisk(tmp_path / "tiny", force=True) as writer,
    ):
        writer.publish(INFO, tensors_of(INFO))
    assert open_drafter(tmp_path / "tiny") == first
    assert listing(tmp_path) == ["tiny"]


class TestReplacedPackage:
    def test_its_drafters_are_kept(self, tmp_path):
        package = write_package(tmp_path / "tiny")
        drafter = write_drafter(package.path / "drafters" / "one")
        before = package.id
        replaced = write_package(tmp_path / "tiny", FILES | {"model.onnx": NEW}, force=True)
        assert replaced.id != before
        assert open_drafter(replaced.path / "drafters" / "one") == drafter
        assert not [name for name in replaced.manifest.files if name.startswith("drafters")]
        assert listing(tmp_path) == ["tiny"]

    def test_a_link_is_not_followed(self, tmp_path):
        package, elsewhere = write_package(tmp_path / "tiny"), write_drafter(tmp_path / "elsewhere" / "one")
        (package.path / "drafters").symlink_to(elsewhere.path.parent)
        replaced = write_package(tmp_path / "tiny", force=True)
        assert sorted(FILES) == [name for name in listing(replaced.path) if name != "manifest.json"]
        assert open_drafter(elsewhere.path) == elsewhere

    def test_a_new_package_has_none(self, tmp_path):
        assert sorted([*FILES, "manifest.json"]) == listing(write_package(tmp_path / "tiny").path)
