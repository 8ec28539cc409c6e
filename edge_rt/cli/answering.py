"""One answer: generated in a thread, written here, stopped by Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from edge_rt.cli.interrupt import Background, cancel_on_interrupt
from edge_rt.cli.render.console import Terminal, number
from edge_rt.runtime.graph.cancel import CancelToken

if TYPE_CHECKING:
    from edge_rt.runtime.results import Event, Result
    from edge_rt.runtime.stream import Stream

PATIENCE_SECONDS: Final = 0.7
"""A prompt that is read sooner is not talked about."""

Prefill = tuple[int, int]
MakeStream = Callable[[CancelToken, Callable[[int, int], None]], "Stream"]


def answer(
    make_stream: MakeStream,
    terminal: Terminal,
    on_event: Callable[[Event], None],
    tend: Callable[[], None] | None = None,
) -> Result:
    """Generate an answer; Ctrl-C stops it and keeps what there is, a second one raises ``SignalReceived``.

    Args:
        make_stream: begins the generation, given what stops it and what to call while the prompt is read.
        terminal: shows on a screen how far a long prompt is.
        on_event: called in this thread with every piece.
        tend: called in this thread between pieces, and while there is none.

    Raises:
        EdgeRTError: the generation failed.
    """
    token = CancelToken()

    def work(emit: Callable[[Event | Prefill], None]) -> Result:
        with make_stream(token, lambda done, total: emit((done, total))) as stream:
            for event in stream:
                emit(event)
        return stream.result()

    status = _PromptStatus(terminal)
    with cancel_on_interrupt(token):
        background: Background[Event | Prefill, Result] = Background(work, tend)
        try:
            for item in background:
                if isinstance(item, tuple):
                    status.show(*item)
                else:
                    status.hide()
                    on_event(item)
            return background.result()
        except BaseException:
            status.hide()
            # What is told next does not belong to the half answer.
            terminal.fresh_line()
            raise
        finally:
            status.hide()
            token.cancel()


class _PromptStatus:
    """A line that says how much of a long prompt is read, and disappears with the first piece of the answer."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._since = time.monotonic()
        self._is_shown = False

    def show(self, done: int, total: int) -> None:
        if time.monotonic() - self._since > PATIENCE_SECONDS and done < total:
            self._terminal.control(f"\r\x1b[Kreading the prompt: {number(done)} of {number(total)} tokens")
            self._is_shown = True

    def hide(self) -> None:
        if self._is_shown:
            self._terminal.control("\r\x1b[K")
            self._is_shown = False
