from __future__ import annotations

import io
import re

import pytest
from rich.console import Console
from rich.progress import Progress

from edge_rt.cli.render.console import Terminal
from edge_rt.cli.render.progress import LINE_SECONDS, Bar, show_progress
from edge_rt.system.progress import ProgressEvent

EVENTS = [
    ProgressEvent("read", 1, 2, message="a file \x1b[2J"),
    *(ProgressEvent("weights", 2, 2, done, 100) for done in range(0, 101, 5)),
    ProgressEvent("weights", 2, 2, 100, 100, message="done"),
]


class Screen(io.StringIO):
    def isatty(self):
        return True


def show(stream, **options):
    with show_progress(Terminal(io.StringIO(), stream, **options)) as progress:
        for event in EVENTS:
            progress(event)
    return stream.getvalue()


def test_without_a_screen_a_stage_is_a_line():
    assert show(io.StringIO()).splitlines() == ["1/2 read: a file ␛[2J", "2/2 weights"]


def test_a_long_stage_tells_its_tenths(monkeypatch):
    now = iter(range(0, 10**6, int(LINE_SECONDS) + 1))
    monkeypatch.setattr("edge_rt.cli.render.progress.time.monotonic", lambda: next(now))
    lines = show(io.StringIO()).splitlines()
    # Every look at the clock, one for each event of the stage, is three seconds later: five percent take three seconds.
    left = [round(3 * (100 - percent) / 5) for percent in range(10, 91, 10)]
    expected = [f"2/2 weights: {10 * n} % of 100 bytes, about {s} s left" for n, s in enumerate(left, start=1)]
    assert lines[2:] == [*expected, "2/2 weights: 100 % of 100 bytes"]


def test_what_is_not_bytes_is_not_called_bytes(monkeypatch):
    now = iter(range(0, 10**6, 60))
    monkeypatch.setattr("edge_rt.cli.render.progress.time.monotonic", lambda: next(now))
    stream = io.StringIO()
    with show_progress(Terminal(io.StringIO(), stream)) as progress:
        for done in range(11):
            progress(ProgressEvent("plan", 2, 7, done, 10, unit="steps"))
    assert stream.getvalue().splitlines()[1:3] == [
        "2/7 plan: 10 %, about 9 min left",
        "2/7 plan: 20 %, about 8 min left",
    ]


def test_a_bar_never_goes_back():
    events = [
        ProgressEvent("plan", 1, 2),
        ProgressEvent("plan", 1, 2, 0, 10, unit="steps", message="measuring"),
        ProgressEvent("plan", 1, 2, 6, 10, unit="steps"),
        ProgressEvent("plan", 1, 2, message="something else begins"),
        ProgressEvent("plan", 1, 2, 7, 10, unit="steps"),
        ProgressEvent("weights", 2, 2, 0, 10),
    ]
    seen = []
    bar = Progress(auto_refresh=False, console=Console(file=io.StringIO()))
    show_in_bar = Bar(bar)
    for event in events:
        show_in_bar(event)
        (task,) = bar.tasks
        seen.append((task.completed, task.total))
    assert seen == [(0, None), (0, 10), (6, 10), (6, 10), (7, 10), (0, 10)]


@pytest.mark.parametrize("stream", [io.StringIO(), Screen()])
def test_quiet_shows_nothing(stream):
    assert show(stream, quiet=True) == ""


def test_a_note_stands_above_the_bar(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen()
    terminal = Terminal(io.StringIO(), screen)
    with show_progress(terminal) as progress:
        progress(EVENTS[0])
        terminal.note("export needs 3 bytes", "dim")
        progress(EVENTS[1])
    terminal.note("afterwards")
    # The bar's line is erased before the note is written.
    assert re.search(r"\x1b\[2K(\x1b\[2m)?export needs 3 bytes", screen.getvalue())
    assert screen.getvalue().endswith("afterwards\n")


def test_a_screen_gets_a_bar_and_harmless_messages():
    shown = show(Screen())
    assert "2/2 weights" in shown
    assert "␛[2J" in shown


@pytest.mark.parametrize(("unit", "is_shown"), [("bytes", True), ("steps", False)])
def test_only_bytes_are_shown_as_bytes(unit, is_shown):
    screen = Screen()
    with show_progress(Terminal(io.StringIO(), screen)) as progress:
        for done in range(5):
            progress(ProgressEvent("calibrate", 1, 2, done, 40, unit=unit))
    assert ("bytes" in screen.getvalue()) == is_shown
