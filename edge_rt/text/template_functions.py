"""Filters, methods and functions of chat templates on texts: each is charged first."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable
from datetime import datetime
from types import BuiltinMethodType
from typing import Any, Final, NoReturn

from jinja2 import Environment
from jinja2.filters import FILTERS
from jinja2.utils import pass_environment

from edge_rt.errors import InvalidTemplate
from edge_rt.text import template_rules as rules, template_text as texts
from edge_rt.text.template_budget import refused, text_bytes
from edge_rt.text.template_text import Text, is_own, own_text, ranges_of
from edge_rt.text.template_values import PaidValues

_PERCENT: Final = re.compile("(%[sd%])")
_ENTRY_BYTES: Final = 32  # of a piece of a text, or of a position in it
_INDENT: Final = 64
_STRIPPED: Final = 256  # different characters to strip: each of a text is searched among them
_DATE_CHARS: Final = 256
_SPACES: Final = "".join(filter(str.isspace, map(chr, range(0x3001))))


class TemplateRefusal(InvalidTemplate):
    """The template itself does not accept the messages."""


class PaidFunctions(PaidValues):
    """The callables of templates, charged to the budget of the current rendering."""

    def __init__(self, environment: Environment, clock: Callable[[], datetime]) -> None:
        super().__init__(environment)
        self._clock = clock
        self._literals: dict[str, Text] = {}

    def globals(self) -> dict[str, Any]:
        """Return the functions by their names in templates."""
        return {
            "namespace": self._namespace,
            "range": self._range,
            "dict": self._dict,
            "raise_exception": self._raise_exception,
            "strftime_now": self._strftime_now,
        }

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by their names in templates, and those of the rewritten tree."""
        return {
            **self.value_filters(),
            "format": self._percent_format,
            "indent": self._indent,
            "join": pass_environment(lambda _env, *args, **kwargs: self._join(*args, **kwargs)),
            "replace": self._replace,
            "safe": self._text,
            "string": self._text,
            "tojson": self._tojson,
            "trim": self._trim,
            **{name: self._case_filter(name) for name in sorted(texts.CASE_METHODS)},
            # Names that no template can write: only the rewritten tree uses them.
            "edge:own": self._own,
            "edge:refuse": _refuse,
            "edge:loop": self.loop,
            "edge:spread": self._list,
            "edge:value": self._value,
            "edge:concat": self._concat,
            "edge:slice": self._slice,
            "edge:operand": self._operand,
        }

    def call_method(self, method: BuiltinMethodType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method of a text, a list or a dictionary, if templates are allowed to."""
        owner, name = method.__self__, method.__name__
        if isinstance(owner, str) and name in rules.TEXT_METHODS:
            return self._text_method(owner, name, args, kwargs)
        if not (
            (isinstance(owner, dict) and name in rules.DICT_METHODS)
            or (isinstance(owner, list | tuple) and name in rules.LIST_METHODS)
        ):
            raise refused("calls a method that is not allowed", f"{name[:40]!r}.")
        for value in (owner, *args):
            self.budget.touch(value)
        return self.budget.made(method(*args, **kwargs))

    def _text_method(self, text: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name == "join":
            return self._join(args[0], text, strict=True)
        if name == "format":
            return self._format(text, args, kwargs)
        if name == "replace":
            return self._replace(text, *args, **kwargs)
        if name in {"split", "rsplit", "splitlines"}:
            self._pay_split(text, args[0] if args else kwargs.get("sep"), name)
        if name in {"strip", "lstrip", "rstrip"} and args and isinstance(args[0], str):
            args = (self._stripped(args[0]), *args[1:])
        if name in {"rfind", "rpartition", "rsplit"}:
            for value in (*args, *kwargs.values()):
                self.budget.search_backwards(text, value)
        self.budget.pay_ranges(text)
        for value in (text, *args):
            self.budget.touch(value)
        return self.budget.made(texts.call_method(text, name, args, kwargs))

    def _stripped(self, characters: str) -> str:
        """Return the characters to strip, each once."""
        self.budget.step(1 + len(characters))
        different = "".join(set(str.__str__(characters)))
        if len(different) > _STRIPPED:
            raise refused("strips too many characters", f"{len(different)} different ones, limit {_STRIPPED}.")
        return different

    def _pay_split(self, text: str, separator: Any, name: str) -> None:
        has_separator = name != "splitlines" and isinstance(separator, str) and separator
        count = text.count(separator) if has_separator else self._count_spaces(text)
        self.budget.pay(80 * (count + 1) + text_bytes(text))

    def _count_spaces(self, text: str) -> int:
        """Return how many characters may end a word or a line."""
        self.budget.touch(text)
        return sum(map(text.count, _SPACES))

    def _own(self, literal: str) -> Text:
        """Mark a literal of the template as its own text; every literal is marked once."""
        return self._literals.get(literal) or self._literals.setdefault(literal, own_text(literal))

    def _trim(self, value: Any, chars: str | None = None) -> Any:
        return self._text_method(self.budget.text_of(value), "strip", (chars,), {})

    def _case_filter(self, name: str) -> Callable[[Any], Any]:
        return lambda value: self._text_method(self.budget.text_of(value), name, (), {})

    def _text(self, value: Any) -> str:
        return self.budget.text_of(value)

    def _concat(self, first: Any, *rest: Any) -> str:
        parts = [self.budget.text_of(value) for value in (first, *rest)]
        return self.budget.joined(parts)

    def _join(self, value: Any, d: Any = "", attribute: Any = None, *, strict: bool = False) -> str:
        separator = self.budget.text_of(d)
        parts: list[str] = []
        total = 0
        for item in self.attributes(self.loop(value), attribute):
            if strict and not isinstance(item, str):
                raise TypeError(f"join: expected text, found {type(item).__name__}")
            parts.append(self.budget.text_of(item))
            total += len(parts[-1]) + len(separator)
            if total > self.budget.text_chars + len(separator):
                self.budget.text(total)
            self.budget.pay(8)
        self.budget.text(total, separator, *parts)
        self.budget.pay(_ENTRY_BYTES * len(ranges_of(separator)) * len(parts))
        self.budget.pay_ranges(*parts)
        return texts.join(separator, parts)

    def _replace(self, value: Any, old: Any, new: Any, count: Any = -1) -> str:
        text, old, new = self.budget.text_of(value), self.budget.text_of(old), self.budget.text_of(new)
        times = -1 if count is None else int(count)
        self.budget.touch(text)
        found = text.count(old) if times < 0 else min(text.count(old), times)
        self.budget.text(len(text) + found * max(len(new) - len(old), 0), text, new)
        self.budget.pay_ranges(text)
        if ranges_of(text) or ranges_of(new):
            # It is done piece by piece then.
            self.budget.pay(_ENTRY_BYTES * (found * (2 + len(ranges_of(new))) + len(ranges_of(text))))
            self.budget.step((found + 1) * (1 + len(ranges_of(text)) >> 4))
        return texts.replace(text, old, new, times)

    def _format(self, text: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Fill in ``{}``, ``{0}`` and ``{name}``; what reaches into values or pads them is refused."""
        own = own_text if is_own(text) else str
        parts: list[Any] = []
        count = 0
        self.budget.touch(text)
        for literal, field, spec, conversion in string.Formatter().parse(text):
            parts.append(own(literal))
            self.budget.pay(80)
            if field is None:
                continue
            if spec or conversion or not (field == "" or field.isdecimal() or field.isidentifier()):
                raise refused("formats text in a way that is not allowed", f"{field[:40]!r}; '{{}}' and names are.")
            parts.append(kwargs[field] if field.isidentifier() else args[int(field or count)])
            count += field == ""
        return self._concat("", *parts)

    def _percent_format(self, value: Any, *args: Any) -> str:
        """Fill in ``%s`` and ``%d``."""
        text = self.budget.text_of(value)
        own = own_text if is_own(text) else str
        self.budget.touch(text)
        self.budget.pay(80 * text.count("%"))
        parts: list[Any] = _PERCENT.split(text)
        if any("%" in literal for literal in parts[::2]):
            raise refused("formats text in a way that is not allowed", "'%s', '%d' and '%%' are.")
        waiting = iter(args)
        for index, part in enumerate(parts):
            if index % 2 and part != "%%":
                if (value := next(waiting, None)) is None or (part == "%d" and not isinstance(value, int)):
                    raise TypeError(f"format: nothing for {part}")
                parts[index] = value
            else:
                parts[index] = own("%" if index % 2 else part)
        if next(waiting, None) is not None:
            raise TypeError("format: too many values")
        return self._concat("", *parts)

    def _indent(self, value: Any, width: Any = 4, first: bool = False, blank: bool = False) -> str:
        text = self.budget.text_of(value)
        self._check_indent(width)
        breaks = self._count_spaces(text)
        self.budget.text(len(text) + breaks * _INDENT, text, width if isinstance(width, str) else "")
        self.budget.pay(80 * breaks)
        result: str = FILTERS["indent"](text, width, first, blank)
        return own_text(result) if is_own(text) else result

    def _check_indent(self, width: Any) -> None:
        if (len(width) if isinstance(width, str) else width or 0) > _INDENT:
            raise refused("indents too far", f"Limit {_INDENT} characters.")

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
        return "".join(parts)

    def _strftime_now(self, form: str) -> str:
        if len(form) > _DATE_CHARS:
            raise refused("uses a date format that is too long", f"{len(form)} characters, limit {_DATE_CHARS}.")
        # The C library pads numbers as the format says, to at most as much.
        self.budget.pay(_DATE_CHARS * len(form))
        return self._clock().strftime(form)

    def _raise_exception(self, message: Any) -> NoReturn:
        """``raise_exception``: the template does not accept these messages."""
        raise TemplateRefusal(
            "The chat template refuses these messages.",
            f"It says: {self.budget.text_of(message)[:500]!r}.",
            "Change the messages as it says, or generate without a template.",
        )


def _refuse(_: Any, what: str, line: int) -> NoReturn:
    raise refused(f"uses {what}, which is not allowed", f"Line {line}.")
