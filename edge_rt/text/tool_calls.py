"""Functions that an answer may call, and reading its calls; ``call_syntaxes`` says how they are written."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from edge_rt.text.call_syntaxes import PYTHON_TAG, SYNTAXES, USUAL_MARKS, CallSyntax
from edge_rt.text.xml_calls import WrittenArguments, read_arguments

MAX_CALLS: Final = 128
"""Most calls that are read from one answer."""
_MARKED: Final = tuple({one.mark: one for one in SYNTAXES if one.mark}.values())
"""One syntax for each mark."""


@dataclass(frozen=True)
class ToolCall:
    """A function that the model wants to have called.

    Attributes:
        name: the function.
        arguments: its arguments, a JSON object.
    """

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Tools:
    """The functions that an answer may call.

    Attributes:
        items: their descriptions: ``{"type": "function", "function": {"name": ...}}`` or ``{"name": ...}``.
        syntax: how the template writes calls; None: in no known way.
    """

    items: tuple[Mapping[str, Any], ...]
    syntax: CallSyntax | None = None

    @property
    def names(self) -> Mapping[str, Any] | None:
        """Their names, each with its parameters; None if one of them has none that is known."""
        return tool_names(self.items)

    @property
    def marks(self) -> tuple[str, ...]:
        """Control tokens that have to be seen in the text of an answer."""
        return USUAL_MARKS if self.syntax is None else self.syntax.marks


def function_of(tool: object) -> Mapping[str, Any] | None:
    """Return the part of a tool's description that has its name; None if it has none."""
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    return function if isinstance(function, Mapping) and isinstance(function.get("name"), str) else None


def tool_names(tools: Iterable[object] | None) -> Mapping[str, Any] | None:
    """Return the names of tools, each with its parameters; None if one has none that is known, or there are none."""
    functions = [function_of(tool) for tool in tools or ()]
    if None in functions:
        return None
    return {one["name"]: one.get("parameters") for one in functions if one is not None} or None


# --- reading ---


def parse_tool_calls(text: str, names: Container[str] | None = None) -> tuple[ToolCall, ...]:
    """Return the calls in an answer; what is malformed, or names a function that there is not, is no call.

    All syntaxes of :data:`SYNTAXES` are known. Arguments may be absent or null, or an object in a JSON text.

    Args:
        names: of the functions; None: any. In XML the parameters that a mapping has tell texts from other values.
    """
    return split_tool_calls(text, names)[1]


def split_tool_calls(
    text: str, names: Container[str] | None = None, begun: str = ""
) -> tuple[str, tuple[ToolCall, ...]]:
    """Return the text of an answer without its calls and the white space around it, and the calls.

    Without calls the text is the answer as it is. Arguments are those of ``parse_tool_calls``.

    Args:
        begun: what the answer continues; it may have begun a call, and is a part of the text that is returned.
    """
    whole = begun + text
    # An answer that is nothing but objects may have marks in their texts.
    rest, calls = _bare(whole, names)
    marked = [one for one in _MARKED if one.mark in whole]
    if not calls and marked:
        rest, calls = _marked(whole, names, min(marked, key=lambda one: whole.index(one.mark)))
    if not calls and begun:
        rest, calls = split_tool_calls(text, names)
        rest = begun + rest
    return (rest.strip(), calls) if calls else (whole, ())


def _marked(text: str, names: Container[str] | None, syntax: CallSyntax) -> tuple[str, tuple[ToolCall, ...]]:
    assert syntax.read is not None
    rest: list[str] = []
    calls: list[ToolCall] = []
    done = at = 0
    for _ in range(MAX_CALLS):
        begin = text.find(syntax.mark, at)
        if begin < 0:
            break
        body = begin + len(syntax.mark)
        # The end may occur in a text within the arguments, so these are read first.
        try:
            values, at = syntax.read(text, body)
        except (ValueError, RecursionError):
            values, at = [], body
        end = syntax.end_of(text, at)
        read = [_call(value, names) for value in values]
        whole = [call for call in read if call is not None]
        if end is None or not whole or len(whole) < len(read):
            behind = text.find(syntax.close, at) if syntax.close in syntax.call[2] else at
            at = len(text) if behind < 0 else behind + len(syntax.close)
            continue
        rest.append(text[done:begin])
        calls += whole
        done = at = end
    return "".join([*rest, text[done:]]), tuple(calls[:MAX_CALLS])


def _bare(text: str, names: Container[str] | None) -> tuple[str, tuple[ToolCall, ...]]:
    """Read an answer that is one JSON object or several with ``;`` between them, as Llama 3 writes calls."""
    before, tag, rest = text.partition(PYTHON_TAG)
    if not tag:
        before, rest = "", text
    rest = rest.strip()
    calls: list[ToolCall] = []
    decoder = json.JSONDecoder()
    while rest.startswith("{") and len(calls) < MAX_CALLS:
        try:
            value, end = decoder.raw_decode(rest)
        except (ValueError, RecursionError):
            return text, ()
        call = _call(value, names)
        if call is None:
            return text, ()
        calls.append(call)
        rest = rest[end:].lstrip().removeprefix(";").lstrip()
    # Text behind the objects means that they were part of an explanation.
    return (text, ()) if rest else (before, tuple(calls))


def _call(value: Any, names: Container[str] | None) -> ToolCall | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    if names is not None and value["name"] not in names:
        return None
    arguments: Any = next((value[key] for key in ("arguments", "parameters") if value.get(key) is not None), {})
    if isinstance(arguments, WrittenArguments):
        schema = names.get(value["name"]) if isinstance(names, Mapping) else None
        return ToolCall(value["name"], read_arguments(arguments, schema))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
        arguments = {} if arguments is None else arguments
    return ToolCall(value["name"], arguments) if isinstance(arguments, dict) else None
