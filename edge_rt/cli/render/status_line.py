"""One line on stderr that says how far long work is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from edge_rt.cli.render.console import Terminal
from edge_rt.cli.render.sanitise import harmless

LINE_SECONDS: Final = 10.0
"""Seconds between two lines where nothing can be redrawn."""


class StatusLine:
    """Redraws a line on a screen; elsewhere writes one now and then, the last one always.

    Args:
        terminal: where to.
        total: parts of the work.
        clock: seconds.
    """

    def __init__(self, terminal: Terminal, total: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._terminal = terminal
        self._total = total
        self._clock = clock
        self._told = -LINE_SECONDS

    def show(self, done: int, text: str) -> None:
        """Say that ``done`` parts are done."""
        line = f"{done}/{self._total} {text}"
        if self._terminal.err_is_tty:
            self._terminal.control("\r\x1b[K" + harmless(line))
        elif done == self._total or self._clock() - self._told >= LINE_SECONDS:
            self._told = self._clock()
            self._terminal.note(line)

    def clear(self) -> None:
        """Make room for another line."""
        self._terminal.control("\r\x1b[K")
