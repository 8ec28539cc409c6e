"""Errors as a server tells them: which status, in whose shape, and whether it helps to try again."""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping
from typing import Any, Final

from starlette.responses import JSONResponse

from edge_rt.errors import (
    Busy,
    ConfigError,
    ContextOverflow,
    EdgeRTError,
    EncodingBudgetExceeded,
    InputError,
    InvalidGrammar,
    MemoryBudgetExceeded,
    ModelClosed,
    ModelNotFound,
    QueueFull,
    ReferenceBudgetExceeded,
)

RETRY_SECONDS: Final = 1.0
CONTEXT_EXCEEDED: Final = "context_length_exceeded"
_OF_ANTHROPIC: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class HTTPFailure(Exception):
    """A request that gets no answer.

    Attributes:
        status: HTTP status.
        message: what is wrong and what to do; no paths of this machine.
        param: the field that is wrong; None: no single one.
        code: a word that programs look for.
        retry_after: seconds after which it may succeed; None: it would fail again.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        # Texts of requests may have halves of characters, which no answer can carry.
        message = message.encode("utf-8", "replace").decode()
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.retry_after = status, message, param, code, retry_after

    @property
    def headers(self) -> dict[str, str]:
        """What tells clients whether to try again."""
        if self.retry_after is None:
            return {"x-should-retry": "false"}
        seconds = str(max(1, math.ceil(self.retry_after)))
        return {"x-should-retry": "true", "retry-after": seconds}


def wrong_field(param: str, wanted: str, value: object) -> HTTPFailure:
    """Return the failure of a request whose field has a wrong value."""
    return HTTPFailure(400, f"The field '{param}' is {wanted}; got {value!r:.60}.", param=param)


def unsupported(param: str, what: str) -> HTTPFailure:
    """Return the failure of a request for what this server cannot do."""
    return HTTPFailure(400, what, param=param, code="unsupported")


def too_long(error: ContextOverflow, param: str) -> HTTPFailure:
    """Return the failure of a request whose prompt does not fit."""
    # Programs that shorten a conversation by themselves look for these words.
    words = f"This model's maximum context length is {error.context_tokens} tokens, as it is loaded."
    return HTTPFailure(400, f"{words} {error}", param=param, code=CONTEXT_EXCEEDED)


def stopped() -> HTTPFailure:
    """Return the failure of a request whose answer the server has ended."""
    what = "The answer was stopped: the server is going down, or has unloaded the model."
    return HTTPFailure(503, what, code="overloaded", retry_after=RETRY_SECONDS)


def failure_of(error: EdgeRTError, limit: str | None = "max_tokens") -> HTTPFailure:
    """Return how a request fails with an error of a generation.

    Args:
        limit: the field that says how many tokens an answer may have.
    """
    message = str(error)
    if isinstance(error, ContextOverflow) and error.is_of_request:
        # Without the code for which programs shorten the conversation.
        return HTTPFailure(400, message, param=limit)
    if isinstance(error, ContextOverflow):
        return too_long(error, "messages")
    if isinstance(error, QueueFull):
        return HTTPFailure(429, message, code="rate_limit_exceeded", retry_after=error.retry_after)
    if isinstance(error, Busy | ModelClosed):
        return HTTPFailure(503, message, code="overloaded", retry_after=RETRY_SECONDS)
    if isinstance(error, ModelNotFound):
        return HTTPFailure(404, message, param="model", code="model_not_found")
    if isinstance(error, InvalidGrammar):
        return HTTPFailure(400, message, param="response_format")
    if isinstance(error, EncodingBudgetExceeded | ReferenceBudgetExceeded | ConfigError | InputError):
        return HTTPFailure(400, message)
    if isinstance(error, MemoryBudgetExceeded):
        return HTTPFailure(503, message, code="out_of_memory")
    # What the engine says may name files.
    return HTTPFailure(500, f"The server failed: {type(error).__name__}. Its log has more.", code="server_error")


_PARAMS: Final[Mapping[str, Mapping[str, str]]] = {
    "/v1/completions": {"messages": "prompt"},
    "/v1/responses": {"messages": "input", "max_tokens": "max_output_tokens", "response_format": "text.format"},
    "/infill": {"messages": "input_prefix", "max_tokens": "n_predict", "suffix": "input_suffix"},
}
"""What fields are called where it is not as in chats, for failures that know no API."""


def body_of(failure: HTTPFailure, path: str) -> Mapping[str, Any]:
    """Return the JSON of a failure, in the shape of the API that a path belongs to."""
    if path.startswith("/api/"):
        return {"error": failure.message}
    if path.startswith("/v1/messages"):
        return anthropic_error(failure)
    error = openai_error(failure)
    return {"error": {**error, "param": _PARAMS.get(path, {}).get(failure.param or "", failure.param)}}


def anthropic_error(failure: HTTPFailure) -> dict[str, Any]:
    """Return a failure as Anthropic's API writes it, in answers and in events."""
    kind = _OF_ANTHROPIC.get(failure.status, "api_error")
    # Here programs look for these.
    words = "prompt is too long: " if failure.code == CONTEXT_EXCEEDED else ""
    return {"type": "error", "error": {"type": kind, "message": f"{words}{failure.message}"}}


def openai_error(failure: HTTPFailure) -> dict[str, Any]:
    """Return a failure as OpenAI's API writes it, in answers and in events."""
    kind = "invalid_request_error"
    if failure.status == 401:
        kind = "authentication_error"
    elif failure.status == 429:
        kind = "rate_limit_error"
    elif failure.status >= 500:
        kind = "server_error"
    return {"message": failure.message, "type": kind, "param": failure.param, "code": failure.code}


def response_of(failure: HTTPFailure, scope: MutableMapping[str, Any]) -> JSONResponse:
    """Return the response of a failure."""
    return JSONResponse(body_of(failure, path_of(scope)), failure.status, headers=failure.headers)


def path_of(scope: MutableMapping[str, Any]) -> str:
    """Return the path of a request below the one that the application is mounted at."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root) if path.startswith(f"{root}/") else path
