"""Calls in Gemma's notation, ``call:name{city:<|"|>Paris<|"|>,days:3}``; :mod:`gemma_arguments` has their grammars.

Arguments are JSON with texts in quotes of its own, and keys without any.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from edge_rt.text.python_calls import MAX_DEPTH, skip_blanks, skip_comma

_DECODER: Final = json.JSONDecoder()
_CALL: Final = re.compile(r"\s*call:([^\s{}]+)\s*")
_KEY: Final = re.compile(r"\s*([^\s:{}\[\],\"<]+)\s*:")
_QUOTES: Final = ('<|"|>', "<escape>")


def read_call(text: str, at: int) -> tuple[list[Any], int]:
    """Read ``call:name{key:value,...}``.

    Returns:
        An object with ``name`` and ``arguments``, in a list, and where the text behind it begins.

    Raises:
        ValueError: there is no whole call.
    """
    named = _CALL.match(text, at)
    if named is None:
        raise ValueError("no name")
    arguments, at = _read_value(text, named.end(), 0)
    return [{"name": named[1], "arguments": arguments}], at


def _read_value(text: str, at: int, depth: int) -> tuple[Any, int]:
    """Read a value in Gemma's notation: JSON with texts in quotes of its own, and keys without any."""
    at = skip_blanks(text, at)
    if depth > MAX_DEPTH:
        raise ValueError("nested too deeply")
    for quote in _QUOTES:
        if text.startswith(quote, at):
            end = text.index(quote, at + len(quote))
            return text[at + len(quote) : end], end + len(quote)
    if text.startswith("{", at):
        entries: dict[str, Any] = {}
        at = skip_blanks(text, at + 1)
        while not text.startswith("}", at):
            key, at = _read_key(text, at, depth)
            entries[key], at = _read_value(text, at, depth + 1)
            at = skip_comma(text, at, "}")
        return entries, at + 1
    if text.startswith("[", at):
        items: list[Any] = []
        at = skip_blanks(text, at + 1)
        while not text.startswith("]", at):
            item, at = _read_value(text, at, depth + 1)
            items.append(item)
            at = skip_comma(text, at, "]")
        return items, at + 1
    return _DECODER.raw_decode(text, at)


def _read_key(text: str, at: int, depth: int) -> tuple[str, int]:
    plain = _KEY.match(text, at)
    if plain is not None:
        return plain[1], plain.end()
    key, at = _read_value(text, at, depth + 1)
    at = skip_blanks(text, at)
    if not isinstance(key, str) or not text.startswith(":", at):
        raise ValueError("no key")
    return key, at + 1
