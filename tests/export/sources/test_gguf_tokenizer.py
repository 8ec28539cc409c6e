"""GGUF metadata -> tokenizer.json."""

from __future__ import annotations

import json
import re

import pytest

from edge_rt.errors import InvalidTokenizer, UnsupportedModel
from edge_rt.export.sources.gguf_tokenizer import build_tokenizer
from edge_rt.text.tokenizer import Tokenizer

PREFIX = "tokenizer.ggml."


def byte_alphabet() -> list[str]:
    """Return GPT-2's spelling of the 256 bytes, by byte."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in range(256)]


# Token 0 to 2 are control tokens, then the bytes, then what the merges make, then a user-defined one.
CONTROLS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MADE = ["he", "ll", "hell", "hello", "12", "345", "Ġhello"]
MERGES = ["h e", "l l", "he ll", "hell o", "1 2", "3 4", "34 5", "Ġ hello"]
TOKENS = [*CONTROLS, *byte_alphabet(), *MADE, "34", "<tool>"]
TYPES = [3] * 3 + [1] * (len(TOKENS) - 4) + [4]


def metadata(**changes):
    """Return the metadata of a small model; a value of None removes a key."""
    keys = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": list(TOKENS),
        "token_type": list(TYPES),
        "merges": list(MERGES),
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return {PREFIX + key: value for key, value in (keys | changes).items() if value is not None}


def built(**changes) -> Tokenizer:
    return Tokenizer.from_text(build_tokenizer(metadata(**changes), len(TOKENS)).json_text)


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.id_to_token(token_id) for token_id in tokenizer.encode_text(text)]


class TestBuild:
    def test_merges_of_unknown_tokens_are_ignored_and_counted(self):
        odd = ["h qqq", *MERGES, "h h"]
        build = build_tokenizer(metadata(merges=odd), len(TOKENS))
        assert build.json_text == build_tokenizer(metadata(), len(TOKENS)).json_text
        assert [line for line in build.warnings if "merge" in line] == [
            "2 merges of tokens that do not exist, the first of them 'h qqq': ignored."
        ]
        assert build_tokenizer(metadata(), len(TOKENS)).warnings == ()

    def test_facts_of_the_file(self):
        build = build_tokenizer(metadata() | {"tokenizer.chat_template": "{{ 1 }}"}, len(TOKENS))
        assert (build.bos_token_id, build.eos_token_ids, build.add_bos) == (1, (2, 0), False)
        assert build.chat_template == "{{ 1 }}"
        assert build.tool_template is None

    def test_a_second_template_for_tools(self):
        named = {"tokenizer.chat_template": "d", "tokenizer.chat_template.tool_use": "t"}
        build = build_tokenizer(metadata() | named, len(TOKENS))
        assert (build.chat_template, build.tool_template) == ("d", "t")

    def test_the_same_metadata_gives_the_same_text(self):
        first, second = (build_tokenizer(metadata(), len(TOKENS)).json_text for _ in range(2))
        assert first == second
        assert json.loads(first)["model"]["vocab"] == {token: index for index, token in enumerate(TOKENS)}

    def test_end_tokens_are_named_ones_first_without_repetition(self):
        build = build_tokenizer(metadata(eos_token_id=0, eot_token_id=2), len(TOKENS))
        assert build.eos_token_ids == (0, 2)

    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({"add_bos_token": True}, True),
            ({"pre": "llama-bpe"}, True),
            ({"pre": "llama-bpe", "add_bos_token": False}, False),
            ({"add_bos_token": True, "bos_token_id": None}, False),
        ],
    )
    def test_add_bos(self, changes, expected):
        assert build_tokenizer(metadata(**changes), len(TOKENS)).add_bos is expected

    def test_control_tokens_are_special_and_user_defined_ones_are_not(self):
        tokenizer = built()
        assert tokenizer.special_tokens == tuple(CONTROLS)
        assert pieces(tokenizer, "<tool>") == ["<tool>"]
        assert tokenizer.special_ids.isdisjoint(tokenizer.encode_text("".join(CONTROLS)))

    def test_a_file_without_token_types_has_normal_tokens_and_known_marks(self):
        assert built(token_type=None).special_tokens == tuple(CONTROLS)

    def test_no_template_and_no_bos(self):
        build = build_tokenizer(metadata(bos_token_id=None), len(TOKENS))
        assert (build.bos_token_id, build.chat_template) == (None, None)


class TestPreTokenizers:
    @pytest.mark.parametrize(
        ("pre", "text", "expected"),
        [
            ("gpt-2", "hello hello12", ["hello", "Ġhello", "12"]),
            ("default", "hello 345", ["hello", "Ġ", "345"]),
            ("smollm", "hello12", ["hello", "1", "2"]),
            ("starcoder", "345", ["3", "4", "5"]),
            ("refact", " 12", ["Ġ", "1", "2"]),
            ("command-r", "12", ["1", "2"]),
            ("llama-bpe", "12345", ["12", "3", "4", "5"]),
            ("llama-bpe", "345 hello", ["345", "Ġhello"]),
            ("qwen2", "hello12", ["hello", "1", "2"]),
            ("tekken", "helloHello12", ["hello", "H", "e", "ll", "o", "1", "2"]),
        ],
    )
    def test_text_is_cut_as_the_model_was_trained(self, pre, text, expected):
        assert pieces(built(pre=pre), text) == expected

    @pytest.mark.parametrize("pre", ["llama-bpe", "tekken"])
    def test_whole_pieces_that_are_tokens_need_no_merge(self, pre):
        tokens = [*TOKENS[:-1], "xyz"]
        build = build_tokenizer(metadata(pre=pre, tokens=tokens, token_type=[*TYPES[:-1], 1]), len(tokens))
        assert pieces(Tokenizer.from_text(build.json_text), "xyz") == ["xyz"]

    def test_qwen2_composes_characters_first(self):
        assert built(pre="qwen2").encode_text("e\u0301") == built(pre="qwen2").encode_text("\u00e9")

    @pytest.mark.parametrize(
        "changes",
        [{"pre": "nobody-knows"}, {"model": "t5"}, {"model": "bert"}, {"model": "own"}, {"add_space_prefix": True}],
        ids=str,
    )
    def test_what_is_unknown_is_unsupported_and_says_what_is_not(self, changes):
        with pytest.raises(UnsupportedModel) as caught:
            build_tokenizer(metadata(**changes), len(TOKENS))
        assert "upported" in caught.value.numbers or "add_space_prefix" in caught.value.numbers


class TestFilesInUse:
    def test_a_file_without_a_cut_is_cut_by_a_general_rule_and_says_so(self):
        for pre in (None, "default"):
            build = build_tokenizer(metadata(pre=pre), len(TOKENS))
            assert any("tokenizer.ggml.pre" in warning for warning in build.warnings)
            # GPT-2's rule would take the space and both signs together.
            tokens = [*TOKENS[:-1], "Ġ!"]
            changed = metadata(pre=pre, tokens=tokens, merges=[*MERGES, "Ġ !"], token_type=[*TYPES[:-1], 1])
            tokenizer = Tokenizer.from_text(build_tokenizer(changed, len(tokens)).json_text)
            assert pieces(tokenizer, " !!") == ["Ġ", "!", "!"]

    @pytest.mark.parametrize("name", ["bos", "eos", "eot", "unknown", "padding"])
    @pytest.mark.parametrize("value", [2**32 - 1, len(TOKENS), -1])
    def test_special_ids_that_are_no_tokens_are_ignored_with_a_warning(self, name, value):
        build = build_tokenizer(metadata(**{f"{name}_token_id": value}), len(TOKENS))
        assert any(f"{name}_token_id" in warning and str(value) in warning for warning in build.warnings)
        assert build.bos_token_id == (None if name == "bos" else 1)
        assert build.eos_token_ids == ((0, 2) if name == "eos" else (2, 0))

    def test_padding_tokens_are_never_found(self):
        tokens = [*TOKENS, *(f"[PAD{index}]" for index in range(5))]
        build = build_tokenizer(metadata(tokens=tokens, token_type=[*TYPES, *[5] * 5]), len(tokens))
        tokenizer = Tokenizer.from_text(build.json_text)
        for allowed in (True, False):
            assert max(tokenizer.encode_spans([("[PAD3]", allowed)])) < len(TOKENS)

    def test_a_text_that_occurs_again_means_its_first_token(self):
        tokens = [*TOKENS, "hello", "hello", "", ""]
        build = build_tokenizer(metadata(tokens=tokens, token_type=[*TYPES, 1, 3, 5, 5]), len(tokens))
        assert any(warning.startswith("2 tokens have the text") for warning in build.warnings)
        tokenizer = Tokenizer.from_text(build.json_text)
        assert pieces(tokenizer, "hello") == ["hello"]
        assert tokenizer.vocab_size == len(tokens)
        assert tokenizer.special_tokens == tuple(CONTROLS)

    @pytest.mark.parametrize("kind", [1, 4, 5])
    @pytest.mark.parametrize(
        "text", ["<|im_end|>", "<eos>", "<|end|>", "<turn|>", "[EOS]", "<\uff5cend\u2581of\u2581sentence\uff5c>"]
    )
    def test_end_texts_end_an_answer_whatever_their_type(self, text, kind):
        tokens, types = [*TOKENS[:-1], text], [*TYPES[:-1], kind]
        tokens[2] = "<|other|>"
        build = build_tokenizer(metadata(tokens=tokens, token_type=types, eos_token_id=0), len(tokens))
        last = len(tokens) - 1
        assert build.eos_token_ids == (0, last)
        tokenizer = Tokenizer.from_text(build.json_text)
        assert last in tokenizer.special_ids
        assert tokenizer.encode_spans([(text, True)]) == [last]
        assert last not in tokenizer.encode_spans([(text, False)])
        assert any(text in warning for warning in build.warnings)

    def test_a_turn_that_is_typed_as_text_is_no_text(self):
        tokens = [*TOKENS[:-1], "<start_of_turn>"]
        build = build_tokenizer(metadata(tokens=tokens, token_type=[*TYPES[:-1], 1]), len(tokens))
        assert build.eos_token_ids == (2, 0)
        assert "<start_of_turn>" in Tokenizer.from_text(build.json_text).special_tokens

    @pytest.mark.parametrize(
        ("texts", "ends"),
        [
            (["<|end|>", "<|return|>"], ["<|end|>", "<|return|>"]),
            (["<|end|>", "<|return|>", "<|call|>"], ["<|return|>", "<|call|>"]),
            (["<|end|>", "<|calls|>", "<|flush|>"], ["<|calls|>", "<|flush|>"]),
            (["</s>", "<eos>"], ["</s>", "<eos>"]),
            (["</s>", "<|tool_response>"], ["<|tool_response>"]),
        ],
    )
    def test_exceptions(self, texts, ends):
        tokens = [*TOKENS[3:], *texts]
        types = [*TYPES[3:], *[3] * len(texts)]
        changed = metadata(tokens=tokens, token_type=types, eos_token_id=None, bos_token_id=None)
        build = build_tokenizer(changed, len(tokens))
        assert [tokens[index] for index in build.eos_token_ids] == ends

    def test_an_end_token_behind_prompts_is_left_out(self):
        build = build_tokenizer(metadata(add_eos_token=True), len(TOKENS))
        assert any("end token behind every text" in warning for warning in build.warnings)


def replaced(values, index, value):
    return [*values[:index], value, *values[index + 1 :]]


BAD = {
    "types too short": ("differ in length", {"token_type": TYPES[:-1]}),
    "types too long": ("differ in length", {"token_type": [*TYPES, 1]}),
    "type 0": ("[5] is 0", {"token_type": replaced(TYPES, 5, 0)}),
    "type 7": ("[5] is 7", {"token_type": replaced(TYPES, 5, 7)}),
    "type is text": ("[5] is '1'", {"token_type": replaced(TYPES, 5, "1")}),
    "fewer tokens than rows": ("267 tokens, 268 embedding rows", {"tokens": TOKENS[:-1], "token_type": TYPES[:-1]}),
    "more tokens than rows": (
        "269 tokens, 268 embedding rows",
        {"tokens": [*TOKENS, "more"], "token_type": [*TYPES, 1]},
    ),
    "tokens are no array": ("is not an array", {"tokens": "abc"}),
    "tokens missing": ("'tokenizer.ggml.tokens' is missing", {"tokens": None}),
    "a token is a number": ("Element 5 is a number", {"tokens": replaced(TOKENS, 5, 5)}),
    "a token over 4 KiB": ("too long", {"tokens": replaced(TOKENS, 1, "é" * 2049)}),
    "byte token <0x-1>": ("'<0x-1>'", {"tokens": replaced(TOKENS, 1, "<0x-1>"), "token_type": replaced(TYPES, 1, 6)}),
    "byte token <0xGG>": ("'<0xGG>'", {"tokens": replaced(TOKENS, 1, "<0xGG>"), "token_type": replaced(TYPES, 1, 6)}),
    "merges missing": ("'tokenizer.ggml.merges' is missing", {"merges": None}),
    "merge of one token": ("'hello', not two tokens", {"merges": [*MERGES, "hello"]}),
    "merge without its second half": ("'h ', not two tokens", {"merges": [*MERGES, "h "]}),
    "merge of nothing": ("'', not two tokens", {"merges": [*MERGES, ""]}),
    "merge is a number": ("Element 8 is a number", {"merges": [*MERGES, 7]}),
    "padding token is text": ("It is '0'", {"padding_token_id": "0"}),
    "add_bos_token is a number": ("not a boolean", {"add_bos_token": 1}),
    "eos is a boolean": ("eos_token_id' is not a token", {"eos_token_id": True}),
    "no scores": ("'tokenizer.ggml.scores' is missing", {"model": "llama"}),
    "pre is a number": ("not text", {"pre": 1}),
    "model missing": ("has no tokenizer", {"model": None}),
}


class TestRefusals:
    @pytest.mark.parametrize("name", BAD)
    def test_inconsistent_metadata(self, name):
        message, changes = BAD[name]
        with pytest.raises(InvalidTokenizer, match=re.escape(message)):
            build_tokenizer(metadata(**changes), len(TOKENS))

    def test_more_than_a_million_tokens(self):
        with pytest.raises(InvalidTokenizer, match="1000001 elements"):
            build_tokenizer(metadata(tokens=["a"] * 1_000_001), 1_000_001)

    def test_more_than_ten_thousand_added_tokens(self):
        tokens = [*TOKENS, *(f"<{index}>" for index in range(10_001))]
        types = [*TYPES, *[3] * 10_001]
        with pytest.raises(InvalidTokenizer, match="too many added tokens"):
            build_tokenizer(metadata(tokens=tokens, token_type=types), len(tokens))

    def test_a_chat_template_that_is_no_text(self):
        with pytest.raises(InvalidTokenizer, match="chat_template"):
            build_tokenizer(metadata() | {"tokenizer.chat_template": 7}, len(TOKENS))
