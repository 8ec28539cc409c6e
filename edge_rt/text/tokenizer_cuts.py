"""Finds where a long text can be cut so that its pieces encode to the same tokens as the whole text.

A tokenizer library takes 150 to 800 bytes per character that it encodes at once, so long texts are encoded piece by
piece. A piece ends where no token can span the cut. For vocabularies over bytes two conditions have to hold for that:

* The regular expressions that split text in byte-level BPE tokenizers begin a new part there, whatever text is further
  away: a single space belongs to the word after it; text after a line end, and a symbol after a letter, begin a part.
* No entry of the vocabulary contains such a place, so no merge spans it. This is checked in the vocabulary.

Vocabularies with byte fallback are merged over whole texts, without such expressions. There the second condition is
enough, for any two characters: a text can be cut between two that are next to each other in no entry.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol

import numpy as np

from edge_rt.text.tokenizer_steps import SPACE, Steps, is_space_step

PIECE_CHARACTERS: Final = 2048
"""Characters of a piece, if it can be cut."""
NEWLINES: Final = r"[^\n]+|[\n]+"
"""The regular expression that separates lines from line ends."""

# An apostrophe may begin a contraction, which belongs to the letters before it in some expressions.
_SIGNS: Final = r"""!"#$%&()*+,\-./:;<=>?@[\\\]^_`{|}~"""
_BEFORE_SPACE: Final = r"(?<=\S)(?= \S)"
# Some expressions take slashes behind a line end into the part before it.
_LINE: Final = r"(?<=\S\n)(?=[^\s/])"
_SIGN: Final = rf"(?<=[A-Za-z])(?=[{_SIGNS}])"
# The same inside an entry of a vocabulary, where a space is spelled \u0120 and a line end \u010a.
_BLANKS: Final = "\u0120\u010a\u010d\u0109\n"
_SPELLED: Final = (
    (_BEFORE_SPACE, re.compile(f"[^{_BLANKS}]\u0120")),
    (_LINE, re.compile(f"\u010a[^{_BLANKS}]")),
    (_SIGN, re.compile(f"[A-Za-z][{_SIGNS}]")),
)
# A table of one bit for each value of a hash of two characters: 512 KiB. Pairs that share a value are not cut.
_PAIR_BITS: Final = 22
_LEFT_FACTOR: Final = 0x9E3779B1
_RIGHT_FACTOR: Final = 0x85EBCA6B


class Places(Protocol):
    """The places of texts where they can be cut."""

    def find(self, text: str, start: int) -> int | None:
        """Return the first place at or behind ``start``, or None."""


class _PatternPlaces:
    """Places that a regular expression finds."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern

    def find(self, text: str, start: int) -> int | None:
        found = self._pattern.search(text, start)
        return found.start() if found is not None else None


class _PairPlaces:
    """Places between characters that no entry of a vocabulary has next to each other.

    Args:
        ascii_only: cut between ASCII characters only, which normalisation leaves alone.
    """

    def __init__(self, tokens: Mapping[str, object], *, ascii_only: bool) -> None:
        self._ascii_only = ascii_only
        codes = np.frombuffer("\0".join(tokens).encode("utf-32-le", "surrogatepass"), "<u4").astype(np.uint64)
        hashed = codes[:-1] * np.uint64(_LEFT_FACTOR) ^ codes[1:] * np.uint64(_RIGHT_FACTOR)
        is_taken = np.zeros(1 << _PAIR_BITS, np.bool_)
        is_taken[(hashed & np.uint64(0xFFFFFFFF)) >> np.uint64(32 - _PAIR_BITS)] = True
        self._taken = np.packbits(is_taken, bitorder="little").tobytes()

    def find(self, text: str, start: int) -> int | None:
        left = text[start - 1 : start]
        for at in range(max(start, 1), len(text)):
            right = text[at]
            if (not self._ascii_only or (left < "\x80" and right < "\x80")) and not self._is_taken(left, right):
                return at
            left = right
        return None

    def _is_taken(self, left: str, right: str) -> bool:
        one, two = ord(SPACE if left == " " else left), ord(SPACE if right == " " else right)
        place = ((one * _LEFT_FACTOR ^ two * _RIGHT_FACTOR) & 0xFFFFFFFF) >> (32 - _PAIR_BITS)
        return bool(self._taken[place >> 3] >> (place & 7) & 1)


def places_to_cut(document: Mapping[str, Any], steps: Steps) -> Places | None:
    """Return where a tokenizer's texts can be cut; None: nowhere."""
    if steps.replaces:
        # What is replaced could reach across a cut.
        return None
    vocabulary = document["model"]["vocab"]
    if not steps.is_byte_level:
        if document["model"].get("ignore_merges") or not all(map(_sees_one_character, steps.pre_tokenizers)):
            return None
        if not any(map(is_space_step, steps.normalizers)) and not _has_metaspace(steps):
            return None
        return _PairPlaces(vocabulary, ascii_only=steps.composes)
    spelled = "\n".join(vocabulary)  # a line end itself is spelled differently
    adds_space = any(map(_adds_space, steps.pre_tokenizers))
    kinds = [
        place
        for place, inside in _SPELLED
        if (place == _BEFORE_SPACE or not adds_space) and inside.search(spelled) is None
    ]
    return _PatternPlaces(re.compile("|".join(kinds))) if kinds else None


def cut(text: str, places: Places | None, size: int = PIECE_CHARACTERS) -> Iterator[str]:
    """Cut a text into pieces of ``size`` characters; the last is shorter, and pieces that cannot be cut are longer."""
    start = 0
    while places is not None and len(text) - start > size:
        found = places.find(text, start + size)
        if found is None:
            break
        yield text[start:found]
        start = found
    if start < len(text) or not text:
        yield text[start:]


def _adds_space(step: Mapping[str, Any]) -> bool:
    """Return whether a pre-tokenizer puts a space before a text that has none."""
    # It does so by default.
    return step.get("type") == "ByteLevel" and bool(step.get("add_prefix_space", True))


def _has_metaspace(steps: Steps) -> bool:
    return any(step["type"] == "Metaspace" for step in steps.pre_tokenizers)


def _sees_one_character(step: Mapping[str, Any]) -> bool:
    """Return whether a pre-tokenizer cuts text by single characters, so that a cut elsewhere changes nothing."""
    if step["type"] == "Metaspace" or (step["type"] == "Digits" and step.get("individual_digits")):
        return True
    pattern = step.get("pattern")
    if step["type"] != "Split" or not isinstance(pattern, dict):
        return False
    literal = pattern.get("String")
    return pattern.get("Regex") == NEWLINES or (isinstance(literal, str) and len(literal) == 1)
