"""Readings of tokenizers are kept by the bytes of the file, and a damaged one is no reading."""

from __future__ import annotations

import hashlib
import json

import pytest
from tokenizers import Tokenizer as Library

from edge_rt.errors import InvalidTokenizer
from edge_rt.text.tokenizer import Tokenizer
from edge_rt.text.tokenizer_reading import KeptReadings, Reading, read_document
from tests.text import test_byte_fallback, test_piece_encoder, test_tokenizer

TEXTS = {"trained": test_tokenizer.TEXT, **test_byte_fallback.TEXTS, **test_piece_encoder.TRAINED}
ROWS = 10_000


def read(text: str) -> Reading:
    return read_document(text.encode(), "tokenizer.json", ROWS)


@pytest.fixture
def kept(tmp_path):
    return KeptReadings(tmp_path / "kept")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(TEXTS["trained"], encoding="utf-8")
    return path


@pytest.mark.parametrize("name", TEXTS)
def test_a_kept_reading_is_the_reading(name, kept):
    reading = read(TEXTS[name])
    for _ in range(2):
        again = kept.read(TEXTS[name].encode(), "tokenizer.json", ROWS)
        assert again.checked == reading.checked
        assert again.to_json() == reading.to_json()
    # Some of these vocabularies have line ends inside of merges.
    assert again.parts is not None or name in test_byte_fallback.TEXTS
    if again.parts is not None:
        assert again.parts.open().to_str() == Library.from_str(TEXTS[name]).to_str()


def test_what_the_library_would_read_otherwise_is_not_kept_in_parts(kept, file, tmp_path):
    document = json.loads(TEXTS["trained"])
    # A merge of a token with a line end is no line of a file.
    vocabulary = document["model"]["vocab"]
    vocabulary |= {"a\n": len(vocabulary) + 100, "a\nb": len(vocabulary) + 101}
    document["model"]["merges"].append(["a\n", "b"])
    assert kept.read(json.dumps(document).encode(), "tokenizer.json", ROWS).parts is None
    assert [path.suffix for path in (tmp_path / "kept").iterdir()] == [".json"]


@pytest.mark.parametrize("suffix", [".vocab", ".merges"])
@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: data.replace(b"e", b"a"), None])
def test_damaged_parts_are_not_used(suffix, damage, kept, file, tmp_path):
    ids = Tokenizer.from_file(file, kept=kept).encode_text("The quick brown fox")
    [part] = (tmp_path / "kept").glob(f"*{suffix}")
    written = part.read_bytes()
    part.unlink() if damage is None else part.write_bytes(damage(written))
    assert Tokenizer.from_file(file, kept=kept).encode_text("The quick brown fox") == ids
    # The load after that one makes it anew.
    assert Tokenizer.from_file(file, kept=kept).encode_text("The quick brown fox") == ids
    assert part.read_bytes() == written


def with_added_tokens(count, is_special):
    document = json.loads(TEXTS["trained"])
    first = 1 + max(document["model"]["vocab"].values())
    first = max([first, *(entry["id"] + 1 for entry in document["added_tokens"])])
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    document["added_tokens"] += [
        {"id": first + number, "content": f"<unused{number}>", "special": is_special(number), **flags}
        for number in range(count)
    ]
    return json.dumps(document).encode()


def test_a_file_with_thousands_of_added_tokens_is_known_too(kept, tmp_path):
    data = with_added_tokens(7000, lambda number: False)
    first = kept.read(data, "tokenizer.json", 20_000)
    (document,) = (tmp_path / "kept").glob("*.json")
    written = document.stat().st_mtime_ns
    again = kept.read(data, "tokenizer.json", 20_000)
    assert (again.checked, again.parts) == (first.checked, first.parts)
    assert document.stat().st_mtime_ns == written
    assert first.parts is not None


def test_parts_are_not_kept_where_special_tokens_and_others_alternate(kept, tmp_path):
    reading = kept.read(with_added_tokens(100, lambda number: number % 2 == 0), "tokenizer.json", ROWS)
    assert reading.parts is None
    assert [path.suffix for path in (tmp_path / "kept").iterdir()] == [".json"]


def test_a_known_file_is_not_checked_again(kept, file, tmp_path):
    Tokenizer.from_file(file, kept=kept)
    [path] = (tmp_path / "kept").glob("*.json")
    document = json.loads(path.read_text(encoding="utf-8"))
    document["reading"]["warnings"] = ["It was read before."]
    document["digest"] = hashlib.sha256(json.dumps(document["reading"], sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(document), encoding="utf-8")
    assert Tokenizer.from_file(file, kept=kept).warnings == ("It was read before.",)


def test_a_changed_file_is_another_one(kept, file, tmp_path):
    Tokenizer.from_file(file, kept=kept)
    file.write_text(json.dumps(json.loads(TEXTS["trained"]) | {"added_tokens": []}), encoding="utf-8")
    assert Tokenizer.from_file(file, kept=kept).special_tokens == ()
    assert len([*(tmp_path / "kept").glob("*.json")]) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "{}",
        lambda text: text.replace("<|im_end|>", "<|im_emd|>"),
        lambda text: text.replace('"longest"', '"shortest"'),
        lambda text: text.replace('"digest": "', '"digest": "0'),
    ],
)
def test_a_damaged_reading_is_read_anew(damage, kept, file, tmp_path):
    Tokenizer.from_file(file, kept=kept)
    [document] = (tmp_path / "kept").glob("*.json")
    whole = document.read_text(encoding="utf-8")
    document.write_text(damage(whole), encoding="utf-8")
    assert Tokenizer.from_file(file, kept=kept).special_tokens == test_tokenizer.SPECIALS
    assert document.read_text(encoding="utf-8") == whole


def test_a_refused_file_is_refused_every_time(kept, file, tmp_path):
    file.write_text(TEXTS["trained"].replace('"merges":[[', '"merges":[["absent","x"],['), encoding="utf-8")
    for _ in range(2):
        with pytest.raises(InvalidTokenizer, match="A merge names a token"):
            Tokenizer.from_file(file, kept=kept)
    assert not (tmp_path / "kept").exists()


def test_a_folder_that_cannot_be_written_changes_nothing(file, tmp_path):
    (tmp_path / "kept").write_text("a file")
    assert Tokenizer.from_file(file, kept=KeptReadings(tmp_path / "kept")).special_tokens == test_tokenizer.SPECIALS


def test_the_oldest_readings_are_dropped(kept, tmp_path):
    for rows in range(ROWS, ROWS + 20):
        kept.read(TEXTS["trained"].encode(), "tokenizer.json", rows)
    assert len([*(tmp_path / "kept").iterdir()]) == 3 * 8
