"""Lines that are broken between words while their text comes in pieces."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, strategies as st
from rich.cells import cell_len

from edge_rt.cli.render.console import Terminal, WordWrap, joined_lines


def wrapped(pieces, columns: int) -> str:
    out: list[str] = []
    wrap = WordWrap(out.append, lambda: columns)
    for piece in pieces:
        wrap.push(piece)
    wrap.finish()
    return "".join(out)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("the sea is wide", "the sea\nis wide"),
        ("a\n\n  b c", "a\n\n  b c"),
        ("see internationally", "see\ninternati\nonally"),
        ("我们在海上航行", "我们在海\n上航行"),
        ("1\t2\t3", "1\t2\n3"),
        ("ends here. ", "ends\nhere."),
    ],
    ids=["words", "line ends", "a long word", "wide characters", "tabs", "a space at the end"],
)
def test_lines_are_broken_between_words(text, lines):
    assert wrapped([text], 10) == lines
    assert wrapped(text, 10) == lines


@given(st.lists(st.text("ab \n我-", max_size=8), max_size=12), st.integers(3, 30))
def test_nothing_but_white_space_changes_and_every_line_fits(pieces, columns):
    text = "".join(pieces)
    found = wrapped(pieces, columns)
    assert "".join(found.split()) == "".join(text.split())
    assert all(cell_len(line.strip()) < columns for line in found.split("\n"))


def test_a_word_is_shown_when_it_is_complete():
    out: list[str] = []
    wrap = WordWrap(out.append, lambda: 80)
    wrap.push("the sea")
    assert out == ["the"]
    wrap.push(" is")
    assert "".join(out) == "the sea"


def test_parts_are_joined_as_far_as_they_fit():
    assert joined_lines(["aa", "bb", "cc"], ", ", 8) == ["aa, bb", "cc"]
    assert joined_lines(["aa", "bb", "cc"], ", ", None) == ["aa, bb, cc"]
    assert joined_lines([], ", ", None) == joined_lines([], ", ", 8) == []
    # A million of them take as long as a join: not as its square.
    assert len(joined_lines(["a"] * 1_000_000, ", ", None)[0]) == 2_999_998
    assert joined_lines(["a" * 20, "b"], ", ", 8) == ["a" * 20, "b"]


class Screen(io.StringIO):
    """A screen whose size is not known, which counts as 80 columns."""

    def isatty(self) -> bool:
        return True


def test_the_last_column_of_a_table_is_broken_on_a_screen_alone():
    row = ("name", "word " * 20)
    shown, piped = Screen(), io.StringIO()
    Terminal(shown, Screen()).table([row])
    Terminal(piped, Screen()).table([row])
    first, second = shown.getvalue().splitlines()
    assert (first[:10], second[:10]) == ("name  word", "      word")
    assert len(first) < 80
    assert piped.getvalue() == "  ".join(row).rstrip() + "\n"
    # Where the first columns leave no room, the screen breaks the lines.
    Terminal(narrow := Screen(), Screen()).table([("n" * 70, row[1])])
    assert narrow.getvalue().count("\n") == 1
