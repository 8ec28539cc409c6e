"""GGUF metadata -> ``tokenizer.json``: byte-level BPE with the pre-tokenizer that the file names.

The JSON is written here, field by field, so that one file always gives the same bytes, whatever version of the
``tokenizers`` library is installed. Before it is returned it is loaded once through
:class:`edge_rt.text.tokenizer.Tokenizer`: so a package only contains what the runtime accepts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from edge_rt.errors import InvalidTokenizer, UnsupportedModel
from edge_rt.export.sources.source import TOOL_TEMPLATE_NAME, TokenizerBuild
from edge_rt.text.tokenizer import Tokenizer
from edge_rt.text.tokenizer_check import MAX_ADDED_TOKENS, MAX_TOKEN_BYTES, MAX_VOCABULARY

# Values of tokenizer.ggml.token_type.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_SPECIAL_TYPES: Final = frozenset({_UNKNOWN, _CONTROL})
_ADDED_TYPES: Final = _SPECIAL_TYPES | {_USER_DEFINED}

# Control tokens that end a turn or a text. A file names one or two of them as its end tokens, but models emit all of
# them.
_END_TEXTS: Final = frozenset(
    {
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|eot|>",
        "<|return|>",
        "<end_of_turn>",
        "<|END_OF_TURN_TOKEN|>",
        "</s>",
    }
)

_LLAMA3_SPLIT: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Like Llama 3's, with single digits.
_QWEN2_SPLIT: Final = _LLAMA3_SPLIT.replace("{1,3}", "")
# Words end where an upper-case letter follows a lower-case one; digits are single; a slash is punctuation.
_TEKKEN_SPLIT: Final = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class _Scheme:
    """How text is cut before merging.

    Attributes:
        split: regular expression of the pieces; None means GPT-2's, which ByteLevel has built in.
        single_digits: every digit is a piece of its own (applied before GPT-2's rule).
        nfc: text is normalised to Unicode NFC first.
        ignore_merges: a piece that is a token as a whole is taken without merging.
        add_bos: whether prompts start with the BOS token when the file does not say.
    """

    split: str | None = None
    single_digits: bool = False
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False


_GPT2: Final = _Scheme()
_DIGITS: Final = _Scheme(single_digits=True)
_LLAMA3: Final = _Scheme(split=_LLAMA3_SPLIT, ignore_merges=True, add_bos=True)

_SCHEMES: Final[Mapping[str, _Scheme]] = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "command-r": _Scheme(single_digits=True, nfc=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _Scheme(split=_QWEN2_SPLIT, nfc=True),
    "tekken": _Scheme(split=_TEKKEN_SPLIT, ignore_merges=True, add_bos=True),
}


def build_tokenizer(metadata: Mapping[str, object], vocab_size: int) -> TokenizerBuild:
    """Build the tokenizer that a GGUF file describes.

    Args:
        metadata: the key-value pairs of the header; arrays are lists.
        vocab_size: rows of the embedding matrix.

    Raises:
        UnsupportedModel: not byte-level BPE, or an unknown pre-tokenizer.
        InvalidTokenizer: the vocabulary, the merges or the token ids are inconsistent.
    """
    scheme = _scheme(metadata)
    tokens = _strings(metadata, "tokenizer.ggml.tokens", MAX_VOCABULARY)
    types = _token_types(metadata, len(tokens))
    _check_tokens(tokens, types, vocab_size)
    merges = _merges(metadata, set(tokens))
    bos = _token_id(metadata, "bos", len(tokens))
    eos_ids = _end_tokens(metadata, tokens, types)
    for name in ("unknown", "padding"):
        _token_id(metadata, name, len(tokens))
    add_bos = _flag(metadata, "tokenizer.ggml.add_bos_token", default=scheme.add_bos)
    json_text = _tokenizer_json(scheme, tokens, types, merges)
    Tokenizer.from_text(json_text, embedding_rows=vocab_size)
    return TokenizerBuild(
        json_text=json_text,
        bos_token_id=bos,
        eos_token_ids=eos_ids,
        add_bos=add_bos and bos is not None,
        chat_template=_text(metadata, "tokenizer.chat_template"),
        tool_template=_text(metadata, f"tokenizer.chat_template.{TOOL_TEMPLATE_NAME}"),
    )


def _scheme(metadata: Mapping[str, object]) -> _Scheme:
    model = _text(metadata, "tokenizer.ggml.model")
    if model is None:
        raise InvalidTokenizer(
            "The file has no tokenizer.",
            "The key 'tokenizer.ggml.model' is missing.",
            "Use a file that was converted together with its tokenizer.",
        )
    if model != "gpt2":
        raise UnsupportedModel(
            f"The tokenizer model {model[:40]!r} is not supported.",
            "Supported: 'gpt2' (byte-level BPE).",
            "Use a model with a byte-level BPE tokenizer.",
        )
    name = _text(metadata, "tokenizer.ggml.pre")
    scheme = _SCHEMES.get(name) if name is not None else None
    if scheme is None:
        found = "names no pre-tokenizer" if name is None else f"asks for the pre-tokenizer {name[:40]!r}"
        raise UnsupportedModel(
            f"The tokenizer {found}, which is not supported.",
            f"Key 'tokenizer.ggml.pre'; supported: {', '.join(sorted(_SCHEMES))}.",
            "Use another model, or convert this one again with a newer converter.",
        )
    if _flag(metadata, "tokenizer.ggml.add_space_prefix", default=False):
        raise UnsupportedModel(
            "The tokenizer puts a space in front of every text, which is not supported for byte-level BPE.",
            "Key 'tokenizer.ggml.add_space_prefix' is true.",
            "Use another model.",
        )
    return scheme


def _token_types(metadata: Mapping[str, object], count: int) -> list[int]:
    """Return one type per token; a file without the array has normal tokens only."""
    key = "tokenizer.ggml.token_type"
    if key not in metadata:
        return [_NORMAL] * count
    types = _array(metadata, key, MAX_VOCABULARY)
    if len(types) != count:
        raise _inconsistent(
            f"'{key}' and 'tokenizer.ggml.tokens' differ in length.", f"{len(types)} types for {count} tokens."
        )
    result: list[int] = []
    for index, kind in enumerate(types):
        if isinstance(kind, bool) or not isinstance(kind, int) or not _NORMAL <= kind <= _BYTE:
            raise _inconsistent(
                "A token has an unknown type.", f"'{key}'[{index}] is {repr(kind)[:40]}, known are 1 to 6."
            )
        result.append(kind)
    return result


def _check_tokens(tokens: Sequence[str], types: Sequence[int], vocab_size: int) -> None:
    if len(tokens) != vocab_size:
        raise _inconsistent(
            "The vocabulary and the embedding matrix differ in size.",
            f"{len(tokens)} tokens, {vocab_size} embedding rows.",
        )
    added = sum(kind in _ADDED_TYPES for kind in types)
    if added > MAX_ADDED_TOKENS:
        raise _inconsistent("The tokenizer has too many added tokens.", f"{added} of at most {MAX_ADDED_TOKENS}.")
    seen: dict[str, int] = {}
    for index, (token, kind) in enumerate(zip(tokens, types, strict=True)):
        if not token:
            raise _inconsistent("A token is empty.", f"Token {index}, type {kind}.")
        if len(token) > MAX_TOKEN_BYTES or len(token.encode("utf-8", "surrogatepass")) > MAX_TOKEN_BYTES:
            raise _inconsistent("A token is too long.", f"Token {index} has more than {MAX_TOKEN_BYTES} bytes.")
        if kind == _BYTE:
            raise _inconsistent(
                "A byte token stands in a byte-level vocabulary.", f"Token {index} is {token[:40]!r}, type {_BYTE}."
            )
        first = seen.setdefault(token, index)
        if first != index:
            raise _inconsistent("A token occurs twice.", f"Tokens {first} and {index} are both {token[:40]!r}.")


def _merges(metadata: Mapping[str, object], vocabulary: set[str]) -> list[tuple[str, str]]:
    key = "tokenizer.ggml.merges"
    result: list[tuple[str, str]] = []
    for index, merge in enumerate(_strings(metadata, key, 2 * MAX_VOCABULARY)):
        # A half may itself begin with the separator, so the first character is never the separator.
        cut = merge.find(" ", 1)
        left, right = merge[:cut], merge[cut + 1 :]
        if cut < 1 or not right:
            raise _inconsistent("A merge is malformed.", f"'{key}'[{index}] is {merge[:40]!r}, not two tokens.")
        for part in (left, right, left + right):
            if part not in vocabulary:
                raise _inconsistent(
                    "A merge names a token that does not exist.", f"'{key}'[{index}] needs the token {part[:40]!r}."
                )
        result.append((left, right))
    return result


def _end_tokens(metadata: Mapping[str, object], tokens: Sequence[str], types: Sequence[int]) -> tuple[int, ...]:
    named = (_token_id(metadata, name, len(tokens)) for name in ("eos", "eot", "eom"))
    known = (
        index
        for index, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind == _CONTROL and token in _END_TEXTS
    )
    # A dict keeps the order and drops duplicates.
    return tuple(dict.fromkeys([index for index in named if index is not None] + list(known)))


def _tokenizer_json(
    scheme: _Scheme, tokens: Sequence[str], types: Sequence[int], merges: Sequence[tuple[str, str]]
) -> str:
    added = [
        {
            "id": index,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind in _SPECIAL_TYPES,
        }
        for index, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in _ADDED_TYPES
    ]
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"} if scheme.nfc else None,
        "pre_tokenizer": _pre_tokenizer(scheme),
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": scheme.ignore_merges,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": merges,
        },
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def _pre_tokenizer(scheme: _Scheme) -> dict[str, object]:
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": scheme.split is None,
    }
    steps: list[dict[str, object]] = []
    if scheme.single_digits:
        steps.append({"type": "Digits", "individual_digits": True})
    if scheme.split is not None:
        steps.append(
            {"type": "Split", "pattern": {"Regex": scheme.split}, "behavior": "Isolated", "invert": False},
        )
    return {"type": "Sequence", "pretokenizers": [*steps, byte_level]} if steps else byte_level


def _array(metadata: Mapping[str, object], key: str, limit: int) -> Sequence[object]:
    if key not in metadata:
        raise _inconsistent("The tokenizer is incomplete.", f"The key '{key}' is missing.")
    value = metadata[key]
    if not isinstance(value, list | tuple):
        raise _inconsistent(f"'{key}' is not an array.", f"It is of type {type(value).__name__}.")
    if len(value) > limit:
        raise _inconsistent(f"'{key}' is too long.", f"{len(value)} elements of at most {limit}.")
    return value


def _strings(metadata: Mapping[str, object], key: str, limit: int) -> list[str]:
    result: list[str] = []
    for index, value in enumerate(_array(metadata, key, limit)):
        if not isinstance(value, str):
            raise _inconsistent(f"'{key}' holds an item that is not text.", f"Element {index}: {type(value).__name__}.")
        result.append(value)
    return result


def _text(metadata: Mapping[str, object], key: str) -> str | None:
    value = metadata.get(key)
    if value is not None and not isinstance(value, str):
        raise _inconsistent(f"'{key}' is not text.", f"It is of type {type(value).__name__}.")
    return value


def _flag(metadata: Mapping[str, object], key: str, *, default: bool) -> bool:
    value = metadata.get(key, default)
    if not isinstance(value, bool):
        raise _inconsistent(f"'{key}' is not a boolean.", f"It is of type {type(value).__name__}.")
    return value


def _token_id(metadata: Mapping[str, object], name: str, count: int) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    value = metadata.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < count:
        raise _inconsistent(f"'{key}' is not a token.", f"It is {repr(value)[:40]}, tokens are 0 to {count - 1}.")
    return value


def _inconsistent(what: str, numbers: str) -> InvalidTokenizer:
    return InvalidTokenizer(what, numbers, "Fetch the file again, or convert the model again.")
