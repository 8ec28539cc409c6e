"""Messages as callers write them -> messages as chat templates expect them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from edge_rt.errors import ConfigError, as_json, kind_of
from edge_rt.text.template_text import own_text

ROLES: Final = frozenset(
    {
        *("system", "developer", "user", "assistant", "model", "tool", "function", "ipython"),
        *("tool_response", "tool_results", "tool_result", "tool_call", "observation", "environment"),
    }
)
RESERVED_NAMES: Final = frozenset({"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"})
THOUGHT_FIELDS: Final = ("reasoning_content", "thinking", "reasoning")
"""Names of the field that holds the thoughts of an answer: templates know one or the other."""
_MEDIA: Final = {"image": "an image", "audio": "a sound", "video": "a video"}
"""What the type of a part may contain -> what the part is."""
_MAX_DEPTH: Final = 32
_MAX_MESSAGES: Final = 16_384

Messages = list[dict[str, Any]]


@dataclass(frozen=True)
class Form:
    """How messages are given to a template.

    Attributes:
        writes_arguments: arguments of tool calls are JSON texts, not objects.
        joins_thoughts: in an answer with a call and a text, its thoughts are the beginning of the text.
    """

    joins_parts: bool = False
    writes_arguments: bool = False
    joins_thoughts: bool = False


def checked_messages(messages: object, literals: Collection[str]) -> Messages:
    """Return copies of messages, without fields that are None, and with arguments of tool calls read from JSON.

    Args:
        literals: texts that occur in the template: roles among them are known to it.
    """
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence):
        raise malformed("The messages are not a list.", f"They are of type {type(messages).__name__}.")
    if not messages:
        raise malformed("There are no messages.", "The list is empty.")
    if len(messages) > _MAX_MESSAGES:
        raise malformed("There are too many messages.", f"{len(messages)} of at most {_MAX_MESSAGES}.")
    return [_checked_message(index, message, literals) for index, message in enumerate(messages)]


def checked_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the arguments of a template."""
    for name in values:
        if not isinstance(name, str) or not name.isidentifier() or name in RESERVED_NAMES:
            raise ConfigError(
                "A template argument has an impossible name.",
                f"Got {name!r:.60}; reserved are {', '.join(sorted(RESERVED_NAMES))}.",
                "Use a name that the template reads, such as enable_thinking.",
            )
    result = checked_value(dict(values), "a template argument")
    assert isinstance(result, dict)
    return result


def formed(messages: Messages, form: Form, thought_fields: Collection[str]) -> Messages:
    """Return messages as a template reads them; roles are the template's own text."""
    return [_formed(message, form, thought_fields) for message in messages]


def has_parts(messages: Messages) -> bool:
    """Return whether the content of a message is a list of parts."""
    return any(isinstance(message.get("content"), list) for message in messages)


def has_arguments(messages: Messages) -> bool:
    """Return whether a tool call has arguments."""
    return any("arguments" in call for message in messages for call in _calls(message))


def has_thoughts_and_calls(messages: Messages) -> bool:
    """Return whether an answer has thoughts, a text and a call: templates may refuse that."""
    return any(message.get("content") and _thought(message) and message.get("tool_calls") for message in messages)


def part_texts(messages: Messages) -> Iterable[str]:
    """Yield the texts of all parts."""
    for message in messages:
        if isinstance(message.get("content"), list):
            yield from (part["text"] for part in message["content"])


def whole_values(messages: Messages) -> Iterable[Any]:
    """Yield the lists and objects that a template has to look into: printed whole they would be Python's notation."""
    for message in messages:
        if isinstance(message.get("content"), list):
            yield message["content"]
            yield from message["content"]
        yield from (call["arguments"] for call in _calls(message) if isinstance(call.get("arguments"), dict | list))


def fold_system(messages: Messages) -> Messages:
    """Return messages with the first one, a system message, in front of the first user message."""
    rest = [dict(message) for message in messages[1:]]
    for message in rest:
        if message["role"] == "user":
            content = message.get("content", "")
            first = joined(messages[0].get("content", "")) + "\n\n"
            parts = [{"type": "text", "text": first}, *content] if isinstance(content, list) else first + content
            message["content"] = parts
            return rest
    return messages


def joined(content: Any) -> str:
    """Return the text of a content that may be a list of parts."""
    return "".join(part["text"] for part in content) if isinstance(content, list) else content


def texts_of(value: object) -> Iterable[str]:
    """Yield all texts in plain data, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield key
            yield from texts_of(part)
    elif isinstance(value, list):
        for part in value:
            yield from texts_of(part)


def malformed(what: str, numbers: str) -> ConfigError:
    """Return the error for messages that are not as they should be."""
    return ConfigError(what, numbers, 'Pass messages like {"role": "user", "content": "Hello"}.')


def checked_value(value: object, place: str, depth: int = 0) -> Any:
    """Copy plain data."""
    if depth > _MAX_DEPTH:
        raise malformed("A message is nested too deeply.", f"In {place}: more than {_MAX_DEPTH} levels.")
    if value is None or type(value) in {str, bool, int, float}:
        return value
    if isinstance(value, Mapping):
        if not all(type(key) is str for key in value):
            raise malformed("A message has a key that is not text.", f"In {place}.")
        return {key: checked_value(part, place, depth + 1) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [checked_value(part, place, depth + 1) for part in value]
    raise malformed("A message holds something other than plain data.", f"In {place}: a {type(value).__name__}.")


def _checked_message(index: int, message: object, literals: Collection[str]) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise malformed("A message is not a mapping.", f"Message {index} is of type {type(message).__name__}.")
    role = message.get("role")
    if role is None:
        raise malformed("A message has no role.", f"Message {index}; known: {', '.join(sorted(ROLES))}.")
    is_known = isinstance(role, str) and (role in ROLES or (role.isidentifier() and role in literals))
    if not is_known:
        got = as_json(role) if isinstance(role, str) else kind_of(role)
        raise malformed("A message has an unknown role.", f"Message {index}: {got}; known: {', '.join(sorted(ROLES))}.")
    result = checked_value(dict(message), f"message {index}")
    assert isinstance(result, dict)
    # Clients write fields that are absent as None.
    result = {key: value for key, value in result.items() if value is not None}
    _check_content(index, result)
    for call in _calls(result):
        if isinstance(call.get("arguments"), str):
            call["arguments"] = _read_arguments(call["arguments"])
    return result


def _check_content(index: int, message: dict[str, Any]) -> None:
    content = message.get("content")
    if isinstance(content, str):
        return
    has_more = message.get("tool_calls") or any(message.get(name) for name in THOUGHT_FIELDS)
    if content is None and message["role"] == "assistant" and has_more:
        return
    if content is None:
        raise malformed("A message has no content.", f"Message {index}.")
    if not isinstance(content, list):
        what = "The content of a message is neither a text nor a list of parts."
        raise malformed(what, f"Message {index}: {kind_of(content)}.")
    for number, part in enumerate(content):
        place = f"Message {index}, part {number}"
        if not isinstance(part, dict):
            raise malformed("A part of a message is no object.", f"{place}: {kind_of(part)}.")
        if part.get("type") != "text":
            raise _no_text(part.get("type"), place)
        if not isinstance(text := part.get("text"), str):
            raise malformed("A part of a message has no text.", f"{place}: its 'text' is {kind_of(text)}.")


def _no_text(kind: object, place: str) -> ConfigError:
    """Return the error for a part that is not text; ``kind`` is its ``type``, such as ``image_url``."""
    medium = next((name for name in _MEDIA if isinstance(kind, str) and name in kind), None)
    if medium is None:
        return malformed("A part of a message is not text.", f"{place}: type {as_json(kind)}.")
    return ConfigError(
        f"A part of a message is {_MEDIA[medium]}, and edge-rt gives models text alone.",
        f"{place}: type {str(kind)[:40]!r}.",
        "Leave it out, or describe it in words.",
    )


def _calls(message: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """Yield what is called, with its ``arguments``; some callers leave out the level of ``function``."""
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict):
            function = call.get("function")
            yield function if isinstance(function, dict) else call


def _thought(message: Mapping[str, Any]) -> Any:
    """Return the thoughts of an answer, whatever the field is called; None without any."""
    return next((message[name] for name in THOUGHT_FIELDS if name in message), None)


def _read_arguments(text: str) -> Any:
    """Return arguments that are an object in JSON as that object, anything else as it is."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return checked_value(value, "arguments of a tool call") if isinstance(value, dict) else text


def _formed(message: dict[str, Any], form: Form, thought_fields: Collection[str]) -> dict[str, Any]:
    result = dict(message, role=own_text(message["role"]))
    if form.joins_parts and isinstance(result.get("content"), list):
        result["content"] = joined(result["content"])
    if form.writes_arguments and "tool_calls" in result:
        result["tool_calls"] = json.loads(json.dumps(result["tool_calls"]))
        for call in _calls(result):
            if isinstance(call.get("arguments"), dict):
                call["arguments"] = json.dumps(call["arguments"], ensure_ascii=False)
    thought = _thought(result)
    if form.joins_thoughts and thought and result.get("content") and result.get("tool_calls"):
        result = {key: value for key, value in result.items() if key not in THOUGHT_FIELDS}
        result["content"] = f"{thought}\n\n{joined(result['content'])}"
    elif thought is not None:
        # Two names that templates read, and the third where it is the only one that they know.
        result = {"thinking": thought, **result, "reasoning_content": thought}
        if thought_fields == {"reasoning"}:
            result["reasoning"] = thought
    return result
