"""Chat messages -> prompt text, through the model's own chat template.

A template is a program from an untrusted file that works on untrusted text. :mod:`edge_rt.text.template_guard` bounds
what the program can do. This module keeps template and messages apart: special tokens that the *template* writes are
real, special tokens in a *message* are plain text.

It does so with a sentinel, a code point that no text may contain (a Unicode noncharacter, one that is absent from all
inputs). In every message it is inserted into everything that looks like a special token, or could become one together
with text that the template puts next to it. After rendering, the special tokens that are still whole are the template's
own, and the sentinels are removed from the rest.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

import jinja2

from edge_rt.errors import ConfigError, InvalidTemplate
from edge_rt.text.template_budget import Budget, refused, text_bytes
from edge_rt.text.template_guard import GuardedEnvironment

DEFAULT_TEMPLATE_NAME: Final = "chatml"
_DEFAULT_TEMPLATE: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_DEFAULT_NEEDS: Final = ("<|im_start|>", "<|im_end|>")

ROLES: Final = frozenset({"system", "developer", "user", "assistant", "model", "tool", "function", "ipython"})
_SENTINELS: Final = tuple(map(chr, range(0xFDD0, 0xFDF0)))
_MAX_DEPTH: Final = 32
_MAX_MESSAGES: Final = 16_384


@dataclass(frozen=True)
class RenderedPrompt:
    """A rendered chat.

    Two prompts whose messages begin alike have texts that begin alike (if the template only appends), so
    ``new.text.startswith(old.text)`` shows whether only the rest has to be encoded: ``new.suffix(len(old.text))``.

    Attributes:
        text: what the template wrote, with sentinels in the parts that came from messages.
        sentinel: the sentinel, one character.
        special_tokens: texts of the special tokens.
    """

    text: str
    sentinel: str
    special_tokens: tuple[str, ...] = field(repr=False)

    @property
    def plain_text(self) -> str:
        """The prompt as shown to users, without sentinels."""
        return self.text.replace(self.sentinel, "")

    def pieces(self) -> list[tuple[str, bool]]:
        """Cut the text at the template's special tokens.

        Returns:
            (text, is a special token) in order; no piece is empty, no sentinel is left.
        """
        result: list[tuple[str, bool]] = []
        start = 0
        for match in _guard_of(self.special_tokens).find_tokens(self.text):
            result += [(self.text[start : match.start()].replace(self.sentinel, ""), False), (match[0], True)]
            start = match.end()
        result.append((self.text[start:].replace(self.sentinel, ""), False))
        return [piece for piece in result if piece[0]]

    def suffix(self, start: int) -> RenderedPrompt:
        """Return the prompt without its first ``start`` characters of :attr:`text`."""
        return RenderedPrompt(self.text[start:], self.sentinel, self.special_tokens)

    def shield(self, text: str) -> str:
        """Return ``text`` as it would stand in :attr:`text` if it were the content of a message."""
        return _guard_of(self.special_tokens).shield(text, self.sentinel)


class ChatTemplate:
    """A chat template, checked and compiled once; usable from several threads.

    Args:
        source: the Jinja source, or None for a model that has none: then ChatML, where its special tokens exist.
        special_tokens: texts of all special tokens of the tokenizer.
        bos_token: text of the token that starts a text, for templates that write it themselves.
        eos_token: text of the token that ends an answer.
        clock: gives the time for templates that write the date.

    Attributes:
        source: the Jinja source in use.
        is_fallback: True if the model had no template and :data:`DEFAULT_TEMPLATE_NAME` is in use.

    Raises:
        InvalidTemplate: the template is not valid, not allowed or too complex, or there is none.
    """

    def __init__(
        self,
        source: str | None,
        *,
        special_tokens: Sequence[str],
        bos_token: str = "",
        eos_token: str = "",
        clock: Callable[[], datetime] = datetime.now,
    ) -> None:
        if source is None and not all(token in special_tokens for token in _DEFAULT_NEEDS):
            raise InvalidTemplate(
                "The model has no chat template.",
                f"The fallback {DEFAULT_TEMPLATE_NAME!r} needs the special tokens {' and '.join(_DEFAULT_NEEDS)}.",
                "Use generate with a plain prompt, or an instruction-tuned model.",
            )
        self.is_fallback = source is None
        self.source = _DEFAULT_TEMPLATE if source is None else source
        self.special_tokens = tuple(token for token in special_tokens if token)
        self._named = {"bos_token": bos_token, "eos_token": eos_token}
        self._environment = GuardedEnvironment(clock)
        self._template = self._environment.compile_guarded(self.source)
        self._lock = threading.Lock()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> RenderedPrompt:
        """Write the messages as the prompt that the model was trained on.

        Args:
            messages: each with a ``role`` of :data:`ROLES` and a ``content``: text, or a list of
                ``{"type": "text", "text": ...}``. Further keys (``tool_calls``, ``name``, ...) are passed to the
                template.
            add_generation_prompt: end with the beginning of the assistant's answer.
            tools: descriptions of functions that the model may call.

        Raises:
            ConfigError: the messages are malformed.
            InvalidTemplate: the template refuses the messages, fails, or exceeds its budget of time and memory.
        """
        plain = [_checked_message(index, message) for index, message in enumerate(_checked_list(messages))]
        plain_tools = None if tools is None else _checked_value(list(tools), "tools")
        texts = [self.source, *self.special_tokens, *_texts(plain), *_texts(plain_tools)]
        sentinel = _choose_sentinel(texts)
        guard = _guard_of(self.special_tokens)
        variables = {
            "messages": [_shielded_message(message, guard, sentinel) for message in plain],
            "tools": _shielded(plain_tools, guard, sentinel),
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **self._named,
        }
        texts = [*_texts(variables["messages"]), *_texts(variables["tools"])]
        budget = Budget(sum(map(len, texts)), sum(map(text_bytes, texts)))
        with self._lock:
            self._environment.begin(budget, sentinel)
            try:
                text = "".join(self._template.root_render_func(self._template.new_context(variables)))
            except InvalidTemplate:
                raise
            except Exception as error:  # a template can fail in as many ways as a program
                raise _render_error(error) from error
            finally:
                self._environment.begin(Budget(0, 0), "")
        return RenderedPrompt(text, sentinel, self.special_tokens)


def lint(template: ChatTemplate) -> list[str]:
    """Return warnings about a template, one sentence each, for the user who exports the model."""
    question = "edge-rt lint question"
    chat = [{"role": "user", "content": question}]
    try:
        with_prompt = template.render(chat)
        without_prompt = template.render(chat, add_generation_prompt=False)
    except InvalidTemplate as error:
        return [f"The chat template fails on a single user message: {error}"]
    warnings: list[str] = []
    if question not in with_prompt.plain_text:
        warnings.append("The chat template ignores the user's message.")
    if with_prompt.text == without_prompt.text:
        warnings.append("The chat template writes no generation prompt: the model may answer for the user.")
    elif not with_prompt.text.startswith(without_prompt.text):
        warnings.append("The chat template does not only append: every turn of a chat is computed from the start.")
    return warnings


class _SpecialGuard:
    """Finds special tokens, and places where text could become one."""

    def __init__(self, tokens: Sequence[str]) -> None:
        # Alternatives are tried in order: the longest token first.
        ordered = sorted(set(tokens), key=lambda token: (-len(token), token))
        self._exact = re.compile("|".join(map(re.escape, ordered)) or r"(?!)")
        # In messages the case is ignored: a template may convert it.
        self._loose = _loose_pattern(ordered)
        lowered = [token.lower() for token in ordered]
        self._heads = frozenset(token[:end] for token in lowered for end in range(1, len(token)))
        self._tails = frozenset(token[start:] for token in lowered for start in range(1, len(token)))
        self._longest = max(map(len, lowered), default=0)

    def find_tokens(self, text: str) -> Iterator[re.Match[str]]:
        """Find special tokens, leftmost and longest first, as the tokenizer does."""
        return self._exact.finditer(text)

    def shield(self, text: str, sentinel: str) -> str:
        """Insert the sentinel after the first character of everything that is or could become a special token."""
        places = {match.start() + 1 for match in self._loose.finditer(text)}
        edge = range(1, min(self._longest, len(text) + 1))
        # The template may write the missing rest after the text, or the beginning before it.
        places.update(len(text) - size + 1 for size in edge if text[-size:].lower() in self._heads)
        if any(text[:size].lower() in self._tails for size in edge):
            places.add(0)
        if not places:
            return text
        edges = [0, *sorted(places), len(text)]
        return sentinel.join(text[start:end] for start, end in pairwise(edges))


def _loose_pattern(tokens: Sequence[str]) -> re.Pattern[str]:
    """Match the first character of every token, in any case, also where occurrences overlap."""
    by_first: dict[str, list[str]] = {}
    for token in tokens:
        by_first.setdefault(token[0], []).append(token[1:])
    branches = (
        (re.escape(first) if first.lower() == first.upper() else f"(?i:{re.escape(first)})")
        + f"(?=(?i:{'|'.join(map(re.escape, rests))}))"
        for first, rests in by_first.items()
    )
    return re.compile("|".join(branches) or r"(?!)")


@lru_cache(maxsize=8)
def _guard_of(tokens: tuple[str, ...]) -> _SpecialGuard:
    return _SpecialGuard(tokens)


def _render_error(error: Exception) -> InvalidTemplate:
    if isinstance(error, jinja2.UndefinedError):
        return refused("uses a value that does not exist", f"{str(error)[:300]!r}.")
    if isinstance(error, RecursionError):
        return refused("nests calls too deeply", "Python's recursion limit was reached.")
    return refused("fails on these messages", f"{type(error).__name__}: {str(error)[:300]!r}.")


def _choose_sentinel(texts: Sequence[str]) -> str:
    for sentinel in _SENTINELS:
        if not any(sentinel in text for text in texts):
            return sentinel
    raise ConfigError(
        "The messages contain all noncharacters of Unicode.",
        f"One of U+{ord(_SENTINELS[0]):X} to U+{ord(_SENTINELS[-1]):X} must be absent.",
        "Remove them from the messages: they are not characters.",
    )


def _malformed(what: str, numbers: str) -> ConfigError:
    return ConfigError(what, numbers, 'Pass messages like {"role": "user", "content": "Hello"}.')


def _checked_list(messages: object) -> Sequence[object]:
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence):
        raise _malformed("The messages are not a list.", f"They are of type {type(messages).__name__}.")
    if not messages:
        raise _malformed("There are no messages.", "The list is empty.")
    if len(messages) > _MAX_MESSAGES:
        raise _malformed("There are too many messages.", f"{len(messages)} of at most {_MAX_MESSAGES}.")
    return messages


def _checked_message(index: int, message: object) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise _malformed("A message is not a mapping.", f"Message {index} is of type {type(message).__name__}.")
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise _malformed(
            "A message has an unknown role.", f"Message {index}: {str(role)[:40]!r}; known: {', '.join(sorted(ROLES))}."
        )
    result = _checked_value(dict(message), f"message {index}")
    assert isinstance(result, dict)
    return result | {"content": _checked_content(index, message)}


def _checked_content(index: int, message: Mapping[Any, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if content is None and message.get("role") == "assistant" and message.get("tool_calls"):
        return ""
    if not isinstance(content, list | tuple):
        raise _malformed("A message has no content.", f"Message {index}: content of type {type(content).__name__}.")
    parts: list[str] = []
    for part in content:
        text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise _malformed("A part of a message is not text.", f"Message {index}, part {len(parts)}.")
        parts.append(text)
    return "".join(parts)


def _checked_value(value: object, place: str, depth: int = 0) -> Any:
    """Copy plain data; objects of other types are refused."""
    if depth > _MAX_DEPTH:
        raise _malformed("A message is nested too deeply.", f"In {place}: more than {_MAX_DEPTH} levels.")
    if value is None or type(value) in {str, bool, int, float}:
        return value
    if isinstance(value, Mapping):
        if not all(type(key) is str for key in value):
            raise _malformed("A message has a key that is not text.", f"In {place}.")
        return {key: _checked_value(part, place, depth + 1) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_checked_value(part, place, depth + 1) for part in value]
    raise _malformed("A message holds something other than plain data.", f"In {place}: a {type(value).__name__}.")


def _texts(value: object) -> Iterable[str]:
    """Yield all texts in plain data, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield key
            yield from _texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)


def _shielded_message(message: dict[str, Any], guard: _SpecialGuard, sentinel: str) -> dict[str, Any]:
    """Shield a message except for its role, which is one of :data:`ROLES`."""
    result: dict[str, Any] = _shielded(message, guard, sentinel)
    return result | {"role": message["role"]}


def _shielded(value: Any, guard: _SpecialGuard, sentinel: str) -> Any:
    if isinstance(value, str):
        return guard.shield(value, sentinel)
    if isinstance(value, dict):
        # Names of fields are kept: templates look them up.
        keys = {key: key if key.isidentifier() else guard.shield(key, sentinel) for key in value}
        return {keys[key]: _shielded(part, guard, sentinel) for key, part in value.items()}
    if isinstance(value, list):
        return [_shielded(part, guard, sentinel) for part in value]
    return value
