"""Fields that requests of several APIs have in common: how tokens are chosen, messages, tools, formats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from edge_rt.server.bodies import Fields
from edge_rt.server.failures import HTTPFailure, unsupported, wrong_field

MOST_MESSAGES: Final = 2048
MOST_TOOLS: Final = 128
MOST_STOPS: Final = 16
LONGEST_STOP: Final = 256
MOST_TOKENS: Final = 1 << 30
_BIASES: Final = 1024
_NUMBERS: Final = (
    ("temperature", "temperature", 0.0, 100.0),
    ("top_p", "top_p", 0.0, 1.0),
    ("min_p", "min_p", 0.0, 1.0),
    ("presence_penalty", "presence_penalty", -100.0, 100.0),
    ("frequency_penalty", "frequency_penalty", -100.0, 100.0),
    ("repetition_penalty", "repetition_penalty", 0.0, 100.0),
    ("repeat_penalty", "repetition_penalty", 0.0, 100.0),
)


def sampling_options(fields: Fields) -> dict[str, Any]:
    """Return the options of a generation that are numbers: OpenAI's, and those that local servers add."""
    options: dict[str, Any] = {}
    for name, option, least, most in _NUMBERS:
        if (value := fields.number(name, least, most)) is not None:
            options[option] = value
    if (top_k := fields.whole("top_k", -1, MOST_TOKENS)) is not None:
        options["top_k"] = max(top_k, 0)
    seed = fields.whole("seed", -(1 << 63), (1 << 64) - 1)
    if seed is not None:
        options["seed"] = seed % (1 << 64)
    if (stop := stop_texts(fields, "stop")) is not None:
        options["stop"] = stop
    if (bias := fields.inner("logit_bias")) is not None:
        options["logit_bias"] = _biases(bias)
    return options


def stop_texts(fields: Fields, name: str) -> tuple[str, ...] | None:
    """Return the texts that end an answer; None if there are none."""
    value = fields.raw(name)
    if value is None:
        return None
    texts = [value] if isinstance(value, str) else fields.items(name, MOST_STOPS) or []
    for text in texts:
        if not isinstance(text, str) or not 0 < len(text) <= LONGEST_STOP:
            raise wrong_field(fields.name_of(name), f"a list of texts of 1 to {LONGEST_STOP} characters", text)
    return tuple(texts)


def _biases(bias: Fields) -> dict[int, float]:
    if len(bias.values) > _BIASES:
        what = f"The field 'logit_bias' has {len(bias.values)} entries; the limit is {_BIASES}."
        raise HTTPFailure(400, what, param="logit_bias")
    biases = {}
    for name in bias.values:
        if not (name.isascii() and name.isdigit() and len(name) < 10):
            raise wrong_field("logit_bias", "an object with token ids as names", name)
        value = bias.number(name, -100.0, 100.0)
        biases[int(name)] = 0.0 if value is None else value
    return biases


def chat_messages(fields: Fields, name: str = "messages") -> list[dict[str, Any]]:
    """Return messages as templates take them.

    Raises:
        HTTPFailure: there are none, or one has a part that is no text.
    """
    fields.required(name)
    messages = fields.objects(name, MOST_MESSAGES)
    if not messages:
        raise wrong_field(name, "a list of messages that is not empty", messages)
    return [_message(f"{name}[{number}]", message) for number, message in enumerate(messages)]


def _message(where: str, message: Mapping[str, Any]) -> dict[str, Any]:
    role = message.get("role")
    if not isinstance(role, str):
        raise wrong_field(f"{where}.role", "a text", role)
    content = message.get("content")
    if isinstance(content, list):
        content = text_of_parts(content, f"{where}.content")
    elif content is not None and not isinstance(content, str):
        raise wrong_field(f"{where}.content", "a text or a list of parts", content)
    if content is None and not any(message.get(one) for one in ("tool_calls", "reasoning_content", "reasoning")):
        content = ""
    # OpenAI's name for what chat templates know as the system's messages.
    return {**message, "role": "system" if role == "developer" else role, "content": content}


def text_of_parts(parts: Iterable[Any], where: str) -> str:
    """Return the text of a message that is a list of parts.

    Raises:
        HTTPFailure: one of them is an image, or something else that is no text.
    """
    texts = []
    for number, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get("text", part.get("refusal")) if isinstance(part, Mapping) else None
        if kind in ("text", "input_text", "output_text", "refusal") and isinstance(text, str):
            texts.append(text)
        elif kind in ("text", "input_text", "output_text", "refusal") or not isinstance(kind, str):
            raise wrong_field(f"{where}[{number}]", "a part with a type and a text", part)
        else:
            raise unsupported(f"{where}[{number}]", f"Models get text alone here; a part is of type {kind[:40]!r}.")
    return "".join(texts)


def chat_tools(fields: Fields) -> list[dict[str, Any]] | None:
    """Return the functions that an answer may call, as OpenAI describes them; None: there are none."""
    tools = fields.objects("tools", MOST_TOOLS)
    for number, tool in enumerate(tools or ()):
        function = tool.get("function")
        if tool.get("type", "function") != "function":
            raise unsupported(f"tools[{number}].type", f"Only functions can be called here; got {tool['type']!r:.40}.")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise wrong_field(f"tools[{number}].function", "an object with a name", function)
    return tools or None


def template_arguments(fields: Fields) -> dict[str, Any]:
    """Return further variables of the chat template; a template itself comes with a model, never with a request."""
    given = fields.inner("chat_template_kwargs")
    arguments = {} if given is None else dict(given.values)
    if "chat_template" in fields or "chat_template" in arguments:
        raise unsupported("chat_template", "Chat templates come with models; requests cannot bring their own.")
    if (effort := fields.text("reasoning_effort")) is not None:
        arguments.setdefault("reasoning_effort", effort)
        arguments.setdefault("enable_thinking", effort not in ("none", "minimal"))
    return arguments
