"""Whether tokenizers agree on what ids mean."""

from __future__ import annotations

import json

import pytest

from edge_rt.errors import InvalidTokenizer, StorageError
from edge_rt.runtime.load.drafters import shared_tokens


def write(path, vocabulary, added=()):
    document = {"model": {"vocab": vocabulary}, "added_tokens": [{"id": i, "content": t} for i, t in added]}
    path.write_text(json.dumps(document))
    return path


@pytest.fixture
def first(tmp_path):
    return write(tmp_path / "first.json", {"a": 0, "b": 1, "ab": 2}, [(3, "<end>")])


def test_the_same_tokens(first, tmp_path):
    assert shared_tokens(first, first) == 4
    assert shared_tokens(first, write(tmp_path / "s.json", {"ab": 2, "b": 1, "<end>": 3, "a": 0})) == 4


def test_one_extends_the_other(first, tmp_path):
    larger = write(tmp_path / "larger.json", {"a": 0, "b": 1, "ab": 2}, [(3, "<end>"), (4, "<tool>")])
    assert shared_tokens(first, larger) == shared_tokens(larger, first) == 4


@pytest.mark.parametrize(
    ("vocabulary", "added"),
    [({"a": 0, "b": 2, "ab": 1}, [(3, "<end>")]), ({"a": 0, "b": 1, "ab": 2}, [(3, "<stop>")]), ({"x": 0}, [])],
)
def test_other_tokens(first, tmp_path, vocabulary, added):
    other = write(tmp_path / "other.json", vocabulary, added)
    assert shared_tokens(first, other) is None
    assert shared_tokens(other, first) is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"model": 3}', '{"model": {"vocab": {"a": "x"}}}', '{"model": {"vocab": {"a": -1}}}']
)
def test_what_is_no_vocabulary_is_refused(first, tmp_path, text):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(InvalidTokenizer):
        shared_tokens(first, path)


def test_a_missing_file(first, tmp_path):
    with pytest.raises(StorageError):
        shared_tokens(first, tmp_path / "nothing.json")
