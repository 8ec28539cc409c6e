"""A rendered chat: its text, and which of it the template wrote itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

from edge_rt.text.template_text import Ranges


@dataclass(frozen=True)
class RenderedPrompt:
    """A rendered chat.

    Two prompts whose messages begin alike have texts that begin alike (if the template only appends), so
    ``new.starts_with(old)`` shows whether only the rest has to be encoded: ``new.suffix(len(old.text))``.

    Attributes:
        text: the prompt, as it is shown to users.
        own: where the ranges of the text that the template wrote itself begin and end; everything between them comes
            from messages, tools, documents and arguments.
        special_tokens: texts of the special tokens.
        folds_system: whether the system message stands in the first user message, because the template has no place
            for it.
    """

    text: str
    own: Ranges = field(repr=False)
    special_tokens: tuple[str, ...] = field(repr=False)
    folds_system: bool = False

    @property
    def plain_text(self) -> str:
        """The older name of ``text``."""
        return self.text

    def spans(self) -> list[tuple[str, bool]]:
        """Cut the text where somebody else's begins or ends.

        Returns:
            (text, whether the template wrote it) in order; no text is empty. Tokens such as turn markers may be
            recognised in the template's text alone, and may not reach over its ends.
        """
        edges = (0, *self.own, len(self.text))
        pairs = enumerate(pairwise(edges))
        return [(self.text[start:end], number % 2 == 1) for number, (start, end) in pairs if start < end]

    def pieces(self) -> list[tuple[str, bool]]:
        """Cut the text at the template's special tokens.

        Returns:
            (text, is a special token) in order; no piece is empty.
        """
        pattern = _pattern_of(self.special_tokens)
        result: list[tuple[str, bool]] = []
        start = 0
        for begin, end in zip(self.own[::2], self.own[1::2], strict=True):
            for match in pattern.finditer(self.text, begin, end):
                result += [(self.text[start : match.start()], False), (match[0], True)]
                start = match.end()
        result.append((self.text[start:], False))
        return [piece for piece in result if piece[0]]

    def starts_with(self, other: RenderedPrompt) -> bool:
        """Return whether the prompt begins with another one: with its text, written by the same."""
        size = len(other.text)
        return self.text.startswith(other.text) and _within(self.own, 0, size) == _within(other.own, 0, size)

    def suffix(self, start: int) -> RenderedPrompt:
        """Return the prompt without its first ``start`` characters."""
        own = _within(self.own, start, len(self.text))
        return RenderedPrompt(self.text[start:], own, self.special_tokens, self.folds_system)

    def followed_by(self, text: str) -> RenderedPrompt:
        """Return the prompt with a text behind it that the template did not write, such as an answer."""
        return RenderedPrompt(self.text + text, self.own, self.special_tokens, self.folds_system)


def _within(own: Ranges, start: int, stop: int) -> Ranges:
    """Return the ranges within ``[start, stop)``, counted from there."""
    kept: list[int] = []
    for begin, end in zip(own[::2], own[1::2], strict=True):
        if max(begin, start) < min(end, stop):
            kept += (max(begin, start) - start, min(end, stop) - start)
    return tuple(kept)


@lru_cache(maxsize=8)
def _pattern_of(tokens: Sequence[str]) -> re.Pattern[str]:
    """Match special tokens, leftmost and longest first, as the tokenizer does."""
    ordered = sorted(set(tokens), key=lambda token: (-len(token), token))
    return re.compile("|".join(map(re.escape, ordered)) or r"(?!)")
