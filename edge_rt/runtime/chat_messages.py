"""The messages of a conversation: answers with the calls in them, and the results of these calls."""

from __future__ import annotations

import json
from collections.abc import Sequence as Items
from typing import Any, Literal, NotRequired, TypedDict

from edge_rt.byte_size import counted
from edge_rt.errors import ConfigError
from edge_rt.runtime.results import Result
from edge_rt.text.tool_calls import split_tool_calls


class CalledFunction(TypedDict):
    """A function that is called, and its arguments."""

    name: str
    arguments: dict[str, Any]


class MessageCall(TypedDict):
    """A call in a message; ids count the calls of a conversation."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatMessage(TypedDict):
    """One message.

    ``interrupted`` marks an answer that was stopped early; ``reasoning_content`` holds its thoughts, ``tool_calls`` its
    calls. A message of the role ``tool`` is the result of the call ``tool_call_id`` of the function ``name``.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    reasoning_content: NotRequired[str]
    interrupted: NotRequired[bool]
    tool_calls: NotRequired[list[MessageCall]]
    name: NotRequired[str]
    tool_call_id: NotRequired[str]


def answer_message(
    result: Result, before: Items[ChatMessage], tool_names: frozenset[str] | None, *, writes_calls: bool
) -> ChatMessage:
    """Return an answer as a message.

    Args:
        result: the answer.
        before: the messages before it.
        tool_names: names of the tools that it may call; None: any.
        writes_calls: whether the template writes ``tool_calls``; else the text of the calls stays in the content.
    """
    message: ChatMessage = {"role": "assistant", "content": result.text}
    if result.reasoning:
        message["reasoning_content"] = result.reasoning
    if result.tool_calls:
        if writes_calls:
            message["content"] = split_tool_calls(result.text, tool_names)[0]
        first = sum(len(one.get("tool_calls") or ()) for one in before)
        # Some templates demand an id of nine letters and digits.
        message["tool_calls"] = [
            {
                "id": f"call{number:05d}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for number, call in enumerate(result.tool_calls, first)
        ]
    if result.finish_reason == "cancelled":
        message["interrupted"] = True
    return message


def result_messages(messages: Items[ChatMessage], results: object) -> list[ChatMessage]:
    """Return the results of the calls in the last message as messages.

    Args:
        messages: the conversation.
        results: a list, one item for each call in their order: texts, or plain data, which is written as JSON.

    Raises:
        ConfigError: the last message calls nothing, or the results are not as many as its calls, or no plain data.
    """
    calls = messages[-1].get("tool_calls", []) if messages else []
    if not calls:
        raise ConfigError(
            "There is no call to send results of.", "The last message has no 'tool_calls'.", "Send a text instead."
        )
    if not isinstance(results, list | tuple) or len(results) != len(calls):
        found = counted(len(results), "result") if isinstance(results, list | tuple) else f"a {type(results).__name__}"
        raise ConfigError(
            "Every call needs one result.",
            f"Got {found} for {counted(len(calls), 'call')}: {', '.join(call['function']['name'] for call in calls)}.",
            "Pass a list with one result for each call, in their order.",
        )
    return [_result(call, value) for call, value in zip(calls, results, strict=True)]


def _result(call: MessageCall, value: object) -> ChatMessage:
    message: ChatMessage = {"role": "tool", "content": _text(value), "name": call["function"]["name"]}
    # Messages that the caller wrote need not have ids.
    if (call_id := call.get("id")) is not None:
        message["tool_call_id"] = call_id
    return message


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            "The result of a call is neither text nor plain data.",
            f"{error}.",
            "Pass a text, or what JSON can express.",
        ) from error
