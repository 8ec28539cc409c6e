"""Options that do not exist are refused by their names, with the one that was probably meant."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

from edge_rt.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_KEYWORDS = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def known_options(*more: type, name: str | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function raise ``ConfigError`` for keyword arguments that it does not have, instead of ``TypeError``.

    Args:
        *more: the ``TypedDict`` of the function's ``**options``, if it has such.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        own = inspect.signature(function).parameters.values()
        names = {parameter.name for parameter in own if parameter.kind in _KEYWORDS and parameter.name != "self"}
        known = frozenset(names.union(*(options.__annotations__ for options in more)))
        called = name or function.__name__

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for given in kwargs:
                if given not in known:
                    raise unknown_option(called, given, known)
            return function(*args, **kwargs)

        return call

    return decorate


def known_fields(kind: type[T]) -> type[T]:
    """Let a dataclass of options raise ``ConfigError`` for fields that it does not have, instead of ``TypeError``."""
    made = known_options(name=kind.__name__)(kind.__init__)
    kind.__init__ = made  # type: ignore[method-assign]
    return kind


def unknown_option(called: str, given: str, known: Iterable[str]) -> ConfigError:
    """Return the error for an option that does not exist."""
    import difflib

    names = sorted(known)
    close = difflib.get_close_matches(given.lower(), names, n=1, cutoff=0.5)
    return ConfigError(
        f"{called} has no option {given!r:.60}.",
        f"Its options: {', '.join(names)}.",
        f"Did you mean {close[0]!r}?" if close else "Correct its name.",
    )
