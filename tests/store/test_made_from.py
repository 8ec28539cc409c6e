"""A local checkpoint is hashed once, and again only if it may have changed."""

from __future__ import annotations

import json
import os
import shutil
import sys

import pytest

from edge_rt.store.layout import Store
from edge_rt.store.made_from import FileState, are_settled
from edge_rt.store.pull import ensure_package, find_made, pull
from edge_rt.store.resolve import resolve
from tests.helpers.gguf_split import split
from tests.helpers.hf_factory import write_hf_folder
from tests.store.builders import MODEL, FakeExporter, options_with, sha256

OLD = 1_700_000_000_000_000_000


def settle(path):
    """Give files a time that is long over."""
    for one in path.rglob("*") if path.is_dir() else [path]:
        os.utime(one, ns=(OLD, OLD))


@pytest.fixture
def arguments(store):
    return {"store": store, "exporter": FakeExporter(), "options": options_with()}


@pytest.fixture
def gguf(tmp_path):
    path = tmp_path / "Model.gguf"
    path.write_bytes(MODEL)
    settle(path)
    return path


def hashed(reference, **arguments):
    """Return whether a checkpoint is hashed when it is wanted, and the path of its package."""
    events = []
    path = ensure_package(reference, progress=events.append, **arguments)
    return any("hashing" in event.message for event in events), path


def test_a_file_is_hashed_once(arguments, gguf):
    first, path = hashed(gguf, **arguments)
    assert (first, path.name) == (True, f"model-{sha256(MODEL)[:12]}")
    assert hashed(gguf, **arguments) == (False, path)
    assert pull(gguf, **arguments).was_present
    made = find_made(resolve(gguf, arguments["store"]), arguments["store"])
    assert made.path == path


def test_a_file_of_the_same_size_and_time_in_its_place_is_hashed(arguments, gguf):
    _, path = hashed(gguf, **arguments)
    other = gguf.with_name("other")
    other.write_bytes(MODEL[:-1] + bytes([MODEL[-1] ^ 1]))
    settle(other)
    other.replace(gguf)
    again, found = hashed(gguf, **arguments)
    assert (again, found == path) == (True, False)


def test_a_file_of_another_time_is_hashed_and_its_package_used(arguments, gguf):
    _, path = hashed(gguf, **arguments)
    os.utime(gguf, ns=(OLD, OLD + 1))
    assert hashed(gguf, **arguments) == (True, path)
    assert hashed(gguf, **arguments) == (False, path)
    assert len(arguments["exporter"].calls) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="tells no time of a change to the metadata")
def test_a_file_rewritten_in_place_whose_time_was_put_back_is_hashed(arguments, gguf):
    _, path = hashed(gguf, **arguments)
    changed = gguf.stat().st_ctime_ns
    # Within one tick of the file system's clock it would leave no trace.
    while gguf.stat().st_ctime_ns == changed:
        with gguf.open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(bytes([MODEL[-1] ^ 1]))
        settle(gguf)
    again, found = hashed(gguf, **arguments)
    assert (again, found == path) == (True, False)


def test_the_same_file_at_another_place_is_hashed(arguments, gguf, tmp_path):
    _, path = hashed(gguf, **arguments)
    copy = tmp_path / "copy"
    copy.mkdir()
    assert hashed(shutil.copy2(gguf, copy), **arguments) == (True, path)


def test_every_file_of_a_folder_counts_and_so_does_a_new_one(arguments, hf_model, tmp_path):
    folder = write_hf_folder(tmp_path / "my-model", hf_model, files=2)
    settle(folder)
    _, path = hashed(folder, **arguments)
    assert hashed(f"{folder}/", **arguments) == (False, path)
    (folder / "training.log").write_text("not read")
    assert hashed(folder, **arguments) == (False, path)
    (folder / "generation_config.json").write_text("{}")
    assert hashed(folder, **arguments)[0]


def test_every_part_of_a_split_file_counts(arguments, small_gguf, tmp_path):
    parts = split(small_gguf, tmp_path, 2)
    for part in parts:
        settle(part)
    _, path = hashed(parts[0], **arguments)
    assert hashed(parts[1], **arguments) == (False, path)
    os.utime(parts[1], ns=(OLD, OLD + 1))
    assert hashed(parts[0], **arguments) == (True, path)


def test_a_file_that_was_written_just_now_is_hashed_again(arguments, gguf):
    """A second change within a tick of the file system's clock leaves no trace."""
    gguf.write_bytes(MODEL)
    assert [hashed(gguf, **arguments)[0] for _ in range(2)] == [True, True]
    assert not are_settled((FileState("x", 1, OLD, OLD, 1),), OLD + 1_000_000_000)
    assert are_settled((FileState("x", 1, OLD, OLD, 1),), OLD + 3_000_000_000)


@pytest.mark.parametrize("damage", ["removed", "damaged"])
def test_a_package_that_is_gone_is_made_again(arguments, gguf, damage):
    _, path = hashed(gguf, **arguments)
    if damage == "removed":
        shutil.rmtree(path)
    else:
        (path / "weights.bin").unlink()
    assert hashed(gguf, **arguments)[1] == path
    assert len(arguments["exporter"].calls) == 2


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format_version": 1}', '{"format_version": 2, "path": 3}'])
def test_a_malformed_record_is_as_good_as_none(arguments, gguf, text):
    _, path = hashed(gguf, **arguments)
    (record,) = arguments["store"].made_from.iterdir()
    record.write_text(text)
    assert hashed(gguf, **arguments) == (True, path)


def test_a_record_of_another_package_is_not_believed(arguments, gguf):
    _, path = hashed(gguf, **arguments)
    (record,) = arguments["store"].made_from.iterdir()
    document = json.loads(record.read_text())
    # The name has the first twelve digits alone.
    record.write_text(json.dumps(document | {"sha256": document["sha256"][:12] + "0" * 52}))
    assert find_made(resolve(gguf, arguments["store"]), arguments["store"]) is None
    assert path.exists()


def test_a_removed_package_leaves_no_record(arguments, gguf):
    _, path = hashed(gguf, **arguments)
    store: Store = arguments["store"]
    store.remove(path.name)
    assert not list(store.made_from.iterdir())
