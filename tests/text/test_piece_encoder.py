"""Texts encoded in pieces: the same tokens as the whole, and no more of them than are wanted."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given, settings, strategies as st
from tokenizers import Tokenizer as Library, decoders, models, pre_tokenizers, trainers

from edge_rt.text.piece_encoder import PIECE_CHARACTERS, cut, places_to_cut
from edge_rt.text.tokenizer import Tokenizer
from edge_rt.text.tokenizer_steps import check_steps
from tests.helpers.examples import share_of

GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CORPUS = (
    "The quick brown fox jumps over the lazy dog's tail, doesn't it? x.y(z) = {a: 1}; 0123456789\n",
    "Grüße aus Köln: naïve café. 日本語のテキスト、العربية 😀👩‍👩‍👧 end of turn.\n",
    "def main():\n    return [x ** 2 for x in range(10)]\n\n<|im_start|>user\n",
)


def split(regex):
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    pattern = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [pattern, level]}


def level(adds_space):
    return {"type": "ByteLevel", "add_prefix_space": adds_space, "trim_offsets": True, "use_regex": True}


DIGITS = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, level(False)]}
WAYS = {
    "gpt2": (level(False), None), "a space first": (level(True), None), "digits": (DIGITS, None),
    "gpt4": (split(GPT4), None), "gpt4 in NFC": (split(GPT4), {"type": "NFC"}), "gpt4o": (split(GPT4O), None),
    "gpt2 in NFKC": (level(False), {"type": "NFKC"}),
}  # fmt: skip


def trained(pre_tokenizer, normalizer) -> str:
    """Train a small tokenizer that splits text in a way in use."""
    library = Library(models.BPE())
    document = json.loads(library.to_str()) | {"pre_tokenizer": pre_tokenizer, "normalizer": normalizer}
    library = Library.from_str(json.dumps(document))
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=["<|im_start|>", "<|im_end|>"], show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )  # fmt: skip
    library.train_from_iterator(CORPUS, trainer)
    library.add_tokens(["\t\t\t"])
    return library.to_str()


TRAINED = {name: trained(*way) for name, way in WAYS.items()}
ADDED = ("<|im_start|>", "<|im_end|>", "\t\t\t")
LIBRARIES = {name: Library.from_str(text) for name, text in TRAINED.items()}
TOKENIZERS = {name: Tokenizer.from_text(text) for name, text in TRAINED.items()}


def cut_pattern(document):
    return places_to_cut(document, check_steps(document))


CUTS = {name: cut_pattern(json.loads(text)) for name, text in TRAINED.items()}

words = st.sampled_from([
    " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t\t\t", "\t", "\u00a0", "\u3000", "a", "don't", "x", "Fox", "é",
    "e\u0301", "\u0301", "日本", "語", "。", "\uff0c", "😀", "👩‍👩‍👧", "1", "2026", "<|im_start|>", "<|im_end|>",
    "'", "'s", "\u2019ll", ".", "://", "/", "=", "\"", "(", "_", "-", "\\", "\u00b4", "ﬁ", "\u200d", "\x85",
    "\x1c", "\u2028", "ᄀ", "ᅡ",
])  # fmt: skip
texts = st.lists(st.one_of(words, st.text(max_size=4)), max_size=60).map("".join)


@pytest.mark.parametrize("name", WAYS)
@settings(max_examples=share_of(300))
@given(text=texts, size=st.integers(1, 12))
def test_pieces_encode_to_what_the_whole_encodes_to(name, text, size):
    text = text.encode("utf-8", "ignore").decode()
    pieces = list(cut(text, CUTS[name], size))
    assert "".join(pieces) == text
    tokenizer = TOKENIZERS[name]
    whole = tokenizer._pieces._encode_piece(text, frozenset())
    assert [token for piece in pieces for token in tokenizer._pieces._encode_piece(piece, frozenset())] == whole
    if not any(token in text for token in ADDED):
        assert whole == LIBRARIES[name].encode(text).ids


@pytest.mark.parametrize("name", WAYS)
def test_prose_and_code_have_places_to_cut(name):
    text = "".join(CORPUS) * 200
    assert max(map(len, cut(text, CUTS[name]))) < PIECE_CHARACTERS + 100


def test_a_vocabulary_with_tokens_across_words_is_not_cut_there():
    document = json.loads(TRAINED["gpt2"])
    across = copy.deepcopy(document)
    across["model"]["vocab"]["foxĠjumps"] = len(across["model"]["vocab"])
    pattern = cut_pattern(across)
    assert list(cut("the fox jumps", pattern, 4)) == ["the fox jumps"]
    assert list(cut("the fox jumps", cut_pattern(document), 4)) == ["the fox", " jumps"]


@pytest.mark.parametrize("text", ["The quick brown fox. " * 2000, "日本語" * 4000, "1234567890" * 2000])
@pytest.mark.parametrize("name", WAYS)
def test_encoding_ends_when_there_are_too_many_tokens(name, text):
    tokenizer = TOKENIZERS[name]
    whole = tokenizer.encode_text(text)
    assert tokenizer.encode_within(text, len(whole)) == whole
    for most in {0, 5, len(whole) // 2, max(len(whole) - 1, 0)} - {len(whole)}:
        least = tokenizer.encode_within(text, most)
        assert isinstance(least, int)
        assert most < least <= len(whole)


def test_special_tokens_among_the_parts_count():
    tokenizer = TOKENIZERS["gpt2"]
    start = tokenizer.token_to_id("<|im_start|>")
    parts = [("<|im_start|>", True), ("user", False)]
    found = tokenizer.encode_spans_within(parts, 10)
    assert found == [start, *tokenizer.encode_text("user")]
    assert tokenizer.encode_spans_within(parts[:1] * 3, 2) == 3
