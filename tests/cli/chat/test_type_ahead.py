"""What is shown of keys that are typed during an answer."""

from __future__ import annotations

import pytest

from edge_rt.cli.chat.type_ahead import _last_columns, likeness, prompt_after


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


class Session:
    """A prompt whose console keeps what is typed ahead, as Windows' does."""

    def prompt(self, text):
        return f"typed behind {text}"


def test_a_console_that_keeps_keys_is_left_to_it():
    assert prompt_after(Session(), None, ">>> ") == "typed behind >>> "
