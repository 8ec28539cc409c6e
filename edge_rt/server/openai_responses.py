"""OpenAI's responses, without state: what was said before comes with each request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from edge_rt.server.answers import AnswerRequest
from edge_rt.server.failures import HTTPFailure, unsupported
from edge_rt.server.fields import (
    ANYTHING,
    FLAG,
    TEXT,
    Fields,
    Table,
    either,
    inner,
    listed,
    needed,
    objects,
    one_of,
    refused,
    whole,
)
from edge_rt.server.request_fields import (
    CHOICES,
    MOST_MESSAGES,
    MOST_PARTS,
    MOST_TOKENS,
    MOST_TOOLS,
    PART,
    SAMPLING,
    content_of,
    sampling_options,
)

_FUNCTION: Final[Table] = {"type": TEXT, "name": TEXT, "description": ANYTHING, "parameters": ANYTHING}
_ITEM: Final[Table] = {
    "type": TEXT,
    "role": one_of("user", "assistant", "system", "developer"),
    "content": either(TEXT, objects(PART, MOST_PARTS)),
    "call_id": TEXT,
    "name": TEXT,
    "arguments": TEXT,
    "output": either(TEXT, objects(PART, MOST_PARTS)),
}
RESPONSE: Final[Table] = {
    "model": TEXT,
    "input": either(TEXT, objects(_ITEM, MOST_MESSAGES)),
    "instructions": TEXT,
    **SAMPLING,
    "stream": FLAG,
    "max_output_tokens": whole(1, MOST_TOKENS),
    "truncation": one_of("auto", "disabled"),
    "include": listed(TEXT, 64),
    "top_logprobs": whole(0, 20),
    "text": inner(
        {"format": inner({"type": needed(one_of("text", "json_object", "json_schema")), "schema": ANYTHING})}
    ),
    "tools": objects(_FUNCTION, MOST_TOOLS),
    "tool_choice": either(CHOICES, inner({"type": TEXT, "name": TEXT})),
    "parallel_tool_calls": FLAG,
    "reasoning": inner({"effort": TEXT}),
    "background": FLAG,
    "metadata": ANYTHING,
    "user": ANYTHING,
    "previous_response_id": refused("Nothing is kept between requests: send the whole conversation in 'input'."),
    "conversation": refused("Nothing is kept between requests: send the whole conversation in 'input'."),
    "prompt": refused("There are no stored prompts here: send the text in 'input'."),
}


def read_response(fields: Fields) -> AnswerRequest:
    """Return what a request for a response asks for.

    Raises:
        HTTPFailure: a field is wrong, or asks for what this server cannot do.
    """
    if fields.flag("background"):
        raise unsupported("background", "Responses are answered at once here. Leave out 'background'.")
    if fields.text("truncation") == "auto":
        raise unsupported("truncation", "Conversations are not shortened here. Send fewer items in 'input'.")
    options = sampling_options(fields)
    if (most := fields.whole("max_output_tokens")) is not None:
        options["max_tokens"] = most
    if "message.output_text.logprobs" in fields.items("include"):
        options["logprobs"] = fields.whole("top_logprobs") or 0
    elif fields.whole("top_logprobs"):
        what = "The field 'top_logprobs' needs 'message.output_text.logprobs' in 'include'."
        raise HTTPFailure(400, what, param="top_logprobs")
    if (wanted := _format(fields)) is not None:
        options["response_format"] = wanted
    tools = response_tools(fields)
    if (choice := fields.raw("tool_choice")) is not None:
        options["tool_choice"] = _choice(choice)
    if "parallel_tool_calls" in fields:
        options["parallel_tool_calls"] = fields.flag("parallel_tool_calls", default=True)
    arguments: dict[str, Any] = {}
    reasoning = fields.inner("reasoning")
    if reasoning is not None and (effort := reasoning.text("effort")) is not None:
        arguments = {"reasoning_effort": effort, "enable_thinking": effort not in ("none", "minimal")}
    return AnswerRequest(fields.text("model"), _messages(fields), options, tools, arguments)


def response_tools(fields: Fields) -> list[dict[str, Any]] | None:
    """Return the functions that an answer may call; tools of other kinds, which nobody runs here, are not shown."""
    functions = []
    for tool in fields.objects("tools"):
        if tool.raw("type") != "function":
            continue
        tool.required("name")
        described = {name: tool.raw(name) for name in ("name", "description", "parameters") if name in tool}
        functions.append({"type": "function", "function": described})
    return functions or None


def _choice(value: Any) -> Any:
    if isinstance(value, Mapping):
        if value.get("type") != "function" or not isinstance(value.get("name"), str):
            raise unsupported("tool_choice", "Choose 'auto', 'none', 'required' or a function by its name.")
        return {"type": "function", "function": {"name": value["name"]}}
    return value


def _format(fields: Fields) -> dict[str, Any] | None:
    text = fields.inner("text")
    wanted = None if text is None else text.inner("format")
    kind = None if wanted is None else wanted.required("type")
    if wanted is None or kind == "text":
        return None
    if kind == "json_object":
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"schema": wanted.required("schema")}}


def _messages(fields: Fields) -> list[dict[str, Any]]:
    """Return the conversation as messages; what a model said and called in one turn is one message."""
    messages: list[dict[str, Any]] = []
    if instructions := fields.text("instructions"):
        messages.append({"role": "system", "content": instructions})
    given = fields.value("input")
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
    else:
        for item in fields.objects("input"):
            _add(messages, item)
    if all(message["role"] == "system" for message in messages):
        # Some clients ask for nothing, to see whether there is a server.
        messages.append({"role": "user", "content": ""})
    return messages


def _add(messages: list[dict[str, Any]], item: Fields) -> None:
    kind = item.text("type") or "message"
    if kind == "message":
        _add_message(messages, item)
    elif kind == "function_call":
        function = {"name": item.required("name"), "arguments": item.text("arguments") or "{}"}
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": ""})
        call = {"id": item.text("call_id") or "", "type": "function", "function": function}
        messages[-1].setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        item.required("output")
        text = content_of(item, "output")
        messages.append({"role": "tool", "tool_call_id": item.text("call_id") or "", "content": text})
    elif kind != "reasoning":  # thoughts of earlier turns are not shown to a model again
        raise unsupported(item.name_of("type"), f"An item of type {kind[:40]!r} cannot be shown to a model here.")


def _add_message(messages: list[dict[str, Any]], item: Fields) -> None:
    role = item.required("role")
    item.required("content")
    text = content_of(item)
    role = "system" if role == "developer" else role
    if role == "system" and messages and all(message["role"] == "system" for message in messages):
        # Templates know one message of the system, in front.
        messages[-1]["content"] += f"\n\n{text}"
    else:
        messages.append({"role": role, "content": text})
