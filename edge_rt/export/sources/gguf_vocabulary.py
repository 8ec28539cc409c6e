"""The tokens of a GGUF file with their types, mended where files in use are wrong."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from edge_rt.byte_size import counted
from edge_rt.export.sources.end_tokens import TURN_TEXTS, end_texts
from edge_rt.export.sources.gguf_metadata import Metadata, array, floats, inconsistent, strings, token_id
from edge_rt.text.tokenizer_check import MAX_ADDED_TOKENS, MAX_TOKEN_BYTES, MAX_VOCABULARY

# Values of tokenizer.ggml.token_type.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
_SPECIAL_TYPES: Final = frozenset({UNKNOWN, CONTROL})
_ADDED_TYPES: Final = _SPECIAL_TYPES | {USER_DEFINED}

_BYTE_TEXT: Final = re.compile("<0x[0-9A-F]{2}>")


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a file, in the order of their ids.

    Attributes:
        tokens: their texts, all different.
        types: their types.
        warnings: sentences about what was mended.
    """

    tokens: tuple[str, ...]
    types: tuple[int, ...]
    warnings: tuple[str, ...]

    def is_special(self, index: int) -> bool:
        """Return whether a token is not text."""
        return self.types[index] in _SPECIAL_TYPES

    def added(self) -> list[int]:
        """Return the ids of the tokens that are found before text is merged."""
        return [index for index, kind in enumerate(self.types) if kind in _ADDED_TYPES]

    def mergeable(self, metadata: Metadata) -> dict[str, float]:
        """Return the tokens that merges may lead to, with their scores."""
        scores = floats(metadata, "tokenizer.ggml.scores", len(self.tokens))
        return {
            token: score
            for token, kind, score in zip(self.tokens, self.types, scores, strict=True)
            if kind in (NORMAL, UNUSED) and token and not _BYTE_TEXT.fullmatch(token)
        }


def read_vocabulary(metadata: Metadata, rows: int, *, has_bytes: bool) -> Vocabulary:
    """Return the tokens of a file.

    Tokens that end an answer or begin a turn are control tokens whatever the file says. A text that occurs again gets
    another one in its place, so that it means its first token.

    Args:
        metadata: the key-value pairs of the header.
        rows: of the embedding matrix.
        has_bytes: whether the vocabulary may have tokens that stand for a byte.

    Raises:
        InvalidTokenizer: tokens and types do not fit each other or the matrix.
    """
    tokens = strings(metadata, "tokenizer.ggml.tokens", MAX_VOCABULARY)
    types = _token_types(metadata, len(tokens))
    _check_tokens(tokens, types, rows, has_bytes=has_bytes)
    warnings = _separate(tokens, types)
    marks = end_texts(frozenset(tokens)) | TURN_TEXTS
    mended = [index for index, token in enumerate(tokens) if token in marks and types[index] not in _SPECIAL_TYPES]
    for index in mended:
        types[index] = CONTROL
    if mended:
        names = ", ".join(tokens[index] for index in mended[:8])
        warnings.append(f"The file has {names} as text; they are taken for control tokens.")
    added = sum(kind in _ADDED_TYPES for kind in types)
    if added > MAX_ADDED_TOKENS:
        raise inconsistent("The tokenizer has too many added tokens.", f"{added} of at most {MAX_ADDED_TOKENS}.")
    return Vocabulary(tuple(tokens), tuple(types), tuple(warnings))


def end_ids(metadata: Metadata, vocabulary: Vocabulary, default: int | None) -> tuple[tuple[int, ...], list[str]]:
    """Return the tokens that end an answer, and warnings: the file's own first, then those known by their texts.

    Args:
        metadata: the key-value pairs of the header.
        vocabulary: the tokens.
        default: the end token of a file that names none, or one that does not exist.
    """
    count = len(vocabulary.tokens)
    found: list[int] = []
    warnings: list[str] = []
    for name in ("eos", "eot", "eom"):
        index, warning = token_id(metadata, name, count)
        warnings += [warning] if warning else []
        index = default if index is None and name == "eos" and default is not None and default < count else index
        found += [index] if index is not None else []
    texts = end_texts(frozenset(vocabulary.tokens))
    found += [index for index, token in enumerate(vocabulary.tokens) if token in texts]
    # A dict keeps the order and drops duplicates.
    return tuple(dict.fromkeys(found)), warnings


def _token_types(metadata: Metadata, count: int) -> list[int]:
    """Return one type per token; a file without the array has normal tokens only."""
    key = "tokenizer.ggml.token_type"
    if key not in metadata:
        return [NORMAL] * count
    types = array(metadata, key, MAX_VOCABULARY)
    if len(types) != count:
        raise inconsistent(
            f"'{key}' and 'tokenizer.ggml.tokens' differ in length.", f"{len(types)} types for {count} tokens."
        )
    result: list[int] = []
    for index, kind in enumerate(types):
        if isinstance(kind, bool) or not isinstance(kind, int) or not NORMAL <= kind <= BYTE:
            raise inconsistent(
                "A token has an unknown type.", f"'{key}'[{index}] is {repr(kind)[:40]}, known are 1 to 6."
            )
        result.append(kind)
    return result


def _check_tokens(tokens: Sequence[str], types: Sequence[int], rows: int, *, has_bytes: bool) -> None:
    if len(tokens) != rows:
        raise inconsistent(
            "The vocabulary and the embedding matrix differ in size.", f"{len(tokens)} tokens, {rows} embedding rows."
        )
    for index, (token, kind) in enumerate(zip(tokens, types, strict=True)):
        if len(token) > MAX_TOKEN_BYTES or len(token.encode("utf-8", "surrogatepass")) > MAX_TOKEN_BYTES:
            raise inconsistent("A token is too long.", f"Token {index} has more than {MAX_TOKEN_BYTES} bytes.")
        if kind == BYTE and not (has_bytes and _BYTE_TEXT.fullmatch(token)):
            raise inconsistent(
                "A byte token does not stand for a byte, or stands in a byte-level vocabulary.",
                f"Token {index} is {token[:40]!r}, type {BYTE}.",
            )


def _separate(tokens: list[str], types: list[int]) -> list[str]:
    """Give tokens without a text, and those whose text another one has, a text of their own; return warnings."""
    taken = set(tokens)
    seen: set[str] = set()
    again: list[int] = []
    for index, token in enumerate(tokens):
        if token and token not in seen:
            seen.add(token)
            continue
        again += [index] if token else []
        name = f"[{'DUPLICATE' if token else 'EMPTY'} {index}]"
        while name in taken:
            name += "_"
        taken.add(name)
        tokens[index], types[index] = name, UNUSED
    if not again:
        return []
    have, which = ("has", "it") if len(again) == 1 else ("have", "them")
    tokens_have = f"{counted(len(again), 'token')} {have}"
    return [f"{tokens_have} the text of an earlier token, and text never becomes {which} (the first: {again[0]})."]
