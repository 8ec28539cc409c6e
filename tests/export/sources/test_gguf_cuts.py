"""Every cut that a GGUF file can name: the ids of the ``tokenizers`` library for lines made up at random."""

from __future__ import annotations

import json

import pytest

from edge_rt.errors import InvalidTokenizer
from edge_rt.export.sources.gguf_pretokenizers import SCHEMES
from edge_rt.export.sources.gguf_tokenizer import build_tokenizer
from edge_rt.text.tokenizer import Tokenizer
from tests.helpers.tokenizer_cuts import CUTS, built, library, metadata
from tests.helpers.tokenizer_texts import lines

LINES = lines(150, seed=31)


@pytest.mark.parametrize("name", CUTS)
class TestCuts:
    def test_lines_have_the_ids_of_the_library(self, name):
        for text in LINES:
            assert built(name).encode_text(text) == library(name).encode(text, add_special_tokens=False).ids

    def test_a_long_text_in_pieces_has_the_ids_of_the_whole(self, name):
        text = "".join(lines(500, seed=32))
        assert built(name).encode_text(text) == library(name).encode(text, add_special_tokens=False).ids

    def test_text_comes_back(self, name):
        for text in LINES:
            if "NFC" not in json.dumps(CUTS[name]):
                assert built(name).decode(built(name).encode_text(text)) == text


def test_every_name_has_a_cut_that_is_compared():
    compared = [SCHEMES[name].pre_tokenizer() for name, cut in CUTS.items() if cut[0] == "gpt2"]
    assert all(scheme.pre_tokenizer() in compared for scheme in SCHEMES.values())
    assert len(SCHEMES) == 55


def of_llama(tokens, scores, types=None, **changes):
    """Return the metadata of a small vocabulary of SentencePiece."""
    start = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    values = {
        "model": "llama",
        "tokens": [*start, *tokens],
        "scores": [0.0] * len(start) + scores,
        "token_type": [2, 3, 3, *[6] * 256, *(types or [1] * len(tokens))],
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (values | changes).items() if value is not None}


def pieces(values, text):
    build = build_tokenizer(values, len(values["tokenizer.ggml.tokens"]))
    tokenizer = Tokenizer.from_text(build.json_text)
    return [tokenizer.id_to_token(index) for index in tokenizer.encode_text(text)]


class TestSentencePiece:
    TOKENS = ("\u2581", "a", "b", "c", "ab", "bc", "abc", "\u2581a")

    def test_the_neighbours_with_the_highest_score_are_joined_first(self):
        values = of_llama(self.TOKENS, [-9.0, -9.0, -9.0, -9.0, -2.0, -1.0, -3.0, -4.0])
        assert pieces(values, "abc") == ["\u2581", "abc"]
        assert pieces(of_llama(self.TOKENS, [-9.0] * 4 + [-1.0, -2.0, -5.0, -4.0]), "abc") == ["\u2581", "abc"]
        assert pieces(of_llama(self.TOKENS, [-9.0] * 4 + [-2.0, -1.0, -5.0, -0.5]), "abb") == ["\u2581a", "b", "b"]

    def test_a_run_of_equal_scores_grows_from_the_left(self):
        tokens = ["\u2581" * size for size in range(1, 6)]
        values = of_llama(tokens, [-1e9] * 5, add_space_prefix=False)
        assert [len(piece) for piece in pieces(values, " " * 13)] == [5, 5, 3]

    def test_defaults_of_a_file_that_says_nothing(self):
        build = build_tokenizer(of_llama(self.TOKENS, [-1.0] * 8), 259 + 8)
        assert (build.bos_token_id, build.eos_token_ids, build.add_bos) == (1, (2,), True)
        assert not build.warnings
        assert build_tokenizer(of_llama(self.TOKENS, [-1.0] * 8, add_bos_token=False), 267).add_bos is False
        assert build_tokenizer(of_llama(self.TOKENS, [-1.0] * 8, eos_token_id=2**32 - 1), 267).eos_token_ids == (2,)

    def test_a_space_is_put_first_unless_the_file_says_no(self):
        assert pieces(of_llama(self.TOKENS, [-1.0] * 8), "a") == ["\u2581a"]
        assert pieces(of_llama(self.TOKENS, [-1.0] * 8, add_space_prefix=False), "a") == ["a"]

    def test_merges_lead_to_no_control_or_byte_token(self):
        tokens = ["<", "/", "s", ">", "0", "x", "A", "</", "s>", "<0", "xA", "<0x", "A>", "A", "0>"]
        tokens = list(dict.fromkeys(tokens))
        values = of_llama(tokens, [-1.0] * len(tokens), add_space_prefix=False)
        assert pieces(values, "</s>") == ["</", "s>"]
        assert "<0x0A>" not in pieces(values, "<0x0A>")

    def test_user_defined_tokens_are_found_first_in_a_template_only(self):
        values = of_llama([*self.TOKENS, "<a>", "\n"], [-1.0] * 10, [1] * 8 + [4, 4], add_space_prefix=False)
        tokenizer = Tokenizer.from_text(build_tokenizer(values, 269).json_text)
        assert tokenizer.encode_spans([("a<a>\n", True)]) == [260, 267, 268]
        ids = tokenizer.encode_spans([("a<a>\n", False)])
        assert (267 in ids, 268 in ids) == (False, True)

    @pytest.mark.parametrize(
        ("name", "takes_in"), [("Phi-3 mini", True), ("phi3", True), ("Llama", False), (None, False)]
    )
    def test_marks_of_phi_3_take_in_white_space(self, name, takes_in):
        values = of_llama([*self.TOKENS, "<|user|>"], [-1.0] * 9, [1] * 8 + [3])
        if name is not None:
            values["general.name"] = name
        tokenizer = Tokenizer.from_text(build_tokenizer(values, 268).json_text)
        assert (tokenizer.encode_spans([("<|user|>\n", True)]) == [267]) is takes_in
        assert len(tokenizer.encode_spans([("<s>\n", True)])) == 3

    @pytest.mark.parametrize(
        "scores", [[-1.0] * 7, [-1.0] * 7 + [float("nan")], [-1.0] * 7 + ["1"], [-1.0] * 7 + [True]]
    )
    def test_scores_that_are_no_numbers(self, scores):
        with pytest.raises(InvalidTokenizer, match=r"tokenizer\.ggml\.scores"):
            build_tokenizer(of_llama(self.TOKENS, scores), 267)

    def test_tokens_that_would_take_for_ever_are_refused(self):
        tokens = [f"{index}".ljust(4000, "a") for index in range(200)]
        with pytest.raises(InvalidTokenizer, match="too long"):
            build_tokenizer(of_llama(tokens, [-1.0] * 200), 459)


class TestGemma4:
    def test_line_ends_are_joined_though_the_file_has_no_merges_for_them(self):
        values = metadata("gemma4")
        tokens = [*values["tokenizer.ggml.tokens"], "\n", "\n\n", "\n\n\n"]
        values |= {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [1] * len(tokens)}
        build = build_tokenizer(values, len(tokens))
        tokenizer = Tokenizer.from_text(build.json_text)
        lengths = [len(tokenizer.id_to_token(index)) for index in tokenizer.encode_text("\n" * 8)]
        assert lengths == [3, 3, 2]

    def test_bos_is_written_whatever_the_file_says(self):
        values = metadata("gemma4")
        values |= {"tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.add_bos_token": False}
        assert build_tokenizer(values, len(values["tokenizer.ggml.tokens"])).add_bos is True
