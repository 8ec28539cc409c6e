"""One answer: generated in a thread, written here, stopped by Ctrl-C."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from edge_rt.cli.interrupt import Background, cancel_on_interrupt
from edge_rt.cli.render.console import Terminal, number
from edge_rt.runtime.graph.cancel import CancelToken
from edge_rt.runtime.results import Event

if TYPE_CHECKING:
    from edge_rt.runtime.results import Result
    from edge_rt.runtime.stream import Stream

PATIENCE_SECONDS: Final = 0.7
"""A prompt that is read sooner is not talked about."""

MakeStream = Callable[[CancelToken, Callable[[int, int], None]], "Stream"]


@contextmanager
def answering(
    make_stream: MakeStream, terminal: Terminal, tend: Callable[[], None] | None = None
) -> Generator[Answering]:
    """Generate an answer; Ctrl-C stops it and keeps what there is, a second one raises ``SignalReceived``.

    ::

        with answering(make_stream, terminal) as answer:
            for event in answer:
                terminal.answer(event.text)
        print(answer.result().usage)

    Args:
        make_stream: begins the generation, given what stops it and what to call while the prompt is read.
        terminal: shows on a screen how far a long prompt is.
        tend: called in this thread between pieces, and while there is none.

    Raises:
        EdgeRTError: the generation failed.
    """
    token = CancelToken()
    with cancel_on_interrupt(token):
        answer = Answering(make_stream, token, terminal, tend)
        try:
            yield answer
        except BaseException:
            answer.hide_progress()
            # What is told next does not belong to the half answer.
            terminal.fresh_line()
            raise
        finally:
            answer.hide_progress()
            token.cancel()


class Answering(Background[Event]):
    """Events of an answer, read in the main thread; a line says how much of a long prompt is read until the first one.

    Args:
        make_stream: begins the generation.
        token: stops it.
        terminal: where the line goes.
        tend: called between events, and while there is none.
    """

    def __init__(
        self, make_stream: MakeStream, token: CancelToken, terminal: Terminal, tend: Callable[[], None] | None = None
    ) -> None:
        self._terminal = terminal
        self._since = time.monotonic()
        self._is_shown = False
        self._make_stream = make_stream
        self._token = token
        self._stream: Stream | None = None
        super().__init__(self._begin, tend)

    def result(self) -> Result:
        """Return the result, once the events are read."""
        assert self._stream is not None
        return self._stream.result()

    def _begin(self) -> Stream:
        self._stream = self._make_stream(self._token, self._on_prefill)
        return self._stream

    def _on_prefill(self, done: int, total: int) -> None:
        self.call(functools.partial(self._show, done, total))

    def _show(self, done: int, total: int) -> None:
        if time.monotonic() - self._since > PATIENCE_SECONDS and done < total:
            self._terminal.control(f"\r\x1b[Kreading the prompt: {number(done)} of {number(total)} tokens")
            self._is_shown = True

    def hide_progress(self) -> None:
        """Take the line away, if there is one."""
        if self._is_shown:
            self._terminal.control("\r\x1b[K")
            self._is_shown = False

    before_item = hide_progress
