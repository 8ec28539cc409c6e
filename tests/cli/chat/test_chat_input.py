from __future__ import annotations

import pytest

from edge_rt.cli.chat.repl import Entry, needs_more, parse_entry


@pytest.mark.parametrize(
    ("text", "more"),
    [
        ("hello", False),
        ("hello\\", True),
        ("hello\\\nthere", False),
        ('"""', True),
        ('"""a\nb', True),
        ('"""a\nb"""', False),
        ('""""', True),
        ('""""""', False),
        ('say """x"""', False),
        ("", False),
    ],
)
def test_needs_more(text, more):
    assert needs_more(text) is more


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("  hello ", Entry("message", "hello")),
        ("", Entry("nothing", "")),
        (" \n ", Entry("nothing", "")),
        ("/help", Entry("command", "/help")),
        ("/nope x", Entry("command", "/nope x")),
        ("//etc/hosts is a file", Entry("message", "/etc/hosts is a file")),
        ("one\\\ntwo", Entry("message", "one\ntwo")),
        ("pasted\nlines", Entry("message", "pasted\nlines")),
        ('"""\n/not a command\n  x\n"""', Entry("message", "/not a command\n  x")),
        ('""""""', Entry("nothing", "")),
    ],
)
def test_parse_entry(text, entry):
    assert parse_entry(text) == entry
