"""One answer: generated in a background thread, printed by the main thread, stopped by Ctrl-C."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from edge_rt.cli.interrupt import Background, cancel_on_interrupt
from edge_rt.cli.render.console import Terminal, number
from edge_rt.runtime.forward.cancel import CancelToken
from edge_rt.runtime.results import Event

if TYPE_CHECKING:
    from edge_rt.runtime.results import Result
    from edge_rt.runtime.stream import Stream

PATIENCE_SECONDS: Final = 0.7
"""Seconds of prefill after which its progress is shown."""

MakeStream = Callable[[CancelToken, Callable[[int, int], None]], "Stream"]


@contextmanager
def answering(
    make_stream: MakeStream, terminal: Terminal, tend: Callable[[], None] | None = None
) -> Generator[Answering]:
    """Generate an answer; Ctrl-C stops it and keeps the text so far, a second Ctrl-C raises ``SignalReceived``.

    ::

        with answering(make_stream, terminal) as answer:
            for event in answer:
                terminal.answer(event.text)
        print(answer.result().usage)

    Args:
        make_stream: starts the generation, given a cancel token and a callback for the progress of prefill.
        terminal: shows the prefill progress of a long prompt, if it is a screen.
        tend: called in this thread between pieces of the answer, and while waiting for one.
    """
    token = CancelToken()
    with cancel_on_interrupt(token):
        answer = Answering(make_stream, token, terminal, tend)
        try:
            yield answer
        except BaseException:
            answer.hide_progress()
            # The next message starts on a new line, after the incomplete answer.
            terminal.fresh_line()
            raise
        finally:
            answer.hide_progress()
            token.cancel()


class Answering(Background[Event]):
    """Events of an answer, read in the main thread; until the first event a line shows the progress of prefill.

    Args:
        tend: called between events, and while waiting for one.
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
        """Return the result; valid after all events were read."""
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
        """Erase the progress line, if there is one."""
        if self._is_shown:
            self._terminal.control("\r\x1b[K")
            self._is_shown = False

    before_item = hide_progress
