"""What the routes of a server share: models, sums, room for bodies, threads."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request

from edge_rt.runtime.results import Result
from edge_rt.server.bodies import BodyRoom
from edge_rt.server.failures import RETRY_SECONDS, HTTPFailure
from edge_rt.server.fields import Fields
from edge_rt.server.models import Models

T = TypeVar("T")
ENCODING_THREADS: Final = 2
COMPILING_THREADS: Final = 2
COMPILING_SECONDS: Final = 2.0
"""How long a request's schema may take to become a grammar."""
COMPILING_WAIT: Final = 30.0
"""How long it may wait, in seconds, for a thread that makes it one."""
TIDY_SECONDS: Final = 5.0
_LONGEST_NAME: Final = 40
_MOST_IGNORED: Final = 256


@dataclass
class Counters:
    """Sums since the server began.

    Attributes:
        requests: by path of the route and status.
        answers: that have ended.
    """

    begun: float = field(default_factory=time.time)
    requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    answers: int = 0
    prompt_tokens: int = 0
    embedded_tokens: int = 0
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
        shows_tracebacks: whether the log has them of unexpected errors; their texts may hold what was asked.
        stops: each ends answers that are under way.
        requests: those that have no response yet.
        is_stopped: whether all that is under way was ended.
        compiling_seconds, compiling_wait: as of ``COMPILING_SECONDS`` and ``COMPILING_WAIT``.
    """

    models: Models
    log: Callable[[str], None] = lambda _: None
    bodies: BodyRoom = field(default_factory=BodyRoom)
    counters: Counters = field(default_factory=Counters)
    shows_tracebacks: bool = False
    stops: set[Callable[[], None]] = field(default_factory=set)
    requests: set[asyncio.Task[Any]] = field(default_factory=set)
    is_stopped: bool = False
    compiling_seconds: float = COMPILING_SECONDS
    compiling_wait: float = COMPILING_WAIT
    _ignored: set[tuple[str, str]] = field(default_factory=set)
    _encoding: ThreadPoolExecutor = field(default_factory=lambda: _threads(ENCODING_THREADS, "encoding"))
    _compiling: ThreadPoolExecutor = field(default_factory=lambda: _threads(COMPILING_THREADS, "compiling"))

    def tell_ignored(self, path: str, names: Iterable[str]) -> None:
        """Write once which fields of the requests of a route mean nothing here."""
        # What was asked is in no log: nothing that is not like a field's name.
        new = [one for one in names if len(one) <= _LONGEST_NAME and one.isascii() and one.isidentifier()]
        new = [one for one in new if (path, one) not in self._ignored][: _MOST_IGNORED - len(self._ignored)]
        if new:
            self._ignored.update((path, one) for one in new)
            self.log(f"{path}: fields of requests that are ignored: {', '.join(new)}")

    async def encoded(self, work: Callable[[], T]) -> T:
        """Return what some work with prompts returns, which would hold up the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._encoding, work)

    async def compiled(self, work: Callable[[], T]) -> T:
        """Return what some work with a schema of a request returns.

        Raises:
            HTTPFailure: it takes too long, and goes on in its thread; or all threads are at such work.
        """
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        def run() -> T:
            loop.call_soon_threadsafe(begun.set)
            return work()

        task = loop.run_in_executor(self._compiling, run)
        try:
            async with asyncio.timeout(self.compiling_wait):
                await begun.wait()
        except TimeoutError:
            task.cancel()
            what = "Other requests' schemas are being compiled. Try again soon."
            raise HTTPFailure(503, what, code="overloaded", retry_after=RETRY_SECONDS) from None
        try:
            async with asyncio.timeout(self.compiling_seconds):
                return await task
        except TimeoutError:
            what = f"The request's schema was not compiled within {self.compiling_seconds:g} s. Simplify it."
            raise HTTPFailure(400, what, code="schema_too_costly") from None

    async def settle(self, *work: asyncio.Future[Any]) -> None:
        """Wait for the end of work that was cancelled; where all is ended, who has asked is told before it is there.

        A pass may take longer than there is time to tell; what closes a model waits for it.
        """
        ended = asyncio.gather(*work, return_exceptions=True)
        if not self.is_stopped:
            await ended

    def stop(self) -> None:
        """End all that is under way: each request fails in the shape of its API."""
        self.is_stopped = True
        for task in tuple(self.requests):
            task.cancel()
        for stop in tuple(self.stops):
            stop()

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
            for threads in (self._encoding, self._compiling):
                threads.shutdown(wait=False, cancel_futures=True)

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(TIDY_SECONDS)
            await self.models.unload_idle()


def _threads(count: int, name: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix=f"edge-rt {name}")


@dataclass(frozen=True)
class Post:
    """A request with a body.

    Attributes:
        held: what is let go when it has been answered.
    """

    request: Request
    fields: Fields
    held: AsyncExitStack
