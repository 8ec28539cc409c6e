"""Functions, filters and methods of chat templates that can grow text or data, or repeat: each is charged first."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import wraps
from types import BuiltinMethodType
from typing import Any, Final, NoReturn

from jinja2 import Environment
from jinja2.filters import FILTERS, make_attrgetter
from jinja2.runtime import Undefined
from jinja2.utils import Namespace, pass_environment

from edge_rt.errors import InvalidTemplate
from edge_rt.text import template_rules as rules
from edge_rt.text.template_budget import Budget, refused, text_bytes

_RANGE: Final = 100_000
_INDENT: Final = 64
_SPACES: Final = "".join(filter(str.isspace, map(chr, range(0x3001))))


class PaidFunctions:
    """The callables of templates, charged to the budget of the current rendering.

    Args:
        environment: looks up the attributes that filters are given by name.
        clock: gives the time that ``strftime_now`` prints.

    Attributes:
        budget: the rest of the rendering's budget.
        sentinel: the character that marks text of messages; empty between renderings.
    """

    def __init__(self, environment: Environment, clock: Callable[[], datetime]) -> None:
        self._environment = environment
        self._clock = clock
        self.budget = Budget(0, 0)
        self.sentinel = ""

    def globals(self) -> dict[str, Any]:
        """Return the functions by their names in templates."""
        return {
            "namespace": Namespace,
            "range": self._range,
            "dict": self._dict,
            "raise_exception": _raise_exception,
            "strftime_now": self._strftime_now,
        }

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by their names in templates, and those of the rewritten tree."""
        return {
            **{name: self._guarded(name) for name in rules.BUILT_IN_FILTERS},
            "indent": self._indent,
            "join": pass_environment(lambda _env, *args, **kwargs: self._join(*args, **kwargs)),
            "list": self._list,
            "replace": self._replace,
            "safe": self._text,
            "string": self._text,
            "sum": self._sum,
            "tojson": self._tojson,
            # Names that no template can write: only the rewritten tree uses them.
            "edge:loop": self.loop,
            "edge:value": self._value,
            "edge:concat": self._concat,
            "edge:slice": self._slice,
            "edge:operand": self._operand,
        }

    def call_method(self, method: BuiltinMethodType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method of a text, a list or a dictionary, if templates are allowed to.

        Raises:
            InvalidTemplate: the method is not allowed, or costs more than is left.
        """
        owner, name = method.__self__, method.__name__
        if isinstance(owner, str) and name in rules.TEXT_METHODS:
            if name == "join":
                return self._join(args[0], owner, strict=True)
            if name == "replace":
                return self._replace(owner, *args, **kwargs)
            if name in {"split", "rsplit", "splitlines"}:
                self._pay_split(owner, args[0] if args else kwargs.get("sep"), name)
        elif not (
            (isinstance(owner, dict) and name in rules.DICT_METHODS)
            or (isinstance(owner, list | tuple) and name in rules.LIST_METHODS)
        ):
            raise refused("calls a method that is not allowed", f"{name[:40]!r}.")
        for value in (owner, *args):
            self.budget.touch(value)
        return self.budget.made(method(*args, **kwargs))

    def _pay_split(self, text: str, separator: Any, name: str) -> None:
        has_separator = name != "splitlines" and isinstance(separator, str) and separator
        count = text.count(separator) if has_separator else self._count_spaces(text)
        self.budget.pay(80 * (count + 1) + text_bytes(text))

    def _count_spaces(self, text: str) -> int:
        """Return how many characters may end a word or a line."""
        self.budget.touch(text)
        return sum(map(text.count, _SPACES))

    def _guarded(self, name: str) -> Callable[..., Any]:
        function = FILTERS[name]

        @wraps(function)  # copies Jinja's marker for filters that take the environment first
        def paid(*args: Any, **kwargs: Any) -> Any:
            for value in (*args, *kwargs.values()):
                self.budget.touch(value)
                if name == "sort" and isinstance(value, str):
                    self.budget.pay(80 * len(value))
            return self.budget.made(function(*args, **kwargs))

        return paid

    def _text(self, value: Any) -> str:
        return self.budget.text_of(value)

    def _concat(self, first: Any, *rest: Any) -> str:
        parts = [self.budget.text_of(value) for value in (first, *rest)]
        self.budget.text(sum(map(len, parts)), *parts)
        return "".join(parts)

    def _join(self, value: Any, d: Any = "", attribute: Any = None, *, strict: bool = False) -> str:
        separator = self.budget.text_of(d)
        items: Iterable[Any] = self.loop(value)
        if attribute is not None:
            items = map(make_attrgetter(self._environment, attribute), items)
        parts: list[str] = []
        total = 0
        for item in items:
            if strict and not isinstance(item, str):
                raise TypeError(f"join: expected text, found {type(item).__name__}")
            parts.append(self.budget.text_of(item))
            total += len(parts[-1]) + len(separator)
            if total > self.budget.text_chars + len(separator):
                self.budget.text(total)
            self.budget.pay(8)
        self.budget.text(total, separator, *parts)
        return separator.join(parts)

    def _replace(self, value: Any, old: Any, new: Any, count: Any = -1) -> str:
        text, old, new = self.budget.text_of(value), self.budget.text_of(old), self.budget.text_of(new)
        times = -1 if count is None else int(count)
        self.budget.touch(text)
        found = text.count(old) if times < 0 else min(text.count(old), times)
        self.budget.text(len(text) + found * max(len(new) - len(old), 0), text, new)
        return text.replace(old, new, times)

    def _indent(self, value: Any, width: Any = 4, first: bool = False, blank: bool = False) -> str:
        text = self.budget.text_of(value)
        self._check_indent(width)
        breaks = self._count_spaces(text)
        self.budget.text(len(text) + breaks * _INDENT, text, width if isinstance(width, str) else "")
        self.budget.pay(80 * breaks)
        result: str = FILTERS["indent"](text, width, first, blank)
        return result

    def _check_indent(self, width: Any) -> None:
        if (len(width) if isinstance(width, str) else width or 0) > _INDENT:
            raise refused("indents too far", f"Limit {_INDENT} characters.")

    def _list(self, value: Any) -> list[Any]:
        if isinstance(value, str):
            self.budget.pay(80 * len(value))
        result: list[Any] = []
        for item in self.loop(value):
            self.budget.pay(9)
            result.append(item)
        return result

    def _sum(self, iterable: Any, attribute: Any = None, start: Any = 0) -> Any:
        items: Iterable[Any] = self.loop(iterable)
        if attribute is not None:
            items = map(make_attrgetter(self._environment, attribute), items)
        total = start
        for item in items:
            if not (isinstance(item, int | float) and isinstance(total, int | float)):
                raise TypeError("sum: expected numbers")
            total += item
        return total

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: Any = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        self.budget.measure(value)
        self._check_indent(indent)
        encoder = json.JSONEncoder(
            ensure_ascii=bool(ensure_ascii), indent=indent, separators=separators, sort_keys=bool(sort_keys)
        )
        parts: list[str] = []
        total = 0
        for part in encoder.iterencode(value):
            total += len(part)
            self.budget.text(total if total > self.budget.text_chars else len(part), part)
            parts.append(part)
        text = "".join(parts)
        # If it were escaped, the sentinel would not be recognised, and would stay in the prompt.
        escaped = json.dumps(self.sentinel)[1:-1]
        return text.replace(escaped, self.sentinel) if ensure_ascii and self.sentinel else text

    def _range(self, *args: int) -> range:
        result = range(*args)
        if len(result) > _RANGE:
            raise refused("counts too far", f"range() of {len(result)}, limit {_RANGE}.")
        return result

    def _dict(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        self.budget.touch(args)
        result: dict[Any, Any] = self._value(dict(*args, **kwargs))
        return result

    def _strftime_now(self, form: str) -> str:
        if len(form) > 256:
            raise refused("uses a date format that is too long", f"{len(form)} characters, limit 256.")
        return self._clock().strftime(form)

    def loop(self, iterable: Any) -> Iterator[Any]:
        """Iterate, charging every step."""
        step = self.budget.step
        for item in iterable:
            step()
            yield item

    def _value(self, value: Any) -> Any:
        """Measure a list, tuple or dictionary literal of the template, or a macro's collected arguments."""
        self.budget.measure(value)
        return value

    def _operand(self, value: Any) -> Any:
        """Charge comparing a value."""
        self.budget.touch(value)
        return value

    def _slice(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        if isinstance(value, Undefined):
            return value[start:stop:step]
        if not isinstance(value, str | list | tuple | range):
            raise TypeError(f"cannot slice a {type(value).__name__}")
        self.budget.touch(value)
        return self.budget.made(value[start:stop:step])


def _raise_exception(message: Any) -> NoReturn:
    """``raise_exception``: the template does not accept these messages."""
    raise InvalidTemplate(
        "The chat template refuses these messages.",
        f"It says: {str(message)[:500]!r}.",
        "Change the messages as it says, or generate without a template.",
    )
