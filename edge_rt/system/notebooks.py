"""What notebooks show: texts, tables and progress as HTML, in which tags of others are text."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from edge_rt.system.byte_size import human_bytes
from edge_rt.system.progress import ProgressCallback, ProgressEvent, no_progress

SECONDS_BETWEEN: Final = 0.2
"""Progress is drawn at most so often; every drawing is a message to the browser."""


def shown_text(text: str) -> str:
    """Return a text with its lines as they are."""
    return f'<div style="white-space: pre-wrap">{html.escape(text)}</div>'


def shown_table(rows: Iterable[Sequence[str]], *, head: Sequence[str] = (), right: Collection[int] = ()) -> str:
    """Return rows as a table.

    Args:
        head: titles of the columns; empty: there are none.
        right: columns of numbers.
    """
    shown = _row(head, "th", right) if head else ""
    return f"<table>{shown}{''.join(_row(row, 'td', right) for row in rows)}</table>"


def _row(cells: Sequence[str], tag: str, right: Collection[int]) -> str:
    sides = ("right" if column in right else "left" for column in range(len(cells)))
    shown = (
        f'<{tag} style="text-align: {side}">{html.escape(cell)}</{tag}>'
        for cell, side in zip(cells, sides, strict=True)
    )
    return f"<tr>{''.join(shown)}</tr>"


def usual_progress() -> ProgressCallback:
    """Return what shows progress where nobody says how: one output in a notebook, nothing elsewhere."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    # A terminal with IPython has no such kernel, and shows HTML as the name of an object.
    return no_progress if getattr(shell, "kernel", None) is None else NotebookProgress()


class NotebookProgress:
    """Shows the stage that is under way, in one output of a cell."""

    def __init__(self) -> None:
        self._shown: Any = None
        self._stage: tuple[int, str] | None = None
        self._done, self._total = 0, 0
        self._drawn = 0.0

    def __call__(self, event: ProgressEvent) -> None:
        """Show an event."""
        stage = (event.step, event.stage)
        if stage != self._stage:
            self._stage, self._done, self._total, self._drawn = stage, 0, 0, 0.0
        # An event that only says what begins now does not move the bar.
        self._done, self._total = max(self._done, event.done), event.total or self._total
        is_last = self._done == self._total and event.step == event.steps
        if time.monotonic() - self._drawn < SECONDS_BETWEEN and not is_last:
            return
        self._drawn = time.monotonic()
        self._show(event)

    def _show(self, event: ProgressEvent) -> None:
        from IPython.display import HTML, display

        drawn = HTML(self._html(event))
        if self._shown is None:
            self._shown = display(drawn, display_id=True)
        else:
            self._shown.update(drawn)

    def _html(self, event: ProgressEvent) -> str:
        """Return a bar where the size of the stage is known, and words."""
        title = f"{event.step}/{event.steps} {event.stage}"
        words = [title] if event.message in ("", "done") else [f"{title}: {event.message}"]
        if not self._total:
            return shown_text(words[0])
        amounts = [human_bytes(count) if event.unit == "bytes" else str(count) for count in (self._done, self._total)]
        words.append(f"{100 * self._done // self._total} % ({amounts[0]} of {amounts[1]})")
        bar = f'<progress max="{self._total}" value="{self._done}" style="vertical-align: middle"></progress>'
        return f"<div>{bar} {html.escape(', '.join(words))}</div>"
