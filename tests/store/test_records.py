from __future__ import annotations

import json
import os

import pytest

from edge_rt.errors import InvalidModelFile
from edge_rt.store.records import SourceRecord, is_intact, read_record, record_file, write_record
from tests.store.builders import sha256

DATA = b"0123456789"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "m.gguf").write_bytes(DATA)
    files = (record_file(tmp_path / "m.gguf", sha256(DATA)),)
    write_record(tmp_path, SourceRecord("recipe m", "hub", "MIT", files))
    return tmp_path


def edit(folder, change):
    path = folder / "source.json"
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def test_a_record_is_read_back(folder):
    record = read_record(folder)
    assert (record.origin, record.kind, record.license, record.size) == ("recipe m", "hub", "MIT", 10)
    assert record.model_path(folder) == folder / "m.gguf"
    assert is_intact(folder, record, verify=True)


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value.update(format_version=2),
        lambda value: value.update(files=[]),
        lambda value: value.update(origin=3),
        lambda value: value.pop("kind"),
        lambda value: value["files"][0].update(name="../m.gguf"),
        lambda value: value["files"][0].update(name="/etc/passwd"),
        lambda value: value["files"][0].update(size="10"),
        lambda value: value["files"][0].update(extra=1),
        lambda value: value["files"][0].update(size=11),
        lambda value: value["files"][0].update(name="other.gguf"),
    ],
)
def test_damaged_records_are_refused(folder, change):
    edit(folder, change)
    with pytest.raises(InvalidModelFile, match="is damaged"):
        read_record(folder)


@pytest.mark.parametrize("text", ["", "[]", "null", "[" * 100_000, "\x00"])
def test_what_is_no_record_is_refused(folder, text):
    (folder / "source.json").write_text(text)
    with pytest.raises(InvalidModelFile, match="is damaged"):
        read_record(folder)


def test_a_folder_without_a_record_is_refused(tmp_path):
    with pytest.raises(InvalidModelFile, match="does not exist"):
        read_record(tmp_path)


def test_changed_content_of_the_same_size_is_found_by_its_time(folder):
    (folder / "m.gguf").write_bytes(DATA[::-1])
    os.utime(folder / "m.gguf", ns=(1, 1))
    assert not is_intact(folder, read_record(folder))


def test_changed_content_with_the_same_time_is_found_by_reading(folder):
    record = read_record(folder)
    (folder / "m.gguf").write_bytes(DATA[::-1])
    os.utime(folder / "m.gguf", ns=(record.files[0].mtime_ns,) * 2)
    assert is_intact(folder, record)
    assert not is_intact(folder, record, verify=True)


def test_a_copied_file_with_another_time_is_still_right(folder):
    os.utime(folder / "m.gguf", ns=(1, 1))
    assert is_intact(folder, read_record(folder))
