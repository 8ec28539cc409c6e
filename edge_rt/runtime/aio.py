"""Async iteration over a generation: a worker thread, a bounded queue, and cancellation that reaches the model."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Final, Self

from edge_rt.errors import ConfigError
from edge_rt.runtime.results import Event, Result
from edge_rt.runtime.stream import Stream

QUEUE_EVENTS: Final = 64
"""Most events in the queue: a generation waits for a consumer that is slower."""


class AsyncStream:
    """Iterates over the events of a generation with ``async for``, once.

    Leaving the loop early, or cancelling the task, stops the generation within one token. After ``aclose``, after the
    end of an ``async with`` block, and after a cancelled task, the model is free again. The event loop is not blocked
    while the model computes; only creating the stream, which encodes the prompt, runs in it::

        async with model.astream("Once upon a time") as stream:
            async for event in stream:
                print(event.text, end="")

    Args:
        stream: the generation; it runs in a thread of its own.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        # A weak reference, as in ``Stream``: leaving the loop drops the generator, and the event loop then closes it.
        self._events: weakref.ref[AsyncGenerator[Event]] | None = None
        self._worker: _Worker | None = None

    def __aiter__(self) -> AsyncGenerator[Event]:
        """Start the generation.

        Raises:
            ConfigError: it was started before.
        """
        if self._worker is not None:
            raise ConfigError("A stream can be read once.", "It was started before.", "Start another generation.")
        self._worker = _Worker(self._stream, asyncio.get_running_loop())
        events = _read(self._worker)
        self._events = weakref.ref(events)
        return events

    async def aclose(self) -> None:
        """Stop the generation if it is running."""
        if self._events is not None and (events := self._events()) is not None:
            await events.aclose()
        if self._worker is not None:
            await self._worker.finish()

    def cancel(self) -> None:
        """Stop within one token; may be called from any thread. The iteration then ends by itself."""
        self._stream.cancel()

    def result(self) -> Result:
        """Return the result of a generation that has ended.

        Raises:
            ConfigError: it has not ended, or failed.
        """
        if not self._stream.has_result:
            raise ConfigError(
                "The generation has no result.", "It has not ended, or it failed.", "Read its events first."
            )
        return self._stream.result()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


async def read_whole(stream: AsyncStream) -> Result:
    """Return the result of a generation that is read to its end."""
    async with stream:
        async for _ in stream:
            pass
    return stream.result()


async def _read(worker: _Worker) -> AsyncGenerator[Event]:
    worker.start()
    try:
        while (item := await worker.next()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        await worker.finish()


class _Worker(threading.Thread):
    """Reads a stream into a queue; it holds no reference to the generator or the ``AsyncStream`` that use it."""

    def __init__(self, stream: Stream, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(name="edge-rt generation", daemon=True)
        self._stream = stream
        self._loop = loop
        self._items: deque[Event | BaseException | None] = deque()
        self._arrived = asyncio.Event()
        self._ended = asyncio.Event()
        self._room = threading.Semaphore(QUEUE_EVENTS)
        self._stopped = threading.Event()

    def run(self) -> None:
        """Read until the end, a failure, or ``finish``."""
        try:
            with self._stream as stream:
                for event in stream:
                    self._room.acquire()
                    if self._stopped.is_set():
                        break
                    self._put(event)
            self._put(None)
        except BaseException as error:  # every failure belongs to the task that reads
            self._put(error)
        finally:
            self._tell(self._ended)

    async def finish(self) -> None:
        """Make the worker end within one token, and wait until it has ended."""
        if self.ident is None:
            return
        self._stopped.set()
        if not self._stream.has_result:
            self._stream.cancel()
        self._room.release()
        await self._ended.wait()

    async def next(self) -> Event | BaseException | None:
        """Wait for the next event; None is the end, an exception the failure that ended it."""
        while not self._items:
            self._arrived.clear()
            await self._arrived.wait()
        self._room.release()
        return self._items.popleft()

    def _put(self, item: Event | BaseException | None) -> None:
        self._items.append(item)
        self._tell(self._arrived)

    def _tell(self, event: asyncio.Event) -> None:
        try:
            self._loop.call_soon_threadsafe(event.set)
        except RuntimeError:
            # The event loop was closed in the meantime: nothing waits for the event any more.
            self._stopped.set()
