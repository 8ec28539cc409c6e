"""The tool calls in an answer, as models write them."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

_MAX_CALLS: Final = 128
_BEGIN: Final = "<tool_call>"
_END: Final = "</tool_call>"
_PYTHON_TAG: Final = "<|python_tag|>"


@dataclass(frozen=True)
class ToolCall:
    """A function that the model wants to have called.

    Attributes:
        name: the function.
        arguments: its arguments, a JSON object.
    """

    name: str
    arguments: dict[str, Any]


def tool_names(tools: Iterable[object] | None) -> frozenset[str] | None:
    """Return the names of tools; None if one of them has none that is known, or there are no tools.

    Args:
        tools: descriptions of functions: ``{"type": "function", "function": {"name": ...}}`` or ``{"name": ...}``.
    """
    names: set[str] = set()
    for tool in tools or ():
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str):
            return None
        names.add(name)
    return frozenset(names) or None


def parse_tool_calls(text: str, names: Container[str] | None = None) -> tuple[ToolCall, ...]:
    """Return the calls in an answer; what is malformed, or names a function that there is not, is no call.

    Two forms are known: that of Qwen, ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, and that of
    Llama 3, an answer that is one JSON object or several with ``;`` between them, with ``"parameters"`` instead of
    ``"arguments"``, and ``<|python_tag|>`` in front of them or not. Arguments may be absent or null.

    Args:
        text: the answer.
        names: of the functions; None: any.
    """
    return split_tool_calls(text, names)[1]


def split_tool_calls(text: str, names: Container[str] | None = None) -> tuple[str, tuple[ToolCall, ...]]:
    """Return the text of an answer without its calls and the white space around it, and the calls.

    Without calls the text is the answer as it is. Arguments are those of ``parse_tool_calls``.
    """
    rest, calls = _tagged(text, names) if _BEGIN in text else _bare(text, names)
    return (rest.strip(), calls) if calls else (text, ())


def _tagged(text: str, names: Container[str] | None) -> tuple[str, tuple[ToolCall, ...]]:
    rest: list[str] = []
    calls: list[ToolCall] = []
    decoder = json.JSONDecoder()
    done = at = 0
    for _ in range(_MAX_CALLS):
        begin = text.find(_BEGIN, at)
        if begin < 0:
            break
        body = _skip_blanks(text, begin + len(_BEGIN))
        value = None
        # The end may occur in a text within the JSON, so that is read first.
        try:
            value, at = decoder.raw_decode(text, body)
        except (ValueError, RecursionError):
            at = body
        at = _skip_blanks(text, at)
        is_whole = at == len(text) or text.startswith(_END, at)
        call = _call(value, names) if is_whole else None
        found = text.find(_END, at)
        at = len(text) if found < 0 else found + len(_END)
        if call is not None:
            rest.append(text[done:begin])
            calls.append(call)
            done = at
    return "".join([*rest, text[done:]]), tuple(calls)


def _bare(text: str, names: Container[str] | None) -> tuple[str, tuple[ToolCall, ...]]:
    before, tag, rest = text.partition(_PYTHON_TAG)
    if not tag:
        before, rest = "", text
    rest = rest.strip()
    calls: list[ToolCall] = []
    decoder = json.JSONDecoder()
    while rest.startswith("{") and len(calls) < _MAX_CALLS:
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


def _skip_blanks(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _call(value: Any, names: Container[str] | None) -> ToolCall | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    if names is not None and value["name"] not in names:
        return None
    arguments: Any = next((value[key] for key in ("arguments", "parameters") if value.get(key) is not None), {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
        arguments = {} if arguments is None else arguments
    return ToolCall(value["name"], arguments) if isinstance(arguments, dict) else None
