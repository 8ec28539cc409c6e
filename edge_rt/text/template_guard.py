"""The engine of chat templates: Jinja's sandbox with an allow-list and a budget.

Jinja's own sandbox stops a template from reaching code, but not from running forever: twenty bytes can ask for
gigabytes. So the template's syntax tree is checked against the parts that chat templates use, and then rewritten:
everything that can grow text or data, or repeat, goes through :class:`GuardedEnvironment` or
:mod:`edge_rt.text.template_functions`, which charge a ``RenderBudget`` *before* doing it.
Nothing that a template can write is both unbounded and free of charge.

Attributes are looked up by the type of the object, from short lists, instead of being filtered out of everything Python
offers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from itertools import islice
from types import BuiltinMethodType, CodeType, MethodType
from typing import Any, Final

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, pass_context

from edge_rt.errors import InvalidTemplate
from edge_rt.system.byte_size import show_size
from edge_rt.text import template_rules as rules
from edge_rt.text.template_budget import RenderBudget, refused
from edge_rt.text.template_functions import PaidFunctions
from edge_rt.text.template_messages import RESERVED_NAMES
from edge_rt.text.template_text import Text, concat, is_own, item, own_text

MAX_TEMPLATE_BYTES: Final = 64 * 1024
_CALL_DEPTH: Final = 48
_TOKENS: Final = 16_000

_ARITHMETIC: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
}


class GenerationTag(Extension):
    """``{% generation %}...{% endgeneration %}`` marks the assistant's words for training; here it only groups."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it as an instance attribute

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the body in a scope of its own."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


@dataclass(frozen=True)
class _Compiled:
    """What a template becomes, whoever renders it: all that it calls is looked up in its environment."""

    code: CodeType
    literals: frozenset[str]
    variables: frozenset[str]
    lists: frozenset[str]


@lru_cache(maxsize=8)  # an export reads its template twice, a chat loads its model again
def _compiled(source: str) -> _Compiled:
    return GuardedEnvironment(datetime.now)._compile_checked(source)


class GuardedEnvironment(ImmutableSandboxedEnvironment):
    """Compiles one template and holds the budget of its current rendering.

    It does not support several renderings at once: the caller must lock.

    Attributes:
        literals: the texts that the compiled template compares with, looks up or prints as constants.
        variables: the further variables that it reads, such as ``enable_thinking``.
    """

    # What blocks, macros and loops print keeps the marks of the template's own text.
    concat = staticmethod(concat)
    # Every operator, because the operands decide whether it grows data.
    intercepted_binops = frozenset(_ARITHMETIC)

    def __init__(self, clock: Callable[[], datetime]) -> None:
        # optimized=False and a finalize that needs the context keep the compiler from evaluating constants without
        # charge.
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=pass_context(lambda _context, value: self.budget.printed(value)),
            extensions=["jinja2.ext.loopcontrols", GenerationTag],
        )
        self.budget: RenderBudget = RenderBudget(0, 0)
        self.literals: frozenset[str] = frozenset()
        self.variables: frozenset[str] = frozenset()
        self.lists: frozenset[str] = frozenset()
        self._functions = PaidFunctions(self, clock)
        self.globals = self._functions.globals()
        self.tests.clear()
        self.tests.update(self._functions.tests())
        self.filters = self._functions.filters()

    def compile_guarded(self, source: str) -> jinja2.Template:
        """Check, rewrite and compile a template."""
        compiled = _compiled(source)
        self.literals, self.variables, self.lists = compiled.literals, compiled.variables, compiled.lists
        return self.template_class.from_code(self, compiled.code, self.make_globals(None))

    def _compile_checked(self, source: str) -> _Compiled:
        size = len(source.encode("utf-8", "surrogatepass"))
        if size > MAX_TEMPLATE_BYTES:
            raise refused("is too long", f"{show_size(size)}, the limit is {show_size(MAX_TEMPLATE_BYTES)}.")
        try:
            # Tokens are cheap to count, and the parser's cost grows with them.
            tokens = (kind for _, kind, _ in self.lex(source) if kind != "whitespace")
            if next(islice(tokens, _TOKENS, None), None) is not None:
                raise refused("is too complex", f"More than {_TOKENS} words and signs.")
            tree = self.parse(source)
            rules.check_tree(tree)
            literals = rules.literals(tree)
            tree = rules.rewrite(tree)
            read = frozenset(find_undeclared_variables(tree)) - self.globals.keys()
            return _Compiled(self.compile(tree), literals, read - RESERVED_NAMES, read & {"tools", "documents"})
        except InvalidTemplate:
            raise
        except jinja2.TemplateSyntaxError as error:
            raise refused("is not valid", f"Line {error.lineno}: {str(error.message)[:200]!r}.") from error
        except Exception as error:  # the compiler's recursion and nesting limits have many types
            raise refused("cannot be compiled", f"{type(error).__name__}: {str(error)[:200]!r}.") from error

    def begin(self, budget: RenderBudget) -> None:
        """Start a rendering, with nothing left of the previous one."""
        self.budget = self._functions.budget = budget

    # Called by Jinja's compiled code.

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Look up ``obj.attribute``: methods by type, then keys; anything else is undefined."""
        self.budget.step()
        if attribute.startswith("_"):
            raise refused("uses a private attribute", f"{attribute[:40]!r}.")
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
        self.budget.compare(argument)
        if isinstance(obj, str | list | tuple | dict | range | Undefined):
            try:
                return item(obj, argument) if isinstance(obj, Text) else obj[argument]
            except (TypeError, LookupError):
                pass  # not an element: Jinja then tries the attribute
        if isinstance(argument, str):
            return self.getattr(obj, argument)
        # The error that it may become has the name in it.
        return self.undefined(obj=obj, name=repr(argument if isinstance(argument, int | float) else type(argument)))

    def call(__self, __context: Context, __obj: Any, /, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call a macro, a method from the lists above, or one of the few global functions."""
        budget = __self.budget
        budget.step(1 + len(args) + len(kwargs))
        if isinstance(__obj, BuiltinMethodType):
            kwargs = {key: value for key, value in kwargs.items() if key not in {"_loop_vars", "_block_vars"}}
            return __self._functions.call_method(__obj, args, kwargs)
        if isinstance(__obj, MethodType):  # of a loop: ``changed`` compares
            for value in args:
                budget.compare(value)
        if isinstance(__obj, LoopContext):
            args = tuple(map(__self._functions.loop, args))
        elif not (
            isinstance(__obj, Macro | Undefined)
            or (isinstance(__obj, MethodType) and isinstance(__obj.__self__, LoopContext))
            or any(__obj == function for function in __self.globals.values())
        ):
            raise refused("calls something that is not a function", f"{type(__obj).__name__!r}.")
        if budget.depth >= _CALL_DEPTH:
            raise refused("nests calls too deeply", f"Limit {_CALL_DEPTH}.")
        budget.depth += 1
        try:
            return __context.call(__obj, *args, **kwargs)
        finally:
            budget.depth -= 1

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute ``left operator right``; whatever can grow is charged first."""
        del context
        self.budget.step()
        for value in (left, right):
            self.budget.number(value)
        if operator == "+":
            if isinstance(left, str) and isinstance(right, str):
                return self.budget.joined((left, right))
            self.budget.pay_sum(left, right)
        elif operator == "*":
            self.budget.pay_product(left, right)
        elif operator == "%" and isinstance(left, str):
            raise refused("formats text with '%', which is not allowed", "Use '~' or 'replace'.")
        elif operator == "**" and not (_is_small(left) and _is_small(right)):
            raise refused("computes a power that is too large", f"Operands up to {2**10}.")
        elif operator not in "+*" and not all(isinstance(value, int | float | Undefined) for value in (left, right)):
            # The keys of dictionaries can be subtracted, and give a set.
            kinds = " and ".join(type(value).__name__ for value in (left, right))
            raise TypeError(f"unsupported operand type(s) for {operator}: {kinds}")
        result = self.budget.number(_ARITHMETIC[operator](left, right))
        if isinstance(result, list | tuple):
            self.budget.measure(result)
        if isinstance(result, str) and any(isinstance(value, str) and is_own(value) for value in (left, right)):
            return own_text(result)
        return result


def _is_small(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) <= 2**10
