"""The tokenizer: limits on hostile files, text stays text, streaming equals batch."""

from __future__ import annotations

import copy
import json
import re
import time
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings, strategies as st
from tokenizers import Tokenizer as Library, decoders, models, pre_tokenizers, trainers

from edge_rt.errors import ConfigError, InputError, InvalidTokenizer, StorageError, UnsupportedModel
from edge_rt.text.tokenizer import Tokenizer
from edge_rt.text.tokenizer_check import MAX_FILE_BYTES
from edge_rt.text.tokenizer_steps import lint_pattern
from tests.helpers.examples import share_of

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "</s>", "<start_of_turn>")
CORPUS = (
    "The quick brown fox jumps over the lazy dog. 0123456789\n",
    "Grüße aus Köln: naïve café, déjà vu — 日本語のテキスト, العربية, 😀👩‍👩‍👧 end of turn.\n",
    "def main():\n    return [x ** 2 for x in range(10)]\n",
)


@dataclass(frozen=True)
class Facts:
    """What a manifest would say."""

    bos_token_id: int | None = 1
    eos_token_ids: tuple[int, ...] = (2, 0)
    add_bos: bool = True


@dataclass
class FakePrompt:
    """A rendered prompt of given spans."""

    parts: list[tuple[str, bool]] = field(default_factory=list)

    def spans(self):
        return self.parts


def trained_text() -> str:
    """Train a small byte-level BPE; the same every time."""
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    library.train_from_iterator(CORPUS, trainer)
    library.add_tokens(["\t\t\t"])
    return library.to_str()


TEXT = trained_text()
TOKENIZER = Tokenizer.from_text(TEXT, info=Facts())


def changed(change) -> str:
    """Return the trained tokenizer's JSON after ``change(document)``."""
    document = copy.deepcopy(json.loads(TEXT))
    change(document)
    return json.dumps(document)


def added(token_id, content, *, special=True, **flags):
    entry = {"id": token_id, "content": content, "special": special, "normalized": False}
    return entry | dict.fromkeys(("single_word", "lstrip", "rstrip"), False) | flags


def without_a_byte(document):
    """Turn on byte fallback where it has an effect: U+0100, which spells byte 0, is not in the vocabulary."""
    vocabulary = document["model"]["vocab"]
    vocabulary["<0x00>"] = vocabulary.pop("\u0100")
    document["model"]["byte_fallback"] = True


def with_gap(document):
    """Take out the last token of the vocabulary, and put it behind the only added token that it does not have."""
    vocabulary = document["model"]["vocab"]
    document["added_tokens"].pop()
    vocabulary[max(vocabulary, key=vocabulary.__getitem__)] += 7


ODD_BUT_READ = {
    "gap": ("no token for 7 of the ids", with_gap),
    "twice": ("listed again", lambda d: d["added_tokens"].append(copy.deepcopy(d["added_tokens"][0]))),
    "byte fallback": ("has no effect", lambda d: d["model"].update(byte_fallback=True)),
    "word": ("'The' (401, in", lambda d: d["added_tokens"].append(added(SIZE, "The", special=False))),
    "single word": (
        "'The' (401, in",
        lambda d: d["added_tokens"].append(added(SIZE, "The", special=False, single_word=True)),
    ),
}


def split_by(regex):
    split = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {"type": "Sequence", "pretokenizers": [split, level]}


SIZE = TOKENIZER.vocab_size

HOSTILE = {
    "T1 not json": ("property name", lambda: "{"),
    "T1 nothing": ("Expecting value", lambda: ""),
    "T1 an array": ("not a JSON object", lambda: "[]"),
    "T1 depth 100000": ("nested too deeply", lambda: '{"model":' + "[" * 100_000),
    "T1 many containers": ("too many arrays and objects", lambda: "[" + "[]," * 3_100_000),
    "T1 many values": ("too many values", lambda: "[" + "0," * 8_100_000),
    "T1 key twice": ("the field 'vocab' twice", lambda: TEXT.replace('"merges":', '"vocab":{},"merges":', 1)),
    "T1 NaN": (
        "NaN is no number",
        lambda: TEXT.replace('"version":"1.0"', '"version":NaN').replace('"version": "1.0"', '"version": NaN'),
    ),
    "T1 integer of 10000 digits": ("4300 digits", lambda: changed(lambda d: d.update(x=0))[:-2] + "9" * 10_000 + "}"),
    "T1 no model": ("'model' is not an object", lambda: changed(lambda d: d.pop("model"))),
    "T1 no vocabulary": ("'vocab' is not an object", lambda: changed(lambda d: d["model"].pop("vocab"))),
    "T1 empty vocabulary": ("empty or too large", lambda: changed(lambda d: d["model"].update(vocab={}))),
    "T2 merge names no token": (
        "names a token that does not exist",
        lambda: changed(lambda d: d["model"]["merges"].append(["a", "QQQQ"])),
    ),
    "T2 merge makes no token": (
        "makes a token that does not exist",
        lambda: changed(lambda d: d["model"]["merges"].append(["~", "~"])),
    ),
    "T2 merge of three": ("merge is malformed", lambda: changed(lambda d: d["model"]["merges"].append("a b c"))),
    "T2 merge is a number": ("merge is malformed", lambda: changed(lambda d: d["model"]["merges"].append(7))),
    "T2 merges missing": ("'merges' are not an array", lambda: changed(lambda d: d["model"].pop("merges"))),
    "T3 nested quantifier": (
        "repetition inside a repeated group",
        lambda: changed(lambda d: d.update(pre_tokenizer=split_by("(a+)+$"))),
    ),
    "T3 broken regex": ("tokenizer.json", lambda: changed(lambda d: d.update(pre_tokenizer=split_by("[a")))),
    "T5 id twice": ("share one id", lambda: changed(lambda d: d["model"]["vocab"].update({"zzzz": 9}))),
    "T5 gap that moves an added token": (
        "another id than the file",
        lambda: changed(lambda d: d["model"]["vocab"].update({"zzzz": SIZE + 5})),
    ),
    "T5 id 2^31": ("2147483648, limit", lambda: changed(lambda d: d["model"]["vocab"].update({"zzzz": 2**31}))),
    "T5 id negative": ("-1, limit", lambda: changed(lambda d: d["model"]["vocab"].update({"zzzz": -1}))),
    "T5 id is text": ("'9', limit", lambda: changed(lambda d: d["model"]["vocab"].update({"zzzz": "9"}))),
    "T5 id is true": ("True, limit", lambda: changed(lambda d: d["model"]["vocab"].update({"zzzz": True}))),
    "T5 added id elsewhere": (
        "another id than the file",
        lambda: changed(lambda d: d["added_tokens"].append(added(SIZE + 1, "zzzz"))),
    ),
    "T5 special token with two ids": (
        "special token has two ids",
        lambda: changed(lambda d: d["added_tokens"].append(added(SIZE, "the"))),
    ),
    "T5 added id of another token": (
        "share one id",
        lambda: changed(lambda d: d["added_tokens"].append(added(9, "zzzz"))),
    ),
    "T6 10^6 added tokens": ("too many added tokens", lambda: '{"added_tokens":[' + '{"content":"a"},' * 1_000_000),
    "T6 10001 added tokens": (
        "too many added tokens",
        lambda: changed(lambda d: d["added_tokens"].extend(added(SIZE + i, f"a{i}") for i in range(10_001))),
    ),
    "T6 empty added token": (
        "added token is empty",
        lambda: changed(lambda d: d["added_tokens"].append(added(SIZE, ""))),
    ),
    "T6 special token is a space": (
        "white space",
        lambda: changed(lambda d: d["added_tokens"].append(added(SIZE, " "))),
    ),
    "T6 added token twice": (
        "added token occurs twice",
        lambda: changed(lambda d: d["added_tokens"].append(added(0, SPECIALS[0], lstrip=True))),
    ),
    "T6 token over 4 KiB": ("too long", lambda: changed(lambda d: d["model"]["vocab"].update({"z" * 4097: SIZE}))),
    "T5 added ids out of order": (
        "another id than the file",
        lambda: changed(lambda d: d["added_tokens"].extend([added(SIZE + 1, "y1"), added(SIZE, "z1")])),
    ),
}


class TestOddFiles:
    @pytest.mark.parametrize("name", ODD_BUT_READ)
    def test_is_read_as_the_library_reads_it_with_a_warning(self, name):
        message, change = ODD_BUT_READ[name]
        text = changed(change)
        tokenizer = Tokenizer.from_text(text)
        assert [message in warning for warning in tokenizer.warnings] == [True]
        library = Library.from_str(text)
        for line in (*CORPUS, "The the Then TheThe The. other"):
            expected = library.encode(line, add_special_tokens=False).ids
            assert tokenizer.encode_text(line) == tokenizer.encode_spans([(line, False)]) == expected
            assert tokenizer.decode(expected) == line

    def test_ids_without_a_token_have_no_text(self):
        tokenizer = Tokenizer.from_text(changed(with_gap))
        assert tokenizer.vocab_size == SIZE - 1 + 7
        assert (tokenizer.id_to_token(SIZE), tokenizer.token_bytes(SIZE)) == (None, b"")

    def test_a_sound_file_has_no_warnings(self):
        assert TOKENIZER.warnings == ()


class TestHostileFiles:
    @pytest.mark.parametrize("name", HOSTILE)
    def test_is_refused_within_a_second(self, name):
        message, make = HOSTILE[name]
        text = make()
        start = time.process_time()
        with pytest.raises(InvalidTokenizer, match=re.escape(message)) as caught:
            Tokenizer.from_text(text)
        assert time.process_time() - start < 1
        assert caught.value.numbers

    @pytest.mark.parametrize(
        "change",
        [
            pytest.param(lambda d: d["model"].update(type="Unigram"), id="another model"),
            pytest.param(lambda d: d["model"].update(continuing_subword_prefix="####"), id="T2 prefix"),
            pytest.param(lambda d: d["model"].update(dropout=0.5), id="random merges"),
            pytest.param(lambda d: d.update(decoder=None), id="no byte decoder"),
            pytest.param(lambda d: d.update(pre_tokenizer={"type": "Metaspace"}), id="another pre-tokenizer"),
            pytest.param(lambda d: d.update(normalizer={"type": "Lowercase"}), id="another normalizer"),
            pytest.param(without_a_byte, id="bytes and byte fallback"),
        ],
    )
    def test_what_is_not_byte_level_bpe_is_unsupported(self, change):
        with pytest.raises(UnsupportedModel):
            Tokenizer.from_text(changed(change))

    def test_a_file_over_the_limit_is_not_read_on(self, tmp_path):
        path = tmp_path / "tokenizer.json"
        with path.open("wb") as file:
            file.truncate(2 * MAX_FILE_BYTES)
        with pytest.raises(InvalidTokenizer, match="too large"):
            Tokenizer.from_file(path)

    def test_a_missing_file_is_a_storage_error(self, tmp_path):
        with pytest.raises(StorageError, match=r"tokenizer\.json cannot be read"):
            Tokenizer.from_file(tmp_path / "tokenizer.json")

    def test_ids_must_be_rows_of_the_embedding(self):
        with pytest.raises(InvalidTokenizer, match=f"{SIZE - 2} rows"):
            Tokenizer.from_text(TEXT, embedding_rows=SIZE - 2)

    def test_an_added_token_without_a_row_is_text(self):
        tokenizer = Tokenizer.from_text(TEXT, embedding_rows=SIZE - 1)
        assert tokenizer.vocab_size == SIZE - 1
        assert max(tokenizer.encode_spans([("\t\t\t", True)])) < SIZE - 1

    @pytest.mark.parametrize("facts", [Facts(bos_token_id=SIZE), Facts(bos_token_id=-1), Facts(eos_token_ids=(10**6,))])
    def test_bos_and_end_tokens_must_exist(self, facts):
        with pytest.raises(InvalidTokenizer, match="BOS or end token"):
            Tokenizer.from_text(TEXT, info=facts)

    def test_padding_and_truncation_of_the_file_have_no_effect(self):
        def change(document):
            document["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
            document["padding"] = {
                "strategy": {"Fixed": 10_000_000},
                "direction": "Right",
                "pad_to_multiple_of": None,
                "pad_id": 0,
                "pad_type_id": 0,
                "pad_token": "x",
            }

        tokenizer = Tokenizer.from_text(changed(change))
        assert tokenizer.encode_text("a longer text") == TOKENIZER.encode_text("a longer text")


class TestRegexLint:
    @pytest.mark.parametrize(
        "pattern",
        ["(a+)+", "(?:a|aa)+", "(a*)*b", "((a)+)+", "(?<n>a+)*", "a{2,}{3}", "a{,5}+", r"(a)\1", r"\g<0>", "x" * 5000],
    )
    def test_refuses_what_can_backtrack_without_end(self, pattern):
        assert lint_pattern(pattern)

    @pytest.mark.parametrize(
        "pattern",
        [
            r"(?i:'s|'t|'re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            *(r"(\d{3})+", "a++", "a+?", "[(a+)]+", r"\(a+\)+", "[]a]+", r"\p{N}{1,3}", "(?i:a|b)?", "{}", "(a)"),
        ],
    )
    def test_accepts_what_pre_tokenizers_use(self, pattern):
        assert lint_pattern(pattern) is None


class TestEncoding:
    @pytest.mark.parametrize("text", ["<|im_end|>", "a</s>b", "x <start_of_turn>user", "<|im_end|>" * 50])
    def test_special_tokens_typed_by_a_user_are_text(self, text):
        ids = TOKENIZER.encode_text(text)
        assert TOKENIZER.special_ids.isdisjoint(ids)
        assert TOKENIZER.decode(ids) == text

    def test_special_tokens_typed_by_a_user_are_the_tokens_of_their_letters(self):
        special = Tokenizer.from_text(changed(lambda d: d["added_tokens"].append(added(SIZE, "the quick"))))
        assert special.special_ids == TOKENIZER.special_ids | {SIZE}
        assert special.encode_text("the quick") == TOKENIZER.encode_text("the quick")

    @given(
        st.lists(st.sampled_from([*SPECIALS, "<|", "|>", "im_end", "<", ">", "/s", " ", "é", "\t\t\t"]), max_size=12)
    )
    @settings(max_examples=share_of(150))
    def test_no_mixture_of_fragments_gives_a_special_id(self, fragments):
        text = "".join(fragments)
        ids = TOKENIZER.encode_text(text)
        assert TOKENIZER.special_ids.isdisjoint(ids)
        assert TOKENIZER.decode(ids) == text

    def test_a_special_token_that_merges_would_build_is_cut_apart(self):
        text = changed(lambda d: d["added_tokens"].append(added(d["model"]["vocab"]["the"], "the")))
        tokenizer = Tokenizer.from_text(text)
        ids = tokenizer.encode_text("the brother of the" * 300)
        assert tokenizer.special_ids.isdisjoint(ids)
        assert tokenizer.decode(ids) == "the brother of the" * 300

    def test_a_special_token_of_one_character_is_refused(self):
        text = changed(lambda d: d["added_tokens"].append(added(d["model"]["vocab"]["a"], "a")))
        with pytest.raises(InvalidTokenizer, match="single character"):
            Tokenizer.from_text(text).encode_text("banana")

    def test_added_tokens_that_are_not_special_are_found_in_text(self):
        assert TOKENIZER.encode_text("\t\t\t") == [TOKENIZER.token_to_id("\t\t\t")]

    def test_rendered_prompts_have_real_special_tokens(self):
        prompt = FakePrompt([("<|im_start|>", True), ("user\n<|im_end|>", False), ("<|im_end|>", True)])
        ids = TOKENIZER.encode_rendered(prompt)
        assert [ids[0], ids[-1]] == [1, 2]
        assert TOKENIZER.special_ids.isdisjoint(ids[1:-1])
        assert TOKENIZER.decode(ids, skip_special=False) == "<|im_start|>user\n<|im_end|><|im_end|>"

    @pytest.mark.parametrize(("facts", "first"), [(Facts(), 1), (Facts(add_bos=False), None), (None, None)])
    def test_plain_prompts_start_with_bos_if_the_model_wants_it(self, facts, first):
        tokenizer = Tokenizer.from_text(TEXT, info=facts)
        assert tokenizer.encode_prompt("fox") == [*([] if first is None else [first]), *tokenizer.encode_text("fox")]

    @pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
    def test_lone_surrogates_are_an_input_error(self, text):
        with pytest.raises(InputError, match="lone surrogate"):
            TOKENIZER.encode_text(text)

    @pytest.mark.parametrize("text", ["", "\0", "a\0b", "\u202eab", "👩‍👩‍👧", "\r\n\u2028", "\ufffd"])
    def test_odd_text_survives(self, text):
        assert TOKENIZER.decode(TOKENIZER.encode_text(text)) == text

    @pytest.mark.parametrize("character", ["^", " ", "\n", "\u200d"])
    def test_a_long_run_of_one_character_is_encoded(self, character):
        text = character * 100_000
        start = time.process_time()
        ids = TOKENIZER.encode_text(text)
        assert time.process_time() - start < 2
        assert TOKENIZER.decode(ids) == text

    @given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
    @settings(max_examples=share_of(150))
    def test_decoding_undoes_encoding(self, text):
        assert TOKENIZER.decode(TOKENIZER.encode_text(text)) == text

    @given(st.text(st.sampled_from("ab \n<é😀\0"), max_size=60))
    @settings(max_examples=share_of(100))
    def test_min_tokens_is_a_lower_bound(self, text):
        assert TOKENIZER.min_tokens(text) <= len(TOKENIZER.encode_text(text))

    def test_min_tokens_refuses_ten_megabytes_at_once(self):
        text = "word " * 2_000_000
        start = time.process_time()
        assert TOKENIZER.min_tokens(text) > 100_000
        assert time.process_time() - start < 1


class TestDecoding:
    def test_equals_the_library_on_text(self):
        ids = [token_id for text in CORPUS for token_id in TOKENIZER.encode_text(text)]
        assert TOKENIZER.decode(ids) == Library.from_str(TEXT).decode(ids) == "".join(CORPUS)

    @given(st.binary(max_size=40))
    @settings(max_examples=share_of(200))
    def test_bytes_that_are_no_utf8_become_what_the_library_makes_of_them(self, data):
        alphabet = {TOKENIZER.token_bytes(i): i for i in range(SIZE) if len(TOKENIZER.token_bytes(i)) == 1}
        ids = [alphabet[bytes([byte])] for byte in data]
        assert TOKENIZER.decode(ids) == Library.from_str(TEXT).decode(ids)

    def test_special_tokens_are_skipped_or_shown(self):
        assert TOKENIZER.decode([1, 2]) == ""
        assert TOKENIZER.decode([1, 2], skip_special=False) == "<|im_start|><|im_end|>"

    def test_an_added_token_is_its_text_even_if_it_looks_like_a_byte(self):
        tokenizer = Tokenizer.from_text(changed(lambda d: d["added_tokens"].append(added(SIZE, "öä", special=False))))
        assert tokenizer.decode([SIZE]) == "öä"

    def test_rows_without_a_token_are_empty(self):
        tokenizer = Tokenizer.from_text(TEXT, embedding_rows=SIZE + 8)
        assert tokenizer.decode([SIZE + 7]) == ""
        assert tokenizer.id_to_token(SIZE + 7) is None

    @pytest.mark.parametrize("token_id", [-1, SIZE, 2**40])
    def test_ids_outside_the_model_are_refused(self, token_id):
        with pytest.raises(ConfigError, match="no such token"):
            TOKENIZER.decode([token_id])

    def test_special_tokens_are_listed_with_their_ids(self):
        assert TOKENIZER.special_tokens == SPECIALS
        assert TOKENIZER.special_ids == frozenset(range(len(SPECIALS)))


class TestStreaming:
    def test_an_emoji_appears_with_its_last_byte(self):
        ids = [TOKENIZER.token_to_id(spelling) for spelling in "ðŁĺĢ"]
        stream = TOKENIZER.decode_stream()
        assert [stream.push(token_id) for token_id in ids] == ["", "", "", "😀"]
        assert stream.flush() == ""

    def test_an_unfinished_character_is_replaced_at_the_end_only(self):
        stream = TOKENIZER.decode_stream()
        assert stream.push(TOKENIZER.token_to_id("ð")) == ""
        assert stream.flush() == "\ufffd"
        assert stream.flush() == ""

    @given(st.lists(st.integers(0, SIZE - 1), max_size=40), st.booleans())
    @settings(max_examples=share_of(250))
    def test_any_ids_give_the_text_of_batch_decoding(self, ids, skip_special):
        stream = TOKENIZER.decode_stream(skip_special=skip_special)
        assert "".join([*map(stream.push, ids), stream.flush()]) == TOKENIZER.decode(ids, skip_special=skip_special)

    @given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd"), max_size=40))
    @settings(max_examples=share_of(150))
    def test_text_never_shows_a_replacement_character(self, text):
        stream = TOKENIZER.decode_stream()
        parts = [stream.push(token_id) for token_id in TOKENIZER.encode_text(text)]
        assert "\ufffd" not in "".join(parts)
        assert "".join(parts) == text

    def test_a_push_costs_less_than_20_microseconds(self):
        ids = TOKENIZER.encode_text("".join(CORPUS) * 50)
        best = 1.0
        for _ in range(3):
            stream = TOKENIZER.decode_stream()
            start = time.process_time()
            for token_id in ids:
                stream.push(token_id)
            best = min(best, (time.process_time() - start) / len(ids))
        assert best < 20e-6
