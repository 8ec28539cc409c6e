"""Anthropic's messages: requests read, and tokens counted."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edge_rt.server.answers import AnswerRequest
from edge_rt.server.bodies import Fields
from edge_rt.server.failures import unsupported, wrong_field
from edge_rt.server.request_fields import MOST_MESSAGES, MOST_TOKENS, MOST_TOOLS, stop_texts
from edge_rt.server.shared import Server

_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}
_MOST_BLOCKS: Final = 2048


def read_messages(fields: Fields) -> AnswerRequest:
    """Return what a request for a message asks for.

    Raises:
        HTTPFailure: a field is wrong, or asks for what this server cannot do.
    """
    fields.required("max_tokens")
    options: dict[str, Any] = {"max_tokens": fields.whole("max_tokens", 1, MOST_TOKENS)}
    for name, most in (("temperature", 100.0), ("top_p", 1.0)):
        if (value := fields.number(name, 0.0, most)) is not None:
            options[name] = value
    if (top_k := fields.whole("top_k", 0, MOST_TOKENS)) is not None:
        options["top_k"] = top_k
    if (stop := stop_texts(fields, "stop_sequences")) is not None:
        options["stop"] = stop
    tools = _tools(fields)
    if (choice := fields.inner("tool_choice")) is not None:
        options |= _choice(choice)
        if tools is None and options["tool_choice"] not in ("auto", "none"):
            raise wrong_field("tool_choice", "given with 'tools'", choice.values)
    return AnswerRequest(fields.text("model"), _messages(fields), options, tools, _thoughts(fields), needs_count=True)


async def count_tokens(server: Server, request: Request) -> Response:
    """Count the tokens of a prompt."""
    async with server.bodies.read(request) as fields:
        messages, tools, arguments = _messages(fields), _tools(fields), _thoughts(fields)
        async with server.models.using(fields.text("model")) as entry:

            def work() -> int:
                return entry.model.count_tokens(messages, tools=tools, template_args=arguments)

            loop = asyncio.get_running_loop()
            count = await loop.run_in_executor(server.encoding, work)
            return JSONResponse({"input_tokens": count})
    raise AssertionError("nothing swallows errors")


def _thoughts(fields: Fields) -> dict[str, Any]:
    """Return whether the model is to think: only if it is asked to, as with Anthropic."""
    thinking = fields.inner("thinking")
    return {"enable_thinking": thinking is not None and thinking.text("type") in ("enabled", "adaptive")}


def _choice(choice: Fields) -> dict[str, Any]:
    kind = choice.text("type")
    options: dict[str, Any] = {}
    if choice.flag("disable_parallel_tool_use"):
        options["parallel_tool_calls"] = False
    if kind == "tool":
        return {**options, "tool_choice": {"type": "function", "function": {"name": choice.required("name")}}}
    if kind not in _CHOICES:
        raise wrong_field("tool_choice.type", "'auto', 'any', 'tool' or 'none'", kind)
    return {**options, "tool_choice": _CHOICES[kind]}


def _tools(fields: Fields) -> list[dict[str, Any]] | None:
    functions = []
    for number, tool in enumerate(fields.objects("tools", MOST_TOOLS) or ()):
        kind = tool.get("type", "custom")
        if kind != "custom":
            raise unsupported(f"tools.{number}.type", f"Nothing here runs tools of type {kind!r:.40}.")
        if not isinstance(tool.get("name"), str):
            raise wrong_field(f"tools.{number}.name", "a text", tool.get("name"))
        function = {"name": tool["name"], "description": tool.get("description") or ""}
        functions.append({"type": "function", "function": {**function, "parameters": tool.get("input_schema")}})
    return functions or None


def _messages(fields: Fields) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if (system := fields.raw("system")) is not None:
        texts = [system] if isinstance(system, str) else [
            _text(Fields(block, "system")) for block in fields.objects("system", _MOST_BLOCKS) or ()
        ]  # fmt: skip
        messages.append({"role": "system", "content": "\n\n".join(texts)})
    fields.required("messages")
    given = fields.objects("messages", MOST_MESSAGES)
    if not given:
        raise wrong_field("messages", "a list of messages that is not empty", given)
    for number, message in enumerate(given):
        _add(messages, Fields(message, f"messages.{number}"))
    return messages


def _add(messages: list[dict[str, Any]], message: Fields) -> None:
    """Add a message; results of tools become messages of their own."""
    role, content = message.text("role"), message.raw("content")
    if role not in ("user", "assistant"):
        raise wrong_field(message.name_of("role"), "'user' or 'assistant'", role)
    if isinstance(content, str):
        messages.append({"role": role, "content": content})
        return
    message.required("content")
    texts, thoughts, calls, results = list[str](), list[str](), list[dict[str, Any]](), list[dict[str, Any]]()
    for number, values in enumerate(message.objects("content", _MOST_BLOCKS) or ()):
        block = Fields(values, message.name_of(f"content.{number}"))
        kind = block.text("type")
        if kind == "text":
            texts.append(_text(block))
        elif kind == "thinking" and role == "assistant":
            thoughts.append(block.text("thinking") or "")
        elif kind == "redacted_thinking" and role == "assistant":
            continue
        elif kind == "tool_use" and role == "assistant":
            calls.append(_call(block))
        elif kind == "tool_result" and role == "user":
            results.append(_result(block))
        else:
            raise unsupported(block.name_of("type"), f"Models get text alone here; a block is of type {kind!r:.40}.")
    messages.extend(results)
    if texts or calls or thoughts or not results:
        added: dict[str, Any] = {"role": role, "content": "".join(texts)}
        added |= {"tool_calls": calls} if calls else {}
        added |= {"reasoning_content": "".join(thoughts)} if thoughts and calls else {}
        messages.append(added)


def _text(block: Fields) -> str:
    if block.text("type") != "text" or block.text("text") is None:
        raise wrong_field(block.name_of("text"), "a block of type 'text' with a text", block.raw("text"))
    return block.text("text") or ""


def _call(block: Fields) -> dict[str, Any]:
    arguments = block.inner("input")
    function = {"name": block.text("name") or "", "arguments": {} if arguments is None else dict(arguments.values)}
    return {"id": block.text("id") or "", "type": "function", "function": function}


def _result(block: Fields) -> dict[str, Any]:
    content = block.raw("content")
    if isinstance(content, list):
        parts = [_text(Fields(part if isinstance(part, Mapping) else {}, block.name_of("content"))) for part in content]
        content = "".join(parts)
    if content is not None and not isinstance(content, str):
        raise wrong_field(block.name_of("content"), "a text or a list of blocks", content)
    return {"role": "tool", "tool_call_id": block.text("tool_use_id") or "", "content": content or ""}
