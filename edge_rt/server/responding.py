"""Answers as responses: whole, or as events while they are written; and what happens when nobody reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from typing import Any, Final, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from edge_rt.server.answer_fields import WrittenJSON
from edge_rt.server.answers import Answers, Piece
from edge_rt.server.failures import HTTPFailure

T = TypeVar("T")
PING_SECONDS: Final = 15.0
"""Until the first bytes of a streamed answer, and between two that keep the connection from being taken for dead."""
STALLED_SECONDS: Final = 60.0
"""How long a client may take nothing before its answer is stopped."""


class Writer(Protocol):
    """Writes answers as one API has them.

    Attributes:
        media_type: of the events.
        ping: an event without meaning; None: there is none.
    """

    media_type: str
    ping: bytes | None

    def whole(self, answers: Answers) -> Mapping[str, Any]:
        """Return the JSON of answers that have ended."""

    def begin(self, answers: Answers) -> Iterable[bytes]:
        """Return the events in front of the first piece."""

    def piece(self, piece: Piece) -> Iterable[bytes]:
        """Return the events of a piece of an answer."""

    def end(self, answers: Answers) -> Iterable[bytes]:
        """Return the events behind the last piece."""

    def failure(self, failure: HTTPFailure) -> Iterable[bytes]:
        """Return the events of an answer that fails after it has begun."""


class ClientGone(Exception):
    """The client has closed its connection."""


async def unless_gone(receive: Receive, work: Awaitable[T]) -> T:
    """Return what some work returns; it is cancelled if the client leaves.

    Raises:
        ClientGone: it has left.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        gone.cancel()
        task.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """A response that sends the pieces of answers as they come.

    Attributes:
        on_end: called at the end: with what it has failed with, ``ClientGone`` if nobody was left to read it, or None.

    Args:
        first: the first piece; None: it has not come yet.
        held: what is let go at the end: the answers, their model, and the room of the request.
    """

    def __init__(self, answers: Answers, writer: Writer, first: Piece | None, held: AsyncExitStack) -> None:
        self.status_code, self.background, self.body = 200, None, b""
        self._answers, self._writer, self._first, self._held = answers, writer, first, held
        self.on_end: Callable[[Exception | None], None] = lambda _: None
        self.media_type = writer.media_type
        # Proxies pass events on at once only if they are told to.
        self.init_headers({"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all; stop the answers if the client leaves, or takes nothing for too long."""
        del scope
        outcome: Exception | None = ClientGone()
        try:
            async with self._held:
                with suppress(ClientGone, TimeoutError):
                    outcome = await unless_gone(receive, self._send(send))
        finally:
            self.on_end(outcome)

    async def _send(self, send: Send) -> HTTPFailure | None:
        """Send all; return what an answer has failed with."""
        outcome = None
        await _in_time(send({"type": "http.response.start", "status": 200, "headers": self.raw_headers}))
        answers, writer, piece = self._answers, self._writer, self._first
        has_begun = False
        try:
            while True:
                events: Iterable[bytes] = () if writer.ping is None else (writer.ping,)
                if piece is not None:
                    begin = () if has_begun else writer.begin(answers)
                    has_begun = True
                    events = (*begin, *writer.piece(piece))
                if data := b"".join(events):
                    await _in_time(send({"type": "http.response.body", "body": data, "more_body": True}))
                if answers.have_ended:
                    break
                piece = await answers.next(PING_SECONDS)
            data = b"".join(writer.end(answers))
        except HTTPFailure as failure:
            outcome = failure
            data = b"".join(writer.failure(failure))
        await _in_time(send({"type": "http.response.body", "body": data, "more_body": False}))
        return outcome


async def _in_time(sending: Awaitable[None]) -> None:
    async with asyncio.timeout(STALLED_SECONDS):
        await sending


async def respond(
    request: Request, answers: Answers, writer: Writer, held: AsyncExitStack, *, is_streamed: bool
) -> Response:
    """Return the response of answers that have begun.

    Args:
        held: what is let go when the response has been sent; a streamed response takes it over.

    Raises:
        HTTPFailure: an answer failed before anything was sent.
        ClientGone: the client has left.
    """
    if is_streamed:
        # What fails at once fails with a status of its own.
        first = await unless_gone(request.receive, answers.next(PING_SECONDS))
        return EventStream(answers, writer, first, held.pop_all())
    await unless_gone(request.receive, answers.all())
    return WrittenJSON(writer.whole(answers))
