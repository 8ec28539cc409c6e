from __future__ import annotations

import pytest

from edge_rt.errors import Busy, ConfigError, InferenceError
from edge_rt.runtime.forward.cancel import CancelToken
from edge_rt.runtime.results import Event
from edge_rt.runtime.stream import Stream


class Source:
    """A generation of ``count`` events that counts what is done to it; its result is (made, cancelled).

    Attributes:
        made: events yielded so far.
        open: True while the generator runs, like a model that is held.
    """

    def __init__(self, count=5, fail_at=None):
        self.count = count
        self.fail_at = fail_at
        self.made = 0
        self.open = False

    def __call__(self, outcome):
        self.open = True
        cancel = outcome.cancel
        try:
            with outcome.telling(lambda: (self.made, cancel.cancelled)):
                while self.made < self.count and not cancel.cancelled:
                    if self.made == self.fail_at:
                        raise InferenceError("broken")
                    self.made += 1
                    yield Event(str(self.made), (self.made,))
        finally:
            self.open = False


def stream_of(source, results=None):
    return Stream(source, CancelToken(), None if results is None else results.append)


def test_reading_to_the_end():
    source, results = Source(3), []
    stream = stream_of(source, results)
    assert [event.text for event in stream] == ["1", "2", "3"]
    assert stream.result() == (3, False)
    assert results == [(3, False)]
    assert not source.open


def test_nothing_happens_before_the_iteration():
    source = Source()
    stream_of(source)
    assert source.made == 0


def test_result_reads_everything():
    assert stream_of(Source(4)).result() == (4, False)


def test_result_reads_the_rest():
    stream = stream_of(Source(4))
    events = iter(stream)
    next(events)
    assert stream.result() == (4, False)
    assert list(events) == []


def test_break_ends_the_generation_at_once():
    source, results = Source(), []
    stream = stream_of(source, results)
    for event in stream:
        if event.text == "2":
            break
    assert not source.open
    assert results == [(2, True)]
    assert stream.result() == (2, True)


def test_break_frees_a_stream_without_a_name_at_once():
    source, results = Source(), []
    for _ in stream_of(source, results):
        break
    assert not source.open
    assert results == [(1, True)]


def test_close_in_the_middle():
    source = Source()
    stream = stream_of(source)
    events = iter(stream)
    next(events)
    stream.close()
    stream.close()
    assert not source.open
    assert stream.result() == (1, True)


def test_close_before_the_beginning_changes_nothing():
    stream = stream_of(Source(2))
    stream.close()
    assert stream.result() == (2, False)


def test_a_with_block_closes():
    source = Source()
    with stream_of(source) as stream:
        events = iter(stream)
        next(events)
    assert not source.open
    assert stream.has_result
    assert list(events) == []


def test_cancel_lets_the_iteration_end_by_itself():
    stream = stream_of(Source())
    seen = []
    for event in stream:
        seen.append(event.text)
        if len(seen) == 2:
            stream.cancel()
    assert seen == ["1", "2"]
    assert stream.result() == (2, True)


def test_reading_twice():
    stream = stream_of(Source(1))
    list(stream)
    with pytest.raises(ConfigError, match="can be read once"):
        iter(stream)


def test_an_exception_in_the_loop_passes_and_frees():
    source, results = Source(), []

    def read():
        with stream_of(source, results) as stream:
            for _ in stream:
                raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        read()
    assert not source.open
    assert results == [(1, True)]


def test_a_failure_is_raised_and_leaves_no_result():
    source, results = Source(fail_at=2), []
    stream = stream_of(source, results)
    seen = []
    with pytest.raises(InferenceError, match="broken"):
        seen.extend(event.text for event in stream)
    assert not source.open
    assert (results, stream.has_result) == ([], False)
    with pytest.raises(ConfigError, match="no result"):
        stream.result()


def test_a_failure_in_result():
    with pytest.raises(InferenceError, match="broken"):
        stream_of(Source(fail_at=2)).result()


def test_a_source_that_does_not_begin():
    def busy(cancel):
        raise Busy("The model is generating already.")
        yield

    stream = stream_of(busy)
    with pytest.raises(Busy):
        next(iter(stream))


def test_a_failing_listener_is_heard():
    def listener(result):
        raise RuntimeError("listener")

    with pytest.raises(RuntimeError, match="listener"):
        list(Stream(Source(1), CancelToken(), listener))
