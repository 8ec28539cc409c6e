"""The application: its routes, what they share, and how whatever goes wrong becomes an answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from edge_rt.errors import EdgeRTError
from edge_rt.server.answers import AnswerRequest, answering
from edge_rt.server.bodies import BodyRoom, Fields
from edge_rt.server.counters import Counters
from edge_rt.server.failures import HTTPFailure, failure_of, response_of
from edge_rt.server.guard import Guard
from edge_rt.server.models import LoadedModel, Models
from edge_rt.server.openai_chat import ChatWriter, read_chat
from edge_rt.server.responding import ClientGone, Writer, respond, unless_gone

ENCODING_THREADS: Final = 2
TIDY_SECONDS: Final = 5.0
CLIENT_LEFT: Final = 499
"""Status of a request whose client has left: nobody reads it, but the log has it."""


@dataclass
class Server:
    """What the routes share.

    Attributes:
        log: writes a line for whoever runs the server; never what was asked or answered.
        encoding: threads in which prompts become tokens.
    """

    models: Models
    log: Callable[[str], None] = lambda _: None
    bodies: BodyRoom = field(default_factory=BodyRoom)
    counters: Counters = field(default_factory=Counters)
    encoding: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(ENCODING_THREADS, thread_name_prefix="edge-rt encoding")
    )

    @asynccontextmanager
    async def running(self, _: Starlette) -> AsyncGenerator[None]:
        """Unload idle models while a block runs, and all behind it."""
        tidying = asyncio.create_task(self._tidy())
        try:
            yield
        finally:
            tidying.cancel()
            with suppress(asyncio.CancelledError):
                await tidying
            await self.models.close()
            self.encoding.shutdown(wait=False, cancel_futures=True)

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(TIDY_SECONDS)
            await self.models.unload_idle()


Handler = Callable[[Server, Request], Awaitable[Response]]


def answered_by(read: Callable[[Fields], AnswerRequest], write: Callable[[Fields, LoadedModel], Writer]) -> Handler:
    """Return what answers the requests of an API that generates: it reads them, and writes the answers."""

    async def handle(server: Server, request: Request) -> Response:
        async with AsyncExitStack() as held:
            fields = await held.enter_async_context(server.bodies.read(request))
            asked = read(fields)
            entry = await held.enter_async_context(server.models.using(asked.model))
            writer = write(fields, entry)
            opening = answering(entry, asked, server.encoding, server.counters.add)
            answers = await unless_gone(request.receive, held.enter_async_context(opening))
            return await respond(request, answers, writer, held, is_streamed=fields.flag("stream"))
        raise AssertionError("unreachable")

    return handle


async def health(server: Server, request: Request) -> Response:
    """Tell that the server is there."""
    del server, request
    return JSONResponse({"status": "ok"})


async def list_models(server: Server, request: Request) -> Response:
    """List the models."""
    del request
    names = await asyncio.to_thread(server.models.packages)
    return JSONResponse({"object": "list", "data": [_model(server, name, names) for name in sorted(names)]})


async def show_model(server: Server, request: Request) -> Response:
    """Show one model."""
    name = server.models.name_of(request.path_params["id"])
    return JSONResponse(_model(server, name, await asyncio.to_thread(server.models.packages)))


def _model(server: Server, name: str, packages: Mapping[str, Any]) -> dict[str, Any]:
    created = 0
    with suppress(OSError, KeyError):
        created = int(packages[name].stat().st_mtime)
    entry = server.models.loaded.get(name)
    own: dict[str, Any] = {"is_loaded": entry is not None}
    if entry is not None:
        own |= {"context_tokens": entry.model.context_tokens, "slots": entry.model.slots}
    return {"id": name, "object": "model", "created": created, "owned_by": "edge-rt", "edge_rt": own}


@dataclass(frozen=True)
class Endpoint:
    """A route.

    Attributes:
        summary: what it does, in a sentence.
    """

    method: str
    path: str
    handler: Handler
    summary: str


ENDPOINTS: Final = (
    Endpoint("GET", "/health", health, "Whether the server is there; needs no key."),
    Endpoint("GET", "/v1/models", list_models, "The models."),
    Endpoint("GET", "/v1/models/{id:path}", show_model, "One model."),
    Endpoint("POST", "/v1/chat/completions", answered_by(read_chat, ChatWriter), "OpenAI's chat completions."),
)


def _route(server: Server, endpoint: Endpoint) -> Route:
    async def handle(request: Request) -> Response:
        started = time.perf_counter()
        server.counters.active += 1
        try:
            response = await _answered(server, endpoint.handler, request)
        finally:
            server.counters.active -= 1
        server.counters.requests[endpoint.path, response.status_code] += 1
        if endpoint.method == "POST" or response.status_code >= 400:
            milliseconds = 1e3 * (time.perf_counter() - started)
            server.log(f"{endpoint.method} {endpoint.path} {response.status_code} {milliseconds:.0f} ms")
        return response

    return Route(endpoint.path, handle, methods=[endpoint.method])


async def _answered(server: Server, handler: Handler, request: Request) -> Response:
    try:
        return await handler(server, request)
    except HTTPFailure as failure:
        return response_of(failure, request.scope["path"])
    except EdgeRTError as error:
        translated = failure_of(error)
        if translated.status >= 500:
            server.log(str(error))
        return response_of(translated, request.scope["path"])
    except (ClientGone, ClientDisconnect):
        return Response(status_code=CLIENT_LEFT)
    except Exception as error:
        # Its text may hold what was asked.
        server.log(f"{request.scope['path']} failed: {type(error).__name__}")
        what = f"The server failed: {type(error).__name__}."
        return response_of(HTTPFailure(500, what, code="server_error"), request.scope["path"])


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = f"There is no {request.method} {request.scope['path'][:200]} here."
    failure = HTTPFailure(error.status_code, what, code="unknown_url")
    response = response_of(failure, request.scope["path"])
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
    return Starlette(
        routes=[_route(server, endpoint) for endpoint in ENDPOINTS],
        middleware=[guard],
        exception_handlers={HTTPException: _no_route},
        lifespan=server.running,
    )
