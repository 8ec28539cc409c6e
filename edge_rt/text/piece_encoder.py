"""Encodes text between added tokens: piece by piece, in bounded memory, and not into tokens that nobody may write."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, Protocol

import numpy as np
import tokenizers

from edge_rt.errors import InputError, InvalidTokenizer
from edge_rt.system.machine import return_free_memory
from edge_rt.text.tokenizer_check import FETCH_AGAIN, invalid
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
    """Places that regular expressions find."""

    def __init__(self, kinds: Sequence[int]) -> None:
        self.kinds = kinds
        self._pattern = re.compile("|".join(_SPELLED[kind][0] for kind in kinds))

    def find(self, text: str, start: int) -> int | None:
        found = self._pattern.search(text, start)
        return found.start() if found is not None else None


class _PairPlaces:
    """Places between characters that no entry of a vocabulary has next to each other.

    Args:
        taken: one bit for each value of the hash of a pair: whether an entry has such a pair.
    """

    def __init__(self, taken: bytes, *, ascii_only: bool) -> None:
        self.taken, self.ascii_only = taken, ascii_only

    @classmethod
    def of(cls, tokens: Mapping[str, object], *, ascii_only: bool) -> _PairPlaces:
        """Return the places for the entries of a vocabulary."""
        codes = np.frombuffer("\0".join(tokens).encode("utf-32-le", "surrogatepass"), "<u4").astype(np.uint64)
        hashed = codes[:-1] * np.uint64(_LEFT_FACTOR) ^ codes[1:] * np.uint64(_RIGHT_FACTOR)
        is_taken = np.zeros(1 << _PAIR_BITS, np.bool_)
        is_taken[(hashed & np.uint64(0xFFFFFFFF)) >> np.uint64(32 - _PAIR_BITS)] = True
        return cls(np.packbits(is_taken, bitorder="little").tobytes(), ascii_only=ascii_only)

    def find(self, text: str, start: int) -> int | None:
        left = text[start - 1 : start]
        for at in range(max(start, 1), len(text)):
            right = text[at]
            if (not self.ascii_only or (left < "\x80" and right < "\x80")) and not self._is_taken(left, right):
                return at
            left = right
        return None

    def _is_taken(self, left: str, right: str) -> bool:
        one, two = ord(SPACE if left == " " else left), ord(SPACE if right == " " else right)
        place = ((one * _LEFT_FACTOR ^ two * _RIGHT_FACTOR) & 0xFFFFFFFF) >> (32 - _PAIR_BITS)
        return bool(self.taken[place >> 3] >> (place & 7) & 1)


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
        return _PairPlaces.of(vocabulary, ascii_only=steps.composes)
    spelled = "\n".join(vocabulary)  # a line end itself is spelled differently
    adds_space = any(map(_adds_space, steps.pre_tokenizers))
    kinds = [
        kind
        for kind, (place, inside) in enumerate(_SPELLED)
        if (place == _BEFORE_SPACE or not adds_space) and inside.search(spelled) is None
    ]
    return _PatternPlaces(kinds) if kinds else None


def places_to_json(places: Places | None) -> dict[str, Any] | None:
    """Return what ``places_to_cut`` has returned, as JSON."""
    if isinstance(places, _PairPlaces):
        return {"taken": base64.b64encode(places.taken).decode(), "ascii_only": places.ascii_only}
    return {"kinds": list(places.kinds)} if isinstance(places, _PatternPlaces) else None


def places_from_json(document: Mapping[str, Any] | None) -> Places | None:
    """Return what ``places_to_json`` has made JSON of."""
    if document is None:
        return None
    if "kinds" in document:
        return _PatternPlaces(document["kinds"])
    return _PairPlaces(base64.b64decode(document["taken"]), ascii_only=document["ascii_only"])


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


# Tokens that a cut in the wrong place may add.
_SPLIT_TOKENS: Final = 8
_SAMPLES: Final = 16


class PieceEncoder:
    """Encodes through the library, which finds no added tokens.

    Args:
        places: where texts can be cut; None: nowhere.
    """

    def __init__(self, library: tokenizers.Tokenizer, places: Places | None) -> None:
        self._library = library
        self._places = places

    def encode(self, parts: Iterable[int | str], forbidden: frozenset[int], length: int) -> list[int]:
        """Return the ids of added tokens, and of the texts between them."""
        ids: list[int] = []
        for part in parts:
            if isinstance(part, int):
                ids.append(part)
            else:
                ids.extend(
                    token_id for piece in cut(part, self._places) for token_id in self._encode_piece(piece, forbidden)
                )
        if length > PIECE_CHARACTERS:
            # The library takes hundreds of bytes per character of its input.
            return_free_memory()
        return ids

    def encode_within(
        self, parts: Iterable[int | str], forbidden: frozenset[int], most: int, length: int
    ) -> list[int] | int:
        """Return the ids as :meth:`encode`; or, if there are more than ``most``, a lower bound of their number."""
        ids: list[int] = []
        try:
            for part in parts:
                if isinstance(part, int):
                    ids.append(part)
                for piece in () if isinstance(part, int) else cut(part, self._places):
                    least = self._least_of_stretch(piece, most - len(ids))
                    if len(ids) + least > most:
                        return len(ids) + least
                    ids.extend(self._encode_piece(piece, forbidden))
                    if len(ids) > most:
                        return len(ids)
            return ids if len(ids) <= most else len(ids)
        finally:
            if length > PIECE_CHARACTERS:
                return_free_memory()

    def estimate(self, text: str) -> int:
        """Return about how many tokens a text has, from samples of it that are spread evenly."""
        starts = list(range(0, len(text), PIECE_CHARACTERS))
        if len(starts) > _SAMPLES:
            step = (len(text) - PIECE_CHARACTERS) / (_SAMPLES - 1)
            starts = [round(number * step) for number in range(_SAMPLES)]
        samples = [text[start : start + PIECE_CHARACTERS] for start in starts]
        tokens, characters = sum(len(self._encode(sample)) for sample in samples), sum(map(len, samples))
        return round(tokens * len(text) / characters) if characters else 0

    def longest_stretch(self, text: str) -> int:
        """Return the UTF-8 bytes of the longest part of a text that has to be encoded at once."""
        return max(len(piece.encode("utf-8", "surrogatepass")) for piece in cut(text, self._places))

    def _least_of_stretch(self, stretch: str, most: int) -> int:
        """Return a lower bound of the tokens of a text without places to cut, or 0 if it may fit ``most`` tokens.

        The text is counted in parts: a cut in the wrong place adds a token or two.
        """
        least = 0
        if len(stretch) > 2 * PIECE_CHARACTERS:
            for start in range(0, len(stretch), PIECE_CHARACTERS):
                least += max(len(self._encode(stretch[start : start + PIECE_CHARACTERS])) - _SPLIT_TOKENS, 0)
                if least > most:
                    return least
        return 0

    def _encode_piece(self, text: str, forbidden: frozenset[int]) -> list[int]:
        """Encode text without added tokens, and without the ``forbidden`` ones that merges could lead to."""
        ids = self._encode(text)
        return ids if forbidden.isdisjoint(ids) else self._encode_apart(text, forbidden)

    def _encode(self, text: str) -> list[int]:
        try:
            return list(self._library.encode(text, add_special_tokens=False).ids)
        except BaseException as error:  # panics of the library are not an Exception
            reraise_unless_library(error)
            if any("\ud800" <= character <= "\udfff" for character in text):
                raise InputError(
                    "The text has a lone surrogate, which is not a character.",
                    "Code points U+D800 to U+DFFF occur in pairs in UTF-16 only.",
                    'Clean it first, for example with text.encode("utf-8", "replace").decode().',
                ) from error
            raise InvalidTokenizer(
                "The tokenizer failed on this text.", f"{len(text)} characters: {str(error)[:200]}.", FETCH_AGAIN
            ) from error

    def _encode_apart(self, text: str, forbidden: frozenset[int]) -> list[int]:
        """Encode text whose merges would build forbidden tokens: cut it inside each of them, then piece by piece."""
        encoding = self._library.encode(text, add_special_tokens=False)
        hits = [span for token_id, span in zip(encoding.ids, encoding.offsets, strict=True) if token_id in forbidden]
        if not hits:
            return list(encoding.ids)
        if len(text) < 2:
            raise invalid("A special token is a single character of ordinary text.", f"{text!r}.")
        cuts = {0, len(text)}
        for start, end in hits:
            cuts.update({start + 1} if end - start > 1 else {start, end})
        edges = sorted(cuts)
        pieces = (text[start:end] for start, end in pairwise(edges))
        return [token_id for piece in pieces for token_id in self._encode_apart(piece, forbidden)]


def reraise_unless_library(error: BaseException) -> None:
    """Raise errors again that do not come from the tokenizer library: Ctrl-C, exit, exhausted memory."""
    if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit | MemoryError):
        raise error
