"""What the routes of a server share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from edge_rt.server.bodies import BodyRoom
from edge_rt.server.counters import Counters
from edge_rt.server.models import Models

ENCODING_THREADS: Final = 2
TIDY_SECONDS: Final = 5.0


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
"""Answers a request; raises ``HTTPFailure`` or an ``EdgeRTError``."""
