"""Finds regular expressions (Oniguruma) of a tokenizer that could take exponential time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_MAX_PATTERN_CHARS: Final = 4096

# A quantifier with its lazy or possessive suffix; after {n} a plus sign is a second quantifier. {} is literal text.
_QUANTIFIER: Final = re.compile(r"(?P<sign>[*+?])[?+]?|(?P<count>\{\d+(?:,\d*)?\}|\{,\d+\})\??")
_FIXED: Final = re.compile(r"\{\d+\}")
_GROUP_OPENING: Final = re.compile(r"\((?:\?(?:<[=!]|<\w+>|[a-z-]*:|[=!>~|]|[a-z-]+(?=\))))?")
_REFERENCE: Final = re.compile(r"\\(?:[1-9]|k<|g<)|\(\?\(")
_ESCAPE: Final = re.compile(r"\\[pPx]\{[^}]*\}|\\.", re.DOTALL)


@dataclass
class _Group:
    """An open group of a regular expression, and whether it can match in more than one way."""

    varies: bool = False


def lint_pattern(pattern: str) -> str | None:
    """Return the reason why a regular expression (Oniguruma) could take exponential time, or None.

    Refused are a repeated group whose inside can match in more than one way (a repetition or an alternative in it),
    back-references, calls of groups, and patterns over 4096 characters. Pre-tokenizers in use have none of these.
    """
    if len(pattern) > _MAX_PATTERN_CHARS:
        return f"more than {_MAX_PATTERN_CHARS} characters"
    groups = [_Group()]
    last: _Group | None = None  # the group that has just ended, which a quantifier would repeat
    at = 0
    while at < len(pattern):
        if pattern[at] == ")" and len(groups) > 1:
            last = groups.pop()
            groups[-1].varies |= last.varies
            at += 1
            continue
        quantifier = _QUANTIFIER.match(pattern, at)
        if quantifier:
            repetition = quantifier["sign"] or quantifier["count"]
            if _repeats(repetition) and last is not None and last.varies:
                return "a repetition inside a repeated group"
            if _QUANTIFIER.match(pattern, quantifier.end()):
                return "a repeated repetition"
            groups[-1].varies |= not _FIXED.fullmatch(repetition)
            at = quantifier.end()
            continue
        last = None
        if _REFERENCE.match(pattern, at):
            return "a reference to another group"
        opening = _GROUP_OPENING.match(pattern, at)
        if opening:
            groups.append(_Group())
        elif pattern[at] == "|":
            groups[-1].varies = True
        at = opening.end() if opening else _atom_end(pattern, at)
    return None


def _repeats(quantifier: str) -> bool:
    """Return whether a quantifier can match its atom more than once."""
    return quantifier in "*+" or (quantifier != "?" and not quantifier.endswith(("{1}", "{0,1}", "{,1}")))


def _atom_end(pattern: str, at: int) -> int:
    """Return where the escape, character class or character at ``at`` ends."""
    escape = _ESCAPE.match(pattern, at)
    if escape:
        return escape.end()
    if pattern[at] != "[":
        return at + 1
    depth = 0
    start = at
    while at < len(pattern):
        escape = _ESCAPE.match(pattern, at)
        if escape:
            at = escape.end()
            continue
        # A bracket that is first in its class is a literal character.
        is_first = pattern[at - 1] == "[" or pattern[at - 2 : at] == "[^"
        depth += (pattern[at] == "[") - (pattern[at] == "]" and not (is_first and at > start))
        at += 1
        if depth == 0:
            return at
    return at
