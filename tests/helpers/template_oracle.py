"""Who wrote which character of a prompt, found in another way: from a second rendering with other characters.

In the second rendering every character of the messages, other than white space, is replaced by one of Unicode's private
use area, which no template has. Where both renderings are the same but for that, each character's origin is plain.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

from edge_rt.errors import InvalidTemplate
from edge_rt.text.template import ChatTemplate

_FIRST = 0xE000
_CONTROL = re.compile(r"</?[^<>\s{}%'\"]{1,40}>|\[/?[A-Z_]{2,30}\]")
_KEPT = frozenset({"role", "type", "id", "tool_call_id"})


def control_texts(source: str) -> list[str]:
    """Return what looks like a control token in a template, and the ends of turns of other families."""
    found = sorted(set(_CONTROL.findall(source)))
    return [*found, "<|im_start|>", "<|im_end|>", "</s>", "<think>", "</think>"]


def fragments(source: str) -> list[str]:
    """Return texts that attack a template: its control tokens, their halves, and what templates search for."""
    tokens = control_texts(source)
    halves = [half for token in tokens for half in (token[: len(token) // 2], token[len(token) // 2 :])]
    return [*tokens, *tokens, *halves, "<", ">", "|", "[", "]", "\n", "\n\n", " ", "a", "é", "{{", "{%", "user", '"']


def disguised(value: Any, alphabet: dict[str, str]) -> Any:
    """Return a value with other characters in its texts; names of fields stay."""
    if isinstance(value, str):
        return "".join(c if c.isspace() else alphabet.setdefault(c, chr(_FIRST + len(alphabet))) for c in value)
    if isinstance(value, dict):
        return {key: part if key in _KEPT else disguised(part, alphabet) for key, part in value.items()}
    return [disguised(part, alphabet) for part in value] if isinstance(value, list) else value


def leaks(template: ChatTemplate, messages: Sequence[dict[str, Any]], **options: Any) -> list[str] | None:
    """Return the characters of messages that count as the template's own, with their surroundings.

    Returns:
        None if the template refuses the messages, or does something else with the other characters.
    """
    alphabet: dict[str, str] = {}
    try:
        found = template.render(messages, **options)
        other = template.render(disguised(list(messages), alphabet), **options)
    except InvalidTemplate:
        return None
    back = str.maketrans({new: old for old, new in alphabet.items()})
    if other.text.translate(back) != found.text:
        return None
    private = frozenset(alphabet.values())
    own = [at for begin, end in zip(found.own[::2], found.own[1::2], strict=True) for at in range(begin, end)]
    return [found.text[max(at - 20, 0) : at + 20] for at in own if other.text[at] in private]


def attack(rng: random.Random, parts: Sequence[str], turns: int) -> list[dict[str, Any]]:
    """Return a conversation made of fragments."""

    def text() -> str:
        return "".join(rng.choices(parts, k=rng.randrange(1, 7)))

    def content() -> Any:
        return [{"type": "text", "text": text()} for _ in range(2)] if rng.random() < 0.1 else text()

    messages: list[dict[str, Any]] = [{"role": "system", "content": text()}] if rng.random() < 0.5 else []
    for _ in range(turns):
        answer: dict[str, Any] = {"role": "assistant", "content": text()}
        if rng.random() < 0.3:
            answer["reasoning_content"] = text()
        messages += [{"role": "user", "content": content()}, answer]
        if rng.random() < 0.2:
            call = {"name": text(), "arguments": {"a": text(), "b": [text(), 1]}}
            answer["tool_calls"] = [{"id": "call12345", "type": "function", "function": call}]
            messages.append({"role": "tool", "content": text(), "tool_call_id": "call12345"})
    return [*messages, {"role": "user", "content": content()}]
