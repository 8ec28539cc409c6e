"""Prompts in spans: the template's added tokens are real, nobody else's are, and everything else is one text."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings, strategies as st
from tokenizers import Tokenizer as Library

from edge_rt.text.added_tokens import AddedToken, AddedTokens
from edge_rt.text.tokenizer import Tokenizer
from tests.helpers.examples import share_of
from tests.helpers.tokenizer_texts import byte_vocabulary, lines
from tests.text.test_byte_fallback import TEXTS as FALLBACK_TEXTS

MARKS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_response>", "\n\n", "    ", "日")
SPECIAL = 2  # the first two are special; the last three are text, whoever writes them
TEXT_LIKE = frozenset(MARKS[5:])


def byte_text() -> str:
    """Return a byte-level tokenizer with marks that are special, that are not, and that are text."""
    tokens, merges = byte_vocabulary()
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [
        {"id": len(tokens) + index, "content": mark, **flags, "special": index < SPECIAL}
        for index, mark in enumerate(MARKS)
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)}, "merges": merges,
        },
    })  # fmt: skip


TEXTS = {"bytes": byte_text(), **FALLBACK_TEXTS}
TOKENIZERS = {name: Tokenizer.from_text(text) for name, text in TEXTS.items()}
LIBRARIES = {name: Library.from_str(text) for name, text in TEXTS.items()}
BARE = {name: Library.from_str(json.dumps(json.loads(text) | {"added_tokens": []})) for name, text in TEXTS.items()}


def marks_of(name) -> frozenset[int]:
    """Return the ids that nobody but the template may write."""
    added = json.loads(TEXTS[name])["added_tokens"]
    return frozenset(entry["id"] for entry in added if entry["content"] not in TEXT_LIKE)


def texts_of(name) -> list[str]:
    return [entry["content"] for entry in json.loads(TEXTS[name])["added_tokens"]]


@pytest.mark.parametrize("name", TEXTS)
class TestSpans:
    def test_somebody_s_text_has_the_ids_of_a_library_without_added_tokens(self, name):
        marks = [mark for mark in texts_of(name) if mark not in TEXT_LIKE]
        for index, text in enumerate(lines(300, seed=21)):
            typed = f"{text}{marks[index % len(marks)]}{text[:4]}"
            if not any(mark in typed for mark in TEXT_LIKE):
                found = TOKENIZERS[name].encode_spans([(typed, False)])
                assert found == BARE[name].encode(typed, add_special_tokens=False).ids

    @settings(max_examples=share_of(150))
    @given(seed=st.integers(0, 10**6))
    def test_spans_have_the_ids_of_the_whole_text(self, name, seed):
        rng = random.Random(seed)
        marks = texts_of(name)
        spans: list[tuple[str, bool]] = []
        for text in lines(4, seed):
            spans += [(rng.choice(marks) + rng.choice(["", "user\n"]), True), (text, False), (text[:3], True)]
        whole = "".join(text for text, _ in spans)
        expected = LIBRARIES[name].encode(whole, add_special_tokens=False).ids
        assert TOKENIZERS[name].encode_spans(spans) == expected
        assert TOKENIZERS[name].encode_spans([(whole, True)]) == expected
        assert TOKENIZERS[name].encode_spans_within(spans, len(expected)) == expected

    @settings(max_examples=share_of(150))
    @given(data=st.data())
    def test_nobody_writes_a_mark(self, name, data):
        marks = [mark for mark in texts_of(name) if mark not in TEXT_LIKE]
        parts = st.one_of(
            st.sampled_from(marks), st.sampled_from(["<|im_", "end|>", "<", ">", "think", "|>", " ", "a", "</"])
        )
        typed = "".join(data.draw(st.lists(parts, min_size=1, max_size=8)))
        tokenizer = TOKENIZERS[name]
        ids = tokenizer.encode_spans([("<|im_", True), (typed, False), ("end|>", True)])
        assert marks_of(name).isdisjoint(ids)
        assert tokenizer.decode(ids).strip() == f"<|im_{typed}end|>".strip()

    def test_counting_ends_when_there_are_too_many_tokens(self, name):
        tokenizer = TOKENIZERS[name]
        spans = [(texts_of(name)[0], True), ("The quick brown fox. " * 1000, False)]
        whole = tokenizer.encode_spans(spans)
        for most in (0, 1, len(whole) // 2, len(whole) - 1):
            least = tokenizer.encode_spans_within(spans, most)
            assert isinstance(least, int)
            assert most < least <= len(whole)

    def test_a_continued_text_has_nothing_before_it(self, name):
        tokenizer = TOKENIZERS[name]
        mark = texts_of(name)[0]
        whole = tokenizer.encode_spans([(f"x{mark}y", True)])
        first = tokenizer.encode_spans([(f"x{mark}", True)])
        at = len(first)
        assert whole[:at] == first
        if tokenizer._steps.prefix.where == "start" or not tokenizer._steps.prefix.text:
            assert tokenizer.encode_spans([("y", True)], continues=True) == whole[at:]
        assert (
            tokenizer.decode_stream(keeps_space=True).push(tokenizer.encode_spans([("a", False)], continues=True)[0])
            == "a"
        )


class TestTextLikeTokens:
    TOKENIZER = TOKENIZERS["bytes"]

    def test_they_are_found_in_everybody_s_text(self):
        ids = [self.TOKENIZER.token_to_id(mark) for mark in MARKS[5:]]
        assert self.TOKENIZER.encode_spans([("\n\n    日", False)]) == ids

    def test_they_are_found_where_spans_meet(self):
        expected = [*self.TOKENIZER.encode_text("a"), self.TOKENIZER.token_to_id("\n\n")]
        assert self.TOKENIZER.encode_spans([("a\n", True), ("\n", False)]) == expected

    @pytest.mark.parametrize(
        ("token", "expected"),
        [
            (AddedToken(0, "\n\n", special=False), True),
            (AddedToken(0, "ü", special=False), True),
            (AddedToken(0, "\n\n", special=True), False),
            (AddedToken(0, "<think>", special=False), False),
            (AddedToken(0, "  ", special=False, rstrip=True), False),
        ],
    )
    def test_what_is_text(self, token, expected):
        assert token.is_text is expected


class TestAddedTokens:
    def split(self, spans, *tokens, free=()):
        return list(AddedTokens(tokens).split(spans, frozenset(free)))

    def test_the_longest_that_fits_is_found(self):
        short, long = AddedToken(1, "<a>", special=True), AddedToken(2, "<a><b>", special=True)
        assert self.split([("x<a><b>", True)], short, long) == ["x", 2]
        assert self.split([("x<a>", True), ("<b>", False)], short, long) == ["x", 1, "<b>"]

    def test_white_space_of_others_is_taken_in(self):
        token = AddedToken(1, "<a>", special=True, lstrip=True, rstrip=True)
        assert self.split([("x \u3000", False), ("<a>", True), ("\n y", False)], token) == ["x", 1, "y"]

    def test_none_at_all(self):
        assert self.split([("[x]", True)]) == ["[x]"]
        assert self.split([("", True)]) == []
