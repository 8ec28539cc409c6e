from __future__ import annotations

import asyncio
import threading
import time

import pytest

from edge_rt.errors import ConfigError, InferenceError
from edge_rt.runtime.forward.cancel import CancelToken
from edge_rt.runtime.results import Event
from edge_rt.runtime.stream import QUEUE_EVENTS, AsyncStream, Stream


class SlowSource:
    """Events that take a while each, in whatever thread reads them.

    Attributes:
        made: events yielded so far.
        closed: set when the generator has ended.
        threads: names of the threads that ran it.
    """

    def __init__(self, count=10, seconds=0.002, fail_at=None):
        self.count = count
        self.seconds = seconds
        self.fail_at = fail_at
        self.made = 0
        self.closed = threading.Event()
        self.threads = set()

    def __call__(self, outcome):
        cancel = outcome.cancel
        try:
            with outcome.telling(lambda: (self.made, cancel.cancelled)):
                while self.made < self.count and not cancel.cancelled:
                    self.threads.add(threading.current_thread().name)
                    time.sleep(self.seconds)
                    if self.made == self.fail_at:
                        raise InferenceError("broken")
                    self.made += 1
                    yield Event(str(self.made), (self.made,))
        finally:
            self.closed.set()

    def stream(self):
        return AsyncStream(Stream(self, CancelToken()))


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 120))


async def closed(source, seconds=60.0):
    """Wait until the source has ended, without blocking the loop."""
    end = time.monotonic() + seconds
    while not source.closed.is_set() and time.monotonic() < end:
        await asyncio.sleep(0.001)
    return source.closed.is_set()


def test_all_events_arrive_in_order_from_another_thread():
    source = SlowSource(100, seconds=0)

    async def main():
        stream = source.stream()
        texts = [event.text async for event in stream]
        return texts, stream.result()

    assert run(main()) == ([str(i) for i in range(1, 101)], (100, False))
    assert source.threads == {"edge-rt generation"}


def test_the_loop_stays_responsive():
    """The source waits for what another task of the loop does meanwhile."""
    ticked, waited = threading.Event(), []

    def events(outcome):
        with outcome.telling(lambda: None):
            waited.append(ticked.wait(60))
            yield Event("1", (1,))

    async def main():
        async def tick():
            await asyncio.sleep(0.01)
            ticked.set()

        ticker = asyncio.create_task(tick())
        async for _ in AsyncStream(Stream(events, CancelToken())):
            pass
        await ticker

    run(main())
    assert waited == [True]


def test_leaving_the_loop_stops_the_generation():
    source = SlowSource(1000)

    async def main():
        async for _ in source.stream():
            break
        assert await closed(source)

    run(main())
    assert source.made < 100


def test_aclose_returns_when_the_generation_has_ended():
    source = SlowSource(1000)

    async def main():
        stream = source.stream()
        events = aiter(stream)
        await anext(events)
        await stream.aclose()
        assert source.closed.is_set()
        assert stream.result()[1] is True
        with pytest.raises(StopAsyncIteration):
            await anext(events)

    run(main())


def test_an_async_with_block_closes():
    source = SlowSource(1000)

    async def main():
        async with source.stream() as stream:
            async for _ in stream:
                break
        assert source.closed.is_set()
        assert stream.result()[1] is True

    run(main())


def test_a_stream_that_was_not_read_closes():
    async def main():
        async with SlowSource().stream():
            pass
        async with SlowSource().stream() as stream:
            aiter(stream)

    run(main())


def test_cancelling_the_task_stops_the_generation_first():
    source = SlowSource(1000)

    async def read():
        async for _ in source.stream():
            pass

    async def main():
        task = asyncio.create_task(read())
        while not source.made:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert source.closed.is_set()

    run(main())


def test_cancelling_while_the_queue_is_full():
    source = SlowSource(10_000, seconds=0)

    async def read():
        async for _ in source.stream():
            await asyncio.sleep(30)

    async def main():
        task = asyncio.create_task(read())
        while source.made < QUEUE_EVENTS:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await closed(source)

    run(main())


def test_a_slow_consumer_holds_the_generation_back():
    source = SlowSource(10_000, seconds=0)

    async def main():
        stream = source.stream()
        events = aiter(stream)
        for _ in range(3):
            await anext(events)
        while source.made < QUEUE_EVENTS:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        ahead = source.made
        await stream.aclose()
        return ahead

    assert run(main()) <= 3 + QUEUE_EVENTS + 2


def test_cancel_lets_the_iteration_end_by_itself():
    async def main():
        stream = SlowSource(1000).stream()
        async for _ in stream:
            stream.cancel()
        return stream.result()

    made, cancelled = run(main())
    assert cancelled
    assert made < 100


def test_a_failure_is_raised_in_the_reading_task():
    source = SlowSource(10, fail_at=3)

    async def main():
        stream = source.stream()
        events, seen = aiter(stream), []
        for _ in range(3):
            seen.append((await anext(events)).text)  # noqa: PERF401 -- one at a time, as they come
        with pytest.raises(InferenceError, match="broken"):
            await anext(events)
        with pytest.raises(ConfigError, match="no result"):
            stream.result()
        return seen

    assert run(main()) == ["1", "2", "3"]


def test_reading_twice():
    async def main():
        stream = SlowSource(1).stream()
        async for _ in stream:
            pass
        with pytest.raises(ConfigError, match="can be read once"):
            aiter(stream)

    run(main())


def test_no_result_before_the_end():
    async def main():
        stream = SlowSource(5).stream()
        with pytest.raises(ConfigError, match="no result"):
            stream.result()
        async for _ in stream:
            with pytest.raises(ConfigError, match="no result"):
                stream.result()
            break

    run(main())


def test_an_event_loop_that_ends_first_takes_no_thread_along():
    source = SlowSource(10_000, seconds=0)

    async def main():
        events = aiter(source.stream())
        await anext(events)

    run(main())
    assert source.closed.wait(60)
    end = time.monotonic() + 60
    while any(t.name == "edge-rt generation" for t in threading.enumerate()) and time.monotonic() < end:
        time.sleep(0.005)
    assert not any(t.name == "edge-rt generation" for t in threading.enumerate())
