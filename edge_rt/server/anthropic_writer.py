"""Writes Anthropic's messages: blocks of thoughts, text and calls, each closed before the next begins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from edge_rt.runtime.results import Result
from edge_rt.server.answer_fields import new_id, own_fields, sse
from edge_rt.server.answers import Answers, Piece
from edge_rt.server.failures import HTTPFailure, anthropic_error
from edge_rt.server.fields import Fields
from edge_rt.server.models import LoadedModel
from edge_rt.text.call_stream import CallPiece


class MessageWriter:
    """Writes a message."""

    media_type = "text/event-stream"
    ping: bytes | None = sse({"type": "ping"}, "ping")

    def __init__(self, fields: Fields, entry: LoadedModel, name: str) -> None:
        del fields, entry
        self._name, self._id = name, new_id("msg_")
        self._index, self._kind = -1, ""
        self._num_calls = 0

    def whole(self, answers: Answers) -> dict[str, Any]:
        """Return the message."""
        answer = answers.whole[0]
        result = answer.ended
        content: list[dict[str, Any]] = []
        if answer.reasoning:
            content.append({"type": "thinking", "thinking": answer.reasoning, "signature": ""})
        text = answer.text.strip() if result.tool_calls else answer.text
        if text or not result.tool_calls:
            content.append({"type": "text", "text": text})
        content += [
            {"type": "tool_use", "id": new_id("toolu_"), "name": call.name, "input": call.arguments}
            for call in result.tool_calls
        ]
        return {
            **self._message(content),
            **_stop(result, len(result.tool_calls)),
            "usage": _usage(result),
            **own_fields(result),
        }

    def begin(self, answers: Answers) -> Iterator[bytes]:
        """Tell that the message has begun, and how long its prompt is."""
        counts = {"input_tokens": answers.prompt_tokens or 0, "cache_creation_input_tokens": 0}
        counts |= {"cache_read_input_tokens": 0, "output_tokens": 0}
        message = {**self._message([]), "stop_reason": None, "stop_sequence": None, "usage": counts}
        yield sse({"type": "message_start", "message": message}, "message_start")

    def piece(self, piece: Piece) -> Iterator[bytes]:
        """Tell what has come, block by block."""
        if piece.reasoning:
            yield from self._open("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            yield self._delta({"type": "thinking_delta", "thinking": piece.reasoning})
        if piece.text and (piece.text.strip() or self._kind == "text" or not piece.calls):
            yield from self._open("text", {"type": "text", "text": ""})
            yield self._delta({"type": "text_delta", "text": piece.text})
        for call in piece.calls:
            yield from self._called(call)
        if piece.result is not None and self._index < 0:
            yield from self._open("text", {"type": "text", "text": ""})

    def end(self, answers: Answers) -> Iterator[bytes]:
        """Tell why it ended, and the counts."""
        yield from self._close()
        result = answers.whole[0].ended
        delta = {"type": "message_delta", "delta": _stop(result, self._num_calls), "usage": _usage(result)}
        yield sse({**delta, **own_fields(result)}, "message_delta")
        yield sse({"type": "message_stop"}, "message_stop")

    def failure(self, failure: HTTPFailure) -> Iterator[bytes]:
        """Tell that the message failed."""
        yield sse(anthropic_error(failure), "error")

    def _called(self, call: CallPiece) -> Iterator[bytes]:
        if call.name is not None:
            yield from self._close()
            self._num_calls += 1
            block = {"type": "tool_use", "id": new_id("toolu_"), "name": call.name, "input": {}}
            yield from self._open(f"call {call.index}", block)
        if call.arguments:
            yield self._delta({"type": "input_json_delta", "partial_json": call.arguments})

    def _open(self, kind: str, block: dict[str, Any]) -> Iterator[bytes]:
        if kind == self._kind:
            return
        yield from self._close()
        self._kind = kind
        self._index += 1
        yield sse({"type": "content_block_start", "index": self._index, "content_block": block}, "content_block_start")

    def _close(self) -> Iterator[bytes]:
        if self._kind:
            yield sse({"type": "content_block_stop", "index": self._index}, "content_block_stop")
        self._kind = ""

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return sse({"type": "content_block_delta", "index": self._index, "delta": delta}, "content_block_delta")

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self._id, "type": "message", "role": "assistant", "model": self._name, "content": content}


def _stop(result: Result, num_calls: int) -> dict[str, Any]:
    reason = "end_turn"
    if result.finish_reason in ("length", "context_full"):
        reason = "max_tokens"
    elif num_calls:
        reason = "tool_use"
    elif result.stop_string is not None:
        reason = "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": result.stop_string}


def _usage(result: Result) -> dict[str, int]:
    counts = result.usage
    return {
        "input_tokens": counts.prompt_tokens - counts.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": counts.cached_tokens,
        "output_tokens": counts.completion_tokens,
    }
