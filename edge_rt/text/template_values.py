"""Filters, tests and functions of chat templates on numbers, lists and dictionaries: each is charged first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any, Final

from jinja2 import Environment
from jinja2.filters import FILTERS, ignore_case, make_attrgetter, make_multi_attrgetter
from jinja2.runtime import Undefined
from jinja2.tests import TESTS
from jinja2.utils import Namespace

from edge_rt.text import template_rules as rules, template_text as texts
from edge_rt.text.template_budget import RenderBudget, refused, text_bytes
from edge_rt.text.template_text import Text

_RANGE: Final = 100_000
_PRECISION: Final = 64  # of ``round``: powers of ten are computed as whole numbers
_NAME_CHARS: Final = 256
_CHARACTER_BYTES: Final = 80  # of a character as a text of its own
_KEY_BYTES: Final = 100  # of what sorting keeps of an element
_ENTRY_BYTES: Final = 104  # of a name and a value in a dictionary
_CHEAP_FILTERS: Final = frozenset({"count", "length", "d", "default"})  # look at no part of a value
# Filters that go through their input element by element, and how many of their arguments are names to look up.
_LOOPING_FILTERS: Final = {"map": 1, "select": 1, "reject": 1, "selectattr": 2, "rejectattr": 2, "reverse": 0}
_COMPARING_TESTS: Final = frozenset(
    {
        *("in", "eq", "equalto", "==", "ne", "!=", "lt", "lessthan", "<", "le", "<=", "gt", "greaterthan", ">"),
        *("ge", ">="),
    }
)
_NUMBER_TESTS: Final = frozenset({"even", "odd", "divisibleby"})
_CASE_TESTS: Final = frozenset({"lower", "upper"})


class PaidValues:
    """The part of the callables of templates that needs no text."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self.budget = RenderBudget(0, 0)

    def value_filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by their names in templates."""
        return {
            **{name: self._guarded(name) for name in rules.BUILT_IN_FILTERS},
            "int": self._int,
            "list": self._list,
            "max": self._extreme(max),
            "min": self._extreme(min),
            "round": self._round,
            "sort": self._sort,
            "sum": self._sum,
            "unique": self._unique,
        }

    def tests(self) -> dict[str, Callable[..., bool]]:
        """Return the tests by their names in templates."""
        return {name: self._test(name) for name in rules.TESTS}

    def loop(self, iterable: Any) -> Iterator[Any]:
        """Iterate, charging every step."""
        step = self.budget.step
        for item in texts.characters(iterable) if isinstance(iterable, Text) else iterable:
            step()
            yield item

    def attributes(self, items: Iterable[Any], attribute: Any) -> Iterable[Any]:
        """Return an attribute of every item, or the items if there is none to look up."""
        return items if attribute is None else map(make_attrgetter(self._environment, _name(attribute)), items)

    def _guarded(self, name: str) -> Callable[..., Any]:
        function = FILTERS[name]
        if name in _CHEAP_FILTERS:

            @wraps(function)
            def cheap(*args: Any, **kwargs: Any) -> Any:
                self.budget.step()
                return function(*args, **kwargs)

            return cheap
        at = int(hasattr(function, "jinja_pass_arg"))

        @wraps(function)  # copies Jinja's marker for filters that take the environment first
        def paid(*args: Any, **kwargs: Any) -> Any:
            for value in (*args, *kwargs.values()):
                self.budget.touch(value)
            if name in _LOOPING_FILTERS:
                args = self._looping(name, args, kwargs, at)
            return self.budget.made(function(*args, **kwargs))

        return paid

    def _looping(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], at: int) -> tuple[Any, ...]:
        """Return the arguments of a filter with names checked, and every element of its input charged."""
        names = (*args[at + 1 : at + 1 + _LOOPING_FILTERS[name]], kwargs.get("attribute"))
        for part in names:
            _name(part)
        given = args[at : at + 1]
        # A text is reversed as one, a list without a copy.
        if given and (isinstance(given[0], Iterator) or (isinstance(given[0], str) and name != "reverse")):
            return (*args[:at], self.loop(given[0]), *args[at + 1 :])
        return args

    def _test(self, name: str) -> Callable[..., bool]:
        function: Any = TESTS[name]

        def paid(*args: Any) -> bool:
            self.budget.step()
            if name in _COMPARING_TESTS:
                for value in args:
                    self.budget.compare(value)
            elif name in _CASE_TESTS:
                args = tuple(map(self.budget.text_of, args))
            elif name in _NUMBER_TESTS:
                # What a number does with "%" is a remainder, a text fills itself in.
                _require_numbers(name, args)
            return bool(function(*args))

        return paid

    def _int(self, value: Any, default: Any = 0, base: Any = 10) -> Any:
        self.budget.touch(value)
        return self.budget.number(FILTERS["int"](value, default, base))

    def _round(self, value: Any, precision: Any = 0, method: Any = "common") -> Any:
        self.budget.step()
        _require_numbers("round", (value, precision or 0))
        if abs(precision or 0) > _PRECISION:
            raise refused("rounds to too many digits", f"{float(precision):g}, limit {_PRECISION}.")
        return FILTERS["round"](value, precision, method)

    def _list(self, value: Any) -> list[Any]:
        if isinstance(value, str):
            self.budget.pay(_CHARACTER_BYTES * len(value))
        result: list[Any] = []
        for item in self.loop(value):
            self.budget.pay(9)
            result.append(item)
        return result

    def _sum(self, iterable: Any, attribute: Any = None, start: Any = 0) -> Any:
        total = start
        for item in self.attributes(self.loop(iterable), attribute):
            _require_numbers("sum", (item, total))
            total += item
        return total

    def _sort(self, value: Any, reverse: Any = False, case_sensitive: Any = False, attribute: Any = None) -> list[Any]:
        key = make_multi_attrgetter(self._environment, _name(attribute), self._key(case_sensitive))
        if isinstance(value, str):
            self.budget.pay(_CHARACTER_BYTES * len(value))
        result: list[Any] = self.budget.made(sorted(self.loop(value), key=key, reverse=bool(reverse)))
        return result

    def _unique(self, value: Any, case_sensitive: Any = False, attribute: Any = None) -> Iterator[Any]:
        key = make_attrgetter(self._environment, _name(attribute), self._key(case_sensitive))
        seen = set()
        for item in self.loop(value):
            found = key(item)
            if found not in seen:
                seen.add(found)
                yield item

    def _extreme(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def paid(value: Any, case_sensitive: Any = False, attribute: Any = None) -> Any:
            key = make_attrgetter(self._environment, _name(attribute), self._key(case_sensitive))
            nothing = self._environment.undefined("No aggregated item, sequence was empty.")
            return function(self.loop(value), key=key, default=nothing)

        return paid

    def _key(self, case_sensitive: Any) -> Callable[[Any], Any]:
        """Return what makes of a value the one to compare: as large a copy of it, charged first."""

        def key(value: Any) -> Any:
            self.budget.compare(value)
            self.budget.pay(_KEY_BYTES + (text_bytes(value) if isinstance(value, str) else 0))
            return value if case_sensitive else ignore_case(value)

        return key

    def _range(self, *args: int) -> range:
        result = range(*args)
        if len(result) > _RANGE:
            raise refused("counts too far", f"range() of {len(result)}, limit {_RANGE}.")
        return result

    def _dict(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        result: dict[Any, Any] = self._value(dict(*self._pairs(args), **kwargs))
        return result

    def _namespace(self, *args: Any, **kwargs: Any) -> Namespace:
        self.budget.pay(_ENTRY_BYTES * (4 + len(kwargs)))
        return Namespace(*self._pairs(args), **kwargs)

    def _pairs(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return what a dictionary is made of, charged for the copy."""
        for value in args:
            if isinstance(value, dict):
                self.budget.step(len(value))
                self.budget.pay(_ENTRY_BYTES * len(value))
        return tuple(value if isinstance(value, dict) else self._paid_pairs(value) for value in args)

    def _paid_pairs(self, pairs: Any) -> Iterator[Any]:
        for pair in self.loop(pairs):
            self.budget.pay(_ENTRY_BYTES)
            # Python takes a text apart into all of its characters before it counts them.
            if not (isinstance(pair, str | list | tuple) and len(pair) == 2):
                raise TypeError("dict: expected pairs")
            yield pair

    def _value(self, value: Any) -> Any:
        """Measure a list, tuple or dictionary literal of the template, or a macro's collected arguments."""
        self.budget.measure(value)
        return value

    def _operand(self, value: Any) -> Any:
        """Charge comparing a value."""
        self.budget.compare(value)
        return value

    def _slice(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        if isinstance(value, Undefined):
            return value[start:stop:step]
        if not isinstance(value, str | list | tuple | range):
            raise TypeError(f"cannot slice a {type(value).__name__}")
        self.budget.step(1 + (len(value) >> 12))
        if isinstance(value, str):
            self.budget.pay_ranges(value)
            return self.budget.made(texts.slice_of(value, start, stop, step))
        return self.budget.made(value[start:stop:step])


def _name(name: Any) -> Any:
    """Return the name of an attribute, filter or test, if it can be one."""
    if isinstance(name, str) and len(name) > _NAME_CHARS:
        raise refused("looks up a name that is too long", f"{len(name)} characters of at most {_NAME_CHARS}.")
    if not (name is None or isinstance(name, str | int)):
        raise TypeError(f"a name cannot be a {type(name).__name__}")
    return name


def _require_numbers(what: str, values: Iterable[Any]) -> None:
    for value in values:
        if not isinstance(value, int | float):
            raise TypeError(f"{what}: expected numbers, found {type(value).__name__}")
