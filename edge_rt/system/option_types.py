"""Values of options are refused where their type is not that of the annotation, before anything is done with them.

An annotation is read as it is written, so that a function's signature is the one place that says what it takes. What it
says of a number's range or of the items of a list is checked where they are used.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Final, get_args, get_origin

from edge_rt.errors import ConfigError

_Check = tuple[str, Callable[[Any], bool]]
"""What is wanted, in words; and whether a value is of that kind."""


def _iterates(value: Any) -> bool:
    return hasattr(value, "__iter__") and not isinstance(value, str | bytes | Mapping)


_CHECKS: Final[dict[str, _Check]] = {
    "None": ("None", lambda value: value is None),
    "bool": ("True or False", lambda value: isinstance(value, bool)),
    "int": ("a whole number", lambda value: isinstance(value, int) and not isinstance(value, bool)),
    "float": ("a number", lambda value: isinstance(value, int | float) and not isinstance(value, bool)),
    "str": ("a text", lambda value: isinstance(value, str)),
    "Path": ("a path", lambda value: isinstance(value, str | os.PathLike)),
    "Callable": ("a function", callable),
    "Mapping": ("a mapping", lambda value: isinstance(value, Mapping)),
    "Iterable": ("a list", _iterates),
}
_KINDS: Final = {type(None): "None", Callable: "Callable", Mapping: "Mapping", Iterable: "Iterable", Path: "Path"}
_WAYS: Final = {
    "a GenerationConfig": "Give GenerationConfig(max_tokens=64), or its options as arguments: max_tokens=64.",
    "a Plan": "Give what edge_rt.plan returned, or None.",
    "a list": "Give a list, even of one.",
}
"""What is wanted -> what to do."""


class OptionTypes:
    """The types of a function's options.

    Args:
        called: what the function is called in errors.
        annotations: name of an option -> its annotation as it is written, and the module in which it is; others
            take anything.
        needed: options without a default.
    """

    def __init__(self, called: str, annotations: Mapping[str, tuple[str, str]], needed: Iterable[str]) -> None:
        self._called = called
        self._annotations = annotations
        self._needed = frozenset(needed)
        self._checks: dict[str, list[_Check]] = {}

    def require(self, name: str, value: object) -> None:
        """Refuse a value of another type.

        Raises:
            ConfigError: with what is wanted.
        """
        if name not in self._annotations:
            return
        checks = self._checks.get(name)
        if checks is None:
            # Not before: a module may be read only in part when its functions are made.
            annotation, module = self._annotations[name]
            names = vars(sys.modules[module]) if module in sys.modules else {}
            checks = self._checks[name] = checks_of(annotation, names)
        if not checks or any(fits(value) for _, fits in checks):
            return
        wanted = [words for words, _ in checks]
        way = next((_WAYS[words] for words in wanted if words in _WAYS), None)
        if hasattr(value, "dtype") and any("number" in words for words in wanted):
            way = "Give a number of Python's: int(value) or float(value)."
        leave = "." if name in self._needed else ", or leave it out."
        raise ConfigError(
            f"{self._called}: the option '{name}' is of the wrong type.",
            f"Got {value!r:.60}, wanted {_listed(wanted)}.",
            way or f"Give such a value{leave}",
        )


def checks_of(annotation: str, names: Mapping[str, Any]) -> list[_Check]:
    """Return the kinds of values that an annotation allows; none if it allows some that cannot be told.

    Args:
        names: what is known where it is written; a name that only type checkers know is not there.
    """
    found: list[_Check] = []
    for part in _parts(ast.parse(annotation, mode="eval").body):
        name = part.partition("[")[0]
        if name in _CHECKS:
            found.append(_CHECKS[name])
        elif (kinds := _kinds_of(names.get(part))) is not None:
            found += kinds
        else:
            return []
    return list(dict.fromkeys(found))


def _parts(annotation: ast.expr) -> Iterator[str]:
    """Return the members of a union, which is not one within brackets."""
    if isinstance(annotation, ast.BinOp):
        yield from _parts(annotation.left)
        yield from _parts(annotation.right)
    else:
        yield ast.unparse(annotation)


def _kinds_of(value: object) -> list[_Check] | None:
    """Return the kinds of values that the value of a name allows; None: that cannot be told."""
    if isinstance(value, UnionType):
        members = [_kinds_of(member) for member in get_args(value)]
        return None if None in members else [kind for member in members for kind in member or ()]
    origin = get_origin(value) or value
    if origin in (Any, object, Sequence) or not isinstance(origin, type):
        return None
    name = _KINDS.get(origin, origin.__name__)
    if name in _CHECKS:
        return [_CHECKS[name]]
    kind = origin
    return [(f"a{'n' * (name[0] in 'AEIOU')} {name}", lambda given: isinstance(given, kind))]


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
