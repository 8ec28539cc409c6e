"""Finds the added tokens of a tokenizer in text, and keeps text that somebody typed free of them.

Added tokens (``<|im_end|>``, ``<think>``, ...) are found before a text is cut and merged. The ``tokenizers`` library
finds all of them anywhere, or leaves out those marked special. Neither separates what a chat template wrote from what
a user typed, so they are found here, and the library is told to find none.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

# White space of Unicode; Python's own class has four control characters more.
_BLANK: Final = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_BLANKS: Final = re.compile(f"[{_BLANK}]*")
# Letters, marks, digits and connectors; joiners (U+200C, U+200D) belong to words, too.
_WORD_CATEGORIES: Final = frozenset({"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "Pc"})


@dataclass(frozen=True)
class AddedToken:
    """An added token as ``tokenizer.json`` describes it.

    Attributes:
        single_word: found only where no letter, digit or underscore is next to it.
        is_word: it is an ordinary word, which the vocabulary has as well.
    """

    token_id: int
    text: str
    special: bool
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    is_word: bool = False

    @property
    def is_text(self) -> bool:
        """Whether it is text, whoever writes it: a word, a run of white space, or one character; not special."""
        if self.is_word:
            return not self.special
        if self.special or self.single_word or self.lstrip or self.rstrip:
            return False
        return self.text.isspace() or len(self.text) == 1


def added_token(entry: Mapping[str, object]) -> AddedToken:
    """Return the added token of a checked entry of ``added_tokens``."""
    return AddedToken(
        token_id=int(str(entry["id"])),
        text=str(entry["content"]),
        special=bool(entry.get("special")),
        single_word=bool(entry.get("single_word")),
        lstrip=bool(entry.get("lstrip")),
        rstrip=bool(entry.get("rstrip")),
    )


class AddedTokens:
    """All added tokens of a tokenizer.

    Attributes:
        strips: whether one of them takes in white space around it.
    """

    def __init__(self, tokens: Iterable[AddedToken]) -> None:
        self.by_text: dict[str, AddedToken] = {token.text: token for token in tokens}
        self.strips = any(token.lstrip or token.rstrip for token in self.by_text.values())
        lengths: dict[str, set[int]] = {}
        for text in self.by_text:
            lengths.setdefault(text[0], set()).add(len(text))
        # First character -> lengths of the tokens that begin with it, the longest first.
        self._lengths = {first: sorted(sizes, reverse=True) for first, sizes in lengths.items()}
        self._first = re.compile(f"[{re.escape(''.join(lengths))}]" if lengths else r"(?!)")

    def ids(self) -> frozenset[int]:
        """Return the ids of all of them."""
        return frozenset(token.token_id for token in self.by_text.values())

    def split(self, spans: Sequence[tuple[str, bool]], free: frozenset[int]) -> Iterator[int | str]:
        """Cut text at added tokens.

        A token is found where it is leftmost, and the longest there. Spans are one text: what lies between two tokens
        is one item, whoever wrote it. White space that a token takes in may be anybody's.

        Args:
            spans: (text, whether every added token is found in it) in order.
            free: ids of the tokens that are found everywhere, also where spans meet.

        Yields:
            Ids of added tokens, and the texts between them, which are not empty.
        """
        text = "".join(part for part, _ in spans)
        limits = _Limits(spans)
        done = at = 0
        while (found := self._first.search(text, at)) is not None:
            start = found.start()
            token = self._longest_at(text, start, limits.end_of(start), free)
            if token is None:
                at = start + 1
                continue
            end = start + len(token.text)
            if token.lstrip:
                start = max(done, _blanks_before(text, done, start))
            if token.rstrip:
                blanks = _BLANKS.match(text, end)
                end = blanks.end() if blanks else end
            if start > done:
                yield text[done:start]
            yield token.token_id
            done = at = end
        if done < len(text):
            yield text[done:]

    def _longest_at(self, text: str, start: int, limit: int, free: frozenset[int]) -> AddedToken | None:
        """Return the longest token that begins at ``start`` and is free, or ends before ``limit``."""
        for length in self._lengths[text[start]]:
            token = self.by_text.get(text[start : start + length])
            if token is None or not (start + length <= limit or token.token_id in free):
                continue
            if not token.single_word or _is_single(text, start, start + length):
                return token
        return None


class _Limits:
    """Where the stretches end in which every added token is found; asked for places in ascending order."""

    def __init__(self, spans: Sequence[tuple[str, bool]]) -> None:
        self._stretches: list[tuple[int, int]] = []
        at = 0
        for text, allowed in spans:
            if allowed and self._stretches and self._stretches[-1][1] == at:
                self._stretches[-1] = (self._stretches[-1][0], at + len(text))
            elif allowed:
                self._stretches.append((at, at + len(text)))
            at += len(text)
        self._index = 0

    def end_of(self, place: int) -> int:
        """Return the end of the stretch that ``place`` is in; ``place`` itself if it is in none."""
        while self._index < len(self._stretches) and self._stretches[self._index][1] <= place:
            self._index += 1
        if self._index == len(self._stretches) or self._stretches[self._index][0] > place:
            return place
        return self._stretches[self._index][1]


def _blanks_before(text: str, least: int, end: int) -> int:
    """Return where the white space that ends at ``end`` begins, ``least`` at the earliest."""
    start = end
    while start > least and _BLANKS.fullmatch(text, start - 1, start):
        start -= 1
    return start


def _is_single(text: str, start: int, end: int) -> bool:
    return not _is_word(text[start - 1 : start]) and not _is_word(text[end : end + 1])


def _is_word(character: str) -> bool:
    return bool(character) and (character in "\u200c\u200d" or unicodedata.category(character) in _WORD_CATEGORIES)
