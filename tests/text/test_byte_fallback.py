"""BPE with byte fallback: the ids of the library, long texts in pieces, and text back from its tokens."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings, strategies as st
from tokenizers import Tokenizer as Library

from edge_rt.errors import InvalidTokenizer, UnsupportedModel
from edge_rt.text.piece_encoder import PIECE_CHARACTERS, cut
from edge_rt.text.tokenizer import Tokenizer
from tests.helpers.examples import share_of
from tests.helpers.tokenizer_texts import lines, text_vocabulary

REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
PREPEND = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, REPLACE]}
BACK = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
BYTES = [BACK, {"type": "ByteFallback"}, {"type": "Fuse"}]
STRIP = [*BYTES, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]


def metaspace(scheme, split):
    return {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": split}


def split(pattern, behavior="Isolated"):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": False}


# Normalizer, pre-tokenizer, steps of the decoder.
WAYS = {
    "llama 2": (PREPEND, None, STRIP),
    "gemma": (REPLACE, None, BYTES),
    "gemma 4": (REPLACE, split({"String": " "}, "MergedWithPrevious"), BYTES),
    "lines": (REPLACE, split({"Regex": r"[^\n]+|[\n]+"}), BYTES),
    "mistral": (None, metaspace("first", split=False), STRIP),
    "metaspace": (None, metaspace("always", split=True), [metaspace("always", split=True), {"type": "ByteFallback"}]),
    "composed": ({"type": "Sequence", "normalizers": [{"type": "NFC"}, REPLACE]}, None, BYTES),
}
MARKS = {"<s>": {}, "<|user|>": {"rstrip": True}, "<mask>": {"lstrip": True}, "<word>": {"single_word": True}}


def text_of(name, **model) -> str:
    normalizer, pre_tokenizer, decoder = WAYS[name]
    tokens, merges = text_vocabulary()
    start = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {token: index for index, token in enumerate(dict.fromkeys([*start, *tokens]))}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [
        {"id": len(vocabulary) + index, "content": mark, **flags, "special": True} | changes
        for index, (mark, changes) in enumerate(MARKS.items())
    ]
    added += [{"id": len(vocabulary) + len(added), "content": "<think>", **flags, "special": False}]
    return json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer, "post_processor": None, "decoder": {"type": "Sequence", "decoders": decoder},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
            "vocab": vocabulary, "merges": merges, **model,
        },
    })  # fmt: skip


TEXTS = {name: text_of(name) for name in WAYS}
LIBRARIES = {name: Library.from_str(text) for name, text in TEXTS.items()}
TOKENIZERS = {name: Tokenizer.from_text(text) for name, text in TEXTS.items()}
LINES = lines(300, seed=11)


def changed(name, change) -> str:
    document = json.loads(TEXTS[name])
    change(document)
    return json.dumps(document)


@pytest.mark.parametrize("name", WAYS)
class TestEncoding:
    def test_ids_are_the_library_s(self, name):
        for text in LINES:
            assert TOKENIZERS[name].encode_text(text) == LIBRARIES[name].encode(text, add_special_tokens=False).ids

    def test_marks_of_a_template_are_the_library_s(self, name):
        for index, text in enumerate(LINES):
            mark, other = list(MARKS)[index % 4], list(MARKS)[index // 4 % 4]
            marked = f"{mark}{text} {other} {text[:5]}<think>\n{mark}"
            expected = LIBRARIES[name].encode(marked, add_special_tokens=False).ids
            assert TOKENIZERS[name].encode_spans([(marked, True)]) == expected

    def test_a_long_text_in_pieces_has_the_ids_of_the_whole(self, name):
        text = "".join(lines(800, seed=12))
        assert TOKENIZERS[name].longest_stretch(text) < 8 * PIECE_CHARACTERS
        assert TOKENIZERS[name].encode_text(text) == LIBRARIES[name].encode(text, add_special_tokens=False).ids

    @settings(max_examples=share_of(60))
    @given(seed=st.integers(0, 10**6), size=st.integers(1, 12))
    def test_pieces_of_any_size_have_the_ids_of_the_whole(self, name, seed, size):
        tokenizer = TOKENIZERS[name]
        text = "".join(lines(4, seed))
        pieces = list(cut(text, tokenizer._pieces._places, size))
        assert "".join(pieces) == text
        found = [token for piece in pieces for token in tokenizer._pieces._encode_piece(piece, frozenset())]
        assert found == tokenizer._pieces._encode_piece(text, frozenset())

    def test_text_comes_back_whole_and_token_by_token(self, name):
        tokenizer = TOKENIZERS[name]
        for text in LINES:
            ids = tokenizer.encode_text(text)
            if not text.startswith(" ") and "\u2581" not in text and name != "composed":
                assert tokenizer.decode(ids) == text
            stream = tokenizer.decode_stream()
            assert "".join([*map(stream.push, ids), stream.flush()]) == tokenizer.decode(ids)
            assert tokenizer.min_tokens(text) <= len(ids)

    @pytest.mark.parametrize("character", ["a", "q", "\u2581", " ", "日", "ÿ", "😀"])
    def test_a_long_run_takes_linear_time(self, name, character):
        text = character * 80_000
        start = time.process_time()
        ids = TOKENIZERS[name].encode_text(text)
        assert time.process_time() - start < 2
        assert len(ids) > 80_000 // 16


class TestDecoding:
    def test_the_space_before_a_text_is_dropped_once(self):
        tokenizer = TOKENIZERS["llama 2"]
        ids = tokenizer.encode_text("the fox")
        assert tokenizer.decode(ids) == LIBRARIES["llama 2"].decode(ids) == "the fox"
        stream = tokenizer.decode_stream(keeps_space=True)
        assert "".join([*map(stream.push, ids), stream.flush()]) == " the fox"
        assert TOKENIZERS["gemma"].decode(TOKENIZERS["gemma"].encode_text(" x")) == " x"

    def test_bytes_of_an_emoji_appear_with_the_last_one(self):
        tokenizer = TOKENIZERS["gemma"]
        ids = [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in "🫠".encode()]
        stream = tokenizer.decode_stream()
        assert [*map(stream.push, ids), stream.flush()] == ["", "", "", "🫠", ""]
        assert tokenizer.decode(ids[:3]) == "\ufffd"

    def test_chosen_special_tokens_are_shown(self):
        tokenizer = TOKENIZERS["gemma"]
        start, user = (tokenizer.token_to_id(mark) for mark in ("<s>", "<|user|>"))
        ids = [start, user, *tokenizer.encode_text("x")]
        assert tokenizer.decode(ids) == "x"
        assert tokenizer.decode(ids, shown=frozenset({user})) == "<|user|>x"
        stream = tokenizer.decode_stream(shown=frozenset({user}))
        assert "".join(map(stream.push, ids)) == "<|user|>x"


def without_bytes(document):
    vocabulary = document["model"]["vocab"]
    vocabulary["<0x0a>"] = vocabulary.pop("<0x0A>")


UNSUPPORTED = {
    "a byte is missing": ("llama 2", without_bytes),
    "no fallback": ("llama 2", lambda d: d["model"].update(byte_fallback=False)),
    "no decoder": ("llama 2", lambda d: d.update(decoder=None)),
    "spaces are not decoded": ("gemma", lambda d: d["decoder"]["decoders"].pop(0)),
    "bytes are not decoded": ("gemma", lambda d: d["decoder"]["decoders"].pop(1)),
    "more is stripped": ("llama 2", lambda d: d["decoder"]["decoders"][3].update(start=2)),
    "another sign for a space": ("mistral", lambda d: d["pre_tokenizer"].update(replacement="_")),
    "text before what was changed": ("llama 2", lambda d: d["normalizer"]["normalizers"].reverse()),
    "Unigram": ("llama 2", lambda d: d["model"].update(type="Unigram")),
    "WordPiece": ("llama 2", lambda d: d["model"].update(type="WordPiece")),
}
MALFORMED = {
    "a long prefix": ("llama 2", lambda d: d["normalizer"]["normalizers"][0].update(prepend="x" * 17)),
    "a long replacement": ("gemma", lambda d: d["normalizer"].update(content="x" * 17)),
    "replaces nothing": ("gemma", lambda d: d["normalizer"].update(pattern={"String": ""})),
    "replaces by number": ("gemma", lambda d: d["normalizer"].update(content=7)),
    "an unknown scheme": ("mistral", lambda d: d["pre_tokenizer"].update(prepend_scheme="often")),
    "costly pattern": ("gemma", lambda d: d["normalizer"].update(pattern={"Regex": "(a+)+"})),
    "too many steps": ("gemma", lambda d: d.update(normalizer={"type": "Sequence", "normalizers": [REPLACE] * 65})),
}


class TestRefusals:
    @pytest.mark.parametrize("case", UNSUPPORTED)
    def test_what_is_not_supported(self, case):
        name, change = UNSUPPORTED[case]
        with pytest.raises(UnsupportedModel) as caught:
            Tokenizer.from_text(changed(name, change))
        assert "again" not in caught.value.action

    @pytest.mark.parametrize("case", MALFORMED)
    def test_what_is_malformed(self, case):
        name, change = MALFORMED[case]
        with pytest.raises(InvalidTokenizer):
            Tokenizer.from_text(changed(name, change))

    def test_an_empty_token_is_accepted(self):
        text = changed("gemma", lambda d: d["model"]["vocab"].update({"": d["model"]["vocab"].pop("<unk>")}))
        tokenizer = Tokenizer.from_text(text.replace('"unk_token": "<unk>"', '"unk_token": null'))
        assert tokenizer.decode([0]) == ""
        assert tokenizer.encode_text("the fox") == TOKENIZERS["gemma"].encode_text("the fox")

    def test_what_is_replaced_forbids_cuts_and_bounds(self):
        step = {"type": "Replace", "pattern": {"Regex": "x+"}, "content": "x"}
        text = changed("gemma", lambda d: d.update(normalizer={"type": "Sequence", "normalizers": [REPLACE, step]}))
        tokenizer = Tokenizer.from_text(text)
        assert tokenizer.min_tokens("x" * 10_000) == 0
        assert tokenizer.encode_text("x" * 10_000) == tokenizer.encode_text("x")
