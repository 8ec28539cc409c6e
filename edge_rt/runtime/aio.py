"""Answers for tasks of an event loop, which is never blocked: prompts are encoded, and passes computed, in threads.

Events go to the loop as they are made, whether anybody reads them or not: an answer is bounded, and a slow reader holds
up nobody. Of the slots of a model one thread computes for all tasks, and tells a loop once a step what there is.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from edge_rt.errors import ConfigError
from edge_rt.runtime.admission import Ticket
from edge_rt.runtime.batch import Batch
from edge_rt.runtime.results import Event, Result
from edge_rt.runtime.stream import Stream

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
Item = Event | BaseException | None
"""An event; the failure that ended an answer; None is its end."""

_AHEAD: Final = 16
"""Answers of many that wait for a reader that is slower; then no further prompt is taken."""


class AsyncStream:
    """Iterates over the events of a generation with ``async for``, once.

    Leaving the loop early, or cancelling the task, stops the generation within one token. After ``aclose``, after the
    end of an ``async with`` block, and after a cancelled task, the model is free again. The event loop is not blocked
    while the prompt is encoded and the model computes; what is wrong with a prompt is raised by the first event. A
    reader that is slower than the model holds up nobody, not even its own answer::

        async with model.astream("Once upon a time") as stream:
            async for event in stream:
                print(event.text, end="")

    Args:
        open_stream: encodes the prompt; called in a thread.
        pump: computes in the slots of the model; None: the generation runs in a thread of its own.
    """

    def __init__(self, open_stream: Callable[[], Stream], pump: Pump | None = None) -> None:
        self._open, self._pump = open_stream, pump
        # A weak reference, as in ``Stream``: leaving the loop drops the generator, and the event loop then closes it.
        self._events: weakref.ref[AsyncGenerator[Event]] | None = None
        self._worker: _Worker | None = None
        self._is_cancelled = False

    def __aiter__(self) -> AsyncGenerator[Event]:
        """Start the generation."""
        if self._worker is not None:
            raise ConfigError("A stream can be read once.", "It was started before.", "Start another generation.")
        import asyncio

        self._worker = _Worker(self._open, self._pump, _Mailbox(asyncio.get_running_loop()))
        if self._is_cancelled:
            self._worker.stop()
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
        stream = None if self._worker is None else self._worker.stream
        return None if stream is None else stream.partial

    def cancel(self) -> None:
        """Stop within one token; may be called from any thread. The iteration then ends by itself."""
        self._is_cancelled = True
        if self._worker is not None:
            self._worker.stop()

    def result(self) -> Result:
        """Return the result of a generation that has ended.

        Raises:
            ConfigError: it has not ended, or failed.
        """
        stream = None if self._worker is None else self._worker.stream
        if stream is None or not stream.has_result:
            raise ConfigError(
                "The generation has no result.", "It has not ended, or it failed.", "Read its events first."
            )
        return stream.result()

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
        while (item := await worker.mailbox.next()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        await worker.finish()


class _Mailbox:
    """What a task has not read yet; everything but ``loop`` belongs to the event loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        import asyncio  # not needed by answers that are not awaited, and slow to import

        self.loop = loop
        self._items: deque[Any] = deque()
        self._arrived, self.ended = asyncio.Event(), asyncio.Event()

    def receive(self, items: Sequence[Any], *, is_end: bool) -> None:
        """Take in what was made; called by the loop."""
        self._items += items
        self._arrived.set()
        if is_end:
            self.ended.set()

    async def next(self) -> Any:
        """Wait for the next item."""
        while not self._items:
            self._arrived.clear()
            await self._arrived.wait()
        return self._items.popleft()


class _Worker(threading.Thread):
    """Begins a generation, and computes it where no pump does.

    It holds no reference to the generator or the ``AsyncStream`` that use it.
    """

    def __init__(self, open_stream: Callable[[], Stream], pump: Pump | None, mailbox: _Mailbox) -> None:
        super().__init__(name="edge-rt generation", daemon=True)
        self._open, self._pump = open_stream, pump
        self.mailbox = mailbox
        self.stream: Stream | None = None
        self._stopped = threading.Event()

    def run(self) -> None:
        """Read until the end, a failure, or ``stop``."""
        end: Item = None
        try:
            self.stream = self._open()
            if self._stopped.is_set():
                self.stream.cancel()
            if self._pump is not None:
                self._pump.add(self.stream.submit(), self.mailbox)
                return
            with self.stream as stream:
                for event in stream:
                    if not self._tell((event,)):
                        break
        except BaseException as error:  # every failure belongs to the task that reads
            end = error
        self._tell((end,), is_end=True)

    def stop(self) -> None:
        """Let the generation end within one token, from any thread."""
        self._stopped.set()
        if self.stream is not None and not self.stream.has_result:
            self.stream.cancel()

    async def finish(self) -> None:
        """Stop, and wait until the generation has ended."""
        if self.ident is not None:
            self.stop()
            await self.mailbox.ended.wait()

    def _tell(self, items: Sequence[Item], *, is_end: bool = False) -> bool:
        """Give items to the loop; return False if it was closed in the meantime."""
        try:
            self.mailbox.loop.call_soon_threadsafe(lambda: self.mailbox.receive(items, is_end=is_end))
        except RuntimeError:
            return False
        return True


class Pump:
    """Computes the steps of a batch in a thread, as long as tasks wait for some of its generations."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._lock = threading.Lock()
        self._readers: dict[Ticket, _Mailbox] = {}
        self._is_running = False

    def add(self, ticket: Ticket, mailbox: _Mailbox) -> None:
        """Give the events of a generation to a mailbox, from now on to its end."""
        with self._lock:
            self._readers[ticket] = mailbox
            if self._is_running:
                return
            self._is_running = True
        threading.Thread(target=self._run, name="edge-rt slots", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._readers:
                    self._is_running = False
                    return
            failure: BaseException | None = None
            try:
                self._batch.compute_until(self._has_news)
            except BaseException as error:  # it belongs to the tasks that wait
                failure = error
            self._deliver(failure)

    def _has_news(self) -> bool:
        with self._lock:
            return any(ticket.events or ticket.has_ended for ticket in self._readers)

    def _deliver(self, failure: BaseException | None) -> None:
        """Tell every loop once what there is for its tasks."""
        with self._lock:
            readers = dict(self._readers)
        news: dict[asyncio.AbstractEventLoop, list[tuple[Ticket, _Mailbox, list[Item], bool]]] = {}
        for ticket, mailbox in readers.items():
            is_end, items = ticket.has_ended or failure is not None, list[Item]()
            while ticket.events:
                items.append(ticket.events.popleft())
            if is_end:
                items.append(failure or _settle(ticket))
            if items:
                news.setdefault(mailbox.loop, []).append((ticket, mailbox, items, is_end))
        for loop, all_items in news.items():
            is_closed = False
            try:
                loop.call_soon_threadsafe(_receive, [items[1:] for items in all_items])
            except RuntimeError:
                # The event loop was closed in the meantime: nobody waits for these any more.
                is_closed = True
            for ticket, _, _, is_end in all_items:
                if is_closed or failure is not None:
                    self._batch.cancel(ticket)
                if is_closed or is_end:
                    with self._lock:
                        del self._readers[ticket]


def _receive(news: Sequence[tuple[_Mailbox, list[Item], bool]]) -> None:
    for mailbox, items, is_end in news:
        mailbox.receive(items, is_end=is_end)


def _settle(ticket: Ticket) -> Item:
    """Tell the outcome of a generation that has ended; return what it, or telling, has failed with."""
    if ticket.error is None:
        try:
            ticket.outcome.tell(ticket.generation.settled())
        except BaseException as error:  # of the caller's ``on_result``
            return error
    return ticket.error


async def iterate(make: Callable[[], Iterator[T]], stop: Callable[[], None]) -> AsyncGenerator[T]:
    """Yield what an iterator gives in a thread, which is few items ahead of the reader.

    Args:
        make: returns the iterator; called in the thread.
        stop: lets the iterator end soon.
    """
    import asyncio

    mailbox, room, stopped = _Mailbox(asyncio.get_running_loop()), threading.Semaphore(_AHEAD), threading.Event()

    def tell(items: list[Any], *, is_end: bool = False) -> None:
        try:
            mailbox.loop.call_soon_threadsafe(lambda: mailbox.receive(items, is_end=is_end))
        except RuntimeError:
            stopped.set()

    def run() -> None:
        end: tuple[None, BaseException | None] = (None, None)
        try:
            for item in make():
                room.acquire()
                if stopped.is_set():
                    break
                tell([(item, None)])
        except BaseException as error:  # it belongs to the task that reads
            end = (None, error)
        tell([end, None], is_end=True)

    threading.Thread(target=run, name="edge-rt answers", daemon=True).start()
    try:
        while True:
            item, error = await mailbox.next()
            if error is not None:
                raise error
            if item is None:
                return
            room.release()
            yield item
    finally:
        stopped.set()
        stop()
        room.release()
        await mailbox.ended.wait()
