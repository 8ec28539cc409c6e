"""One generation under way: an iterator of events that always ends in a result and a usable model."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Generator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from edge_rt.errors import ConfigError
from edge_rt.runtime.graph.cancel import CancelToken
from edge_rt.runtime.results import Event, Result

EventSource = Generator[Event, None, Result]
"""Yields events and returns the result; closed early, it leaves the model usable and returns nothing."""

Events = Generator[Event, None, None]


@dataclass
class _Outcome:
    """What a generation leaves behind; it outlives the generator, which may not refer to its stream."""

    cancel: CancelToken
    on_result: Callable[[Result], None] | None
    result: Result | None = None

    def finish(self, result: Result) -> None:
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
        source: makes the events; called with ``cancel`` when the iteration begins.
        cancel: stops the generation.
        on_result: called once with the result, however the generation ended, unless it failed.
    """

    def __init__(
        self,
        source: Callable[[CancelToken], EventSource],
        cancel: CancelToken,
        on_result: Callable[[Result], None] | None = None,
    ) -> None:
        self._source = source
        self._outcome = _Outcome(cancel, on_result)
        # Weak: the loop that reads the events is their only owner, so they close in the moment it is left.
        self._events: weakref.ref[Events] | None = None

    def __iter__(self) -> Events:
        """Start the generation.

        Raises:
            ConfigError: it was started before.
            Busy: on the first step: the model is generating for somebody else.
        """
        if self._events is not None:
            raise ConfigError("A stream can be read once.", "It was started before.", "Start another generation.")
        events = _read(self._source, self._outcome)
        self._events = weakref.ref(events)
        return events

    @property
    def has_result(self) -> bool:
        """True once the generation has ended without an error."""
        return self._outcome.result is not None

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


def _read(make_source: Callable[[CancelToken], EventSource], outcome: _Outcome) -> Events:
    source = make_source(outcome.cancel)
    try:
        while True:
            try:
                event = next(source)
            except StopIteration as end:
                outcome.finish(end.value)
                return
            yield event
    finally:
        _drain(source, outcome)


def _drain(source: EventSource, outcome: _Outcome) -> None:
    """End an abandoned generation as a cancelled one: its last step is kept, its result is told."""
    if outcome.result is not None or inspect.getgeneratorstate(source) == inspect.GEN_CLOSED:
        return
    outcome.cancel.cancel()
    try:
        while True:
            next(source)
    except StopIteration as end:
        outcome.finish(end.value)
