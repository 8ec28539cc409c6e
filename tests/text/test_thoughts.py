"""Thoughts and answers, told apart however the text is cut into pieces."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from edge_rt.text.thoughts import KNOWN_MARKERS, ThoughtMarkers, ThoughtStream, find_markers

THINK = KNOWN_MARKERS[0]
OPEN = replace(THINK, is_open=True)
HARMONY = KNOWN_MARKERS[-1]
THINKS = "<|channel|>analysis<|message|>"
CALL = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}"
FINAL = "<|channel|>final<|message|>"
SAID = "<|channel|>commentary<|message|>"
NEXT = "<|end|><|start|>assistant"
ROLE = " to=functions.f<|channel|>commentary json<|message|>{}"


def split(markers, pieces):
    """Return thoughts and answer; the pieces that were released make them up."""
    stream = ThoughtStream(markers)
    released = [*(stream.push(piece) for piece in pieces), stream.finish()]
    assert "".join(thought for thought, _ in released) == stream.reasoning
    assert "".join(text for _, text in released) == stream.text
    assert stream.finish() == ("", "")
    return stream.reasoning, stream.text


def test_white_space_behind_thoughts_belongs_to_an_answer_in_a_format():
    stream = ThoughtStream(THINK, is_exact=True)
    assert [stream.push(piece) for piece in ("<think>a\n</think>", " ", "\n b")] == [("a", ""), ("", " "), ("", "\n b")]
    assert stream.finish() == ("", "")


CASES = [
    (None, "<think>a</think>b", ("", "<think>a</think>b")),
    (THINK, "<think>\nhm, so\nit is\n</think>\n\n7 o'clock\n", ("hm, so\nit is", "7 o'clock\n")),
    (THINK, "\n<think>a</think>b", ("a", "b")),
    (THINK, "<think>\n\n</think>\n\nb", ("", "b")),
    (THINK, "b", ("", "b")),
    (THINK, " b", ("", " b")),
    (THINK, "<thin", ("", "<thin")),
    (THINK, "<table>", ("", "<table>")),
    (THINK, "say <think>a</think>", ("", "say <think>a</think>")),
    (THINK, "<think>a <think> b</think>c</think>d", ("a <think> b", "c</think>d")),
    (THINK, "<think>never ends </th", ("never ends </th", "")),
    (OPEN, "a\n</think>\nb", ("a", "b")),
    (OPEN, "", ("", "")),
    (OPEN, "a", ("a", "")),
    (KNOWN_MARKERS[2], "<|channel>thought\nhm<channel|>7", ("hm", "7")),
    (HARMONY, f"<|channel|>analysis<|message|>hm<|end|><|start|>assistant{FINAL}7", ("hm", "7")),
    (HARMONY, f"{FINAL}7", ("", "7")),
    (HARMONY, f"{THINKS}hm<|end|><|start|>assistant{CALL}", ("hm", CALL)),
    (HARMONY, f"{THINKS}hm<|end|><|start|>assistant to=functions.f", ("hm", " to=functions.f")),
    (HARMONY, f"{THINKS}a <|end|> b<|end|><|start|>assistant{FINAL}7", ("a <|end|> b", "7")),
    (HARMONY, CALL, ("", CALL)),
    # What is said before a call, in its channel, has no marks; thoughts may come twice.
    (HARMONY, f"{SAID}I look.{NEXT}{CALL}", ("", f"I look.{CALL}")),
    (HARMONY, f"{THINKS}hm{NEXT}{SAID}I look.{NEXT}{THINKS}so{NEXT}{ROLE}", ("hm\n\nso", f"I look.{ROLE}")),
    (HARMONY, f"{SAID}I look.{NEXT}{FINAL}It is 7.\n", ("", "I look.\n\nIt is 7.\n")),
    (HARMONY, f"{FINAL}{NEXT}{FINAL}7", ("", "7")),
    (HARMONY, "<|channel|>final <|constrain|>json<|message|>{}", ("", "{}")),
    (HARMONY, "<|channel|>analysis to=python code<|message|>1", ("", "<|channel|>analysis to=python code<|message|>1")),
    (HARMONY, f"{FINAL}say to=functions.f", ("", "say to=functions.f")),
    (HARMONY, "<|channel|>?", ("", "<|channel|>?")),
    (HARMONY, "to", ("", "to")),
]


@pytest.mark.parametrize(("markers", "text", "expected"), CASES)
def test_whole_and_letter_by_letter(markers, text, expected):
    assert split(markers, [text]) == expected
    assert split(markers, list(text)) == expected


PIECES = st.lists(st.sampled_from(["<think>", "</think>", "<th", "ink>", "</", "\n", " ", "a", "<", "b\n"]), max_size=9)


@given(PIECES, PIECES, st.sampled_from([THINK, OPEN]))
def test_the_cut_makes_no_difference(first, second, markers):
    text = "".join([*first, *second])
    expected = split(markers, [text])
    assert split(markers, [*first, *second]) == expected
    assert split(markers, list(text)) == expected


def test_thoughts_are_released_before_they_end():
    stream = ThoughtStream(THINK)
    assert stream.push("<think>\nso ") == ("so", "")
    assert stream.push("it") == (" it", "")
    assert stream.push("</thi") == ("", "")
    assert stream.push("s") == ("</this", "")


class TestFindMarkers:
    @pytest.mark.parametrize(
        ("source", "found"),
        [
            ("{{ '<think>' }}{% if '</think>' in c %}", THINK),
            ("{{ '[THINK]' ~ t ~ '[/THINK]' }}", KNOWN_MARKERS[1]),
            ("{{ '<|channel>thought\\n<channel|>' }}", KNOWN_MARKERS[2]),
            ("{{ '<|channel|>analysis<|message|>' ~ t ~ '<|end|>' }}", HARMONY),
            ("{{ '<|im_start|>' }}", None),
        ],
    )
    def test_in_a_template(self, source, found):
        assert find_markers(source, lambda token: None) == found

    def test_in_a_vocabulary(self):
        assert find_markers("", {"<think>": 5, "</think>": 6}.get) == THINK
        assert find_markers("", {"<think>": 5}.get) is None

    @pytest.mark.parametrize(
        ("prompt", "is_open"),
        [("x<think>\n", True), ("x<think>", True), ("<think>\n\n</think>\n\n", False), ("x", False)],
    )
    def test_prompts_that_begin_the_thoughts(self, prompt, is_open):
        found = find_markers("<think></think>", lambda token: None, prompt)
        assert found == ThoughtMarkers("<think>", "</think>", is_open=is_open)
