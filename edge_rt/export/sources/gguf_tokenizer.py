"""GGUF metadata -> ``tokenizer.json``: BPE over bytes, or with byte fallback as SentencePiece has it.

The JSON is written here, field by field, so that one file always gives the same bytes, whatever version of the
``tokenizers`` library is installed. Before it is returned it is loaded once through
:class:`edge_rt.text.tokenizer.Tokenizer`: so a package only contains what the runtime accepts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from edge_rt.errors import InvalidTokenizer, UnsupportedModel
from edge_rt.export.sources.gguf_pretokenizers import LINES, scheme_of
from edge_rt.export.sources.gguf_reader import Metadata, flag, text, token_id
from edge_rt.export.sources.gguf_vocabulary import (
    Merge,
    Vocabulary,
    end_ids,
    listed_merges,
    read_vocabulary,
    scored_merges,
    with_newlines,
)
from edge_rt.export.sources.source import TOOL_TEMPLATE_NAME, TokenizerBuild
from edge_rt.text.tokenizer import Tokenizer
from edge_rt.text.tokenizer_steps import SPACE

_WHY_NOT: Final = {
    "t5": "Unigram, which encoder-decoder models use",
    "bert": "WordPiece, which loses white space",
    "rwkv": "a trie of words",
    "plamo2": "a table of PLaMo's own",
    "no_vocab": "none at all",
    "none": "none at all",
}
_BYTE_LEVEL: Final = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
_PREPEND: Final = {"type": "Prepend", "prepend": SPACE}
_SPELL_SPACES: Final = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
_READ_SPACES: Final = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
_STRIP: Final = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
_UNKNOWN_CUT: Final = (
    "The file does not say how its tokenizer cuts text ('tokenizer.ggml.pre'). A general rule is used, so answers may"
    " be worse than the model's own; a newer conversion of the model says it."
)
# Tokens of Phi-3 that do not take in the white space behind them; its other control tokens do.
_PHI3_PLAIN: Final = frozenset({"<unk>", "<s>", "<|endoftext|>"})


@dataclass(frozen=True)
class _Kind:
    """What a tokenizer model means.

    Attributes:
        normalizer: the step before cutting, or None.
        pre_tokenizer: how text is cut, or None.
        byte_fallback: whether characters without a token become bytes.
        ignore_merges: whether a piece that is a token needs no merging.
        add_bos: whether prompts start with the BOS token when the file does not say.
        default_ids: the BOS and the end token of files that name none.
    """

    normalizer: dict[str, Any] | None
    pre_tokenizer: dict[str, object] | None
    decoder: dict[str, Any]
    byte_fallback: bool
    ignore_merges: bool = False
    add_bos: bool = False
    default_ids: tuple[int | None, int | None] = (None, None)
    warnings: tuple[str, ...] = ()


def build_tokenizer(metadata: Metadata, vocab_size: int) -> TokenizerBuild:
    """Build the tokenizer that a GGUF file describes."""
    model = _model(metadata)
    kind = _kind(model, metadata)
    vocabulary = read_vocabulary(metadata, vocab_size, has_bytes=kind.byte_fallback)
    merges, ignored = _merges(model, metadata, vocabulary)
    count = len(vocabulary.tokens)
    warnings = [*kind.warnings, *vocabulary.warnings, *ignored]
    bos, warning = token_id(metadata, "bos", count)
    warnings += [warning] if warning else []
    if bos is None and kind.default_ids[0] is not None and kind.default_ids[0] < count:
        bos = kind.default_ids[0]
    eos_ids, more = end_ids(metadata, vocabulary, kind.default_ids[1])
    warnings += more
    for name in ("unknown", "padding"):
        _, warning = token_id(metadata, name, count)
        warnings += [warning] if warning else []
    add_bos = flag(metadata, "tokenizer.ggml.add_bos_token", default=kind.add_bos) or model == "gemma4"
    if end_token(metadata) is not None:
        warnings.append(
            "The file asks for an end token behind every text; an answer could not follow it: only embeddings have it."
        )
    json_text = _tokenizer_json(kind, vocabulary, merges, _takes_in(metadata, vocabulary))
    Tokenizer.from_text(json_text, embedding_rows=vocab_size)
    return TokenizerBuild(
        json_text=json_text,
        bos_token_id=bos,
        eos_token_ids=eos_ids,
        add_bos=add_bos and bos is not None,
        chat_template=text(metadata, "tokenizer.chat_template"),
        tool_template=text(metadata, f"tokenizer.chat_template.{TOOL_TEMPLATE_NAME}"),
        warnings=tuple(warnings),
    )


def end_token(metadata: Metadata) -> int | None:
    """Return the token that the file asks for behind every text; None if it asks for none."""
    if not flag(metadata, "tokenizer.ggml.add_eos_token", default=False):
        return None
    found = metadata.get("tokenizer.ggml.eos_token_id")
    return found if type(found) is int else None


def _model(metadata: Metadata) -> str:
    model = text(metadata, "tokenizer.ggml.model")
    if model is None:
        raise InvalidTokenizer(
            "The file has no tokenizer.",
            "The key 'tokenizer.ggml.model' is missing.",
            "Use a file that was converted together with its tokenizer.",
        )
    if model not in ("gpt2", "llama", "gemma4"):
        raise UnsupportedModel(
            f"The tokenizer model {model[:40]!r} is not supported.",
            f"It is {_WHY_NOT.get(model, 'unknown')}. Supported: 'gpt2', 'llama' and 'gemma4', which are BPE.",
            "Use a model with such a tokenizer.",
        )
    return model


def _kind(model: str, metadata: Metadata) -> _Kind:
    adds_space = flag(metadata, "tokenizer.ggml.add_space_prefix", default=model == "llama")
    if model == "gpt2":
        return _byte_level(metadata, adds_space=adds_space)
    spells = {"type": "Sequence", "normalizers": [_PREPEND, _SPELL_SPACES]} if adds_space else _SPELL_SPACES
    steps = [_READ_SPACES, {"type": "ByteFallback"}, {"type": "Fuse"}, *([_STRIP] if adds_space else [])]
    is_gemma4 = model == "gemma4"
    return _Kind(
        normalizer=spells,
        pre_tokenizer=LINES if is_gemma4 else None,
        decoder={"type": "Sequence", "decoders": steps},
        byte_fallback=True,
        add_bos=True,
        default_ids=(None, None) if is_gemma4 else (1, 2),
    )


def _byte_level(metadata: Metadata, *, adds_space: bool) -> _Kind:
    if adds_space:
        raise UnsupportedModel(
            "The tokenizer puts a space in front of every text, which is not supported for byte-level BPE.",
            "Key 'tokenizer.ggml.add_space_prefix' is true.",
            "Use another model.",
        )
    name = text(metadata, "tokenizer.ggml.pre")
    scheme = scheme_of(name)
    warnings: tuple[str, ...] = ()
    if name is None or name == "default":
        warnings = (_UNKNOWN_CUT,)
    return _Kind(
        normalizer={"type": "NFC"} if scheme.nfc else None,
        pre_tokenizer=scheme.pre_tokenizer(),
        decoder=_BYTE_LEVEL,
        byte_fallback=False,
        ignore_merges=scheme.ignore_merges,
        add_bos=scheme.add_bos,
        warnings=warnings,
    )


def _merges(model: str, metadata: Metadata, vocabulary: Vocabulary) -> tuple[list[Merge], tuple[str, ...]]:
    """Return the merges, and warnings about them."""
    if model == "llama":
        return scored_merges(vocabulary.mergeable(metadata)), ()
    known = frozenset(vocabulary.tokens)
    merges, warnings = listed_merges(metadata, known)
    return (with_newlines(merges, known) if model == "gemma4" else merges), warnings


def _takes_in(metadata: Metadata, vocabulary: Vocabulary) -> frozenset[int]:
    """Return the added tokens that take in white space behind them; files do not say it, so a name has to do."""
    name = (text(metadata, "general.name") or "").lower()
    if "phi-3" not in name and "phi3" not in name:
        return frozenset()
    return frozenset(index for index in vocabulary.added() if vocabulary.tokens[index] not in _PHI3_PLAIN)


def _tokenizer_json(kind: _Kind, vocabulary: Vocabulary, merges: Sequence[Merge], takes_in: frozenset[int]) -> str:
    added = [
        {
            "id": index,
            "content": vocabulary.tokens[index],
            "single_word": False,
            "lstrip": False,
            "rstrip": index in takes_in,
            "normalized": False,
            "special": vocabulary.is_special(index),
        }
        for index in vocabulary.added()
    ]
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": kind.normalizer,
        "pre_tokenizer": kind.pre_tokenizer,
        "post_processor": None,
        "decoder": kind.decoder,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": kind.byte_fallback,
            "ignore_merges": kind.ignore_merges,
            "vocab": {token: index for index, token in enumerate(vocabulary.tokens)},
            "merges": merges,
        },
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))
