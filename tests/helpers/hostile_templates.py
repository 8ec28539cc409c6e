"""Chat templates made at random that ask for much work in few bytes; a seed gives the same ones again.

Most of them use the parts that templates are allowed, with arguments that choose how much is done: sizes, precisions,
texts to search for, attributes, and what a filter or test is given by ``map`` and ``select``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from jinja2.filters import FILTERS

from edge_rt.text import template_rules as rules

_SIZES = {
    True: ("100000", "1000000000", "-1000000000", "10 ** 18", "1e308", "-1000000", "0.5"),
    False: ("0", "1", "-1", "7", "64", "1000", "0.5"),
}
_COUNTS = {True: ("1000", "3000", "4000"), False: ("1", "3", "100")}
_FORMATS = ("%1000000000d", "%*d", "%s", "%d", "{:>1000000000}", "{0:1000000000}", "{}", "{0.__class__}")
_DATES = ("%1000000000d", "%c", "%999d")
_ROUNDS = "{% for i in range(100000) %}"
# A filter -> the kind of its input and kinds of its arguments: see _Maker.
_FILTERS = {
    **dict.fromkeys(("sort", "unique", "min", "max"), "lba"),
    **dict.fromkeys(("upper", "title", "capitalize", "lower"), "t"),
    **dict.fromkeys(("list", "length", "first", "last", "reverse", "string", "count", "safe"), "x"),
    "round": "nnm",
    "int": "tnn",
    "float": "tn",
    "abs": "n",
    "sum": "lan",
    "join": "lta",
    "format": "txx",
    "replace": "tttn",
    "trim": "tt",
    "indent": "tnbb",
    "tojson": "xbnlb",
    "default": "xxb",
    "dictsort": "dbmb",
    "items": "d",
    "map": "lf",
    "select": "lq",
    "reject": "lq",
    "selectattr": "laq",
    "rejectattr": "laq",
}
_TESTS = {
    **dict.fromkeys(sorted(rules.TESTS), "xx"),
    **dict.fromkeys(("even", "odd", "lower", "upper", "sequence", "iterable", "string", "mapping", "integer"), "t"),
    "divisibleby": "tn",
    "in": "xl",
}
_METHODS = {
    **dict.fromkeys(("strip", "lstrip", "rstrip", "removeprefix", "count", "find", "rfind", "partition"), "t"),
    **dict.fromkeys(("rpartition", "startswith", "endswith", "removesuffix"), "t"),
    **dict.fromkeys(("title", "upper", "lower", "isalnum", "capitalize", "isspace"), ""),
    "split": "tn",
    "rsplit": "tn",
    "splitlines": "b",
    "replace": "ttn",
    "join": "l",
    "format": "xx",
}
_REFUSED_METHODS = {"encode": "t", "zfill": "n", "expandtabs": "n", "center": "nt", "ljust": "nt", "translate": "d"}


class _Maker:
    """Makes expressions of a kind: a(ttribute), b(oolean), d(ictionary), l(ist), n(umber), t(ext), x for any."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.is_large = False

    def count(self) -> str:
        return self._rng.choice(_COUNTS[self.is_large])

    def size(self) -> str:
        return self._rng.choice(_SIZES[self.is_large])

    def one_of(self, *makers: Callable[[], str]) -> str:
        return self._rng.choice(makers)()

    def arguments(self, kinds: str) -> list[str]:
        return [self.of_kind(kind) for kind in kinds[: self._rng.randint(min(1, len(kinds)), len(kinds))]]

    def of_kind(self, kind: str) -> str:
        return {
            "t": self.text,
            "n": self.number,
            "l": self.values,
            "d": self.dictionary,
            "a": self.attribute,
            "x": self.any,
            "b": lambda: self._rng.choice(("true", "false")),
            "m": lambda: self._rng.choice(("'common'", "'ceil'", "'floor'", "'value'")),
            "f": self.filter_arguments,
            "q": self.test_arguments,
        }[kind]()

    def any(self) -> str:
        return self.one_of(self.text, self.number, self.values, self.dictionary)

    def number(self) -> str:
        if self._rng.random() < 0.8:
            return f"({self.size()})"
        size = self._rng.choice(("3 ** 1000", "0x" + "f" * 1000, "2 ** 1000 * 2 ** 1000", "1e308 * 10"))
        return f"({size} {self._rng.choice('+-*')} {self.size()})"

    def text(self) -> str:
        piece = self._rng.choice("ab\u00e9\u4e2d\U0001f600 \n.,") * self._rng.choice(
            (1, 1000) if self.is_large else (1, 2)
        )
        return self.one_of(
            lambda: f"({piece!r} * {self.count()})",
            lambda: f"('ab' ~ {piece!r} * {self.count()})",
            lambda: f"(({self.small()} ~ {piece!r}) * {self.count()})",
            lambda: f"(range({self.count()}) | join({piece!r}))",
            lambda: f"(([messages[0].content] * {self.count()}) | join({piece[:5]!r}))",
            lambda: repr(self._rng.choice(_FORMATS)),
            self.small,
        )

    def small(self) -> str:
        return self._rng.choice(("'x'", "messages[0].content", "'1e9'", "''", "'9' * 1000", "i"))

    def values(self) -> str:
        return self.one_of(
            lambda: f"range({self._rng.choice(('7', '1000', '100000', '-100000', '1000000000'))})",
            lambda: f"([{self.one_of(self.text, self.number)}] * {self.count()})",
            lambda: f"(([none] * 40000) | map('default', {self.text()}, true))",
            lambda: f"(([none] * 40000) | map('default', {self.text()}, true) | list)",
            lambda: f"[[{self.small()}] * 300] * 300",
            lambda: f"{self.text()}.split({self.text()})",
            lambda: "range(0, (2 ** 61 - 1) * 100000, 2 ** 61 - 1)",
        )

    def dictionary(self) -> str:
        return self.one_of(
            lambda: "{'a': " + self.any() + ", 'b': [" + self.text() + "]}",
            lambda: "dict(range(10, 100) | map('string'))",
            lambda: "namespace(a=" + self.any() + ")",
        )

    def attribute(self) -> str:
        return self._rng.choice(("'a'", "0", "'a.b.0'", "'a,' * 100000", "('a.' * 500) * 4000", "none", "'__class__'"))

    def filtered(self) -> str:
        """Return a filter of something, in one case of ten a filter that is not allowed."""
        if self._rng.random() < 0.1:
            name, kinds = self._rng.choice(sorted(FILTERS.keys() - _FILTERS.keys())), "xxx"
        else:
            name, kinds = self._rng.choice(list(_FILTERS.items()))
        return f"({self.of_kind(kinds[0])} | {name}({', '.join(self.arguments(kinds[1:]))}))"

    def filter_arguments(self) -> str:
        """Return what ``map`` is given."""
        if self._rng.random() < 0.2:
            return "attribute=" + self.attribute()
        name, kinds = self._rng.choice(list(_FILTERS.items()))
        return ", ".join([repr(name), *self.arguments(kinds[1:])])

    def test_arguments(self) -> str:
        """Return what ``select`` is given."""
        name, kinds = self._rng.choice(list(_TESTS.items()))
        return ", ".join([repr(name), *map(self.of_kind, kinds[1:])])

    def tested(self) -> str:
        name, kinds = self._rng.choice(list(_TESTS.items()))
        given = ", ".join(map(self.of_kind, kinds[1:]))
        return f"({self.of_kind(kinds[0])} is {name}({given}))" if given else f"({self.of_kind(kinds[0])} is {name})"

    def method(self) -> str:
        methods = _REFUSED_METHODS if self._rng.random() < 0.1 else _METHODS
        name, kinds = self._rng.choice(list(methods.items()))
        return f"{self.text()}.{name}({', '.join(self.arguments(kinds))})"

    def operation(self) -> str:
        kinds = self._rng.choice(("nn", "tt", "ll", "tn", "ln", "nt", "tl", "dl", "xx"))
        sign = self._rng.choice(("+", "-", "*", "*", "//", "%", "**", "~", "==", "<", "in"))
        return f"({self.of_kind(kinds[0])} {sign} {self.of_kind(kinds[1])})"

    def call(self) -> str:
        return self.one_of(
            lambda: f"range({self.number()}, {self.number()})",
            lambda: f"dict({self.values()})",
            lambda: f"namespace({self.dictionary()})",
            lambda: f"raise_exception({self.any()})",
            lambda: f"strftime_now({self._rng.choice(_DATES)!r} * {self.count()})",
            lambda: f"{self.any()}[{self.any()}].x",
            lambda: f"{self.values()}[{self.number()}:{self.number()}:{self.number()}]",
        )


def hostile_templates(seed: int, number: int) -> Iterator[tuple[str, str]]:
    """Yield the kind and the source of templates; a third of them are about filters and their arguments."""
    rng = random.Random(seed)
    maker = _Maker(rng)
    makers = {
        "filter": maker.filtered,
        "test": maker.tested,
        "method": maker.method,
        "operator": maker.operation,
        "function": maker.call,
        "filters": lambda: f"({maker.filtered()} | {_chain(rng)} | {_chain(rng)})",
    }
    for index in range(number):
        kind = "filter" if index % 3 == 0 else rng.choice(list(makers))
        maker.is_large = rng.random() < 0.7
        yield kind, _placed(rng, makers[kind](), maker.is_large)


def _chain(rng: random.Random) -> str:
    return rng.choice(
        ("list", "string", "sort", "unique", "reverse", "tojson", "join", "max", "map('string')", "select")
    )


def _placed(rng: random.Random, expression: str, is_large: bool) -> str:
    """Put an expression where it is computed: once, if it asks for much, else often or growing."""
    start = "{% set i = 3 %}{% set n = namespace(a='x', l=[1], u=none) %}"
    if is_large and rng.random() < 0.7:
        once = ("{{ " + expression + " }}", "{% set x = " + expression + " %}{{ x | length }}")
        return start + rng.choice((*once, "{% for c in " + expression + " %}{{ loop.length }}{% endfor %}"))
    return start + rng.choice(
        (
            _ROUNDS + "{% set x = " + expression + " %}{% endfor %}",
            "{% set x = " + expression + " %}" + _ROUNDS + "{% if x == (x | string) %}{% endif %}{% endfor %}",
            _ROUNDS + "{% set n.a = n.a ~ " + expression + " %}{% endfor %}",
            _ROUNDS + "{% set n.l = n.l + [" + expression + "] %}{% endfor %}",
            _ROUNDS + "{% set n.u = namespace(p=n.u, x=" + expression + ") %}{% endfor %}",
            "{% for c in " + expression + " %}{% for d in c %}{{ d }}{% endfor %}{% endfor %}",
            "{% macro m(k) %}{{ m(k - 1) ~ m(k - 1) if k else " + expression + " }}{% endmacro %}{{ m(30) }}",
            "{% for x in [1] recursive %}{{ " + expression + " }}{{ loop([1, 1]) }}{% endfor %}",
        )
    )
