"""What is shown of keys that are typed during an answer."""

from __future__ import annotations

import asyncio
import signal
import sys

import pytest
from prompt_toolkit import PromptSession
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from edge_rt.cli.chat.type_ahead import _last_columns, likeness, prompt_after
from edge_rt.cli.interrupt import SignalReceived, signals_as_exceptions


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ("", ""),
        ("hello", "hello"),
        ("one\rtwo", "one ⏎ two"),
        ("one\r", "one ⏎ "),
        ("helpp\x7f\x7flo", "hello"),
        ("a\r\x7f\x7fb", "a ⏎ b"),
        ("one two\x17three", "one three"),
        ("one\x15two", "two"),
        ("a\x1b[Db\x1bOAc\x1b[3~d", "abcd"),
        ("a\x01\x02b\x1b", "ab"),
    ],
)
def test_keys_are_shown_about_as_they_will_be_taken(keys, text):
    assert likeness(keys) == text


@pytest.mark.parametrize(("text", "shown"), [("abc", "abc"), ("abcdef", "bcdef"), ("一二三四", "三四"), ("", "")])
def test_the_end_of_a_long_line_is_shown(text, shown):
    assert _last_columns(text, 5) == shown


def test_a_console_that_keeps_keys_is_left_to_it():
    with create_pipe_input() as keys:
        keys.send_text("typed ahead\r")
        assert prompt_after(PromptSession(input=keys, output=DummyOutput()), None, ">>> ") == "typed ahead"


class SignalAtLine:
    """Sends this process a signal before the N-th line that the event loop runs."""

    def __init__(self, signum, line):
        self.signum, self.line, self.lines = signum, line, 0

    def __call__(self, frame, event, argument):
        if frame.f_code.co_filename != asyncio.base_events.__file__:
            return None
        if event == "line":
            self.lines += 1
            if self.lines == self.line:
                signal.raise_signal(self.signum)
        return self


def read_with(signum, line):
    """Read an entry that nobody types, with a signal at a line of the event loop."""
    trace, before = SignalAtLine(signum, line), sys.gettrace()
    with create_pipe_input() as keys, signals_as_exceptions():
        session = PromptSession(input=keys, output=DummyOutput())
        sys.settrace(trace)
        try:
            with pytest.raises(SignalReceived) as stopped:
                prompt_after(session, None, ">>> ")
        finally:
            sys.settrace(before)
    assert stopped.value.signum == signum


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("first", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)])
def test_a_signal_between_any_two_lines_of_the_event_loop_ends_the_prompt(first):
    # An exception raised in the middle of the loop lost a step, and the prompt waited for that for ever.
    for line in range(first, 240, 3):
        read_with(signal.SIGTERM, line)
