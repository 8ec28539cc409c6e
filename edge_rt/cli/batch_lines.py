"""The lines of ``edge-rt batch``: prompts with their options in, answers and errors out, in two forms."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from edge_rt.errors import ConfigError, EdgeRTError, InputError, as_json, kind_of
from edge_rt.runtime.config import asked_of, has_format
from edge_rt.runtime.results import LogProb, Result
from edge_rt.system.byte_size import show_size
from edge_rt.system.files import NOT_READ, storage_errors
from edge_rt.system.json_files import parse_object
from edge_rt.text.tool_calls import split_tool_calls, tool_names

MAX_LINE_BYTES: Final = 64 << 20
URL: Final = "/v1/chat/completions"
START: Final = b'{"id": "line-'
"""How lines with answers begin."""

_ID: Final = re.compile(r"line-(\d{1,18})-([0-9a-f]{8})-([0-9a-f]{8})-([0-9a-f]{8})")
_OF_SERVICE: Final = frozenset({
    "model", "user", "metadata", "store", "service_tier", "stream_options", "prompt_cache_key",
    "prompt_cache_retention", "safety_identifier", "verbosity",
})  # fmt: skip
"""Fields of OpenAI's requests that concern their service alone."""
_FIXED: Final = {"n": 1, "stream": False, "modalities": ["text"]}
"""Fields that may have one value."""
_REASONS: Final = {"stop": "stop", "length": "length", "context_full": "length", "repetition": "length"}
"""Why an answer ended, in OpenAI's words."""


def digest(value: object) -> str:
    """Return eight hexadecimal digits that stand for what can be written as JSON."""
    plain = json.dumps(value, sort_keys=True, default=lambda one: dict(one) if isinstance(one, Mapping) else str(one))
    return hashlib.sha256(plain.encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Basis:
    """What answers come from besides their lines, as digests.

    Attributes:
        model: the package, and what else of it changes texts.
        options: those of the command.
    """

    model: str
    options: str


@dataclass(frozen=True)
class Answered:
    """What a line with an answer says of itself.

    Attributes:
        key: which line it belongs to, as ``Line.key``.
        digest: of that line.
    """

    key: str | int
    digest: str
    basis: Basis
    has_error: bool


@dataclass(frozen=True)
class Line:
    """One line of a file of prompts.

    Attributes:
        number: from 1, empty lines counted.
        digest: of what it says.
        error: what is wrong with the line as a whole.
        custom_id: the user's name for it, which no line before has.
        is_openai: whether it is in OpenAI's form.
    """

    number: int
    digest: str
    document: dict[str, Any] = dataclasses.field(default_factory=dict)
    error: EdgeRTError | None = None
    custom_id: str | None = None
    is_openai: bool = False

    @property
    def key(self) -> str | int:
        """What says that an answer is to this line."""
        return self.number if self.custom_id is None else self.custom_id

    @property
    def has_format(self) -> bool:
        """Whether the answer may have to fit something."""
        given = self.document.get("body") if self.is_openai else self.document
        return isinstance(given, dict) and has_format(given)

    def asked(self, *, raw: bool) -> tuple[Any, dict[str, Any]]:
        """Return the prompt and the options as ``generate`` takes them.

        Args:
            raw: take a text as it is; else it is the message of a user.

        Raises:
            EdgeRTError: a field is missing, wrong or unknown.
        """
        if self.error is not None:
            raise self.error
        return asked_of(self._fields(), "A line", raw=raw)

    def answer(self, result: Result, model: str, basis: Basis) -> dict[str, Any]:
        """Return the line that has a result."""
        if not self.is_openai:
            return {**self._own(basis), "result": result.to_json(), "error": None}
        return self._response(200, self._completion(result, model), None, basis)

    def failure(self, error: EdgeRTError, basis: Basis) -> dict[str, Any]:
        """Return the line that has an error."""
        if not self.is_openai:
            return {**self._own(basis), "result": None, "error": error.to_json()}
        code, text = type(error).__name__, str(error)
        is_theirs = isinstance(error, ConfigError | InputError)
        kind = "invalid_request_error" if is_theirs else "server_error"
        body = {"error": {"message": text, "type": kind, "param": None, "code": code}}
        return self._response(400 if is_theirs else 500, body, {"code": code, "message": text}, basis)

    def _id(self, basis: Basis) -> str:
        return f"line-{self.number}-{basis.model}-{basis.options}-{self.digest}"

    def _own(self, basis: Basis) -> dict[str, Any]:
        custom = {} if self.custom_id is None else {"custom_id": self.custom_id}
        return {"id": self._id(basis), "line": self.number, **custom}

    def _response(
        self, status: int, body: dict[str, Any], error: dict[str, Any] | None, basis: Basis
    ) -> dict[str, Any]:
        response = {"status_code": status, "request_id": f"request-{self.number}", "body": body}
        return {"id": self._id(basis), "custom_id": self.custom_id, "response": response, "error": error}

    def _fields(self) -> dict[str, Any]:
        """Return the fields of a prompt in the names of Python."""
        if not self.is_openai:
            return {name: value for name, value in self.document.items() if name != "custom_id"}
        method, url, body = (self.document.get(name) for name in ("method", "url", "body"))
        if method not in (None, "POST") or url not in (None, URL) or not isinstance(body, dict):
            raise InputError(
                "The request is none for chat completions.",
                f"Got {as_json(method)} {as_json(url)} with {kind_of(body)} as body.",
                f'Give "method": "POST", "url": "{URL}" and an object as body.',
            )
        fields = {name: value for name, value in body.items() if name not in _OF_SERVICE}
        for name, only in _FIXED.items():
            if (value := fields.pop(name, None)) not in (None, only):
                raise ConfigError(
                    f"'{name}' has one possible value.", f"Got {as_json(value)}.", f"Give {as_json(only)}."
                )
        if (most := fields.pop("max_completion_tokens", None)) is not None:
            fields["max_tokens"] = most
        if (guess := fields.pop("prediction", None)) is not None:
            if not isinstance(guess, dict) or not isinstance(guess.get("content"), str):
                raise ConfigError("'prediction' has no text.", f"Got {as_json(guess)}.", "Give its content as a text.")
            fields["reference"] = guess["content"]
        wants, top = fields.pop("logprobs", None), fields.pop("top_logprobs", None)
        if wants not in (None, False, True):
            raise ConfigError("'logprobs' is true or false.", f"Got {as_json(wants)}.", "Give top_logprobs besides.")
        return fields | ({"logprobs": top or 0} if wants else {})

    def _completion(self, result: Result, model: str) -> dict[str, Any]:
        tools = self.document["body"].get("tools")
        message: dict[str, Any] = {"role": "assistant", "content": result.text}
        if result.reasoning:
            message["reasoning_content"] = result.reasoning
        if result.tool_calls:
            message["content"] = split_tool_calls(result.text, tool_names(tools))[0] or None
            message["tool_calls"] = [
                {
                    "id": f"call-{self.number}-{count}",
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
                }
                for count, call in enumerate(result.tool_calls, start=1)
            ]
        usage = result.usage
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None if result.logprobs is None else {"content": [_logprob(one) for one in result.logprobs]},
            "finish_reason": "tool_calls" if result.tool_calls else _REASONS.get(result.finish_reason, "stop"),
        }
        return {
            "id": f"chatcmpl-{self.number}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": model,
            "choices": [choice],
            "usage": {
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.completion_tokens,
                "total_tokens": usage.total_tokens,
                "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
            },
        }


def read_lines(path: Path) -> Generator[Line]:
    """Yield the lines of a file of prompts that are not empty, as they are needed; faulty ones with their errors.

    Raises:
        StorageError: the file cannot be read.
    """
    seen: set[str] = set()
    with storage_errors(path, NOT_READ), path.open("rb") as stream:
        number = 0
        while data := stream.readline(MAX_LINE_BYTES):
            number += 1
            whole = data
            while len(whole) == MAX_LINE_BYTES and not whole.endswith(b"\n"):
                whole = stream.readline(MAX_LINE_BYTES)
            # Editors on Windows may write a byte order mark before the text.
            text = (data.removeprefix(b"\xef\xbb\xbf") if number == 1 else data).strip()
            if whole is not data:
                limit = f"The limit is {show_size(MAX_LINE_BYTES)}."
                refusal = InputError("The line is too long.", limit, "Write a shorter prompt.")
                yield Line(number, hashlib.sha256(data).hexdigest()[:8], error=refusal)
            elif text:
                yield _line(number, text, seen)


def read_answer(data: bytes) -> Answered | None:
    """Return which line a line with an answer belongs to, and what it comes from; None: it has no answer."""
    try:
        document = parse_object(data, ValueError)
    except ValueError:
        return None
    name, custom = document.get("id"), document.get("custom_id")
    parts = _ID.fullmatch(name) if isinstance(name, str) else None
    if parts is None or "error" not in document or not ("result" in document or "response" in document):
        return None
    number, model, options, line = parts.groups()
    key = custom if isinstance(custom, str) else int(number)
    return Answered(key, line, Basis(model, options), document["error"] is not None)


def _line(number: int, text: bytes, seen: set[str]) -> Line:
    try:
        document = parse_object(text, lambda why: InputError("The line is not a JSON object.", why, "Correct it."))
    except InputError as error:
        return Line(number, hashlib.sha256(text).hexdigest()[:8], error=error)
    own = digest(document)
    is_openai = any(name in document for name in ("body", "url", "method"))
    custom = document.get("custom_id")
    if custom is not None and (not isinstance(custom, str) or custom in seen):
        what = "is not a text" if not isinstance(custom, str) else "is that of an earlier line"
        refusal = InputError(f"The line's custom_id {what}.", f"It is {as_json(custom)}.", "Give every line its own.")
        return Line(number, own, document, refusal, is_openai=is_openai)
    if custom is not None:
        seen.add(custom)
    return Line(number, own, document, custom_id=custom, is_openai=is_openai)


def _logprob(one: LogProb) -> dict[str, Any]:
    shown: dict[str, Any] = {"token": one.text, "logprob": one.logprob, "bytes": None}
    top = getattr(one, "top", None)
    return shown if top is None else {**shown, "top_logprobs": [_logprob(other) for other in top]}
