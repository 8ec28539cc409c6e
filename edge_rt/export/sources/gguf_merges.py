"""The merges of a vocabulary: as a GGUF file lists them, or rebuilt from the scores of SentencePiece."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Final

from edge_rt.byte_size import counted
from edge_rt.export.sources.gguf_metadata import Metadata, inconsistent, strings
from edge_rt.text.tokenizer_check import MAX_VOCABULARY

Merge = tuple[str, str]

_KEY: Final = "tokenizer.ggml.merges"
# Work of cutting every token everywhere, in characters copied. A vocabulary of 262,144 tokens takes 3 * 10^7.
_MAX_WORK: Final = 1 << 31


def listed_merges(metadata: Metadata, vocabulary: Container[str]) -> tuple[list[Merge], tuple[str, ...]]:
    """Return the merges of a file, the first ones first, and warnings.

    A merge that needs a token that does not exist can never be made. It is left out: files in use have such.

    Raises:
        InvalidTokenizer: one is malformed.
    """
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

    Args:
        scores: token -> score, without tokens that text never becomes.

    Raises:
        InvalidTokenizer: the tokens are too long.
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
