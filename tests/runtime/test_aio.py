from __future__ import annotations

import asyncio
import itertools
import threading
import time

import pytest

from edge_rt.errors import ConfigError, InferenceError
from edge_rt.runtime.aio import AsyncStream
from edge_rt.runtime.forward.cancel import CancelToken
from edge_rt.runtime.results import Event
from edge_rt.runtime.stream import Stream
from tests.helpers.models import load_package
from tests.helpers.small import GREEDY


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
        return AsyncStream(lambda: Stream(self, CancelToken()))


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
        async for _ in AsyncStream(lambda: Stream(events, CancelToken())):
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


def test_a_slow_reader_holds_up_nobody():
    source = SlowSource(300, seconds=0)

    async def main():
        stream = source.stream()
        events = aiter(stream)
        await anext(events)
        assert await closed(source)
        assert source.made == 300
        return 1 + len([event async for event in events])

    assert run(main()) == 300


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


PROMPTS = [[5, 6, 7 + number] for number in range(6)]


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts what other threads ask it for."""

    asked = 0

    def call_soon_threadsafe(self, *args, **options):
        self.asked += 1
        return super().call_soon_threadsafe(*args, **options)


@pytest.fixture(scope="module")
def alone(native_package):
    with load_package(native_package, ctx=96, spec="off") as model:
        return [model.generate(prompt, max_tokens=20, **GREEDY).token_ids for prompt in PROMPTS]


def test_tasks_share_passes_and_the_loop_is_told_once_a_step(native_package, alone):
    with load_package(native_package, ctx=96, slots=6) as model:

        async def main():
            tasks = [model.agenerate(prompt, max_tokens=20, **GREEDY) for prompt in PROMPTS]
            return [result.token_ids for result in await asyncio.gather(*tasks)]

        with asyncio.Runner(loop_factory=CountingLoop) as runner:
            assert runner.run(main()) == alone
            assert runner.get_loop().asked < 3 * 20
        assert model.pump is not None
        model._batch.check()


def test_a_slow_reader_and_one_that_leaves_hold_up_nobody(native_package, alone):
    with load_package(native_package, ctx=96, slots=3) as model:

        async def main():
            slow = model.astream(PROMPTS[0], max_tokens=20, **GREEDY)
            events = aiter(slow)
            first = await anext(events)
            async for _ in model.astream(PROMPTS[1], max_tokens=80, **GREEDY):
                break
            results = await asyncio.gather(*[model.agenerate(one, max_tokens=20, **GREEDY) for one in PROMPTS[2:]])
            assert [result.token_ids for result in results] == alone[2:]
            rest = [event async for event in events]
            assert tuple(token for event in (first, *rest) for token in event.token_ids) == alone[0]
            assert slow.result().token_ids == alone[0]
            with pytest.raises(ConfigError, match="prompt is empty"):
                await model.agenerate([])

        run(main())
        model._batch.check()
        assert not model._batch.admission.active


@pytest.mark.parametrize("slots", [None, 3])
def test_many_answers_come_in_order_or_as_they_are_ready(native_package, alone, slots):
    with load_package(native_package, ctx=96, slots=slots) as model:

        async def main():
            many = model.agenerate_many(PROMPTS, max_tokens=20, **GREEDY)
            assert [answer.token_ids async for answer in many] == alone
            many = model.agenerate_many(PROMPTS, ordered=False, max_tokens=20, **GREEDY)
            pairs = [(index, answer.token_ids) async for index, answer in many]
            assert sorted(pairs) == list(enumerate(alone))
            endless = ([5, 6, 7 + number % 50] for number in itertools.count())
            many = model.agenerate_many(endless, max_tokens=2, **GREEDY)
            await anext(many)
            await many.aclose()

        run(main())
        model.reset()  # nothing is generated any more
