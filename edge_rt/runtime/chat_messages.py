"""The messages of a conversation: answers with the calls in them, and the results of these calls."""

from __future__ import annotations

import functools
import json
from collections.abc import Container, Mapping, Sequence as Items
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NotRequired, TypedDict

from edge_rt.errors import ConfigError, InputError
from edge_rt.runtime.results import Result
from edge_rt.system.byte_size import counted
from edge_rt.system.json_files import read_object
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
    result: Result,
    before: Items[ChatMessage],
    tool_names: Container[str] | None,
    *,
    writes_calls: bool,
    begun: ChatMessage | None = None,
) -> ChatMessage:
    """Return an answer as a message.

    Args:
        tool_names: names of the tools that it may call; None: any.
        writes_calls: whether the template writes ``tool_calls``; else the text of the calls stays in the content.
        begun: the message that the answer continues.
    """
    text, thoughts, before_text = result.text, result.reasoning, ""
    if begun is not None:
        before_text, thoughts = begun["content"], begun.get("reasoning_content", "") + thoughts
    message: ChatMessage = {"role": "assistant", "content": before_text + text}
    if thoughts:
        message["reasoning_content"] = thoughts
    if result.tool_calls:
        if writes_calls:
            message["content"] = split_tool_calls(text, tool_names, before_text)[0]
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


CHAT_FORMAT: Final = "edge-rt chat"
CHAT_VERSION: Final = 1
MAX_CHAT_BYTES: Final = 64 << 20
_FIELDS: Final = frozenset(ChatMessage.__annotations__)


@dataclass(frozen=True)
class SavedChat:
    """Contents of a saved conversation.

    Attributes:
        cached_tokens: of how many tokens the rows are beside it; 0 if there are none.
        token_ids: those of the conversation as the model saw and chose them; empty if they were not saved.
    """

    messages: tuple[ChatMessage, ...]
    settings: Mapping[str, Any]
    model: str
    package_id: str
    cached_tokens: int = 0
    token_ids: tuple[int, ...] = ()


def rows_path(path: Path) -> Path:
    """Return the file for what was computed of a conversation, which lies beside it."""
    return path.with_name(f"{path.name}.rows")


def read_chat(path: Path) -> SavedChat:
    """Read and check a saved conversation."""
    if path.exists() and not path.is_file():
        raise _no_chat(path, "It is not a regular file.")
    document = read_object(path, MAX_CHAT_BYTES, functools.partial(_no_chat, path))
    if document.get("format") != CHAT_FORMAT:
        raise _no_chat(path, f"'format' must be '{CHAT_FORMAT}'.")
    if document.get("version") != CHAT_VERSION:
        raise _no_chat(path, f"Its version is {document.get('version')!r:.20}, this edge-rt reads {CHAT_VERSION}.")
    messages, settings = document.get("messages"), document.get("settings")
    if not isinstance(messages, list) or not isinstance(settings, dict):
        raise _no_chat(path, "'messages' must be an array and 'settings' an object.")
    cached = document.get("cached_tokens", 0)
    if type(cached) is not int or cached < 0:
        raise _no_chat(path, "'cached_tokens' must be a number of tokens.")
    token_ids = document.get("token_ids", [])
    if not isinstance(token_ids, list) or any(type(token) is not int for token in token_ids):
        raise _no_chat(path, "'token_ids' must be an array of whole numbers.")
    return SavedChat(
        cached_tokens=cached,
        token_ids=tuple(token_ids),
        messages=tuple(_checked(path, index, message) for index, message in enumerate(messages)),
        settings=settings,
        model=str(document.get("model")),
        package_id=str(document.get("package_id")),
    )


def _checked(path: Path, index: int, message: object) -> ChatMessage:
    if isinstance(message, dict) and message.keys() <= _FIELDS:
        role, content = message.get("role"), message.get("content")
        if role in ("system", "user", "assistant", "tool") and isinstance(content, str):
            checked: ChatMessage = {"role": role, "content": content}
            if isinstance(thoughts := message.get("reasoning_content"), str):
                checked["reasoning_content"] = thoughts
            if message.get("interrupted") is True:
                checked["interrupted"] = True
            if isinstance(calls := message.get("tool_calls"), list):
                checked["tool_calls"] = [_call(path, index, call) for call in calls]
            if isinstance(name := message.get("name"), str):
                checked["name"] = name
            if isinstance(call_id := message.get("tool_call_id"), str):
                checked["tool_call_id"] = call_id
            return checked
    raise _no_chat(path, f"Message {index} is malformed.")


def _call(path: Path, index: int, call: object) -> MessageCall:
    function = call.get("function") if isinstance(call, dict) else None
    if isinstance(call, dict) and isinstance(function, dict):
        call_id, name, arguments = call.get("id"), function.get("name"), function.get("arguments")
        if isinstance(call_id, str) and isinstance(name, str) and isinstance(arguments, dict):
            return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    raise _no_chat(path, f"A call in message {index} is malformed.")


def _no_chat(path: Path, numbers: str) -> InputError:
    return InputError(f"{path} is not a saved chat.", numbers, "Choose a file that a chat was saved to.")
