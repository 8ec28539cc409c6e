"""The tool calls in an answer, as models write them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final

_MAX_CALLS: Final = 128
_TAGGED: Final = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
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


def parse_tool_calls(text: str) -> tuple[ToolCall, ...]:
    """Return the calls in an answer; what is malformed is no call.

    Two forms are known: that of Qwen, ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, and that of
    Llama 3, an answer that is one JSON object or several with ``;`` between them, with ``"parameters"`` instead of
    ``"arguments"``, and ``<|python_tag|>`` in front of them or not.
    """
    if "<tool_call>" in text:
        bodies = [match[1] for match in _TAGGED.finditer(text)]
        return tuple(call for body in bodies[:_MAX_CALLS] if (call := _read(body.strip())) is not None)
    rest = text.strip()
    if _PYTHON_TAG in rest:
        rest = rest.split(_PYTHON_TAG, 1)[1].strip()
    calls: list[ToolCall] = []
    decoder = json.JSONDecoder()
    while rest.startswith("{") and len(calls) < _MAX_CALLS:
        try:
            value, end = decoder.raw_decode(rest)
        except (ValueError, RecursionError):
            return ()
        call = _call(value)
        if call is None:
            return ()
        calls.append(call)
        rest = rest[end:].lstrip().removeprefix(";").lstrip()
    # Text behind the objects means that they were part of an explanation.
    return () if rest else tuple(calls)


def _read(text: str) -> ToolCall | None:
    try:
        return _call(json.loads(text))
    except (ValueError, RecursionError):
        return None


def _call(value: Any) -> ToolCall | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
    return ToolCall(value["name"], arguments) if isinstance(arguments, dict) else None
