from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from edge_rt.runtime.decode.detokenizer import TextStream
from tests.helpers.examples import share_of


class PieceDecoder:
    """Token i is the i-th piece of text; what is incomplete at the end is ``rest``."""

    def __init__(self, pieces, rest=""):
        self.pieces = pieces
        self.rest = rest

    def push(self, token_id):
        return self.pieces[token_id]

    def flush(self):
        rest, self.rest = self.rest, ""
        return rest


def stream_of(pieces, stop=(), rest=""):
    return TextStream(PieceDecoder(pieces, rest), stop)


def cut(text, stop):
    """Return the text before the stop text that is complete first (of those the longest), and that stop text."""
    for end in range(len(text) + 1):
        complete = [s for s in stop if text[:end].endswith(s)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


short_texts = st.text("abc", min_size=0, max_size=24)
stops = st.lists(st.text("abc", min_size=1, max_size=5), max_size=4)


@settings(max_examples=share_of(300))
@given(pieces=st.lists(st.text("abc", max_size=4), max_size=12), stop=stops, rest=st.sampled_from(["", "\ufffd", "a"]))
def test_however_the_text_is_cut_into_tokens(pieces, stop, rest):
    stream = stream_of(pieces, stop, rest)
    expected, found = cut("".join(pieces) + rest, stop)
    shown = ""
    for token in range(len(pieces)):
        shown += stream.push((token,))
        assert not any(s in shown for s in stop)
        assert expected.startswith(shown)
        assert stream.text == shown
    shown += stream.finish()
    assert (shown, stream.text, stream.stop_string) == (expected, expected, found)


@settings(max_examples=share_of(100))
@given(text=short_texts, stop=stops)
def test_all_tokens_at_once(text, stop):
    stream = stream_of([text], stop)
    shown = stream.push((0,)) + stream.finish()
    assert (shown, stream.stop_string) == cut(text, stop)


@settings(max_examples=share_of(100))
@given(text=short_texts, stop=stops)
def test_nothing_is_held_back_without_need(text, stop):
    stream = stream_of(list(text), stop)
    for token in range(len(text)):
        stream.push((token,))
        if stream.stop_string is None:
            held = text[len(stream.text) : token + 1]
            assert held == "" or any(s.startswith(held) and s != held for s in stop)


def test_without_stop_texts_everything_is_shown_at_once():
    assert stream_of(["ab", "c"]).push((0, 1)) == "abc"


def test_after_a_stop_nothing_is_shown():
    stream = stream_of(["a<", "end>b", "c"], ("<end>",))
    assert [stream.push((token,)) for token in range(3)] == ["a", "", ""]
    assert (stream.finish(), stream.text, stream.stop_string) == ("", "a", "<end>")


def test_finish_shows_what_was_held_back():
    stream = stream_of(["a<en"], ("<end>",))
    assert (stream.push((0,)), stream.finish(), stream.text) == ("a", "<en", "a<en")


def test_finish_twice_shows_nothing_twice():
    stream = stream_of(["a<en"], ("<end>",), rest="x")
    stream.push((0,))
    assert (stream.finish(), stream.finish()) == ("<enx", "")


@pytest.mark.parametrize("stop", [("\ufffd",), ("b\ufffd", "zz")])
def test_the_rest_of_a_character_can_complete_a_stop_text(stop):
    stream = stream_of(["ab"], stop, rest="\ufffd")
    stream.push((0,))
    stream.finish()
    assert stream.stop_string == stop[0]
