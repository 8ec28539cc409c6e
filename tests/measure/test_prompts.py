from __future__ import annotations

import json

import pytest

from edge_rt.errors import InputError, StorageError
from edge_rt.measure.prompts import MAX_PROMPTS_BYTES, Prompt, built_in_prompts, read_prompts, texts_hash


@pytest.fixture
def written(tmp_path):
    def write(data):
        path = tmp_path / "prompts"
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path

    return write


def test_json_lines_have_turns_or_a_prompt(written):
    lines = [
        {"question_id": 81, "category": "writing", "turns": ["first", "second"]},
        {"prompt": "alone", "category": "other"},
        {"prompt": "no\u2028category"},
    ]
    # Not escaped: some characters that end lines elsewhere do not end them here.
    text = "\n\n".join(json.dumps(line, ensure_ascii=False) for line in lines) + "\r\n"
    assert read_prompts(written(text)) == [
        Prompt(0, "first", "writing"),
        Prompt(1, "alone", "other"),
        Prompt(2, "no\u2028category", "all"),
    ]


def test_other_lines_are_prompts(written):
    assert read_prompts(written("\ufeffone\n\n  two {}  \n[3]")) == [
        Prompt(0, "one"),
        Prompt(1, "two {}"),
        Prompt(2, "[3]"),
    ]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "Every line is empty"),
        (b" \n\n", "Every line is empty"),
        (b"good\n\xff", "Byte 5"),
        (b'{"prompt": "a"}\nplain\n', "Line 2: it is not a JSON object"),
        (b'{"prompt": "a"}\n\n[1]\n', "Line 3: it is not a JSON object"),
        (b'{"prompt": ["a"]}', "Line 1: it has neither"),
        (b'{"turns": []}', "Line 1: it has neither"),
        (b'{"turns": [5]}', "Line 1: it has neither"),
        (b'{"prompt": " "}', "Line 1: it has neither"),
        (b'{"prompt": "a\\ud800"}', "Line 1: its text has a lone surrogate"),
        (b'{"prompt": "a", "category": 5}', "Line 1: its 'category'"),
        (b'{"a":' + b"[" * 100_000, "Line 1: it is not a JSON object"),
    ],
)
def test_what_is_no_file_of_prompts_is_refused(data, said, written):
    with pytest.raises(InputError) as error:
        read_prompts(written(data))
    assert said in error.value.numbers


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(StorageError, match="absent cannot be read"):
        read_prompts(tmp_path / "absent")
    with pytest.raises(StorageError):
        read_prompts(tmp_path)


def test_a_huge_file_is_refused(tmp_path):
    path = tmp_path / "huge"
    with path.open("wb") as stream:
        stream.truncate(MAX_PROMPTS_BYTES + 1)
    with pytest.raises(InputError, match="too large"):
        read_prompts(path)


def test_the_hash_tells_texts_apart_and_nothing_else():
    prompts = built_in_prompts()
    assert len({prompt.category for prompt in prompts}) == len(prompts) > 3
    same = [Prompt(prompt.index, prompt.text, "other") for prompt in prompts]
    assert texts_hash(same) == texts_hash(prompts)
    assert texts_hash(prompts[::-1]) != texts_hash(prompts)
    assert texts_hash([Prompt(0, "ab"), Prompt(1, "c")]) != texts_hash([Prompt(0, "a"), Prompt(1, "bc")])


def test_a_model_is_given_a_message_or_the_text():
    prompt = Prompt(0, "hello")
    assert prompt.given_to(raw=True) == "hello"
    assert prompt.given_to(raw=False) == [{"role": "user", "content": "hello"}]
