"""The text that 4-bit keys are calibrated with: read, written as the model would see it, and cut."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from edge_rt.errors import ConfigError, InputError, StorageError
from edge_rt.export.calibration.text import (
    CALIBRATION_TOKENS,
    LEAST_TOKENS,
    CalibrationText,
    encode_calibration,
    read_calibration,
)
from edge_rt.export.sources.gguf_header import read_header
from edge_rt.export.sources.gguf_tokenizer import build_tokenizer
from edge_rt.package.manifest import BUILT_IN_CALIBRATION
from edge_rt.text.tokenizer import Tokenizer
from tests.helpers.gguf_factory import BOS_ID, write_llama_gguf

CHAT = [{"role": "user", "content": "Hello there, my friend. "}, {"role": "assistant", "content": "Good day to you. "}]
WRITES_MESSAGES = "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"


def tokenizer_of(folder, **options):
    write_llama_gguf(folder / "t.gguf", **options)
    header = read_header(folder / "t.gguf")
    build = build_tokenizer(header.metadata, 419)
    return Tokenizer.from_text(build.json_text, info=build, embedding_rows=419)


@pytest.fixture
def tokenizer(tmp_path):
    return tokenizer_of(tmp_path)


class TestReading:
    def test_our_own_text_is_long_enough(self, tokenizer):
        text = read_calibration(BUILT_IN_CALIBRATION)
        found = encode_calibration(text, tokenizer, WRITES_MESSAGES, 1 << 20)
        assert (found.source, len(found.token_ids)) == ("built-in", CALIBRATION_TOKENS)
        roles = {message["role"] for conversation in text.conversations for message in conversation}
        assert roles == {"user", "assistant"}

    def test_a_plain_text(self, tmp_path):
        path = tmp_path / "notes.md"
        path.write_text("Grüße", encoding="utf-8")
        assert read_calibration(path) == CalibrationText("notes.md", text="Grüße")

    def test_conversations(self, tmp_path):
        path = tmp_path / "chats.JSON"
        path.write_text(json.dumps([CHAT, CHAT]))
        assert read_calibration(str(path)) == CalibrationText("chats.JSON", (CHAT, CHAT))

    @pytest.mark.parametrize(
        "document",
        ["{", "{}", "[]", "[[]]", "[1]", '[[{"role": "user"}]]', '[[{"role": "user", "content": 1}]]',
         '[[{"role": "user", "content": "x", "name": "y"}]]', '[[["role", "content"]]]'],
    )  # fmt: skip
    def test_json_that_holds_something_else(self, tmp_path, document):
        path = tmp_path / "c.json"
        path.write_text(document)
        with pytest.raises(InputError, match=r"The calibration text .*c\.json is no"):
            read_calibration(path)

    @pytest.mark.parametrize(
        ("message", "complaint"),
        [
            (
                {"role": "pirate", "content": "Arr"},
                "unknown role.*message 1 of conversation 2: 'pirate'; known: ",
            ),
            ({"role": "\ud800", "content": "Arr"}, "unknown role"),
            ({"role": "user", "content": "A\udfffrr"}, "lone surrogate.*message 1 of conversation 2: character 1"),
        ],
    )
    def test_messages_that_no_model_can_read(self, tmp_path, message, complaint):
        path = tmp_path / "c.json"
        path.write_text(json.dumps([CHAT, CHAT, [CHAT[0], message]]))
        with pytest.raises(InputError, match=rf"The calibration text .*c\.json has an? {complaint}"):
            read_calibration(path)

    def test_a_byte_order_mark_is_no_part_of_the_text(self, tmp_path):
        for name, text in (("c.json", json.dumps([CHAT])), ("notes.txt", "Hello")):
            (tmp_path / name).write_text(text, encoding="utf-8-sig")
        assert read_calibration(tmp_path / "c.json").conversations == (CHAT,)
        assert read_calibration(tmp_path / "notes.txt").text == "Hello"

    def test_a_name_that_is_no_text(self, tmp_path):
        path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xff.txt"))
        try:
            path.write_text("Hello")
        except OSError:
            pytest.skip("this file system has no such names")
        assert read_calibration(path).source == "a\ufffd.txt"

    def test_files_that_cannot_be_read(self, tmp_path):
        with pytest.raises(StorageError, match="cannot be read"):
            read_calibration(tmp_path / "missing.txt")
        (tmp_path / "latin.txt").write_bytes("Grüße".encode("latin-1"))
        with pytest.raises(InputError, match="not UTF-8"):
            read_calibration(tmp_path / "latin.txt")
        with (tmp_path / "large.txt").open("wb") as stream:
            stream.truncate((16 << 20) + 1)
        with pytest.raises(InputError, match="too large"):
            read_calibration(tmp_path / "large.txt")


class TestEncoding:
    def test_conversations_are_written_by_the_template_one_behind_the_other(self, tokenizer):
        text = CalibrationText("c.json", (CHAT, CHAT[:1]))
        ids = encode_calibration(text, tokenizer, WRITES_MESSAGES, 16).token_ids
        # What the template writes are the real tokens of turns.
        assert ids[0] == tokenizer.token_to_id("<|im_start|>")
        whole = encode_calibration(CalibrationText("c.json", (CHAT, CHAT) * 30), tokenizer, WRITES_MESSAGES, 1 << 20)
        assert tokenizer.decode(whole.token_ids, skip_special=False).startswith(
            "<|im_start|>user: Hello there, my friend. <|im_end|><|im_start|>assistant: Good day to you. <|im_end|>"
            "<|im_start|>user: Hello"
        )

    @pytest.mark.parametrize("template", [None, "{% if %}", "{{ raise_exception('no') }}", "always the same"])
    def test_without_a_template_that_works_contents_are_joined(self, tokenizer, template):
        found = encode_calibration(CalibrationText("c.json", (CHAT,) * 40), tokenizer, template, 1 << 20)
        assert tokenizer.decode(found.token_ids).startswith(
            "Hello there, my friend. \n\nGood day to you. \n\nHello there, my friend. "
        )

    def test_a_template_that_tells_the_time_tells_one_time(self, tokenizer):
        template = "{{ strftime_now('%Y-%m-%d') }}" + WRITES_MESSAGES
        found = encode_calibration(CalibrationText("c.json", (CHAT,) * 40), tokenizer, template, 1 << 20)
        assert tokenizer.decode(found.token_ids).startswith("2025-01-01")

    @pytest.mark.parametrize("add_bos", [True, False])
    def test_a_plain_text_begins_as_the_tokenizer_says(self, tmp_path, add_bos):
        tokenizer = tokenizer_of(tmp_path, extra_metadata={"tokenizer.ggml.add_bos_token": add_bos})
        ids = encode_calibration(CalibrationText("t.txt", text="abc " * 600), tokenizer, None, 1 << 20).token_ids
        assert (ids[0] == BOS_ID) == add_bos

    def test_it_is_cut_to_what_is_used_and_to_the_context(self, tokenizer):
        text = CalibrationText("t.txt", text="one two three " * 2000)
        assert len(encode_calibration(text, tokenizer, None, 1 << 20).token_ids) == CALIBRATION_TOKENS
        assert len(encode_calibration(text, tokenizer, None, 100).token_ids) == 100

    def test_a_text_that_is_too_short(self, tokenizer):
        short = CalibrationText("t.txt", text="Hello, how are you?")
        with pytest.raises(InputError, match=rf"t.txt is too short\. .* {LEAST_TOKENS} are needed and 2048 are used"):
            encode_calibration(short, tokenizer, None, 1 << 20)
        assert len(encode_calibration(short, tokenizer, None, 5).token_ids) == 5

    def test_an_unknown_role(self, tokenizer):
        chat = [{"role": "pirate", "content": "Arr"}]
        with pytest.raises(ConfigError, match="role"):
            encode_calibration(CalibrationText("c.json", (chat,)), tokenizer, WRITES_MESSAGES, 1 << 20)
