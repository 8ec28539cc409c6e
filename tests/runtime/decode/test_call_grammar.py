"""Where a call begins in the tokens of a free answer."""

from __future__ import annotations

import dataclasses

import pytest

from edge_rt.runtime.decode.call_grammar import FreeText
from edge_rt.text.call_syntaxes import SYNTAXES, find_syntax
from edge_rt.text.thoughts import KNOWN_MARKERS
from edge_rt.text.tool_calls import Tools
from edge_rt.text.tool_grammar import call_start
from tests.helpers.tool_templates import TOOL_TEMPLATES

THINK = KNOWN_MARKERS[0]
OPEN = dataclasses.replace(THINK, is_open=True)


def begun(pieces, name="Qwen", token=None, thoughts=None):
    """Return the pieces of the text in which a call begins; None if none does."""
    tools = Tools(({"name": "clock"}, {"name": "Öl"}), find_syntax(TOOL_TEMPLATES[name]))
    tokens = {} if token is None else {tools.syntax.mark: token}
    free = FreeText(call_start(tools, tokens), thoughts, lambda one: pieces[one].encode())
    for one in range(len(pieces)):
        seen = free.call_with(one)
        assert seen == free.call_with(one)
        assert free.push(one) == seen
        if seen is not None:
            assert seen[-1] == one
            return [pieces[number] for number in seen]
    return None


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["<tool_call>"], ["<tool_call>"]),
        (["Well", ". <", "tool", "_call", ">\n"], [". <", "tool", "_call", ">\n"]),
        (["<tool", "_x", "<tool_", "call>"], ["<tool_", "call>"]),
        (["<", "<", "tool_call>"], ["<", "tool_call>"]),
        (["<tool", "_calls>"], None),
        (["ü"] * 50 + ["<tool_call>{"], ["<tool_call>{"]),
    ],
)
def test_a_text_begins_a_call(pieces, expected):
    assert begun(pieces) == expected


def test_a_control_token_begins_a_call_and_its_text_does_not():
    assert begun(["<tool", "_call>", "Hm", "<tool_call>"], token=3) == ["<tool_call>"]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (['{"name', '": "clock', '", '], 3),
        (["\n", ' { "type": "function", ', '"name"', ' : "clock"'], 4),
        (["<|python_tag|>", '{"name": "', "Ö", 'l"'], 4),
        (['{"name": "clocks"', '"clock"'], None),
        (["I call ", '{"name": "clock"'], None),
        (["<|python_tag|>", "print(1)", '{"name": "clock"'], None),
        (["{"] + ["  "] * 300 + ['"name": "clock"'], None),
    ],
)
def test_a_bare_call_begins_where_the_answer_does(pieces, expected):
    assert begun(pieces, "Llama") == (None if expected is None else pieces[:expected])


@pytest.mark.parametrize("token", [None, 3])
def test_thoughts_begin_no_call(token):
    pieces = ["<think>", "\n", "<tool_call>", "<tool_call>", "</think>", "\n\n"]
    assert begun(pieces, token=token, thoughts=THINK) is None
    assert begun(pieces[1:], thoughts=OPEN) is None
    assert begun([*pieces, "\n", "<tool_call>"], token=7 if token else None, thoughts=THINK) == ["<tool_call>"]
    assert begun(["a", "</think>\n<tool_", "call>"], thoughts=OPEN) == ["</think>\n<tool_", "call>"]
    assert begun(["b</think>", ' {"name": ', '"clock"'], "Llama", thoughts=OPEN) == [' {"name": ', '"clock"']


def test_marks_are_of_one_syntax_each():
    """Syntaxes of one mark are read in the same way."""
    ways = {}
    for syntax in SYNTAXES:
        if syntax.mark:
            assert ways.setdefault(syntax.mark, syntax.read) == syntax.read
