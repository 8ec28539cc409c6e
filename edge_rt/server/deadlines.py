"""Connections that are in no hurry: how long a request may take to arrive, and how many connections there may be.

uvicorn knows how long a connection may rest between requests, but every byte begins that time anew: what sends one byte
a minute holds a connection for ever.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from edge_rt.server.guard import is_loopback

HEADER_SECONDS: Final = 10.0
BODY_SECONDS: Final = 30.0
MOST_CONNECTIONS: Final = 256
"""Further ones take the place of the one that has been idle the longest, or are refused if there is none."""
MOST_OF_ADDRESS: Final = 8
"""Connections of one address, if it is another machine's."""
_FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nx-should-retry: true\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 with a time by which the headers, and by which the whole body of a request has to be there."""

    header_seconds = HEADER_SECONDS
    body_seconds = BODY_SECONDS
    most_connections = MOST_CONNECTIONS
    most_of_address = MOST_OF_ADDRESS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._waits_for: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, unless there are too many."""
        super().connection_made(transport)
        if self._is_too_many() and not self._has_made_room():
            transport.write(_FULL)
            transport.close()
            return
        self.idle_since = self.loop.time()
        self._wait_for("headers")

    def data_received(self, data: bytes) -> None:
        """Read, and see what is still to come."""
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """Go on with a request that came before the response was complete."""
        super().on_response_complete()
        self.idle_since = self.loop.time()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._wait_for(None)
        super().connection_lost(exc)

    def _is_too_many(self) -> bool:
        return len(self.connections) > self.most_connections or self._is_too_many_of_address()

    def _is_too_many_of_address(self) -> bool:
        if self.client is None or is_loopback(self.client[0]):
            return False
        clients = [getattr(other, "client", None) for other in self.connections]
        same = [client for client in clients if client is not None and client[0] == self.client[0]]
        return len(same) > self.most_of_address

    def _has_made_room(self) -> bool:
        """Close the connection that has been idle the longest; return whether there was one."""
        if self._is_too_many_of_address():
            return False
        idle = [other for other in self.connections if isinstance(other, BoundedProtocol) and other.is_idle]
        if not idle:
            return False
        longest = min(idle, key=lambda other: other.idle_since)
        self.connections.discard(longest)
        longest.transport.abort()
        return True

    @property
    def is_idle(self) -> bool:
        """Whether it has asked for nothing that is still to be answered."""
        is_answered = self.cycle is None or self.cycle.response_complete
        return self.idle_since > 0 and is_answered and self._waits_for != "body"

    def _look(self) -> None:
        state = self.conn.their_state
        if state is h11.SEND_BODY:
            self._wait_for("body")
        elif state is h11.IDLE and self.conn.trailing_data[0]:
            self._wait_for("headers")
        else:
            self._wait_for(None)

    def _wait_for(self, what: str | None) -> None:
        if what == self._waits_for and what is not None:
            return  # The time does not begin anew.
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waits_for = what
        if what is not None:
            seconds = self.header_seconds if what == "headers" else self.body_seconds
            self._timer = self.loop.call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        self._timer = None
        if not self.transport.is_closing():
            self.transport.abort()
