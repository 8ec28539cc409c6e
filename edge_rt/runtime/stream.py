"""One generation under way: an iterator of events that always ends in a result and a usable model."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from edge_rt.errors import ConfigError
from edge_rt.runtime.config import GenerationOptions
from edge_rt.runtime.forward.cancel import CancelToken
from edge_rt.runtime.results import Event, Result
from edge_rt.text.answer_format import partial_json

if TYPE_CHECKING:
    import asyncio

Events = Generator[Event, None, None]


class StreamOptions(GenerationOptions, total=False):
    """What every generation takes as keyword arguments, for type checkers."""

    cancel: CancelToken | None
    on_prefill_progress: Callable[[int, int], None] | None


class PromptOptions(StreamOptions, total=False):
    """What a generation behind a prompt takes as keyword arguments, for type checkers."""

    tools: Sequence[Mapping[str, Any]] | None
    documents: Sequence[Mapping[str, Any]] | None
    template_args: Mapping[str, Any] | None


@dataclass
class Outcome:
    """What a generation leaves behind; it outlives the generator, which may not refer to its stream.

    Attributes:
        on_result: called once with the result, however the generation ended, unless it failed.
        result: None until it has ended.
        text: the answer's text so far.
    """

    cancel: CancelToken
    on_result: Callable[[Result], None] | None
    result: Result | None = None
    text: str = ""

    @contextmanager
    def telling(self, result: Callable[[], Result]) -> Generator[None]:
        """Tell the result of a generation when the block ends; one that is left early ends as a cancelled one."""
        try:
            yield
        except GeneratorExit:
            self.cancel.cancel()
            self._tell(result())
            raise
        self._tell(result())

    def _tell(self, result: Result) -> None:
        self.result = result
        if self.on_result is not None:
            self.on_result(result)


class Stream:
    """Iterates over the events of a generation, once.

    Work begins with the iteration. Leaving a ``for`` loop early ends the generation and frees the model at once::

        with model.stream("Once upon a time") as stream:
            for event in stream:
                print(event.text, end="")
        print(stream.result().usage)

    Args:
        source: makes the events, and tells the outcome; called when the iteration begins. Closed early, it leaves the
            model usable.
        cancel: stops the generation.
        on_result: called once with the result, however the generation ended, unless it failed.
    """

    def __init__(
        self,
        source: Callable[[Outcome], Events],
        cancel: CancelToken,
        on_result: Callable[[Result], None] | None = None,
    ) -> None:
        self._source = source
        self._outcome = Outcome(cancel, on_result)
        # Weak: the loop that reads the events is their only owner, so they close in the moment it is left.
        self._events: weakref.ref[Events] | None = None

    def __iter__(self) -> Events:
        """Start the generation.

        Raises:
            Busy: on the first step: the model is generating for somebody else.
        """
        if self._events is not None:
            raise ConfigError("A stream can be read once.", "It was started before.", "Start another generation.")
        events = self._source(self._outcome)
        self._events = weakref.ref(events)
        return events

    @property
    def has_result(self) -> bool:
        """True once the generation has ended without an error."""
        return self._outcome.result is not None

    @property
    def partial(self) -> Any:
        """What an answer in JSON holds so far: objects and texts as far as they go; None before there is anything.

        It is read from the text when it is asked for; the last number may still grow. A whole answer is
        ``result().parsed``.
        """
        return partial_json(self._outcome.text)

    def cancel(self) -> None:
        """Stop within one token; may be called from any thread. The iteration then ends by itself."""
        self._outcome.cancel.cancel()

    def close(self) -> None:
        """End the generation if it is under way; does nothing otherwise."""
        if self._events is not None and (events := self._events()) is not None:
            events.close()

    def result(self) -> Result:
        """Return the result; reads the rest of the events if there are any.

        Raises:
            EdgeRTError: the generation failed and has no result.
        """
        events = iter(self) if self._events is None else self._events()
        for _ in events or ():
            pass
        if self._outcome.result is None:
            raise ConfigError("The generation has no result.", "It failed or was never begun.", "Start another one.")
        return self._outcome.result

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


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
        """Start the generation."""
        if self._worker is not None:
            raise ConfigError("A stream can be read once.", "It was started before.", "Start another generation.")
        import asyncio

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

    @property
    def partial(self) -> Any:
        """What an answer in JSON holds so far; as ``Stream.partial``."""
        return self._stream.partial

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
        import asyncio  # not needed by answers that are not awaited, and slow to import

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
