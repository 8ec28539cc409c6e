"""An answer as it is shown while it is generated: thoughts dimmed on stderr, the answer on stdout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge_rt.cli.render.console import Terminal

if TYPE_CHECKING:
    from edge_rt.runtime.results import Event


class AnswerView:
    """Writes the events of one answer.

    Args:
        terminal: receives them.

    Attributes:
        wrote: whether anything of the answer was written.
    """

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._is_thinking = False
        self.wrote = False

    def show(self, event: Event) -> None:
        """Write an event."""
        if event.reasoning:
            self._terminal.note(event.reasoning, "dim", end="")
            self._is_thinking = True
        if event.text:
            self.end_thoughts()
            self._terminal.answer(event.text)
            self.wrote = True

    def end_thoughts(self) -> None:
        """Begin a new line behind thoughts."""
        if self._is_thinking:
            self._terminal.note()
            self._is_thinking = False
