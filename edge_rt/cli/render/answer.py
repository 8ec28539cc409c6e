"""An answer as it is shown while it is generated: thoughts dimmed on stderr, the answer on stdout."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from edge_rt.cli.render.console import Terminal
from edge_rt.cli.render.word_wrap import WordWrap

if TYPE_CHECKING:
    from edge_rt.runtime.results import Event


class AnswerView:
    """Writes the events of one answer; on a screen its lines are broken between words.

    Args:
        terminal: receives them.

    Attributes:
        wrote: whether anything of the answer was written.
    """

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._is_thinking = False
        self.wrote = False
        self._answer = WordWrap(terminal.answer, terminal.columns) if terminal.out_is_tty else None
        dimmed = partial(terminal.note, style="dim", end="")
        self._thoughts = WordWrap(dimmed, terminal.columns) if terminal.err_is_tty else None

    def show(self, event: Event) -> None:
        """Write an event."""
        if event.reasoning:
            if self._thoughts is None:
                self._terminal.note(event.reasoning, "dim", end="")
            else:
                self._thoughts.push(event.reasoning)
            self._is_thinking = True
        if event.text:
            self.end_thoughts()
            if self._answer is None:
                self._terminal.answer(event.text)
            else:
                self._answer.push(event.text)
            self.wrote = True

    def end_thoughts(self) -> None:
        """Begin a new line behind thoughts."""
        if self._is_thinking:
            if self._thoughts is not None:
                self._thoughts.finish()
            self._terminal.note()
            self._is_thinking = False

    def finish(self) -> None:
        """Write what is still held back, when the answer is complete or was stopped."""
        self.end_thoughts()
        if self._answer is not None:
            self._answer.finish()
