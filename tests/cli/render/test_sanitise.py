from __future__ import annotations

import io

import pytest
from hypothesis import given, strategies as st

from edge_rt.cli.render.console import Terminal, harmless

NASTY = st.text(st.one_of(st.sampled_from("\x1b[]0;\x07\x9b31m\r\n\t\u202e\u2066"), st.characters()))


@given(st.lists(NASTY))
def test_no_piece_of_any_text_reaches_the_terminal_as_a_control(pieces):
    shown = "".join(harmless(piece) for piece in pieces)
    controls = [c for c in shown if (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160]
    assert controls == []
    assert not any("\u202a" <= c <= "\u202e" or "\u2066" <= c <= "\u2069" for c in shown)
    shown.encode()


@given(st.text(st.characters(exclude_categories=["Cc", "Cf", "Cs"])))
def test_ordinary_text_is_unchanged(text):
    assert harmless(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred", "␛[31mred"),
        ("\x1b]52;c;aGk=\x07", "␛]52;c;aGk=␇"),
        ("\x9b2J", "<U+009B>2J"),
        ("a\r\nb\tc", "a\nb\tc"),
        ("abc\u202edef", "abc<U+202E>def"),
    ],
)
def test_controls_become_visible(text, shown):
    assert harmless(text) == shown


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("out", "written"), [(Screen(), "␛]0;x␇"), (io.StringIO(), "\x1b]0;x\x07")])
def test_an_answer_in_pieces_is_made_harmless_on_a_screen_only(out, written):
    terminal = Terminal(out, io.StringIO())
    for piece in ("\x1b", "]0;", "x\x07"):
        terminal.answer(piece)
    assert out.getvalue() == written
