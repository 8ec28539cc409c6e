"""Fields that requests of several APIs have in common: how tokens are chosen, messages, tools, formats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from edge_rt.server.failures import unsupported, wrong_field
from edge_rt.server.fields import (
    ANYTHING,
    FLAG,
    TEXT,
    Fields,
    Kind,
    Table,
    either,
    inner,
    listed,
    mapping,
    needed,
    number,
    objects,
    one_of,
    refused,
    whole,
)

if TYPE_CHECKING:
    from edge_rt.store.config import Preset

MOST_MESSAGES: Final = 2048
MOST_PARTS: Final = 2048
MOST_TOOLS: Final = 128
MOST_STOPS: Final = 16
LONGEST_STOP: Final = 256
MOST_TOKENS: Final = 1 << 30
LIMIT: Final = either(Kind({"const": -1}, "-1 (no limit)", lambda value: value == -1), whole(1, MOST_TOKENS))
"""Of an answer's tokens, where local servers take -1 as well."""
_BIAS: Final = number(-100.0, 100.0)
_FORMATS: Final = ("text", "json_object", "json_schema")
_SCHEMA_TYPES: Final = ("object", "array", "string", "number", "integer", "boolean", "null")
STOPS: Final = either(TEXT, listed(TEXT, MOST_STOPS))
SAMPLING: Final[Table] = {
    "temperature": number(0.0, 100.0),
    "top_p": number(0.0, 1.0),
    "min_p": number(0.0, 1.0, below=True),
    "presence_penalty": number(-100.0, 100.0),
    "frequency_penalty": number(-100.0, 100.0),
    "repetition_penalty": number(0.01, 100.0),
    "repeat_penalty": number(0.01, 100.0),
    "top_k": whole(-1, MOST_TOKENS),
    "seed": whole(-(1 << 63), (1 << 64) - 1),
    "stop": STOPS,
    "logit_bias": mapping(_BIAS, 1024),
}
"""OpenAI's, and those that local servers add."""
PART: Final[Table] = {"type": needed(TEXT), "text": TEXT, "refusal": TEXT}
MESSAGE: Final[Table] = {
    "role": needed(TEXT),
    "content": either(TEXT, objects(PART, MOST_PARTS)),
    "reasoning_content": ANYTHING,
    "reasoning": ANYTHING,
    "tool_calls": ANYTHING,
}
TOOL: Final[Table] = {
    "type": TEXT,
    "function": needed(inner({"name": needed(TEXT), "description": ANYTHING, "parameters": ANYTHING})),
}
CHAT: Final[Table] = {
    "model": TEXT,
    "messages": needed(objects(MESSAGE, MOST_MESSAGES)),
    "tools": objects(TOOL, MOST_TOOLS),
}
"""Of every chat whose messages are OpenAI's."""
_NO_TEMPLATE: Final = "Chat templates come with models; requests cannot bring their own."
TEMPLATE: Final[Table] = {
    "chat_template_kwargs": inner({}),
    "chat_template": refused(_NO_TEMPLATE),
    "reasoning_effort": TEXT,
}
CHOICES: Final = one_of("none", "auto", "required")
"""Whether tools are called; or which one, by an object that is each API's own."""
STREAM: Final[Table] = {
    "stream": FLAG,
    "stream_options": inner({"include_usage": FLAG, "include_drafts": FLAG}),
}


def sampling_options(fields: Fields) -> dict[str, Any]:
    """Return the options of a generation among the fields."""
    options: dict[str, Any] = {}
    for name in ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"):
        if (value := fields.value(name)) is not None:
            options[name] = value
    take_greedy(options)
    if (value := fields.value("repeat_penalty")) is not None:
        options["repetition_penalty"] = value
    if (top_k := fields.whole("top_k")) is not None:
        options["top_k"] = max(top_k, 0)
    if (seed := fields.whole("seed")) is not None:
        options["seed"] = seed % (1 << 64)
    if (stop := stop_texts(fields, "stop")) is not None:
        options["stop"] = stop
    if (bias := fields.inner("logit_bias")) is not None:
        options["logit_bias"] = _biases(bias)
    return options


def response_format(fields: Fields) -> dict[str, Any] | None:
    """Return the format that an answer has to have, of OpenAI's types or a JSON schema; None: none is asked for."""
    wanted = fields.inner("response_format")
    if wanted is None:
        return None
    kind = wanted.values.get("type")
    if isinstance(kind, str) and kind not in _FORMATS and kind not in _SCHEMA_TYPES:
        raise wrong_field("response_format.type", " or ".join(map(repr, _FORMATS)), kind)
    return dict(wanted.values)


def take_greedy(options: dict[str, Any]) -> None:
    """Take a ``top_p`` of 0, which other servers allow, as what it means: the most likely token alone."""
    if options.get("top_p") == 0:
        del options["top_p"]
        options["temperature"] = 0.0


def stop_texts(fields: Fields, name: str) -> tuple[str, ...] | None:
    """Return the texts that end an answer; None if there are none."""
    value = fields.value(name)
    if value is None:
        return None
    texts = (value,) if isinstance(value, str) else tuple(value)
    for text in texts:
        if not isinstance(text, str) or not 0 < len(text) <= LONGEST_STOP:
            raise wrong_field(fields.name_of(name), f"a list of texts of 1 to {LONGEST_STOP} characters", text)
    return texts


def _biases(bias: Fields) -> dict[int, float]:
    biases = {}
    for name, value in bias.values.items():
        if not (name.isascii() and name.isdigit() and len(name) < 10):
            raise wrong_field("logit_bias", "an object with token ids as names", name)
        if value is not None and not _BIAS.fits(value):
            raise wrong_field(bias.name_of(name), _BIAS.wanted, value)
        biases[int(name)] = 0.0 if value is None else value
    return biases


def chat_messages(fields: Fields) -> list[dict[str, Any]]:
    """Return messages as templates take them.

    Raises:
        HTTPFailure: there are none, or one has a part that is no text.
    """
    fields.required("messages")
    messages = [_message(message) for message in fields.objects("messages")]
    if not messages:
        raise wrong_field("messages", "a list of messages that is not empty", messages)
    return messages


def _message(message: Fields) -> dict[str, Any]:
    role, content = message.required("role"), content_of(message)
    if content is None and not any(message.raw(one) for one in ("tool_calls", "reasoning_content", "reasoning")):
        content = ""
    # OpenAI's name for what chat templates know as the system's messages.
    return {**message.values, "role": "system" if role == "developer" else role, "content": content}


def content_of(message: Fields, name: str = "content") -> str | None:
    """Return a text that may be given as a list of parts.

    Raises:
        HTTPFailure: one of them is an image, or something else that is no text.
    """
    content = message.value(name)
    if not isinstance(content, list):
        return None if content is None else str(content)
    texts = []
    for index, part in enumerate(content):
        where = f"{message.name_of(name)}[{index}]"
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get("text", part.get("refusal")) if isinstance(part, Mapping) else None
        if kind in ("text", "input_text", "output_text", "refusal") and isinstance(text, str):
            texts.append(text)
        elif kind in ("text", "input_text", "output_text", "refusal") or not isinstance(kind, str):
            raise wrong_field(where, "a part with a type and a text", part)
        else:
            raise unsupported(where, f"Models get text alone here; a part is of type {kind[:40]!r}.")
    return "".join(texts)


def with_system(messages: list[dict[str, Any]], preset: Preset | None) -> list[dict[str, Any]]:
    """Return messages behind the system message of a preset, if they have none of their own."""
    if preset is None or preset.system is None or messages[0].get("role") == "system":
        return messages
    return [{"role": "system", "content": preset.system}, *messages]


def chat_tools(fields: Fields) -> list[dict[str, Any]] | None:
    """Return the functions that an answer may call, as OpenAI describes them; None: there are none."""
    tools = []
    for tool in fields.objects("tools"):
        if (kind := tool.raw("type")) not in (None, "function"):
            raise unsupported(tool.name_of("type"), f"Only functions can be called here; got {kind!r:.40}.")
        function = tool.raw("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise wrong_field(tool.name_of("function"), "an object with a name", function)
        tools.append(dict(tool.values))
    return tools or None


def template_arguments(fields: Fields) -> dict[str, Any]:
    """Return further variables of the chat template; a template itself comes with a model, never with a request."""
    given = fields.inner("chat_template_kwargs")
    arguments = {} if given is None else dict(given.values)
    if "chat_template" in arguments:
        raise unsupported("chat_template", _NO_TEMPLATE)
    if (effort := fields.text("reasoning_effort")) is not None:
        arguments.setdefault("reasoning_effort", effort)
        arguments.setdefault("enable_thinking", effort not in ("none", "minimal"))
    return arguments
