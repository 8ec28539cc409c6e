"""The application: its routes, what they share, and how whatever goes wrong becomes an answer."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable, Collection
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edge_rt.errors import EdgeRTError
from edge_rt.server import embeddings, information, ollama, texts
from edge_rt.server.answers import AnswerRequest, answering
from edge_rt.server.anthropic_messages import MESSAGES, PROMPT, count_tokens, read_messages
from edge_rt.server.anthropic_writer import MessageWriter
from edge_rt.server.bodies import MOST_BODY_BYTES, MOST_TEXT_BYTES
from edge_rt.server.embeddings import EMBEDDINGS, OLLAMA_EMBED, OLLAMA_EMBEDDINGS
from edge_rt.server.failures import HTTPFailure, failure_of, path_of, response_of, stopped
from edge_rt.server.fields import Fields, Table, schema_of
from edge_rt.server.guard import OPEN_PATHS, Guard
from edge_rt.server.models import LoadedModel
from edge_rt.server.ollama import (
    OLLAMA_CHAT,
    OLLAMA_ELSEWHERE,
    OLLAMA_MODEL,
    OLLAMA_TEXT,
    OllamaTextWriter,
    OllamaWriter,
    read_ollama_chat,
    read_ollama_text,
)
from edge_rt.server.openai_chat import CHAT_COMPLETION, ChatWriter, read_chat
from edge_rt.server.openai_completions import (
    COMPLETION,
    INFILL,
    CompletionWriter,
    InfillWriter,
    read_completion,
    read_infill,
)
from edge_rt.server.openai_responses import RESPONSE, read_response
from edge_rt.server.responding import ClientGone, EventStream, Writer, respond, unless_gone
from edge_rt.server.response_writer import ResponseWriter
from edge_rt.server.shared import Post, Server
from edge_rt.version import VERSION

CLIENT_LEFT: Final = 499
"""Status of a request whose client has left: nobody reads it, but the log has it."""


Handler = Callable[[Server, Request], Awaitable[Response]]
"""Answers a request; raises ``HTTPFailure`` or an ``EdgeRTError``."""


@dataclass(frozen=True)
class Endpoint:
    """A route.

    Attributes:
        summary: what it does, in a sentence.
        table: the fields of its body; None: it has none.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    table: Table | None = None


def post(
    path: str,
    table: Table,
    answer: Callable[[Server, Post], Awaitable[Response]],
    summary: str,
    most: int = MOST_BODY_BYTES,
) -> Endpoint:
    """Return a route whose requests have a body, of so many bytes at most."""

    async def handle(server: Server, request: Request) -> Response:
        async with AsyncExitStack() as held:
            values = await held.enter_async_context(server.bodies.read(request, most))
            fields = Fields(values, table)
            fields.check()
            server.tell_ignored(path, fields.unknown)
            return await answer(server, Post(request, fields, held))
        raise AssertionError("unreachable")

    return Endpoint("POST", path, handle, summary, table)


def answered_by(
    read: Callable[[Fields], AnswerRequest],
    write: Callable[[Fields, LoadedModel, str], Writer],
    *,
    streams: bool = False,
) -> Callable[[Server, Post], Awaitable[Response]]:
    """Return what answers the requests of an API that generates.

    Args:
        read: reads them.
        write: writes the answers, with the name of their model.
        streams: whether it streams where a request does not say.
    """

    async def answer(server: Server, post: Post) -> Response:
        asked = read(post.fields)
        asked = asked.with_preset(server.models.preset_of(asked.model))
        entry = await post.held.enter_async_context(server.models.using(asked.model))
        writer = write(post.fields, entry, server.models.shown(asked.model))
        opening = post.held.enter_async_context(answering(server, entry, asked))
        answers = await unless_gone(post.request.receive, opening)
        is_streamed = post.fields.flag("stream", default=streams)
        return await respond(post.request, answers, writer, post.held, is_streamed=is_streamed)

    return answer


async def _openapi(server: Server, request: Request) -> Response:
    """Describe the routes."""
    del server, request
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        described: dict[str, Any] = {"summary": endpoint.summary, "responses": _RESPONSES}
        path = endpoint.path.replace(":path}", "}")
        if "{" in path:
            name = path.partition("{")[2].partition("}")[0]
            described["parameters"] = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}}]
        if endpoint.table is not None:
            content = {"application/json": {"schema": schema_of(endpoint.table)}}
            described["requestBody"] = {"required": True, "content": content}
        if path not in OPEN_PATHS:
            described["security"] = [{"key": []}]
        paths.setdefault(path, {})[endpoint.method.lower()] = described
    return JSONResponse(
        {
            "openapi": "3.1.0",
            "info": {"title": "edge-rt", "version": VERSION},
            "paths": paths,
            "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        }
    )


_OLLAMA_CHATS: Final = answered_by(read_ollama_chat, OllamaWriter, streams=True)
_OLLAMA_TEXTS: Final = answered_by(read_ollama_text, OllamaTextWriter, streams=True)
_RESPONSES: Final = {
    "200": {"description": "The answer."},
    "4XX": {"description": "The request has to be another one, or cannot be answered now (429)."},
    "5XX": {"description": "The server cannot answer now (503), or has failed."},
}
ENDPOINTS: Final = (
    Endpoint("GET", "/health", information.health, "Whether the server is there; needs no key."),
    Endpoint("GET", "/v1/models", information.list_models, "The models."),
    Endpoint("GET", "/v1/models/{id:path}", information.show_model, "One model."),
    post("/v1/chat/completions", CHAT_COMPLETION, answered_by(read_chat, ChatWriter), "OpenAI's chat completions."),
    post("/v1/completions", COMPLETION, answered_by(read_completion, CompletionWriter), "OpenAI's completions."),
    post("/v1/responses", RESPONSE, answered_by(read_response, ResponseWriter), "OpenAI's responses, without state."),
    post("/v1/embeddings", EMBEDDINGS, embeddings.answer_openai, "OpenAI's embeddings."),
    post("/v1/messages", MESSAGES, answered_by(read_messages, MessageWriter), "Anthropic's messages."),
    post(
        "/v1/messages/count_tokens",
        PROMPT,
        count_tokens,
        "The tokens of a prompt of Anthropic's messages.",
        MOST_TEXT_BYTES,
    ),
    post("/infill", INFILL, answered_by(read_infill, InfillWriter), "llama.cpp's completion between two texts."),
    post("/api/chat", OLLAMA_CHAT, ollama.unless_empty(_OLLAMA_CHATS, is_chat=True), "Ollama's chats."),
    post("/api/generate", OLLAMA_TEXT, ollama.unless_empty(_OLLAMA_TEXTS, is_chat=False), "Ollama's text."),
    post("/api/embed", OLLAMA_EMBED, embeddings.answer_ollama, "Ollama's embeddings."),
    post("/api/embeddings", OLLAMA_EMBEDDINGS, embeddings.answer_old_ollama, "Ollama's embedding of one text."),
    Endpoint("GET", "/api/tags", ollama.list_tags, "Ollama's list of models."),
    Endpoint("GET", "/api/ps", ollama.list_loaded, "Ollama's list of models that are loaded."),
    post("/api/show", OLLAMA_MODEL, ollama.show_details, "Ollama's facts of a model."),
    Endpoint("GET", "/api/version", ollama.show_version, "The version of Ollama whose routes these are."),
    post("/tokenize", texts.TOKENIZE, texts.tokenize, "The tokens of a text or of messages.", MOST_TEXT_BYTES),
    post("/detokenize", texts.DETOKENIZE, texts.detokenize, "The text of tokens.", MOST_TEXT_BYTES),
    post(
        "/apply-template",
        texts.APPLY_TEMPLATE,
        texts.apply_template,
        "Messages as the chat template writes them.",
        MOST_TEXT_BYTES,
    ),
    Endpoint("GET", "/props", information.show_props, "Settings of the usual model."),
    Endpoint("GET", "/metrics", information.show_metrics, "Sums and gauges, for Prometheus."),
    Endpoint("GET", "/v1/edge/status", information.show_status, "What is loaded and under way, and its memory."),
    Endpoint("GET", "/openapi.json", _openapi, "This list."),
    *(Endpoint("GET", path, information.show_page, "A file of the page.") for path in information.PAGE_PATHS),
)


def _route(server: Server, endpoint: Endpoint) -> Route:
    async def handle(request: Request) -> Response:
        started = time.perf_counter()
        response = await _answered(server, endpoint.handler, request)

        def end(status: int) -> None:
            server.counters.requests[endpoint.path, status] += 1
            if endpoint.method == "POST" or status >= 400:
                milliseconds = 1e3 * (time.perf_counter() - started)
                server.log(f"{endpoint.method} {endpoint.path} {status} {milliseconds:.0f} ms")

        def end_stream(outcome: Exception | None) -> None:
            # As if it had failed before it began: the status that was sent says nothing of the end.
            if isinstance(outcome, HTTPFailure):
                _log_cause(server, request, outcome)
            end(200 if outcome is None else outcome.status if isinstance(outcome, HTTPFailure) else CLIENT_LEFT)

        if isinstance(response, EventStream):
            response.on_end = end_stream
        else:
            end(response.status_code)
        return response

    return Route(endpoint.path, handle, methods=[endpoint.method])


async def _answered(server: Server, handler: Handler, request: Request) -> Response:
    task = asyncio.current_task()
    assert task is not None, "a coroutine is run by a task"
    server.requests.add(task)
    try:
        if server.is_stopped:
            raise stopped()
        return await handler(server, request)
    except asyncio.CancelledError:
        if not server.is_stopped:
            raise
        task.uncancel()
        return response_of(stopped(), request.scope)
    except HTTPFailure as failure:
        _log_cause(server, request, failure)
        return response_of(failure, request.scope)
    except EdgeRTError as error:
        translated = failure_of(error)
        if translated.status >= 500:
            server.log(str(error))
        return response_of(translated, request.scope)
    except (ClientGone, ClientDisconnect):
        return Response(status_code=CLIENT_LEFT)
    except Exception as error:
        return _failed(server, request, error)
    finally:
        server.requests.discard(task)


def _failed(server: Server, request: Request, error: Exception) -> Response:
    """Tell that an answer failed; not why, as the error's text may hold what was asked."""
    _log_unexpected(server, request, error)
    what = f"The server failed: {type(error).__name__}."
    return response_of(HTTPFailure(500, what, code="server_error"), request.scope)


def _meant(path: str) -> str | None:
    """Return the route that a path probably means whose client has a wrong base address; None: there is none."""
    known, path = {endpoint.path for endpoint in ENDPOINTS if endpoint.table is not None}, path.rstrip("/")
    return next((one for one in (path, f"/v1{path}", path.removeprefix("/v1")) if one in known), None)


def _log_cause(server: Server, request: Request, failure: HTTPFailure) -> None:
    """Tell of an unexpected error that was made a failure."""
    if failure.code != "server_error" or (cause := failure.__cause__) is None:
        return
    if isinstance(cause, EdgeRTError):
        server.log(str(cause))
    else:
        _log_unexpected(server, request, cause)


def _log_unexpected(server: Server, request: Request, error: BaseException) -> None:
    if server.shows_tracebacks:
        server.log("".join(traceback.format_exception(error)).rstrip())
    server.log(f"{path_of(request.scope)} failed: {type(error).__name__}")


class _Failures:
    """Middleware that answers what fails while an answer is sent, and ends the connection only if it must.

    Starlette's raises the error again behind an answer that is whole, and uvicorn then closes the connection, which the
    client has been told nothing of: its next request would meet a reset.
    """

    def __init__(self, app: ASGIApp, server: Server) -> None:
        self._app, self._server = app, server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        has_begun = is_whole = False

        async def send_on(message: Message) -> None:
            nonlocal has_begun, is_whole
            has_begun = True
            await send(message)
            is_whole = message["type"] == "http.response.body" and not message.get("more_body", False)

        try:
            await self._app(scope, receive, send_on)
        except Exception as error:
            if scope["type"] != "http":
                raise
            response = _failed(self._server, Request(scope), error)
            if not has_begun:
                await response(scope, receive, send)
            elif not is_whole:
                # Only a connection that ends tells the client that the rest does not come.
                raise


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path, status = path_of(request.scope), error.status_code
    what = f"There is no {request.method} {path[:200]} here."
    if (methods := (error.headers or {}).get("Allow")) is not None:
        what += f" It takes {methods}."
    elif (instead := OLLAMA_ELSEWHERE.get(path)) is not None:
        what, status = instead, 501
    elif (meant := _meant(path)) is not None:
        what += f" Did you mean {meant}?"
    failure = HTTPFailure(status, what, code="unknown_url")
    response = response_of(failure, request.scope)
    response.headers.update(error.headers or {})
    return response


def make_app(
    server: Server,
    *,
    host: str = "127.0.0.1",
    key: str | None = None,
    allowed_hosts: Collection[str] = (),
    allowed_origins: Collection[str] = (),
) -> Starlette:
    """Return the application; arguments as of ``Guard``."""
    guard = Middleware(
        Guard, host=host, key=key, allowed_hosts=tuple(allowed_hosts), allowed_origins=tuple(allowed_origins)
    )
    app = Starlette(
        routes=[_route(server, endpoint) for endpoint in ENDPOINTS],
        middleware=[Middleware(_Failures, server), guard],
        exception_handlers={HTTPException: _no_route},
        lifespan=server.running,
    )
    # Behind a proxy a redirection would name an address that its clients do not reach.
    app.router.redirect_slashes = False
    return app
