"""JSON of others is read strictly; documents of this user are there, or missing."""

from __future__ import annotations

import pytest

from edge_rt.errors import StorageError
from edge_rt.system.json_files import JsonCache, parse_json, parse_object, read_object
from tests.helpers.packages import listing

KEY = {"package_id": "abc", "threads": 4}
DOCUMENT = {"cost": 1.5, "rows": [1, 2]}
KEPT = {"key": KEY, **DOCUMENT}


class Wrong(Exception):
    """What the reader's caller raises."""


@pytest.mark.parametrize("data", [b'{"a": [1, 2.5, "\xc3\xa4", null, true]}', '{"a": [1, 2.5, "\u00e4", null, true]}'])
def test_what_is_json_is_read(data):
    assert parse_object(data, Wrong) == {"a": [1, 2.5, "\u00e4", None, True]}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "Expecting value"), (b"{", "Expecting property name"), (b"{} {}", "Extra data"),
        (b"\xff", "can't decode"), (b"\xef\xbb\xbf{}", "BOM"), ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"), ("9" * 5000, "digits"), ("1e999", "too large a number"),
        ("-1e999", "too large a number"), ("NaN", "NaN is no number"), ("[Infinity]", "Infinity is no number"),
        ('{"a": {"b": 1, "c": 2, "b": 1}}', "the field 'b' twice"),
    ],
)  # fmt: skip
def test_what_is_not_is_refused(data, reason):
    with pytest.raises(Wrong, match=reason):
        parse_json(data, Wrong)


@pytest.mark.parametrize(("data", "kind"), [("[]", "array"), ("1", "number"), ("null", "null")])
def test_an_object_is_wanted(data, kind):
    with pytest.raises(Wrong, match=kind):
        parse_object(data, Wrong)


def test_of_another_program_the_last_of_equal_fields_counts():
    assert parse_json(b'\xef\xbb\xbf{"a": 1, "a": Infinity}', Wrong, is_foreign=True) == {"a": float("inf")}
    with pytest.raises(Wrong, match="nested too deeply"):
        parse_json("[" * 100_000, Wrong, is_foreign=True)


def test_a_file_is_not_read_beyond_its_limit(tmp_path):
    path = tmp_path / "x"
    path.write_text('{"a": 1}')
    assert read_object(path, 8, Wrong) == {"a": 1}
    with pytest.raises(Wrong, match="is larger than"):
        read_object(path, 7, Wrong)
    with pytest.raises(StorageError, match="cannot be read"):
        read_object(tmp_path, 8, Wrong)


class TestCache:
    def test_round_trip(self, tmp_path):
        store = JsonCache(tmp_path / "new" / "folder")
        assert store.load(KEY) is None
        assert store.save(KEY, DOCUMENT)
        assert store.load(KEY) == KEPT
        assert JsonCache(tmp_path / "new" / "folder").load(dict(reversed(KEY.items()))) == KEPT
        assert listing(tmp_path / "new" / "folder") == [store.path(KEY).name]

    def test_a_file_per_key(self, tmp_path):
        store = JsonCache(tmp_path)
        other = KEY | {"threads": 2}
        cheaper = {"cost": 2.5}
        store.save(KEY, DOCUMENT)
        assert store.load(other) is None
        store.save(other, cheaper)
        assert (store.load(KEY), store.load(other)) == (KEPT, {"key": other, **cheaper})
        assert len(listing(tmp_path)) == 2

    def test_the_latest_document_stays(self, tmp_path):
        store = JsonCache(tmp_path)
        cheaper = {"cost": 2.5}
        store.save(KEY, DOCUMENT)
        store.save(KEY, cheaper)
        assert store.load(KEY) == {"key": KEY, **cheaper}
        assert len(listing(tmp_path)) == 1

    @pytest.mark.parametrize(
        "content", [b"", b"{", b"null", b"[]", b"7", b"\xff\xfe", b"{}", b'{"key": {}}', b"x" * 1000]
    )
    def test_a_broken_file_is_like_none(self, tmp_path, content):
        store = JsonCache(tmp_path)
        store.save(KEY, DOCUMENT)
        store.path(KEY).write_bytes(content)
        assert store.load(KEY) is None
        assert store.save(KEY, DOCUMENT)
        assert store.load(KEY) == KEPT

    def test_any_half_of_a_file_is_like_none(self, tmp_path):
        store = JsonCache(tmp_path)
        store.save(KEY, DOCUMENT)
        whole = store.path(KEY).read_bytes()
        for size in range(len(whole)):
            store.path(KEY).write_bytes(whole[:size])
            assert store.load(KEY) is None

    def test_a_file_of_another_key_is_like_none(self, tmp_path):
        store = JsonCache(tmp_path)
        other = KEY | {"threads": 2}
        store.save(other, DOCUMENT)
        store.path(other).rename(store.path(KEY))
        assert store.load(KEY) is None

    def test_a_folder_in_the_place_of_a_file(self, tmp_path):
        store = JsonCache(tmp_path)
        store.path(KEY).mkdir()
        assert store.load(KEY) is None
        assert not store.save(KEY, DOCUMENT)

    def test_a_folder_that_cannot_be_made(self, tmp_path):
        (tmp_path / "file").write_text("")
        store = JsonCache(tmp_path / "file" / "folder")
        assert not store.save(KEY, DOCUMENT)
        assert store.load(KEY) is None

    def test_what_is_removed_is_gone(self, tmp_path):
        store = JsonCache(tmp_path)
        store.remove(KEY)
        store.save(KEY, DOCUMENT)
        store.remove(KEY)
        assert store.load(KEY) is None

    def test_found_by_a_part_of_the_key(self, tmp_path):
        store = JsonCache(tmp_path)
        for threads in (2, 4):
            store.save(KEY | {"threads": threads}, DOCUMENT)
        (tmp_path / "broken.json").write_text("{")
        assert [key["threads"] for key, _ in store.find({"threads": 4})] == [4]
        assert sorted(key["threads"] for key, _ in store.find({"package_id": "abc"})) == [2, 4]
        assert store.find({"package_id": "abd"}) == []
        assert JsonCache(tmp_path / "none").find({}) == []
