from __future__ import annotations

import os

import pytest

from edge_rt.system.checkpoint_names import find_snapshot, folder_name, is_blob_link

REVISION = "0123456789abcdef0123456789abcdef01234567"

pytestmark = pytest.mark.skipif(os.name == "nt", reason="links need rights there")


@pytest.fixture
def snapshot(tmp_path):
    """A snapshot with one file, as the hub library writes it, in a cache that is a link itself."""
    repository = tmp_path / "disk" / "models--me--tiny"
    folder = repository / "snapshots" / REVISION
    for one in (folder / "sub", repository / "blobs", repository / "refs"):
        one.mkdir(parents=True)
    (repository / "refs" / "main").write_text(REVISION)
    (repository / "blobs" / "abc").write_text("{}")
    (folder / "config.json").symlink_to("../../blobs/abc")
    (folder / "sub" / "deep.json").symlink_to("../../../blobs/abc")
    (tmp_path / "hub").symlink_to("disk")
    return tmp_path / "hub" / repository.name / "snapshots" / REVISION


def test_links_to_files_of_the_same_repository(snapshot):
    assert is_blob_link(snapshot / "config.json")
    assert is_blob_link(snapshot / "sub" / "deep.json")


@pytest.mark.parametrize(
    "target", ["../../secret", "../../../secret", "../../blobs/none", "../../blobs/away", "../../other/abc", "loop"]
)
def test_links_to_anything_else(snapshot, target):
    repository = snapshot.parents[1]
    (repository / "secret").write_text("x")
    (repository.parent / "secret").write_text("x")
    (repository / "blobs" / "away").symlink_to("../secret")
    (repository / "other").symlink_to("blobs")
    (snapshot / "loop").symlink_to(target)
    # What ends among the files of the repository is harmless, whichever way it goes there.
    assert is_blob_link(snapshot / "loop") is (target == "../../other/abc")


def test_a_folder_of_files_that_is_a_link_is_none(snapshot, tmp_path):
    blobs = snapshot.parents[1] / "blobs"
    blobs.rename(tmp_path / "home")
    blobs.symlink_to(tmp_path / "home")
    assert not is_blob_link(snapshot / "config.json")


def test_links_outside_of_a_cache(tmp_path):
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "abc").write_text("x")
    (tmp_path / "a").symlink_to("blobs/abc")
    assert not is_blob_link(tmp_path / "a")


def test_a_model_in_the_cache_has_the_name_of_its_repository(snapshot, tmp_path):
    assert folder_name(snapshot) == "tiny"
    assert folder_name(tmp_path) == tmp_path.name


def test_the_snapshot_of_the_branch_main(snapshot, tmp_path):
    assert find_snapshot(tmp_path / "hub", "me/tiny") == snapshot
    assert find_snapshot(tmp_path / "hub", "me/none") is None
    (snapshot.parents[1] / "refs" / "main").write_text("../..")
    assert find_snapshot(tmp_path / "hub", "me/tiny") is None
