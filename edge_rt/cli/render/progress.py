"""Progress on stderr: a bar on a screen, otherwise a line per stage and per tenth of a stage, with the time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from edge_rt.cli.render.console import Terminal, harmless
from edge_rt.system.byte_size import human_bytes
from edge_rt.system.progress import ProgressCallback, ProgressEvent, no_progress

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


LINE_SECONDS: Final = 2.0
"""A stage that ends sooner (in seconds) gets no progress lines."""
_MINUTES_FROM: Final = 100
"""Seconds from which on the time left is shown in minutes."""


@contextmanager
def show_progress(terminal: Terminal) -> Generator[ProgressCallback]:
    """Yield a callback that shows the events it gets."""
    if terminal.quiet:
        yield no_progress
    elif terminal.err_is_tty:
        bar = _bar(terminal)
        with terminal.through(bar.console), bar as progress:
            yield Bar(progress)
    else:
        yield _Lines(terminal)


def _title(event: ProgressEvent) -> str:
    return f"{event.step}/{event.steps} {event.stage}"


def _bar(terminal: Terminal) -> Progress:
    from rich.console import RenderableType
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    class Sized(ProgressColumn):
        """Shows another column only if the stage's size is known, and is in bytes if the column shows bytes."""

        def __init__(self, inner: ProgressColumn) -> None:
            super().__init__()
            self._inner = inner
            self._needs_bytes = not isinstance(inner, TimeRemainingColumn)

        def render(self, task: Task) -> RenderableType:
            is_shown = task.total is not None and (task.fields["unit"] == "bytes" or not self._needs_bytes)
            return self._inner.render(task) if is_shown else ""

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        *map(Sized, (DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())),
        console=terminal.rich_console(),
        transient=True,
    )


class Bar:
    """One bar for the current stage, with messages above it."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None
        self._title = ""
        self._done = 0
        self._total: int | None = None

    def __call__(self, event: ProgressEvent) -> None:
        """Show an event."""
        title = _title(event)
        if self._task is None or title != self._title:
            if self._task is not None:
                self._progress.remove_task(self._task)
            self._title, self._done, self._total = title, 0, None
            self._task = self._progress.add_task(title, total=event.total, unit=event.unit)
        if event.message and event.message != "done":
            self._progress.console.print(harmless(event.message), style="dim", soft_wrap=True)
        # An event that only says what begins now does not move the bar.
        self._done, self._total = max(self._done, event.done), event.total or self._total
        self._progress.update(self._task, completed=self._done, total=self._total)


class _Lines:
    """Plain lines, few of them."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._title = ""
        self._tenth = 0
        self._started = 0.0

    def __call__(self, event: ProgressEvent) -> None:
        title = _title(event)
        if title != self._title:
            self._title, self._tenth, self._started = title, 0, time.monotonic()
            self._terminal.note(title if not event.message else f"{title}: {event.message}")
            return
        if event.message and event.message != "done":
            self._terminal.note(f"{title}: {event.message}")
        if not event.total:
            return
        tenth, seconds = 10 * event.done // event.total, time.monotonic() - self._started
        if tenth > self._tenth and seconds > LINE_SECONDS:
            self._tenth = tenth
            self._terminal.note(f"{title}: {10 * tenth} %{_of_bytes(event)}{_time_left(event, seconds)}")


def _of_bytes(event: ProgressEvent) -> str:
    return f" of {human_bytes(event.total or 0)}" if event.unit == "bytes" else ""


def _time_left(event: ProgressEvent, seconds: float) -> str:
    """Return how long the stage will take if it goes on as it did so far; empty at its end."""
    left = round(seconds * ((event.total or 0) - event.done) / event.done)
    if left < 1:
        return ""
    return f", {about_seconds(left)} left"


def about_seconds(seconds: float) -> str:
    """Return a time as people say it, for example ``"about 50 s"``."""
    if round(seconds) < _MINUTES_FROM:
        return f"about {round(seconds)} s"
    return f"about {round(seconds / 60)} min"


STATUS_LINE_SECONDS: Final = 10.0
"""Seconds between two lines if the output is not a screen."""


class StatusLine:
    """Redraws a line on a screen; on other outputs writes a line now and then, and always the last one."""

    def __init__(self, terminal: Terminal, total: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._terminal = terminal
        self._total = total
        self._clock = clock
        self._told = -STATUS_LINE_SECONDS

    def show(self, done: int, text: str) -> None:
        """Show that ``done`` parts are done."""
        line = f"{done}/{self._total} {text}"
        if self._terminal.err_is_tty:
            self._terminal.control("\r\x1b[K" + harmless(line))
        elif done == self._total or self._clock() - self._told >= STATUS_LINE_SECONDS:
            self._told = self._clock()
            self._terminal.note(line)

    def clear(self) -> None:
        """Erase the line, so that another one can be written."""
        self._terminal.control("\r\x1b[K")
