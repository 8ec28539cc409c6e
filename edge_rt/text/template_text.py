"""Texts that remember which of their characters a chat template wrote itself.

A plain ``str`` is somebody's text: of a message, a tool, a document, an argument. A :class:`Text` also has the ranges
of characters that come from the template's source. The functions here keep these ranges through everything that
templates do with texts. Where an operation is unknown, or the ranges cannot be followed, the result is a plain
``str``: then a control token of the template may be lost, but no text of a message can become one.
"""

from __future__ import annotations

import dataclasses
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, Final, Literal, Self, SupportsIndex

Ranges = tuple[int, ...]
"""Where own ranges begin and end, in turn: increasing positions."""

CASE_METHODS: Final = frozenset({"capitalize", "lower", "title", "upper"})
_STRIP_METHODS: Final = frozenset({"strip", "lstrip", "rstrip", "removeprefix", "removesuffix"})
_CUT_METHODS: Final = frozenset({"split", "rsplit", "splitlines", "partition", "rpartition"})


class Text(str):
    """A text with characters that the template wrote."""

    __slots__ = ("own",)
    own: Ranges

    def __new__(cls, text: str, own: Ranges) -> Self:  # noqa: D102 - described above
        self = super().__new__(cls, text)
        self.own = own
        return self

    # Jinja's compiled code wraps what it prints in ``str(...)``.
    def __str__(self) -> str:
        return self


def own_text(text: str) -> Text:
    """Return a text that the template wrote as a whole."""
    return Text(text, (0, len(text)) if text else ())


def ranges_of(text: str) -> Ranges:
    """Return the ranges of a text that the template wrote."""
    return text.own if isinstance(text, Text) else ()


def is_own(text: str) -> bool:
    """Return whether the template wrote the whole text; an empty text is nobody's."""
    return isinstance(text, Text) and (not text or text.own == (0, len(text)))


def concat(parts: Iterable[str]) -> str:
    """Return ``"".join(parts)``."""
    texts = list(parts)
    if len(texts) == 1:
        return texts[0]
    own: list[int] = []
    start = 0
    for part in texts:
        if isinstance(part, Text):
            if not start:
                own = list(part.own)
            for begin, end in _pairs(part.own) if start else ():
                if own and own[-1] == start + begin:
                    own[-1] = start + end
                else:
                    own += (start + begin, start + end)
        start += len(part)
    joined = "".join(texts)
    return Text(joined, tuple(own)) if own else joined


def cut(text: str, start: int, stop: int) -> str:
    """Return ``text[start:stop]`` for positions within the text."""
    return slice_of(text, start, stop, None)


def slice_of(text: str, start: int | None, stop: int | None, step: int | None) -> str:
    """Return ``text[start:stop:step]``."""
    part = str.__getitem__(text, slice(start, stop, step))
    own = ranges_of(text)
    if not own or not part:
        return part
    if own == (0, len(text)):
        return own_text(part)
    first, last, step = slice(start, stop, step).indices(len(text))
    if step != 1:
        return part
    # Only the ranges that the part touches: a text that is cut into many parts may have as many ranges.
    touched = own[bisect_right(own, first) // 2 * 2 : (bisect_right(own, last) + 1) // 2 * 2]
    kept: list[int] = []
    for begin, end in _pairs(touched):
        begin, end = max(begin, first) - first, min(end, last) - first
        if begin < end:
            kept += (begin, end)
    return Text(part, tuple(kept)) if kept else part


def item(text: str, index: SupportsIndex) -> str:
    """Return ``text[index]``."""
    character = str.__getitem__(text, index)
    at = range(len(text))[index.__index__()]
    return own_text(character) if bisect_right(ranges_of(text), at) % 2 else character


def characters(text: Text) -> Iterator[str]:
    """Yield the characters of a text, each different one as one object."""
    known: dict[str, Text] = {}
    edges = (0, *text.own, len(text))
    for number, (begin, end) in enumerate(pairwise(edges)):
        for at in range(begin, end):
            character = str.__getitem__(text, at)
            yield known.get(character) or known.setdefault(character, own_text(character)) if number % 2 else character


def replace(text: str, old: str, new: str, count: int = -1) -> str:
    """Return ``text.replace(old, new, count)``."""
    if is_own(text) and is_own(new):
        return own_text(str.replace(text, old, new, count))
    if not old or not (ranges_of(text) or ranges_of(new)):
        return str.replace(text, old, new, count)
    parts: list[str] = []
    start = 0
    while count != 0 and (at := text.find(old, start)) >= 0:
        parts += (cut(text, start, at), new)
        start = at + len(old)
        count -= 1
    if not parts:
        return text
    return concat([*parts, cut(text, start, len(text))])


def join(separator: str, parts: Iterable[str]) -> str:
    """Return ``separator.join(parts)``."""
    texts: list[str] = []
    for part in parts:
        texts += (separator, part)
    return concat(texts[1:])


def relabelled(text: str, changed: str) -> str:
    """Return a text whose case was changed, with the ranges of the text before.

    No change of case makes a text shorter. So if the length is the same, every character stands where it stood.
    """
    own = ranges_of(text)
    if is_own(text):
        return own_text(changed)
    return Text(changed, own) if own and len(changed) == len(text) else changed


def call_method(text: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a method of a text; ``join`` and ``replace`` are functions of this module."""
    result = getattr(str, name)(text, *args, **kwargs)
    if not ranges_of(text):
        return result
    if name in CASE_METHODS:
        return relabelled(text, result)
    if name in _STRIP_METHODS:
        # What is cut off at the front is what the text has more at its front than the result.
        if name in {"rstrip", "removesuffix"}:
            start = 0
        elif name == "strip":
            start = len(text) - len(str.lstrip(text, *args))
        else:
            start = len(text) - len(result)
        return cut(text, start, start + len(result))
    if name in _CUT_METHODS:
        return _located(text, name, result, args, kwargs)
    return result


def _located(text: str, name: str, parts: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the parts that a text was cut into, with their ranges: each is found behind the one before it."""
    if name == "splitlines":
        ends = list(accumulate(map(len, str.splitlines(text, True)), initial=0))
        return [cut(text, start, start + len(part)) for start, part in zip(ends, parts, strict=False)]
    found: list[str] = []
    at = 0
    gap = 0
    separator = args[0] if args else kwargs.get("sep")
    if name in {"split", "rsplit"} and isinstance(separator, str):
        gap = len(separator)
    for part in parts:
        # Without a separator, white space lies between the parts, and none of them begins with it.
        start = at if gap or name in {"partition", "rpartition"} else text.find(part, at)
        found.append(cut(text, start, start + len(part)))
        at = start + len(part) + gap
    return tuple(found) if isinstance(parts, tuple) else found


def _pairs(own: Ranges) -> Iterator[tuple[int, int]]:
    return zip(own[::2], own[1::2], strict=True)


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
        ends_in: what the answer goes on with: nothing, or thoughts or an answer that the prompt has begun.
        begun: the answer that it has begun.
    """

    text: str
    own: Ranges = field(repr=False)
    special_tokens: tuple[str, ...] = field(repr=False)
    folds_system: bool = False
    ends_in: Literal["question", "thought", "answer"] = "question"
    begun: str = ""

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
        return dataclasses.replace(self, text=self.text + text)

    def followed_by_own(self, text: str) -> RenderedPrompt:
        """Return the prompt with a text behind it that counts as the template's, such as a marker."""
        start = len(self.text)
        own = (*self.own, start, start + len(text)) if text else self.own
        return dataclasses.replace(self, text=self.text + text, own=own)


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
