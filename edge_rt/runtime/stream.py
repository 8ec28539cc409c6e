"""One generation under way: an iterator of events that always ends in a result and a usable model."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from edge_rt.errors import ConfigError
from edge_rt.runtime.config import GenerationOptions
from edge_rt.runtime.forward.cancel import CancelToken
from edge_rt.runtime.results import Event, Result
from edge_rt.system.notebooks import shown_text
from edge_rt.text.answer_format import partial_json

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
    def telling(self, result: Callable[[], Result | None]) -> Generator[None]:
        """Tell the result, if there is one, when the block ends; a generation left early ends as a cancelled one."""
        try:
            yield
        except GeneratorExit:
            self.cancel.cancel()
            self.tell(result())
            raise
        self.tell(result())

    def tell(self, result: Result | None) -> None:
        """Keep the result, and give it to whoever wants it."""
        self.result = result
        if self.on_result is not None and result is not None:
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
        enter: adds the generation to those of a batch, for somebody who computes it; None: ``source`` computes alone.
    """

    def __init__(
        self,
        source: Callable[[Outcome], Events],
        cancel: CancelToken,
        on_result: Callable[[Result], None] | None = None,
        enter: Callable[[Outcome], Any] | None = None,
    ) -> None:
        self._source = source
        self._enter = enter
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

    def submit(self) -> Any:
        """Start the generation beside others, for somebody who computes it and tells its outcome; return its ticket.

        Raises:
            QueueFull: too many wait.
        """
        assert self._enter is not None, "the model has no slots"
        return self._enter(self._outcome)

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
        if self._outcome.result is None:
            events = iter(self) if self._events is None else self._events()
            for _ in events or ():
                pass
        if self._outcome.result is None:
            raise ConfigError("The generation has no result.", "It failed or was never begun.", "Start another one.")
        return self._outcome.result

    def _ipython_display_(self) -> None:
        """Show the answer in a notebook while it is written."""
        from IPython.display import HTML, display

        shown = display(HTML(shown_text("")), display_id=True)
        for _ in self:
            shown.update(HTML(shown_text(self._outcome.text)))
        # Its text may end in what was held back.
        shown.update(HTML(shown_text(self.result().text)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
