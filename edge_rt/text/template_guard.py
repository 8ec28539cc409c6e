"""The engine under a chat template: Jinja's sandbox with an allow-list and a budget.

Jinja's own sandbox stops a template from reaching code, not from working without end: twenty bytes can ask for
gigabytes. So the template's syntax tree is checked against what chat templates use, and then rewritten: whatever can
grow text or data, or repeat, goes through :class:`GuardedEnvironment`, which pays for it out of a :class:`Budget`
*before* doing it. Nothing a template can write is both unbounded and unpaid.

Two ideas keep the books short. Every value that a template builds out of others is measured in *logical* size (a list
that holds one list twice counts it twice), so comparing, hashing or printing it later is bounded too. And attributes
are looked up by the type of the object, from short lists, instead of being filtered out of everything Python offers.
"""

from __future__ import annotations

import json
import operator
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import wraps
from itertools import islice
from types import BuiltinMethodType, MethodType
from typing import Any, Final, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.filters import FILTERS, make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS
from jinja2.utils import Namespace, pass_context, pass_environment

from edge_rt.errors import InvalidTemplate
from edge_rt.text import template_rules as rules

MAX_TEMPLATE_BYTES: Final = 64 * 1024
SECONDS: Final = 0.4
_STEPS: Final = 1_000_000
_TEXT_CHARS: Final = 4 * 1024 * 1024
_MEMORY_BYTES: Final = 16 * 1024 * 1024
# A template copies a message a few times (concatenates, trims, prints it); what exceeds this is no chat template.
_COPIES: Final = 16
_VALUE_NODES: Final = 100_000
_VALUE_DEPTH: Final = 64
_CALL_DEPTH: Final = 48
_TOKENS: Final = 16_000
_RANGE: Final = 100_000
_INTEGER_BITS: Final = 4096
_INDENT: Final = 64
# A small dictionary and its entry in the memo of sizes.
_CONTAINER_BYTES: Final = 512

_ARITHMETIC: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
}
_CONTAINERS: Final[tuple[type, ...]] = (list, tuple, dict, range, type({}.keys()), type({}.values()), type({}.items()))
_SPACES: Final = "".join(filter(str.isspace, map(chr, range(0x3001))))


def limit(what: str, numbers: str) -> InvalidTemplate:
    """Return the error for a template that asks for more than it gets."""
    return InvalidTemplate(f"The chat template {what}.", numbers, "Use another template, or generate without one.")


class Budget:
    """What one rendering may still use.

    Args:
        chars: characters of the messages and tools that the template works on.
        size: their bytes in memory, as :func:`text_bytes` counts them.
    """

    def __init__(self, chars: int, size: int) -> None:
        self.text_chars = _TEXT_CHARS + 2 * chars
        self.output_chars = self.text_chars
        self.memory = _MEMORY_BYTES + _COPIES * size
        self.steps = _STEPS
        self.depth = 0
        self.deadline = time.monotonic() + SECONDS

    def step(self, count: int = 1) -> None:
        """Pay for ``count`` units of work and look at the clock."""
        self.steps -= count
        if self.steps < 0:
            raise limit("takes too many steps", f"Limit {_STEPS}.")
        if time.monotonic() > self.deadline:
            raise limit("takes too long", f"Limit {SECONDS} s.")

    def pay(self, size: int) -> None:
        """Pay for ``size`` bytes of memory."""
        self.step()
        self.memory -= size
        if self.memory < 0:
            raise limit("produces too much data", f"Limit {_MEMORY_BYTES >> 20} MiB and {_COPIES} times the messages.")

    def text(self, chars: int, *sources: str) -> None:
        """Pay for a new text of ``chars`` characters made of those of ``sources``."""
        if chars > self.text_chars:
            raise limit("builds a text that is too long", f"{chars} characters of at most {self.text_chars}.")
        self.pay(64 + chars * (1 if all(map(str.isascii, sources)) else 4))

    def emit(self, text: str) -> None:
        """Pay for output."""
        self.output_chars -= len(text)
        if self.output_chars < 0:
            raise limit("writes a prompt that is too long", f"Limit {self.text_chars} characters.")


def text_bytes(text: str) -> int:
    """Return an upper bound of the bytes that a text takes in memory."""
    return 64 + len(text) * (1 if text.isascii() else 4)


class GenerationTag(Extension):
    """``{% generation %}...{% endgeneration %}`` marks the assistant's words for training; here it only groups."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it as an instance attribute

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the body in a scope of its own."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class GuardedEnvironment(ImmutableSandboxedEnvironment):
    """Compiles one template and holds the budget of its current rendering.

    Not for several renderings at once: the caller locks.

    Args:
        clock: gives the time that ``strftime_now`` prints.
    """

    # Every operator, not only those that can grow: operands decide whether they do.
    intercepted_binops = frozenset(_ARITHMETIC)

    def __init__(self, clock: Callable[[], datetime]) -> None:
        # optimized=False and a finalize that needs the context keep the compiler from evaluating constants unpaid.
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=pass_context(lambda _context, value: self._emit(value)),
            extensions=["jinja2.ext.loopcontrols", GenerationTag],
        )
        self.budget = Budget(0, 0)
        self.sentinel = ""
        self._clock = clock
        self._sizes: dict[int, tuple[object, int, int, int]] = {}
        self.globals = {
            "namespace": Namespace,
            "range": self._range,
            "dict": self._dict,
            "raise_exception": _raise_exception,
            "strftime_now": self._strftime_now,
        }
        self.tests = {name: TESTS[name] for name in rules.TESTS}
        self.filters = {name: self._guarded(name) for name in rules.BUILT_IN_FILTERS}
        self.filters |= {
            "indent": self._indent,
            "join": pass_environment(lambda _env, *args, **kwargs: self._join(*args, **kwargs)),
            "list": self._list,
            "replace": self._replace,
            "safe": self._text,
            "string": self._text,
            "sum": self._sum,
            "tojson": self._tojson,
        }
        # Names that no template can write: only the rewritten tree uses them.
        self.filters |= {
            "edge:loop": self._loop,
            "edge:value": self._value,
            "edge:concat": self._concat,
            "edge:slice": self._slice,
            "edge:operand": self._operand,
        }

    def compile_guarded(self, source: str) -> jinja2.Template:
        """Check, rewrite and compile a template.

        Raises:
            InvalidTemplate: too long, not allowed, or not valid Jinja; the numbers name the line.
        """
        size = len(source.encode("utf-8", "surrogatepass"))
        if size > MAX_TEMPLATE_BYTES:
            raise limit("is too long", f"{size} bytes of at most {MAX_TEMPLATE_BYTES}.")
        try:
            # Tokens are cheap to count, and what the parser spends grows with them.
            tokens = (kind for _, kind, _ in self.lex(source) if kind != "whitespace")
            if next(islice(tokens, _TOKENS, None), None) is not None:
                raise limit("is too complex", f"More than {_TOKENS} words and signs.")
            tree = self.parse(source)
            rules.check_tree(tree)
            return self.from_string(rules.rewrite(tree))
        except InvalidTemplate:
            raise
        except jinja2.TemplateSyntaxError as error:
            raise limit("is not valid", f"Line {error.lineno}: {str(error.message)[:200]!r}.") from error
        except Exception as error:  # the compiler's recursion and nesting limits have many types
            raise limit("cannot be compiled", f"{type(error).__name__}: {str(error)[:200]!r}.") from error

    def begin(self, budget: Budget, sentinel: str) -> None:
        """Start a rendering: nothing of the previous one is left."""
        self.budget = budget
        self.sentinel = sentinel
        self._sizes = {}

    # What Jinja's compiled code calls.

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Look up ``obj.attribute``: methods by type, then keys; anything else is undefined."""
        self.budget.step()
        if attribute.startswith("_"):
            raise limit("uses a private attribute", f"{attribute[:40]!r}.")
        if isinstance(obj, Undefined):
            return getattr(obj, attribute)
        if isinstance(obj, dict) and attribute not in rules.DICT_METHODS:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        allowed: frozenset[str] = frozenset()
        if isinstance(obj, str):
            allowed = rules.TEXT_METHODS
        elif isinstance(obj, dict):
            allowed = rules.DICT_METHODS
        elif isinstance(obj, list | tuple):
            allowed = rules.LIST_METHODS
        elif isinstance(obj, LoopContext):
            allowed = rules.LOOP_NAMES
        if attribute in allowed or isinstance(obj, Namespace):
            return getattr(obj, attribute, self.undefined(obj=obj, name=attribute))
        return self.undefined(obj=obj, name=attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Look up ``obj[argument]``: an element, else an attribute of that name."""
        self.budget.step()
        if isinstance(obj, str | list | tuple | dict | range | Undefined):
            try:
                return obj[argument]
            except (TypeError, LookupError):
                pass  # not an element: Jinja then tries the attribute
        if isinstance(argument, str):
            return self.getattr(obj, argument)
        return self.undefined(obj=obj, name=argument)

    def call(__self, __context: Context, __obj: Any, /, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call a macro, a method from the lists above, or one of the few global functions."""
        budget = __self.budget
        budget.step()
        if isinstance(__obj, BuiltinMethodType):
            kwargs = {key: value for key, value in kwargs.items() if key not in {"_loop_vars", "_block_vars"}}
            return __self._call_method(__obj, args, kwargs)
        if isinstance(__obj, LoopContext):
            args = tuple(map(__self._loop, args))
        elif not (
            isinstance(__obj, Macro | Undefined)
            or (isinstance(__obj, MethodType) and isinstance(__obj.__self__, LoopContext))
            or any(__obj == function for function in __self.globals.values())
        ):
            raise limit("calls something that is no function", f"{type(__obj).__name__!r}.")
        if budget.depth >= _CALL_DEPTH:
            raise limit("nests calls too deeply", f"Limit {_CALL_DEPTH}.")
        budget.depth += 1
        try:
            return __context.call(__obj, *args, **kwargs)
        finally:
            budget.depth -= 1

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute ``left operator right``, paying first for what can grow."""
        del context
        self.budget.step()
        if operator == "+":
            self._pay_sum(left, right)
        elif operator == "*":
            self._pay_product(left, right)
        elif operator == "%" and isinstance(left, str):
            raise limit("formats text with '%', which is not allowed", "Use '~' or 'replace'.")
        elif operator == "**" and not (_is_small(left) and _is_small(right)):
            raise limit("computes a power that is too large", f"Operands up to {2**10}.")
        result = _ARITHMETIC[operator](left, right)
        if isinstance(result, list | tuple):
            self._measure(result)
        return result

    def _emit(self, value: Any) -> str:
        text = self._text(value)
        self.budget.pay(text_bytes(text))
        self.budget.emit(text)
        return text

    # Paying.

    def _measure(self, value: Any, depth: int = 0) -> tuple[int, int, int]:
        """Return (nodes, characters, depth) of a value, each part counted as often as it appears."""
        if isinstance(value, str):
            return 1, len(value), 0
        if value is None or isinstance(value, int | float | Undefined):
            return 1, 8, 0
        if not _is_container(value):
            # Macros, loops, namespaces: what they would print or compare to is nothing a prompt needs.
            raise limit("puts into a list or prints what has no text", f"A {type(value).__name__}.")
        known = self._sizes.get(id(value))
        if known is not None:
            return known[1:]
        if depth > _VALUE_DEPTH:
            raise limit("nests lists too deeply", f"Limit {_VALUE_DEPTH}.")
        self.budget.step(1 + len(value))
        parts: Iterable[Any] = (part for pair in value.items() for part in pair) if isinstance(value, dict) else value
        count, chars, deepest = 1, 8, 0
        for part in parts:
            part_nodes, part_chars, part_depth = self._measure(part, depth + 1)
            count, chars, deepest = count + part_nodes, chars + part_chars, max(deepest, part_depth)
        # The memo holds the value itself, or its id could come back as that of another one.
        self._sizes[id(value)] = (value, count, chars, deepest + 1)
        self.budget.pay(_CONTAINER_BYTES)
        self._check_size(count, chars, deepest + 1)
        return count, chars, deepest + 1

    def _check_size(self, count: int, chars: int, depth: int = 0) -> None:
        if count > _VALUE_NODES or depth > _VALUE_DEPTH or chars > self.budget.text_chars:
            raise limit(
                "builds a value that is too large",
                f"{count} parts of {_VALUE_NODES}, {depth} levels of {_VALUE_DEPTH}, {chars} characters.",
            )

    def _pay_sum(self, left: Any, right: Any) -> None:
        if isinstance(left, str) and isinstance(right, str):
            self.budget.text(len(left) + len(right), left, right)
        elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
            self.budget.pay(64 + 8 * (len(left) + len(right)))

    def _pay_product(self, left: Any, right: Any) -> None:
        for value, times in ((left, right), (right, left)):
            if isinstance(value, str) and isinstance(times, int):
                self.budget.text(len(value) * max(times, 0), value)
            elif isinstance(value, list | tuple) and isinstance(times, int):
                count, chars, _ = self._measure(value)
                self._check_size(count * max(times, 0), chars * max(times, 0))
                self.budget.pay(64 + 8 * len(value) * max(times, 0))
        if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > _INTEGER_BITS:
            raise limit("computes a number that is too large", f"Limit {_INTEGER_BITS} bits.")

    def _touch(self, value: Any) -> None:
        """Pay for reading a value once."""
        if isinstance(value, str):
            self.budget.step(1 + (len(value) >> 12))
        elif _is_container(value):
            self.budget.step(1 + len(value))

    def _made(self, value: Any) -> Any:
        """Pay for a result that is not much larger than what it was made of."""
        if isinstance(value, str):
            self.budget.text(len(value), value)
        elif isinstance(value, list | tuple):
            self.budget.pay(64 + 8 * len(value))
        return value

    def _guarded(self, name: str) -> Callable[..., Any]:
        function = FILTERS[name]

        @wraps(function)  # copies Jinja's mark for filters that take the environment first
        def paid(*args: Any, **kwargs: Any) -> Any:
            for value in (*args, *kwargs.values()):
                self._touch(value)
                if name == "sort" and isinstance(value, str):
                    self.budget.pay(80 * len(value))
            return self._made(function(*args, **kwargs))

        return paid

    # Methods, filters and functions that can grow.

    def _call_method(self, method: BuiltinMethodType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
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
            raise limit("calls a method that is not allowed", f"{name[:40]!r}.")
        for value in (owner, *args):
            self._touch(value)
        return self._made(method(*args, **kwargs))

    def _pay_split(self, text: str, separator: Any, name: str) -> None:
        has_separator = name != "splitlines" and isinstance(separator, str) and separator
        count = text.count(separator) if has_separator else self._count_spaces(text)
        self.budget.pay(80 * (count + 1) + text_bytes(text))

    def _count_spaces(self, text: str) -> int:
        """Return how many characters may end a word or a line."""
        self._touch(text)
        return sum(map(text.count, _SPACES))

    def _text(self, value: Any) -> str:
        """Return what printing ``value`` gives; objects without a plain text are refused."""
        if isinstance(value, str):
            return value
        count, chars, _ = self._measure(value)
        if _is_container(value):
            # The longest escape of a character is \U and eight digits.
            self.budget.pay(10 * chars + 16 * count)
        return str(value)

    def _concat(self, first: Any, *rest: Any) -> str:
        parts = [self._text(value) for value in (first, *rest)]
        self.budget.text(sum(map(len, parts)), *parts)
        return "".join(parts)

    def _join(self, value: Any, d: Any = "", attribute: Any = None, *, strict: bool = False) -> str:
        separator = self._text(d)
        items: Iterable[Any] = self._loop(value)
        if attribute is not None:
            items = map(make_attrgetter(self, attribute), items)
        parts: list[str] = []
        total = 0
        for item in items:
            if strict and not isinstance(item, str):
                raise TypeError(f"join: expected text, found {type(item).__name__}")
            parts.append(self._text(item))
            total += len(parts[-1]) + len(separator)
            if total > self.budget.text_chars + len(separator):
                self.budget.text(total)
            self.budget.pay(8)
        self.budget.text(total, separator, *parts)
        return separator.join(parts)

    def _replace(self, value: Any, old: Any, new: Any, count: Any = -1) -> str:
        text, old, new = self._text(value), self._text(old), self._text(new)
        times = -1 if count is None else int(count)
        self._touch(text)
        found = text.count(old) if times < 0 else min(text.count(old), times)
        self.budget.text(len(text) + found * max(len(new) - len(old), 0), text, new)
        return text.replace(old, new, times)

    def _indent(self, value: Any, width: Any = 4, first: bool = False, blank: bool = False) -> str:
        text = self._text(value)
        self._check_indent(width)
        breaks = self._count_spaces(text)
        self.budget.text(len(text) + breaks * _INDENT, text, width if isinstance(width, str) else "")
        self.budget.pay(80 * breaks)
        result: str = FILTERS["indent"](text, width, first, blank)
        return result

    def _check_indent(self, width: Any) -> None:
        if (len(width) if isinstance(width, str) else width or 0) > _INDENT:
            raise limit("indents too far", f"Limit {_INDENT} characters.")

    def _list(self, value: Any) -> list[Any]:
        if isinstance(value, str):
            self.budget.pay(80 * len(value))
        result: list[Any] = []
        for item in self._loop(value):
            self.budget.pay(9)
            result.append(item)
        return result

    def _sum(self, iterable: Any, attribute: Any = None, start: Any = 0) -> Any:
        items: Iterable[Any] = self._loop(iterable)
        if attribute is not None:
            items = map(make_attrgetter(self, attribute), items)
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
        self._measure(value)
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
        # Escaped, the sentinel would no longer be recognised and stay in the prompt.
        escaped = json.dumps(self.sentinel)[1:-1]
        return text.replace(escaped, self.sentinel) if ensure_ascii and self.sentinel else text

    def _range(self, *args: int) -> range:
        result = range(*args)
        if len(result) > _RANGE:
            raise limit("counts too far", f"range() of {len(result)}, limit {_RANGE}.")
        return result

    def _dict(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        self._touch(args)
        result: dict[Any, Any] = self._value(dict(*args, **kwargs))
        return result

    def _strftime_now(self, form: str) -> str:
        if len(form) > 256:
            raise limit("uses a date format that is too long", f"{len(form)} characters, limit 256.")
        return self._clock().strftime(form)

    # What the rewritten tree calls.

    def _loop(self, iterable: Any) -> Iterator[Any]:
        """Iterate, paying for every round."""
        step = self.budget.step
        for item in iterable:
            step()
            yield item

    def _value(self, value: Any) -> Any:
        """Measure a list, tuple or dictionary that the template wrote down, or a macro's collected arguments."""
        self._measure(value)
        return value

    def _operand(self, value: Any) -> Any:
        """Pay for comparing a value."""
        self._touch(value)
        return value

    def _slice(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        if isinstance(value, Undefined):
            return value[start:stop:step]
        if not isinstance(value, str | list | tuple | range):
            raise TypeError(f"cannot slice a {type(value).__name__}")
        self._touch(value)
        return self._made(value[start:stop:step])


def _raise_exception(message: Any) -> NoReturn:
    """``raise_exception``: the template does not accept these messages."""
    raise InvalidTemplate(
        "The chat template refuses these messages.",
        f"It says: {str(message)[:500]!r}.",
        "Change the messages as it says, or generate without a template.",
    )


def _is_container(value: Any) -> bool:
    return isinstance(value, _CONTAINERS)


def _is_small(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) <= 2**10
