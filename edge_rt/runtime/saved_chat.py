"""Saved conversations: their file, read and checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NotRequired, TypedDict

from edge_rt.errors import InputError, StorageError

CHAT_FORMAT: Final = "edge-rt chat"
CHAT_VERSION: Final = 1
MAX_CHAT_BYTES: Final = 64 << 20


class ChatMessage(TypedDict):
    """One message.

    ``interrupted`` marks an answer that was stopped early; ``reasoning_content`` holds its thoughts.
    """

    role: Literal["system", "user", "assistant"]
    content: str
    reasoning_content: NotRequired[str]
    interrupted: NotRequired[bool]


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
        raise _no_chat(path, f"It is larger than {MAX_CHAT_BYTES} bytes.")
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
    if isinstance(message, dict) and set(message) <= {"role", "content", "reasoning_content", "interrupted"}:
        role, content = message.get("role"), message.get("content")
        if role in ("system", "user", "assistant") and isinstance(content, str):
            checked: ChatMessage = {"role": role, "content": content}
            if isinstance(thoughts := message.get("reasoning_content"), str):
                checked["reasoning_content"] = thoughts
            if message.get("interrupted") is True:
                checked["interrupted"] = True
            return checked
    raise _no_chat(path, f"Message {index} is malformed.")


def _no_chat(path: Path, numbers: str) -> InputError:
    return InputError(f"{path} is not a saved chat.", numbers, "Choose a file written by /save.")
