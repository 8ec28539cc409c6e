"""A progress line on stderr for long work."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from edge_rt.cli.render.console import Terminal
from edge_rt.cli.render.sanitise import harmless

LINE_SECONDS: Final = 10.0
"""Seconds between two lines if the output is not a screen."""


class StatusLine:
    """Redraws a line on a screen; on other outputs writes a line now and then, and always the last one.

    Args:
        terminal: receives the line.
        total: parts of the work.
        clock: returns the time in seconds.
    """

    def __init__(self, terminal: Terminal, total: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._terminal = terminal
        self._total = total
        self._clock = clock
        self._told = -LINE_SECONDS

    def show(self, done: int, text: str) -> None:
        """Show that ``done`` parts are done."""
        line = f"{done}/{self._total} {text}"
        if self._terminal.err_is_tty:
            self._terminal.control("\r\x1b[K" + harmless(line))
        elif done == self._total or self._clock() - self._told >= LINE_SECONDS:
            self._told = self._clock()
            self._terminal.note(line)

    def clear(self) -> None:
        """Erase the line, so that another one can be written."""
        self._terminal.control("\r\x1b[K")
