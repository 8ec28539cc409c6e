"""OpenAI's chat completions."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

from edge_rt.server.answer_fields import (
    DONE,
    PING,
    calls_of,
    chat_logprobs,
    finish_reason,
    new_id,
    own_fields,
    sse,
    usage,
)
from edge_rt.server.answers import AnswerRequest, Answers, Piece, WholeAnswer
from edge_rt.server.failures import HTTPFailure, openai_error, unsupported
from edge_rt.server.fields import FLAG, TEXT, Fields, Table, either, inner, listed, needed, one_of, refused, whole
from edge_rt.server.models import LoadedModel
from edge_rt.server.request_fields import (
    CHAT,
    CHOICES,
    LIMIT,
    MESSAGE,
    MOST_TOKENS,
    SAMPLING,
    STREAM,
    TEMPLATE,
    chat_messages,
    chat_tools,
    content_of,
    response_format,
    sampling_options,
    template_arguments,
)

MOST_TOP_LOGPROBS: Final = 20
MOST_ANSWERS: Final = 8
CHAT_COMPLETION: Final[Table] = {
    **CHAT,
    **SAMPLING,
    **TEMPLATE,
    **STREAM,
    "max_completion_tokens": whole(1, MOST_TOKENS),
    "max_tokens": LIMIT,
    "n": whole(1, MOST_ANSWERS),
    "logprobs": FLAG,
    "top_logprobs": whole(0, MOST_TOP_LOGPROBS),
    "response_format": inner({}),
    "tool_choice": either(CHOICES, inner({"type": TEXT, "function": inner({"name": TEXT})})),
    "parallel_tool_calls": FLAG,
    "prediction": inner({"type": needed(one_of("content")), "content": needed(MESSAGE["content"])}),
    "modalities": listed(TEXT, 8),
    "functions": refused("Describe functions in 'tools'."),
    "function_call": refused("Choose a function with 'tool_choice'."),
    "audio": refused("Answers are text alone."),
    "web_search_options": refused("This server searches nothing."),
}


def read_chat(fields: Fields) -> AnswerRequest:
    """Return what a request for a chat completion asks for.

    Raises:
        HTTPFailure: a field is wrong, or asks for what this server cannot do.
    """
    for kind in fields.items("modalities"):
        if kind != "text":
            raise unsupported("modalities", f"Answers are text alone; got {kind!r:.40}.")
    messages = chat_messages(fields)
    options = sampling_options(fields)
    limit = "max_completion_tokens" if "max_completion_tokens" in fields else "max_tokens"
    most = fields.whole(limit)
    if most is not None and most > 0:
        options["max_tokens"] = most
    if fields.flag("logprobs"):
        options["logprobs"] = fields.whole("top_logprobs") or 0
    elif "top_logprobs" in fields:
        raise HTTPFailure(400, "The field 'top_logprobs' needs 'logprobs': true.", param="top_logprobs")
    if (wanted := response_format(fields)) is not None:
        options["response_format"] = wanted
    tools = chat_tools(fields)
    if (choice := fields.raw("tool_choice")) is not None:
        if tools is None and choice not in ("none", "auto"):
            raise HTTPFailure(400, "The field 'tool_choice' needs 'tools'.", param="tool_choice")
        options["tool_choice"] = choice
    if "parallel_tool_calls" in fields:
        options["parallel_tool_calls"] = fields.flag("parallel_tool_calls")
    if (text := _prediction(fields)) is not None:
        options |= {"reference": text, "spec": "reference"}
    count = fields.whole("n") or 1
    arguments = template_arguments(fields)
    return AnswerRequest(fields.text("model"), messages, options, tools, arguments, count=count, limit=limit)


def _prediction(fields: Fields) -> str | None:
    given = fields.inner("prediction")
    if given is None:
        return None
    given.required("type")
    given.required("content")
    return content_of(given) or None


class ChatWriter:
    """Writes chat completions."""

    media_type = "text/event-stream"
    ping: bytes | None = PING

    def __init__(self, fields: Fields, entry: LoadedModel, name: str) -> None:
        stream_options = fields.inner("stream_options")
        self._has_usage = stream_options is not None and stream_options.flag("include_usage")
        self._has_drafts = stream_options is not None and stream_options.flag("include_drafts")
        self._has_prediction = "prediction" in fields
        self._has_logprobs = fields.flag("logprobs")
        self._entry, self._name = entry, name
        self._id, self._created = new_id("chatcmpl-"), int(time.time())
        self._calls: dict[int, list[str]] = {}

    def whole(self, answers: Answers) -> dict[str, Any]:
        """Return the completion."""
        choices = [self._choice(index, answer) for index, answer in enumerate(answers.whole)]
        return {
            **self._head("chat.completion"),
            "choices": choices,
            "usage": usage(answers, has_prediction=self._has_prediction),
            **own_fields(answers.whole[0].ended),
        }

    def _choice(self, index: int, answer: WholeAnswer) -> dict[str, Any]:
        result, calls = answer.ended, calls_of(answer)
        text = answer.text.strip() if calls else answer.text
        message: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None, "refusal": None}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if calls:
            message["tool_calls"] = calls
        logprobs = None if result.logprobs is None else chat_logprobs(self._entry.model, result.logprobs)
        reason = finish_reason(result, len(calls))
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason}

    def begin(self, answers: Answers) -> Iterator[bytes]:
        """Tell whose the messages are."""
        for index in range(len(answers.whole)):
            yield self._chunk(index, {"role": "assistant", "content": ""})

    def piece(self, piece: Piece) -> Iterator[bytes]:
        """Tell what has come: thoughts, text, calls, and the end of an answer."""
        ids = self._calls.setdefault(piece.index, [])
        logprobs = None
        if self._has_logprobs and piece.logprobs:
            logprobs = chat_logprobs(self._entry.model, piece.logprobs)
        if piece.reasoning:
            yield self._chunk(piece.index, {"reasoning_content": piece.reasoning})
        has_step = self._has_drafts and piece.step is not None and bool(piece.step.token_ids)
        if piece.text or has_step or (logprobs is not None and logprobs["content"]):
            step = _step(piece) if has_step else None
            yield self._chunk(piece.index, {"content": piece.text}, logprobs, more=step)
        for call in piece.calls:
            if call.name is None:
                delta = {"index": call.index, "function": {"arguments": call.arguments}}
                yield self._chunk(piece.index, {"tool_calls": [delta]})
                continue
            ids.append(new_id("call_"))
            function = {"name": call.name, "arguments": ""}
            delta = {"index": call.index, "id": ids[-1], "type": "function", "function": function}
            yield self._chunk(piece.index, {"tool_calls": [delta]})
            if call.arguments:
                delta = {"index": call.index, "function": {"arguments": call.arguments}}
                yield self._chunk(piece.index, {"tool_calls": [delta]})
        if piece.result is not None:
            reason = finish_reason(piece.result, len(ids))
            own = own_fields(piece.result)
            yield self._chunk(piece.index, {}, None, reason, own)

    def end(self, answers: Answers) -> Iterator[bytes]:
        """Tell the counts if they were asked for, and that no more comes."""
        if self._has_usage:
            counts = usage(answers, has_prediction=self._has_prediction)
            yield sse({**self._head("chat.completion.chunk"), "choices": [], "usage": counts})
        yield DONE

    def failure(self, failure: HTTPFailure) -> Iterable[bytes]:
        """Tell that the answer failed."""
        return (sse({"error": openai_error(failure)}),)

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._name}

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: Any = None,
        reason: str | None = None,
        more: dict[str, Any] | None = None,
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        counts = {"usage": None} if self._has_usage else {}
        return sse({**self._head("chat.completion.chunk"), "choices": [choice], **counts, **(more or {})})


def _step(piece: Piece) -> dict[str, Any]:
    """Return the tokens of a step, and which of them are accepted drafts."""
    step = piece.step
    assert step is not None
    return {
        "edge_rt": {
            "tokens": len(step.token_ids),
            "accepted": step.num_accepted,
            "accepted_characters": min(len(piece.text), step.accepted_characters),
        }
    }
