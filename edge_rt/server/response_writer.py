"""Writes OpenAI's responses: items of thoughts, text and calls, each opened, filled and closed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

from edge_rt.runtime.results import Result
from edge_rt.server.answer_fields import PING, chat_logprobs, new_id, own_fields, sse, usage
from edge_rt.server.answers import Answers, Piece
from edge_rt.server.failures import HTTPFailure, openai_error
from edge_rt.server.fields import Fields
from edge_rt.server.models import LoadedModel
from edge_rt.text.call_stream import CallPiece

_ECHOED: Final = ("instructions", "max_output_tokens", "metadata", "reasoning", "temperature", "text", "top_p", "user")
_DELTAS: Final = {"message": "response.output_text", "reasoning": "response.reasoning_text"}


class ResponseWriter:
    """Writes a response."""

    media_type = "text/event-stream"
    ping: bytes | None = PING

    def __init__(self, fields: Fields, entry: LoadedModel, name: str) -> None:
        self._entry, self._name = entry, name
        self._id, self._created = new_id("resp_"), int(time.time())
        self._given = {name: fields.raw(name) for name in _ECHOED}
        self._tools = [tool for tool in fields.raw("tools") or () if tool.get("type") == "function"]
        self._choice = fields.raw("tool_choice") or "auto"
        self._is_parallel = fields.flag("parallel_tool_calls", default=True)
        self._output: list[dict[str, Any]] = []
        self._text, self._logprobs = "", list[Any]()
        self._sequence = -1

    def whole(self, answers: Answers) -> dict[str, Any]:
        """Return the response."""
        answer = answers.whole[0]
        result = answer.ended
        calls = answer.call_pieces()
        logprobs = result.logprobs or ()
        for _ in self.piece(Piece(0, answer.text, answer.reasoning, calls, logprobs, result)):
            pass
        return self._response(answers)

    def begin(self, answers: Answers) -> Iterator[bytes]:
        """Tell that the response has begun."""
        del answers
        yield self._event("response.created", response=self._response(None))
        yield self._event("response.in_progress", response=self._response(None))

    def piece(self, piece: Piece) -> Iterator[bytes]:
        """Tell what has come, item by item."""
        if piece.reasoning:
            yield from self._filled("reasoning", piece.reasoning)
        if piece.text and (piece.text.strip() or self._is_open("message") or not piece.calls):
            yield from self._filled("message", piece.text)
            self._logprobs += chat_logprobs(self._entry.model, piece.logprobs)["content"]
        for call in piece.calls:
            yield from self._called(call)
        if piece.result is not None:
            if not self._output:
                yield from self._filled("message", "")
            yield from self._close(is_cut=_is_cut(piece.result))

    def end(self, answers: Answers) -> Iterator[bytes]:
        """Tell the whole response."""
        response = self._response(answers)
        yield self._event(f"response.{response['status']}", response=response)

    def failure(self, failure: HTTPFailure) -> Iterator[bytes]:
        """Tell that the response failed."""
        error = openai_error(failure)
        response = {**self._response(None), "status": "failed"}
        response["error"] = {"code": error["code"] or error["type"], "message": error["message"]}
        yield self._event("response.failed", response=response)

    def _is_open(self, kind: str) -> bool:
        return bool(self._output) and self._output[-1]["type"] == kind and self._output[-1]["status"] == "in_progress"

    def _filled(self, kind: str, text: str) -> Iterator[bytes]:
        """Add text to the item of a kind, which is opened if another one is, or none."""
        if not self._is_open(kind):
            yield from self._close(is_cut=False)
            item: dict[str, Any] = {"id": new_id("msg_" if kind == "message" else "rs_"), "type": kind}
            item |= {"status": "in_progress", "content": []}
            item["role" if kind == "message" else "summary"] = "assistant" if kind == "message" else []
            yield from self._opened(item)
            yield self._of_item("response.content_part.added", content_index=0, part=self._part())
        self._text += text
        if text:
            more: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
            yield self._of_item(f"{_DELTAS[kind]}.delta", content_index=0, delta=text, **more)

    def _called(self, call: CallPiece) -> Iterator[bytes]:
        if call.name is not None:
            yield from self._close(is_cut=False)
            item = {"id": new_id("fc_"), "type": "function_call", "status": "in_progress", "call_id": new_id("call_")}
            yield from self._opened({**item, "name": call.name, "arguments": ""})
        if call.arguments:
            self._text += call.arguments
            yield self._of_item("response.function_call_arguments.delta", delta=call.arguments)

    def _opened(self, item: dict[str, Any]) -> Iterator[bytes]:
        self._output.append(item)
        self._text, self._logprobs = "", []
        yield self._event("response.output_item.added", output_index=len(self._output) - 1, item=dict(item))

    def _close(self, *, is_cut: bool) -> Iterator[bytes]:
        """Close the item that is open, if one is."""
        if not self._output or self._output[-1]["status"] != "in_progress":
            return
        item = self._output[-1]
        item["status"] = "incomplete" if is_cut else "completed"
        if item["type"] == "function_call":
            item["arguments"] = self._text
            name = "response.function_call_arguments.done"
            yield self._of_item(name, name=item["name"], arguments=self._text)
        else:
            part = self._part()
            item["content"] = [part]
            more = {"logprobs": self._logprobs} if item["type"] == "message" else {}
            yield self._of_item(f"{_DELTAS[item['type']]}.done", content_index=0, text=self._text, **more)
            yield self._of_item("response.content_part.done", content_index=0, part=part)
        yield self._event("response.output_item.done", output_index=len(self._output) - 1, item=dict(item))

    def _part(self) -> dict[str, Any]:
        if self._output[-1]["type"] == "reasoning":
            return {"type": "reasoning_text", "text": self._text}
        return {"type": "output_text", "text": self._text, "annotations": [], "logprobs": self._logprobs}

    def _of_item(self, kind: str, **fields: Any) -> bytes:
        item_id, index = self._output[-1]["id"], len(self._output) - 1
        return self._event(kind, item_id=item_id, output_index=index, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._sequence += 1
        return sse({"type": kind, "sequence_number": self._sequence, **fields}, kind)

    def _response(self, answers: Answers | None) -> dict[str, Any]:
        """Return the response as far as it is known; with answers it has ended."""
        given = self._given
        response: dict[str, Any] = {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            **given,
            "metadata": given["metadata"] or {},
            "text": given["text"] or {"format": {"type": "text"}},
            "reasoning": given["reasoning"] or {"effort": None, "summary": None},
            "model": self._name,
            "output": [] if answers is None else self._output,
            "parallel_tool_calls": self._is_parallel,
            "previous_response_id": None,
            "store": False,
            "tool_choice": self._choice,
            "tools": self._tools,
            "truncation": "disabled",
            "usage": None,
        }
        if answers is None:
            return response
        result = answers.whole[0].ended
        counts = usage(answers)
        response["status"] = "incomplete" if _is_cut(result) else "completed"
        if _is_cut(result):
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        response["usage"] = {
            "input_tokens": counts["prompt_tokens"],
            "input_tokens_details": counts["prompt_tokens_details"],
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": counts["completion_tokens_details"]["reasoning_tokens"]},
            "total_tokens": counts["total_tokens"],
        }
        return {**response, **own_fields(result)}


def _is_cut(result: Result) -> bool:
    return result.finish_reason in ("length", "context_full")
