"""Reads command lines without typer, which takes longer to import than most commands take to begin.

Only what has one meaning is read here: whole names of flags, one value behind each or after ``=``, plain numbers. The
rest, and everything that is wrong, is for typer, which knows all forms, finds the words for errors, and helps.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from edge_rt.cli.options.spread import REQUIRED, Argument, Flag, Parameter, Spread

_WHOLE: Final = re.compile(r"-?[0-9]{1,15}", re.ASCII)
_DECIMAL: Final = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?", re.ASCII)


class _Unusual(Exception):
    """The words are for typer."""


def read_plainly(command: Spread, words: Sequence[str]) -> dict[str, Any] | None:
    """Return the value of every parameter of a command; None if typer has to read the words."""
    try:
        return _read(command, words)
    except _Unusual:
        return None


def _read(command: Spread, words: Sequence[str]) -> dict[str, Any]:
    flags = _by_name(command)
    values: dict[str, Any] = {}
    places = [one for one in command.parameters.values() if isinstance(one.declaration, Argument)]
    rest = list(reversed(words))
    while rest:
        word = rest.pop()
        if not word.startswith("-") or word == "-":
            # One for each argument in turn; a list would take what is left.
            if not places or places[0].is_list:
                raise _Unusual
            parameter = places.pop(0)
            values[parameter.name] = _value(parameter, word)
            continue
        name, equals, text = word.partition("=") if word.startswith("--") else (word, "", "")
        if name not in flags:
            raise _Unusual
        parameter, switched = flags[name]
        if switched is None:
            if not equals and not rest:
                raise _Unusual
            value = _value(parameter, text if equals else rest.pop())
        elif equals:
            raise _Unusual
        else:
            value = switched
        values[parameter.name] = [*values.get(parameter.name, ()), value] if parameter.is_list else value
    for parameter in command.parameters.values():
        if parameter.name not in values:
            if parameter.default is REQUIRED:
                raise _Unusual
            values[parameter.name] = parameter.default
    return values


def _by_name(command: Spread) -> dict[str, tuple[Parameter, bool | None]]:
    """Return the parameter of every name of a flag, and what a switch of that name sets; None: a value follows."""
    names: dict[str, tuple[Parameter, bool | None]] = {}
    for parameter in command.parameters.values():
        if isinstance(parameter.declaration, Flag):
            is_switch = parameter.value_kind is bool
            for name in parameter.declaration.names:
                on, _, off = name.partition("/")
                names[on] = parameter, True if is_switch else None
                if off:
                    names[off] = parameter, False
    return names


def _value(parameter: Parameter, text: str) -> Any:
    kind, least = parameter.value_kind, getattr(parameter.declaration, "least", None)
    if kind is int or kind is float:
        if (_WHOLE if kind is int else _DECIMAL).fullmatch(text) is None:
            raise _Unusual
        number = kind(text)
        if least is not None and number < least:
            raise _Unusual
        return number
    # No text is an error for paths; bytes that are no UTF-8 are one for some versions of typer.
    if not text or any("\ud800" <= character <= "\udfff" for character in text):
        raise _Unusual
    return {str: str, Path: Path}[kind](text)
