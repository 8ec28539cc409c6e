"""The parts that a chat template may consist of, and the rewriting of its syntax tree so that all work is charged.

The lists hold the parts that templates of current models use. :func:`check_tree` refuses statements and names beyond
them. :func:`rewrite` puts a refusal that names the line in the place of filters, tests and methods beyond them: a
template may have them in branches that are never reached. It routes everything that repeats or grows through filters of
:class:`edge_rt.text.template_functions.PaidFunctions` whose names (``edge:loop`` and so on) no template can write, and
marks the template's literals, so that its own text can be told from that of messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from edge_rt.text.template_budget import refused

MAX_NODES: Final = 8_000

TEXT_METHODS: Final = frozenset(
    {
        *("capitalize", "lower", "title", "upper", "strip", "lstrip", "rstrip", "removeprefix", "removesuffix"),
        *("split", "rsplit", "splitlines", "partition", "rpartition", "join", "replace", "format"),
        *("count", "find", "rfind", "startswith", "endswith"),
        *("isalnum", "isalpha", "isdigit", "islower", "isspace", "isupper"),
    }
)
DICT_METHODS: Final = frozenset({"get", "items", "keys", "values"})
LIST_METHODS: Final = frozenset({"count", "index"})
LOOP_NAMES: Final = frozenset(
    {
        *("index", "index0", "revindex", "revindex0", "first", "last", "length", "previtem", "nextitem"),
        *("depth", "depth0", "cycle", "changed"),
    }
)
BUILT_IN_FILTERS: Final = frozenset(
    {
        *("abs", "float", "int", "round", "capitalize", "lower", "title", "trim", "upper", "d", "default"),
        *("count", "length", "first", "last", "max", "min", "reverse", "sort", "unique", "dictsort", "items"),
        *("map", "select", "selectattr", "reject", "rejectattr"),
    }
)
OWN_FILTERS: Final = frozenset({"format", "indent", "join", "list", "replace", "safe", "string", "sum", "tojson"})
TESTS: Final = frozenset(
    {
        *("defined", "undefined", "none", "boolean", "true", "false", "integer", "float", "number", "string"),
        *("mapping", "sequence", "iterable", "even", "odd", "divisibleby", "lower", "upper", "sameas", "in"),
        *("eq", "equalto", "==", "ne", "!=", "lt", "lessthan", "<", "le", "<=", "gt", "greaterthan", ">", "ge", ">="),
    }
)
_METHODS: Final = TEXT_METHODS | DICT_METHODS | LIST_METHODS | {"cycle", "changed"}
_NODES: Final[tuple[type[nodes.Node], ...]] = (
    nodes.Template,
    *(nodes.Output, nodes.TemplateData, nodes.For, nodes.If, nodes.Macro, nodes.CallBlock, nodes.FilterBlock),
    *(nodes.With, nodes.Assign, nodes.AssignBlock, nodes.Scope, nodes.Break, nodes.Continue),
    *(nodes.BinExpr, nodes.UnaryExpr, nodes.Name, nodes.NSRef, nodes.Const, nodes.Tuple, nodes.List, nodes.Dict),
    *(nodes.Pair, nodes.Keyword, nodes.CondExpr, nodes.Filter, nodes.Test, nodes.Call, nodes.Getitem, nodes.Getattr),
    *(nodes.Slice, nodes.Concat, nodes.Compare, nodes.Operand),
)


def check_tree(tree: nodes.Template) -> None:
    """Refuse statements, names and private attributes that are not on the lists.

    Raises:
        InvalidTemplate: a part is not allowed; the error names it and its line.
    """
    waiting: list[nodes.Node] = [tree]
    count = 0
    while waiting:
        node = waiting.pop()
        count += 1
        if count > MAX_NODES:
            raise refused("is too complex", f"More than {MAX_NODES} parts.")
        reason = _refusal(node)
        if reason:
            raise refused(f"uses {reason}, which is not allowed", f"Line {node.lineno}.")
        waiting.extend(node.iter_child_nodes())


def _refusal(node: nodes.Node) -> str | None:
    if not isinstance(node, _NODES):
        return f"'{type(node).__name__.lower()}'"
    if isinstance(node, nodes.Getattr | nodes.NSRef) and node.attr.startswith("_"):
        return f"the private attribute {node.attr[:40]!r}"
    if isinstance(node, nodes.Name) and node.name in {"self", "super"}:
        return f"the name {node.name!r}"
    return None


def literals(tree: nodes.Template) -> frozenset[str]:
    """Return the texts that a template compares with, looks up or prints as constants."""
    return frozenset(node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str))


def rewrite(tree: nodes.Template) -> nodes.Template:
    """Return the tree with everything that repeats or grows routed through the charging filters."""
    result: nodes.Template = _Rewriter().visit(tree)
    return result


class _Rewriter(NodeTransformer):
    """Routes everything that repeats or grows through the filters named ``edge:...``."""

    def visit_Output(self, node: nodes.Output) -> nodes.Node:  # noqa: N802
        """Print constants like values: text in a loop is output that has to be charged."""
        node.nodes = [
            nodes.Const(child.data, lineno=child.lineno) if isinstance(child, nodes.TemplateData) else child
            for child in node.nodes
        ]
        return self.generic_visit(node)

    def visit_Const(self, node: nodes.Const) -> nodes.Node:  # noqa: N802
        """Mark the template's own text."""
        return _through("edge:own", node) if isinstance(node.value, str) else node

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:  # noqa: N802
        """Refuse filters that are not on the lists when they are reached."""
        if node.name not in BUILT_IN_FILTERS | OWN_FILTERS:
            return _refusing(node, f"the filter {node.name[:40]!r}")
        return self._spread(node)

    def visit_Test(self, node: nodes.Test) -> nodes.Node:  # noqa: N802
        """Refuse tests that are not on the list when they are reached."""
        return self._spread(node) if node.name in TESTS else _refusing(node, f"the test {node.name[:40]!r}")

    def visit_Call(self, node: nodes.Call) -> nodes.Node:  # noqa: N802
        """Refuse methods that are not on the lists when they are reached."""
        if isinstance(node.node, nodes.Getattr) and node.node.attr not in _METHODS:
            return _refusing(node, f"the method {node.node.attr[:40]!r}")
        return self._spread(node)

    def _spread(self, node: nodes.Filter | nodes.Test | nodes.Call) -> nodes.Node:
        """Charge ``*arguments``, which are taken apart before anything is called."""
        self.generic_visit(node)
        if node.dyn_args is not None:
            node.dyn_args = _through("edge:spread", node.dyn_args)
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        """Count the rounds."""
        self.generic_visit(node)
        node.iter = _through("edge:loop", node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        """Charge ``a ~ b``."""
        self.generic_visit(node)
        return _through("edge:concat", node.nodes[0], *node.nodes[1:])

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        """Charge reading the operands of a comparison."""
        node.expr = self._operand(node.expr)
        for operand in node.ops:
            operand.expr = self._operand(operand.expr)
        return node

    def _operand(self, node: nodes.Expr) -> nodes.Expr:
        return node if isinstance(node, nodes.Const) else _through("edge:operand", self.visit(node))

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        """Charge slices, which Jinja computes without calling the environment."""
        if isinstance(node.arg, nodes.Const):
            node.node = self.visit(node.node)
            return node
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        parts = (node.arg.start, node.arg.stop, node.arg.step)
        none = nodes.Const(None, lineno=node.lineno)
        return _through("edge:slice", node.node, *(part or none for part in parts))

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        """Measure."""
        return self._measured(node, node.items)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        """Measure, unless it is a target of assignments."""
        return self.generic_visit(node) if node.ctx != "load" else self._measured(node, node.items)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        """Measure."""
        return self._measured(node, [pair.value for pair in node.items])

    def _measured(self, node: nodes.Expr, parts: Sequence[nodes.Expr]) -> nodes.Node:
        """Constants need no measuring: their number is bounded by the template's length."""
        is_constant = all(isinstance(part, nodes.Const) for part in parts)
        self.generic_visit(node)
        return node if is_constant else _through("edge:value", node)

    def visit_Name(self, node: nodes.Name) -> nodes.Node:  # noqa: N802
        """Measure the collections that a macro call creates implicitly."""
        is_collected = node.ctx == "load" and node.name in {"varargs", "kwargs"}
        return _through("edge:value", node) if is_collected else node


def _through(name: str, node: nodes.Node, *args: nodes.Node) -> nodes.Filter:
    return nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno)


def _refusing(node: nodes.Node, what: str) -> nodes.Filter:
    reason = [nodes.Const(what, lineno=node.lineno), nodes.Const(node.lineno, lineno=node.lineno)]
    return _through("edge:refuse", nodes.Const(None, lineno=node.lineno), *reason)
