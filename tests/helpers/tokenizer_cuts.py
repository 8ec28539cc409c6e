"""Every way of cutting text that GGUF files name: a small vocabulary as metadata, and as a `tokenizer.json`."""

from __future__ import annotations

import functools
import json

from tokenizers import Tokenizer as Library

from edge_rt.export.sources.gguf_tokenizer import build_tokenizer
from edge_rt.text.tokenizer import Tokenizer
from tests.helpers.tokenizer_texts import byte_vocabulary, text_vocabulary

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{REST}"
QWEN2 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{REST}"
QWEN35 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{REST}"
MINICPM5 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{REST}"
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = O200K.replace(f"{CONTRACTIONS}?", "").replace("{1,3}", "")
DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"""
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _level(use_regex):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _splits(*patterns):
    steps = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in patterns
    ]
    return {"type": "Sequence", "pretokenizers": [*steps, _level(use_regex=False)]}


DIGITS = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, _level(use_regex=True)]}
SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
PREPEND = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, SPACES]}

CUTS = {
    "default": ("gpt2", _splits(r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"), None, False),
    "gpt-2": ("gpt2", _level(use_regex=True), None, False),
    "smollm": ("gpt2", DIGITS, None, False),
    "command-r": ("gpt2", DIGITS, {"type": "NFC"}, False),
    "llama-bpe": ("gpt2", _splits(LLAMA3), None, True),
    "smaug-bpe": ("gpt2", _splits(LLAMA3), None, False),
    "glm4": ("gpt2", _splits(LLAMA3), None, True),
    "qwen2": ("gpt2", _splits(QWEN2), {"type": "NFC"}, False),
    "stablelm2": ("gpt2", _splits(QWEN2), None, False),
    "qwen35": ("gpt2", _splits(QWEN35), {"type": "NFC"}, False),
    "gpt-4o": ("gpt2", _splits(O200K), None, False),
    "tekken": ("gpt2", _splits(TEKKEN), None, True),
    "deepseek-v3": (
        "gpt2",
        _splits(r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", DEEPSEEK3),
        None,
        False,
    ),
    "minicpm5": ("gpt2", _splits(r"\p{N}{1,3}", MINICPM5), None, True),
    "llama": ("llama", None, PREPEND, False),
    "llama without a space": ("llama", None, SPACES, False),
    "gemma4": ("gemma4", None, SPACES, False),
}
"""Name of a cut -> tokenizer model; pre-tokenizer and normalizer of tokenizer.json; ignore_merges."""


def metadata(name):
    """Return the metadata of a GGUF file with a small vocabulary that is cut by ``name``."""
    model = CUTS[name][0]
    result: dict[str, object] = {"tokenizer.ggml.model": model}
    if model == "gpt2":
        tokens, merges = byte_vocabulary()
        types = [1] * len(tokens)
        result["tokenizer.ggml.pre"] = name
    else:
        words, merges = text_vocabulary()
        start = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
        tokens = list(dict.fromkeys([*start, *words]))
        types = [2, *[6] * 256, *[1] * (len(tokens) - 257)]
    if model == "llama":
        result["tokenizer.ggml.scores"] = [-float(index) for index in range(len(tokens))]
        result["tokenizer.ggml.add_space_prefix"] = name == "llama"
    else:
        result["tokenizer.ggml.merges"] = [f"{left} {right}" for left, right in merges]
    return result | {"tokenizer.ggml.tokens": list(tokens), "tokenizer.ggml.token_type": types}


@functools.cache
def built(name):
    """Return the tokenizer that an export makes of :func:`metadata`."""
    values = metadata(name)
    return Tokenizer.from_text(build_tokenizer(values, len(values["tokenizer.ggml.tokens"])).json_text)


@functools.cache
def library(name):
    """Return the library with the same vocabulary and a model's own ``tokenizer.json``."""
    model, pre_tokenizer, normalizer, ignore_merges = CUTS[name]
    values = metadata(name)
    tokens = values["tokenizer.ggml.tokens"]
    if model == "llama":
        merges = _merges_by_id(tokens)
    else:
        merges = [merge.split(" ") for merge in values["tokenizer.ggml.merges"]]
    return Library.from_str(json.dumps({
        "version": "1.0", "added_tokens": [], "normalizer": normalizer, "pre_tokenizer": pre_tokenizer,
        "post_processor": None, "decoder": None, "truncation": None, "padding": None,
        "model": {
            "type": "BPE", "unk_token": None, "byte_fallback": model != "gpt2", "ignore_merges": ignore_merges,
            "vocab": {token: index for index, token in enumerate(tokens)}, "merges": merges,
        },
    }))  # fmt: skip


def _merges_by_id(tokens):
    """Return the merges as a conversion of SentencePiece writes them: every way to make a token, by its id."""
    known = set(tokens[257:])
    ways = ((token[:at], token[at:]) for token in tokens[257:] for at in range(len(token) - 1, 0, -1))
    return [way for way in ways if way[0] in known and way[1] in known]
