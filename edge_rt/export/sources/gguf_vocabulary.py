"""The tokens of a GGUF file with their types, mended where files in use are wrong."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from edge_rt.export.sources.end_tokens import TURN_TEXTS, end_texts
from edge_rt.export.sources.gguf_reader import (
    Metadata,
    floats,
    inconsistent,
    metadata_array as array,
    strings,
    token_id,
)
from edge_rt.system.byte_size import counted
from edge_rt.text.tokenizer_check import MAX_ADDED_TOKENS, MAX_TOKEN_BYTES, MAX_VOCABULARY

Merge = tuple[str, str]

_KEY: Final = "tokenizer.ggml.merges"
# Work of cutting every token everywhere, in characters copied. A vocabulary of 262,144 tokens takes 3 * 10^7.
_MAX_WORK: Final = 1 << 31


def listed_merges(metadata: Metadata, vocabulary: Container[str]) -> tuple[list[Merge], tuple[str, ...]]:
    """Return a file's merges in order, and warnings; those of missing tokens, which files have, are left out."""
    result: list[Merge] = []
    unknown: list[str] = []
    for index, merge in enumerate(strings(metadata, _KEY, 2 * MAX_VOCABULARY)):
        # A half may itself begin with the separator, so the first character is never the separator.
        cut = merge.find(" ", 1)
        left, right = merge[:cut], merge[cut + 1 :]
        if cut < 1 or not right:
            raise inconsistent("A merge is malformed.", f"'{_KEY}'[{index}] is {merge[:40]!r}, not two tokens.")
        if all(part in vocabulary for part in (left, right, left + right)):
            result.append((left, right))
        else:
            unknown.append(merge)
    if not unknown:
        return result, ()
    first = f"the first of them {unknown[0][:40]!r}"
    return result, (f"{counted(len(unknown), 'merge')} of tokens that do not exist, {first}: ignored.",)


def with_newlines(merges: list[Merge], vocabulary: Container[str]) -> list[Merge]:
    """Return merges that lead to every token of line ends: files may leave them out, and a run is such a token."""
    if any("\n" in left for left, _ in merges):
        return merges
    longest = 1
    while "\n" * (longest + 1) in vocabulary:
        longest += 1
    return [*merges, *(("\n" * (size - 1), "\n") for size in range(longest, 1, -1))]


def scored_merges(scores: Mapping[str, float]) -> list[Merge]:
    """Return merges that lead to the tokens that SentencePiece finds.

    It joins the neighbours whose token has the highest score, the leftmost of equals, and looks the joined text up. So
    every way to make a token of two others is a merge, in the order of the scores. Among equal scores the longest token
    comes first: then a run of one character grows from the left.
    """
    work = sum(len(token) ** 2 for token in scores)
    if work > _MAX_WORK:
        raise inconsistent("The tokens are too long.", f"{len(scores)} tokens, {work} characters in all their parts.")
    ordered = sorted(scores, key=lambda token: (-scores[token], -len(token)))
    result = [pair for token in ordered for pair in _ways(token, scores)]
    if len(result) > 2 * MAX_VOCABULARY:
        raise inconsistent("The vocabulary has too many merges.", f"{len(result)} of at most {2 * MAX_VOCABULARY}.")
    return result


def _ways(token: str, scores: Mapping[str, float]) -> Iterator[Merge]:
    for at in range(len(token) - 1, 0, -1):
        left, right = token[:at], token[at:]
        if left in scores and right in scores:
            yield left, right


# Values of tokenizer.ggml.token_type.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
_SPECIAL_TYPES: Final = frozenset({UNKNOWN, CONTROL})
_ADDED_TYPES: Final = _SPECIAL_TYPES | {USER_DEFINED}

_BYTE_TEXT: Final = re.compile("<0x[0-9A-F]{2}>")


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a file, in the order of their ids."""

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
    """Return the tokens that end an answer, and warnings: the file's own first, then those known by their texts."""
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
