"""Saved conversations: their file, read and checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from edge_rt.byte_size import show_size
from edge_rt.errors import InputError, StorageError
from edge_rt.runtime.chat_messages import ChatMessage, MessageCall

CHAT_FORMAT: Final = "edge-rt chat"
CHAT_VERSION: Final = 1
MAX_CHAT_BYTES: Final = 64 << 20
_FIELDS: Final = frozenset(ChatMessage.__annotations__)


@dataclass(frozen=True)
class SavedChat:
    """Contents of a saved conversation."""

    messages: tuple[ChatMessage, ...]
    settings: Mapping[str, Any]
    model: str
    package_id: str


def read_chat(path: Path) -> SavedChat:
    """Read and check a saved conversation.

    Raises:
        StorageError: the file cannot be read.
        InputError: it is not a saved chat.
    """
    try:
        if path.exists() and not path.is_file():
            raise _no_chat(path, "It is not a regular file.")
        with path.open("rb") as stream:
            data = stream.read(MAX_CHAT_BYTES + 1)
    except OSError as error:
        raise StorageError(f"{path} cannot be read.", f"{error.strerror}.", "Check the path.") from error
    if len(data) > MAX_CHAT_BYTES:
        raise _no_chat(path, f"It is larger than {show_size(MAX_CHAT_BYTES)}.")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _no_chat(path, f"{error}.") from error
    if not isinstance(document, dict) or document.get("format") != CHAT_FORMAT:
        raise _no_chat(path, f"'format' must be '{CHAT_FORMAT}'.")
    if document.get("version") != CHAT_VERSION:
        raise _no_chat(path, f"Its version is {document.get('version')!r:.20}, this edge-rt reads {CHAT_VERSION}.")
    messages, settings = document.get("messages"), document.get("settings")
    if not isinstance(messages, list) or not isinstance(settings, dict):
        raise _no_chat(path, "'messages' must be an array and 'settings' an object.")
    return SavedChat(
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
    return InputError(f"{path} is not a saved chat.", numbers, "Choose a file written by /save.")
