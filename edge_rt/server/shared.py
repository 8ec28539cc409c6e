"""What the routes of a server share: models, sums, room for bodies, threads."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from edge_rt.runtime.results import Result
from edge_rt.server.bodies import BodyRoom
from edge_rt.server.models import Models

ENCODING_THREADS: Final = 2
TIDY_SECONDS: Final = 5.0


@dataclass
class Counters:
    """Sums since the server began.

    Attributes:
        requests: by path of the route and status.
        active: requests that are being answered.
        answers: that have ended.
    """

    begun: float = field(default_factory=time.time)
    requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    active: int = 0
    answers: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    predicted_tokens: int = 0
    prompt_seconds: float = 0.0
    predicted_seconds: float = 0.0
    draft_tokens: int = 0
    accepted_tokens: int = 0

    def add(self, result: Result) -> None:
        """Count an answer that has ended."""
        self.answers += 1
        self.prompt_tokens += result.timings.prompt_n
        self.cached_tokens += result.timings.cache_n
        self.predicted_tokens += result.timings.predicted_n
        self.prompt_seconds += result.timings.prompt_ms / 1e3
        self.predicted_seconds += result.timings.predicted_ms / 1e3
        if result.spec is not None:
            self.draft_tokens += result.spec.draft_n
            self.accepted_tokens += result.spec.draft_n_accepted


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
