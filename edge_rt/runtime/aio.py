"""The async face of a stream: a worker thread, a bounded queue, and cancellation that reaches the model."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Final

from edge_rt.errors import ConfigError
from edge_rt.runtime.results import Event, Result
from edge_rt.runtime.stream import Stream

QUEUE_EVENTS: Final = 64
"""Events made ahead of a slow consumer."""


class AsyncStream:
    """Iterates over the events of a generation with ``async for``, once.

    Leaving the loop early, or cancelling the task, stops the generation within one token and frees the model before
    control returns. The event loop is never blocked.

    Args:
        stream: the generation; it runs in a thread of its own.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._iterator: AsyncIterator[Event] | None = None

    def __aiter__(self) -> AsyncIterator[Event]:
        """Start the generation."""
        if self._iterator is not None:
            raise ConfigError("A stream can be read once.", "It was started before.", "Start another generation.")
        self._iterator = self._run()
        return self._iterator

    async def _run(self) -> AsyncIterator[Event]:
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[Event | BaseException | None] = asyncio.Queue(QUEUE_EVENTS)
        stopped = threading.Event()

        def put(item: Event | BaseException | None) -> None:
            asyncio.run_coroutine_threadsafe(queue.put(item), loop).result()

        def work() -> None:
            try:
                for event in self._stream:
                    if stopped.is_set():
                        return
                    put(event)
            except BaseException as error:  # every failure belongs to the task that reads
                if not stopped.is_set():
                    put(error)
            else:
                if not stopped.is_set():
                    put(None)

        worker = threading.Thread(target=work, name="edge-rt generation", daemon=True)
        worker.start()
        try:
            while (item := await queue.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            stopped.set()
            self._stream.cancel()
            while worker.is_alive():
                # The worker may wait for room in the queue.
                while not queue.empty():
                    queue.get_nowait()
                await asyncio.sleep(0.001)

    async def aclose(self) -> None:
        """End the generation if it is under way."""
        if self._iterator is not None:
            await self._iterator.aclose()  # type: ignore[attr-defined]

    def cancel(self) -> None:
        """Stop within one token; may be called from any thread."""
        self._stream.cancel()

    def result(self) -> Result:
        """Return the result of a generation that has ended.

        Raises:
            ConfigError: it has not ended, or failed.
        """
        if self._iterator is None:
            raise ConfigError("The generation has no result yet.", "It was not started.", "Read its events first.")
        return self._stream.result()
