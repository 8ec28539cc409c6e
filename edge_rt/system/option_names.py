"""Options that do not exist are refused by their names, with the one that was probably meant; wrong values by type."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

from edge_rt.errors import ConfigError
from edge_rt.system.option_types import OptionTypes

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_KEYWORDS = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def known_options(
    *more: type, name: str | None = None, checks_types: bool = True
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function raise ``ConfigError`` for what its signature does not allow, instead of ``TypeError`` or worse.

    That is a keyword argument that it does not have, or a value of another type than the annotation's.

    Args:
        *more: the ``TypedDict`` of the function's ``**options``, if it has such.
        name: what the function is called in errors; None: its name.
        checks_types: whether values are checked; without it the function does so itself.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        own = [entry for entry in inspect.signature(function).parameters.values() if entry.kind in _KEYWORDS]
        names = [entry.name for entry in own]
        known = frozenset(names).difference({"self"}).union(*(options.__annotations__ for options in more))
        called = name or function.__name__
        annotations = {
            entry.name: (str(entry.annotation), function.__module__)
            for entry in own
            if entry.annotation is not entry.empty
        }
        for options in more:
            # Those of a TypedDict are kept as references, with the module that they are written in.
            annotations |= {
                option: (written.__forward_arg__, written.__forward_module__ or options.__module__)
                for option, written in options.__annotations__.items()
            }
        types = OptionTypes(called, annotations, [entry.name for entry in own if entry.default is entry.empty])

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for given in kwargs:
                if given not in known:
                    raise unknown_option(called, given, known)
            if checks_types:
                for place, value in zip(names, args, strict=False):
                    types.require(place, value)
                for given, value in kwargs.items():
                    types.require(given, value)
            return function(*args, **kwargs)

        return call

    return decorate


def known_fields(*, checks_types: bool = True) -> Callable[[type[T]], type[T]]:
    """Let a dataclass of options raise ``ConfigError`` as ``known_options`` does for a function."""

    def decorate(kind: type[T]) -> type[T]:
        made = known_options(name=kind.__name__, checks_types=checks_types)(kind.__init__)
        kind.__init__ = made  # type: ignore[method-assign]
        return kind

    return decorate


def unknown_option(called: str, given: str, known: Iterable[str]) -> ConfigError:
    """Return the error for an option that does not exist."""
    import difflib

    names = sorted(known)
    close = difflib.get_close_matches(given.lower(), names, n=1)
    return ConfigError(
        f"{called} has no option {given!r:.60}.",
        f"It has {len(names)} others." if close else f"Its options: {', '.join(names)}.",
        f"Did you mean {close[0]!r}?" if close else "Correct its name, or leave it out.",
    )
