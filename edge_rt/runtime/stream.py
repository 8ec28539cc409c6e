"""One generation under way: an iterator of events that always ends in a result and a usable model."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from types import TracebackType
from typing import Self

from edge_rt.errors import ConfigError
from edge_rt.runtime.cancel import CancelToken
from edge_rt.runtime.results import Event, Result

EventSource = Generator[Event, None, Result]
"""Yields events and returns the result; closed early, it leaves the model usable and returns nothing."""


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
        self._cancel = cancel
        self._on_result = on_result
        self._iterator: Iterator[Event] | None = None
        self._result: Result | None = None

    def __iter__(self) -> Iterator[Event]:
        """Start the generation.

        Raises:
            ConfigError: it was started before.
            Busy: the model is generating for somebody else.
        """
        if self._iterator is not None:
            raise ConfigError("A stream can be read once.", "It was started before.", "Start another generation.")
        self._iterator = self._run()
        return self._iterator

    def _run(self) -> Iterator[Event]:
        source = self._source(self._cancel)
        try:
            while True:
                try:
                    event = next(source)
                except StopIteration as end:
                    self._finish(end.value)
                    return
                yield event
        finally:
            self._drain(source)

    def _drain(self, source: EventSource) -> None:
        """An abandoned generation ends as a cancelled one: its last step is kept, its result is told."""
        if self._result is not None or source.gi_frame is None:
            return
        self._cancel.cancel()
        try:
            while True:
                next(source)
        except StopIteration as end:
            self._finish(end.value)

    def _finish(self, result: Result) -> None:
        self._result = result
        if self._on_result is not None:
            self._on_result(result)

    def cancel(self) -> None:
        """Stop within one token; may be called from any thread. The iteration then ends by itself."""
        self._cancel.cancel()

    def close(self) -> None:
        """End the generation if it is under way; does nothing otherwise."""
        if isinstance(self._iterator, Generator):
            self._iterator.close()

    def result(self) -> Result:
        """Return the result; reads the rest of the events if there are any.

        Raises:
            EdgeRTError: the generation failed and has no result.
        """
        if self._iterator is None:
            iter(self)
        assert self._iterator is not None
        for _ in self._iterator:
            pass
        if self._result is None:
            raise ConfigError("The generation has no result.", "It failed or was never begun.", "Start another one.")
        return self._result

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
