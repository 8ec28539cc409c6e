"""OpenAI's responses, without state: what was said before comes with each request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from edge_rt.server.answers import AnswerRequest
from edge_rt.server.bodies import Fields
from edge_rt.server.failures import unsupported, wrong_field
from edge_rt.server.request_fields import MOST_MESSAGES, MOST_TOKENS, MOST_TOOLS, sampling_options, text_of_parts

_REFUSED: Final = {
    "previous_response_id": "Nothing is kept between requests: send the whole conversation in 'input'.",
    "conversation": "Nothing is kept between requests: send the whole conversation in 'input'.",
    "prompt": "There are no stored prompts here: send the text in 'input'.",
}
_MOST_TOP_LOGPROBS: Final = 20


def read_response(fields: Fields) -> AnswerRequest:
    """Return what a request for a response asks for.

    Raises:
        HTTPFailure: a field is wrong, or asks for what this server cannot do.
    """
    for name, why in _REFUSED.items():
        if name in fields:
            raise unsupported(name, f"The field '{name}' is not supported. {why}")
    if fields.flag("background"):
        raise unsupported("background", "Responses are answered at once here. Leave out 'background'.")
    options = sampling_options(fields)
    if (most := fields.whole("max_output_tokens", 1, MOST_TOKENS)) is not None:
        options["max_tokens"] = most
    if "message.output_text.logprobs" in (fields.items("include", 64) or ()):
        options["logprobs"] = fields.whole("top_logprobs", 0, _MOST_TOP_LOGPROBS) or 0
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
    for number, tool in enumerate(fields.objects("tools", MOST_TOOLS) or ()):
        if tool.get("type") != "function":
            continue
        if not isinstance(tool.get("name"), str):
            raise wrong_field(f"tools[{number}].name", "a text", tool.get("name"))
        described = {name: tool[name] for name in ("name", "description", "parameters") if tool.get(name) is not None}
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
    if wanted is None or wanted.raw("type") == "text":
        return None
    if wanted.raw("type") == "json_object":
        return {"type": "json_object"}
    if wanted.raw("type") != "json_schema":
        raise wrong_field("text.format.type", "'text', 'json_object' or 'json_schema'", wanted.raw("type"))
    return {"type": "json_schema", "json_schema": {"schema": wanted.required("schema")}}


def _messages(fields: Fields) -> list[dict[str, Any]]:
    """Return the conversation as messages; what a model said and called in one turn is one message."""
    messages: list[dict[str, Any]] = []
    if instructions := fields.text("instructions"):
        messages.append({"role": "system", "content": instructions})
    given = fields.raw("input")
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
    elif given is not None:
        for number, item in enumerate(fields.objects("input", MOST_MESSAGES) or ()):
            _add(messages, Fields(item, f"input[{number}]"))
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
        if not isinstance(function["name"], str):
            raise wrong_field(item.name_of("name"), "a text", function["name"])
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": ""})
        call = {"id": item.text("call_id") or "", "type": "function", "function": function}
        messages[-1].setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        output = item.required("output")
        text = text_of_parts(output, item.name_of("output")) if isinstance(output, list) else output
        if not isinstance(text, str):
            raise wrong_field(item.name_of("output"), "a text or a list of parts", output)
        messages.append({"role": "tool", "tool_call_id": item.text("call_id") or "", "content": text})
    elif kind != "reasoning":  # thoughts of earlier turns are not shown to a model again
        raise unsupported(item.name_of("type"), f"An item of type {kind[:40]!r} cannot be shown to a model here.")


def _add_message(messages: list[dict[str, Any]], item: Fields) -> None:
    role, content = item.text("role"), item.raw("content")
    if role not in ("user", "assistant", "system", "developer"):
        raise wrong_field(item.name_of("role"), "'user', 'assistant', 'system' or 'developer'", role)
    text = text_of_parts(content, item.name_of("content")) if isinstance(content, list) else content
    if not isinstance(text, str):
        raise wrong_field(item.name_of("content"), "a text or a list of parts", content)
    role = "system" if role == "developer" else role
    if role == "system" and messages and all(message["role"] == "system" for message in messages):
        # Templates know one message of the system, in front.
        messages[-1]["content"] += f"\n\n{text}"
    else:
        messages.append({"role": role, "content": text})
