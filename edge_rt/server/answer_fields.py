"""What answers of several APIs have in common: identifiers, ends, counts, log probabilities, calls, events."""

from __future__ import annotations

import dataclasses
import json
import secrets
from collections.abc import Iterable, Sequence
from typing import Any, Final

from starlette.responses import JSONResponse, Response

from edge_rt.runtime.model import Model
from edge_rt.runtime.results import LogProb, Result, TokenLogProb
from edge_rt.server.answers import Answers, WholeAnswer
from edge_rt.text.tool_calls import ToolCall

DONE: Final = b"data: [DONE]\n\n"
PING: Final = b": still working\n\n"
_REASONS: Final = {"stop": "stop", "length": "length", "context_full": "length", "repetition": "stop"}


def new_id(kind: str) -> str:
    """Return an identifier that nothing else has."""
    return f"{kind}{secrets.token_hex(12)}"


def finish_reason(result: Result, num_calls: int) -> str:
    """Return why an answer ended, in OpenAI's words."""
    reason = _REASONS[result.finish_reason]
    return "tool_calls" if num_calls and reason == "stop" else reason


def own_fields(result: Result) -> dict[str, Any]:
    """Return what edge-rt says beyond OpenAI's fields: the true reason, warnings, and llama.cpp's timings."""
    timings = dataclasses.asdict(result.timings)
    if result.spec is not None:
        timings |= {"draft_n": result.spec.draft_n, "draft_n_accepted": result.spec.draft_n_accepted}
    own: dict[str, Any] = {"finish": result.finish_reason}
    if result.stop_string is not None:
        own["stop_string"] = result.stop_string
    if result.warnings:
        own["warnings"] = list(result.warnings)
    return {"edge_rt": own, "timings": timings}


def usage(answers: Answers, *, has_prediction: bool = False) -> dict[str, Any]:
    """Return the tokens of answers that have ended; a prompt counts once, however many answers it has."""
    results = [whole.ended for whole in answers.whole]
    prompt = sum(one.usage.prompt_tokens for one in results[:: answers.count])
    completion = sum(one.usage.completion_tokens for one in results)
    details: dict[str, Any] = {"reasoning_tokens": sum(whole.reasoning_tokens for whole in answers.whole)}
    if has_prediction:
        drafts = [one.spec for one in results if one.spec is not None]
        accepted = sum(spec.draft_n_accepted for spec in drafts)
        details["accepted_prediction_tokens"] = accepted
        details["rejected_prediction_tokens"] = sum(spec.draft_n for spec in drafts) - accepted
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(one.usage.cached_tokens for one in results[:: answers.count])},
        "completion_tokens_details": details,
    }


def calls_of(answer: WholeAnswer, ids: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the calls of an answer, with the identifiers that were given to them before."""
    return [_call(call, ids[index] if index < len(ids) else new_id("call_"))
            for index, call in enumerate(answer.ended.tool_calls)]  # fmt: skip


def _call(call: ToolCall, identifier: str) -> dict[str, Any]:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return {"id": identifier, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def chat_logprobs(model: Model, tokens: Iterable[TokenLogProb]) -> dict[str, Any]:
    """Return log probabilities as chats have them; the token that ends an answer is no part of it."""
    ends = model.tokenizer.eos_token_ids
    content = [
        {**_entry(model, token), "top_logprobs": [_entry(model, other) for other in token.top]}
        for token in tokens
        if token.token_id not in ends
    ]
    return {"content": content, "refusal": None}


def _entry(model: Model, token: LogProb) -> dict[str, Any]:
    data = list(model.tokenizer.token_bytes(token.token_id))
    return {"token": token.text, "bytes": data, "logprob": max(token.logprob, -9999.0)}


def json_text(value: object) -> str:
    """Return JSON in one line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class WrittenJSON(JSONResponse):
    """JSON that may repeat texts of a request: halves of characters become question marks."""

    def render(self, content: Any) -> bytes:
        """Return the bytes."""
        return json_text(content).encode("utf-8", "replace")


def written_rows(head: dict[str, Any], name: str, rows: Iterable[str]) -> Response:
    """Return a JSON object whose last field has many rows, which are written one after the other; for a thread."""
    body = f'{json_text(head)[:-1]},"{name}":[{",".join(rows)}]}}'
    return Response(body.encode("utf-8", "replace"), media_type="application/json")


def sse(value: object, event: str | None = None) -> bytes:
    """Return an event of a stream of events."""
    name = "" if event is None else f"event: {event}\n"
    return f"{name}data: {json_text(value)}\n\n".encode("utf-8", "replace")
