from __future__ import annotations

import os
from pathlib import Path

import pytest

from edge_rt.errors import ConfigError, ModelNotFound, StorageError
from edge_rt.store.fetch import fetch_source
from edge_rt.store.layout import Store, open_store, suggest
from edge_rt.store.staging import entry_lock
from edge_rt.system.files import storage_errors
from tests.store.builders import leftovers, options_with, write_package


def test_a_store_that_does_not_exist_is_empty_and_stays_so(store):
    assert store.list() == []
    assert not store.has_package("x")
    assert not store.root.exists()


def test_an_entry_shows_package_and_source(store):
    fetch_source("tiny", store=store, options=options_with())
    package = write_package(store.package_path("tiny"))
    (entry,) = store.list()
    assert (entry.name, entry.path, entry.size_bytes) == ("tiny", package.path, package.size_bytes)
    assert (entry.quantisation, entry.activations, entry.license) == ({"linear": "Q4_1"}, "int8", "MIT")
    assert entry.op_profile == "portable"
    assert (entry.architecture, entry.origin, entry.problem) == ("llama", "recipe tiny", None)
    assert entry.source_bytes > 60_000


def damage_manifest(path):
    (path / "manifest.json").write_text("{")


def damage_size(path):
    (path / "weights.bin").write_bytes(b"")


def damage_all(path):
    for file in path.iterdir():
        file.unlink()


def replace_by_file(path):
    damage_all(path)
    path.rmdir()
    path.write_bytes(b"file")


def replace_by_dead_link(path):
    damage_all(path)
    path.rmdir()
    path.symlink_to("nowhere")


@pytest.mark.parametrize("damage", [damage_manifest, damage_size, damage_all, replace_by_file, replace_by_dead_link])
def test_a_damaged_package_is_listed_with_its_problem_and_can_be_removed(store, damage):
    damage(write_package(store.package_path("bad")).path)
    write_package(store.package_path("good"))
    bad, good = store.list()
    assert bad.problem.startswith("package: ")
    assert good.problem is None
    store.remove("bad")
    assert store.names() == ["good"]


def test_a_damaged_source_is_listed_with_its_problem(store):
    folder = fetch_source("tiny", store=store, options=options_with()).path.parent
    (folder / "source.json").write_text("{")
    (entry,) = store.list()
    assert entry.problem.startswith("source: ")
    assert entry.source_bytes > 60_000


def test_hidden_and_foreign_names_are_not_entries(store):
    for name in (".tmp-00000000-1-00000000", ".x.part-1-2", "Upper", "with space"):
        (store.packages / name).mkdir(parents=True)
    assert store.names() == []


def test_remove_takes_package_and_source(store):
    fetch_source("tiny", store=store, options=options_with())
    package = write_package(store.package_path("tiny"))
    expected = package.size_bytes + store.list()[0].source_bytes
    report = store.remove("tiny")
    assert (report.name, report.bytes) == ("tiny", expected)
    assert store.names() == []
    assert leftovers(store) == []


def test_remove_knows_hub_references(store):
    write_package(store.package_path("org--name"))
    assert store.remove("Org/Name").name == "org--name"


def test_removing_what_is_not_there_suggests_close_names(store):
    write_package(store.package_path("smollm2"))
    with pytest.raises(ModelNotFound, match="Did you mean 'smollm2'"):
        store.remove("smolm2")


@pytest.mark.parametrize("name", ["../outside", "..", ".", "", "/etc", "a/../../outside"])
def test_removal_stays_inside_the_store(store, tmp_path, name):
    (tmp_path / "outside").mkdir()
    store.prepare()
    with pytest.raises(ConfigError):
        store.remove(name)
    assert (tmp_path / "outside").exists()


def test_what_another_process_works_on_is_not_removed(store):
    path = write_package(store.package_path("tiny")).path
    with entry_lock(store.lock_path("tiny", role="source"), on_wait=None), pytest.raises(StorageError, match="Another"):
        store.remove("tiny")
    assert path.exists()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_store_that_cannot_be_read(store):
    store.packages.mkdir(parents=True)
    store.packages.chmod(0)
    with pytest.raises(StorageError):
        store.names()


def test_a_store_below_a_file_cannot_be_made(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError):
        Store(tmp_path / "file" / "store").prepare()


def test_open_store_takes_the_flag(tmp_path):
    assert open_store(tmp_path) == Store(tmp_path)
    assert open_store(Path("relative")).root.is_absolute()


def test_suggestions():
    assert suggest("x", []) == "Known names: none."
    assert suggest("LAMA", ["llama", "qwen"]).startswith("Did you mean 'llama'?")


def test_errors_of_the_file_system_give_their_reason(tmp_path):
    with pytest.raises(StorageError, match=r"cannot be read or written\. No such file"), storage_errors(tmp_path):
        (tmp_path / "none").read_text()
