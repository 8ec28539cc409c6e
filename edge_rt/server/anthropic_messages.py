"""Anthropic's messages: requests read, and tokens counted."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import JSONResponse, Response

from edge_rt.server.answers import AnswerRequest
from edge_rt.server.failures import unsupported, wrong_field
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
    number,
    objects,
    one_of,
    whole,
)
from edge_rt.server.request_fields import MOST_MESSAGES, MOST_STOPS, MOST_TOKENS, MOST_TOOLS, stop_texts, take_greedy
from edge_rt.server.shared import Post, Server
from edge_rt.server.texts import most_tokens
from edge_rt.text.template import Inputs

_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}
_MOST_BLOCKS: Final = 2048
_TEXT_BLOCKS: Final = objects({"type": needed(one_of("text")), "text": needed(TEXT)}, _MOST_BLOCKS)
_BLOCK: Final[Table] = {
    "type": needed(TEXT),
    "text": TEXT,
    "thinking": TEXT,
    "id": TEXT,
    "name": TEXT,
    "input": inner({}),
    "tool_use_id": TEXT,
    "content": either(TEXT, _TEXT_BLOCKS),
}
PROMPT: Final[Table] = {
    "model": TEXT,
    "system": either(TEXT, _TEXT_BLOCKS),
    "messages": needed(
        objects(
            {
                "role": needed(one_of("user", "assistant")),
                "content": needed(either(TEXT, objects(_BLOCK, _MOST_BLOCKS))),
            },
            MOST_MESSAGES,
        )
    ),
    "tools": objects({"type": TEXT, "name": needed(TEXT), "description": TEXT, "input_schema": ANYTHING}, MOST_TOOLS),
    "thinking": inner({"type": TEXT}),
}
MESSAGES: Final[Table] = {
    **PROMPT,
    "max_tokens": needed(whole(1, MOST_TOKENS)),
    "temperature": number(0.0, 100.0),
    "top_p": number(0.0, 1.0),
    "top_k": whole(0, MOST_TOKENS),
    "stop_sequences": listed(TEXT, MOST_STOPS),
    "tool_choice": inner(
        {"type": needed(one_of("auto", "any", "tool", "none")), "name": TEXT, "disable_parallel_tool_use": FLAG}
    ),
    "stream": FLAG,
}


def read_messages(fields: Fields) -> AnswerRequest:
    """Return what a request for a message asks for.

    Raises:
        HTTPFailure: a field is wrong, or asks for what this server cannot do.
    """
    options: dict[str, Any] = {"max_tokens": fields.required("max_tokens")}
    for name in ("temperature", "top_p", "top_k"):
        if (value := fields.value(name)) is not None:
            options[name] = value
    take_greedy(options)
    if (stop := stop_texts(fields, "stop_sequences")) is not None:
        options["stop"] = stop
    tools = _tools(fields)
    if (choice := fields.inner("tool_choice")) is not None:
        options |= _choice(choice)
        if tools is None and options["tool_choice"] not in ("auto", "none"):
            raise wrong_field("tool_choice", "given with 'tools'", choice.values)
    return AnswerRequest(fields.text("model"), _messages(fields), options, tools, _thoughts(fields), needs_count=True)


async def count_tokens(server: Server, post: Post) -> Response:
    """Count the tokens of a prompt."""
    fields = post.fields
    asked = AnswerRequest(fields.text("model"), _messages(fields), {}, _tools(fields), _thoughts(fields))
    asked = asked.with_preset(server.models.preset_of(asked.model))
    async with server.models.using(asked.model) as entry:

        def work() -> int:
            texts, inputs = entry.model.texts, Inputs(asked.tools, None, asked.template_args)
            assert texts is not None, "the model is open"
            return texts.count_tokens(asked.prompt, inputs, most=most_tokens(entry.model))

        return JSONResponse({"input_tokens": await server.encoded(work)})
    raise AssertionError("nothing swallows errors")


def _thoughts(fields: Fields) -> dict[str, Any]:
    """Return whether the model is to think: only if it is asked to, as with Anthropic."""
    thinking = fields.inner("thinking")
    return {"enable_thinking": thinking is not None and thinking.text("type") in ("enabled", "adaptive")}


def _choice(choice: Fields) -> dict[str, Any]:
    kind = choice.required("type")
    options: dict[str, Any] = {}
    if choice.flag("disable_parallel_tool_use"):
        options["parallel_tool_calls"] = False
    if kind == "tool":
        return {**options, "tool_choice": {"type": "function", "function": {"name": choice.required("name")}}}
    return {**options, "tool_choice": _CHOICES[kind]}


def _tools(fields: Fields) -> list[dict[str, Any]] | None:
    functions = []
    for tool in fields.objects("tools"):
        if (kind := tool.raw("type")) not in (None, "custom"):
            raise unsupported(tool.name_of("type"), f"Nothing here runs tools of type {kind!r:.40}.")
        function = {"name": tool.required("name"), "description": tool.raw("description") or ""}
        functions.append({"type": "function", "function": {**function, "parameters": tool.raw("input_schema")}})
    return functions or None


def _messages(fields: Fields) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if "system" in fields:
        messages.append({"role": "system", "content": "\n\n".join(_texts(fields, "system"))})
    fields.required("messages")
    given = fields.objects("messages")
    if not given:
        raise wrong_field("messages", "a list of messages that is not empty", [])
    for message in given:
        _add(messages, message)
    return messages


def _texts(fields: Fields, name: str) -> list[str]:
    """Return the texts of a field that is one, or a list of blocks."""
    value = fields.value(name)
    if value is None or isinstance(value, str):
        return [value or ""]
    return [_text(block) for block in fields.objects(name)]


def _add(messages: list[dict[str, Any]], message: Fields) -> None:
    """Add a message; results of tools become messages of their own."""
    role, content = message.required("role"), message.required("content")
    if isinstance(content, str):
        messages.append({"role": role, "content": content})
        return
    texts, thoughts, calls, results = list[str](), list[str](), list[dict[str, Any]](), list[dict[str, Any]]()
    for block in message.objects("content"):
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
            text = "".join(_texts(block, "content"))
            results.append({"role": "tool", "tool_call_id": block.text("tool_use_id") or "", "content": text})
        else:
            raise unsupported(block.name_of("type"), f"Models get text alone here; a block is of type {kind!r:.40}.")
    messages.extend(results)
    if texts or calls or thoughts or not results:
        added: dict[str, Any] = {"role": role, "content": "".join(texts)}
        added |= {"tool_calls": calls} if calls else {}
        added |= {"reasoning_content": "".join(thoughts)} if thoughts and calls else {}
        messages.append(added)


def _text(block: Fields) -> str:
    if block.required("type") != "text":
        raise wrong_field(block.name_of("type"), "'text'", block.raw("type"))
    text: str = block.required("text")
    return text


def _call(block: Fields) -> dict[str, Any]:
    arguments = block.inner("input")
    function = {"name": block.text("name") or "", "arguments": {} if arguments is None else dict(arguments.values)}
    return {"id": block.text("id") or "", "type": "function", "function": function}
