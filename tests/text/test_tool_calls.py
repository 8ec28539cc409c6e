"""Calls in answers, in the forms of Qwen and Llama 3."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from edge_rt.text.thoughts import ToolCall, parse_tool_calls, split_tool_calls, tool_names

A = ToolCall("a", {"x": 1})
B = ToolCall("b", {})


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('<tool_call>\n{"name": "a", "arguments": {"x": 1}}\n</tool_call>', (A,)),
        ('Well.\n<tool_call>{"name": "a", "arguments": "{\\"x\\": 1}"}</tool_call> <tool_call>{"name": "b"}', (A, B)),
        ('<tool_call>{"name": "a", </tool_call><tool_call>{"name": "b"}</tool_call>', (B,)),
        ('<tool_call>{"name": "b", "arguments": null}</tool_call> {"name": "b"}', (B,)),
        ('<tool_call>{"name": "a", "arguments": {"x": 1}} then</tool_call><tool_call>{"name": "b"}', (B,)),
        ('<tool_call>{"name": "b", "arguments": "null"}', (B,)),
        ('{"name": "b"}', (B,)),
        ('{"name": "a", "parameters": {"x": 1}}', (A,)),
        ('{"type": "function", "name": "a", "parameters": {"x": 1}}', (A,)),
        ('<|python_tag|>{"name": "a", "parameters": {"x": 1}}; {"name": "b", "parameters": {}}', (A, B)),
        ('{"name": "a", "parameters": {"x": 1}} calls a.', ()),
        ('{"name": 7}', ()),
        ('{"parameters": {}}', ()),
        ('{"name": "a", "parameters": [1]}', ()),
        ('{"name": "a", "arguments": "now"}', ()),
        ('I would call {"name": "a"}', ()),
        ("[1]", ()),
        ("<tool_call>[1]</tool_call>", ()),
        ('{"name": "a"', ()),
        ("", ()),
        ("{" * 100_000, ()),
        ("<tool_call>" + "[" * 100_000, ()),
    ],
)
def test_calls(text, calls):
    assert parse_tool_calls(text) == calls


def test_the_end_of_a_call_may_occur_in_its_arguments():
    text = '<tool_call>{"name": "a", "arguments": {"x": "</tool_call><tool_call>"}}</tool_call>!'
    assert split_tool_calls(text) == ("!", (ToolCall("a", {"x": "</tool_call><tool_call>"}),))


@pytest.mark.parametrize("text", ['{"name":"Alice","age":3}', '<tool_call>{"name": "Alice"}</tool_call>'])
def test_only_tools_that_were_given_are_called(text):
    assert split_tool_calls(text, {"a"}) == (text, ())
    assert parse_tool_calls(text.replace("Alice", "a"), {"a"}) == (ToolCall("a", {}),)


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ('Well.\n<tool_call>{"name": "b"}</tool_call> <tool_call>{"name": "b"}</tool_call>\n', "Well."),
        ('{"name": "b"}', ""),
        (' <|python_tag|>{"name": "b"}', ""),
        (" no call ", " no call "),
    ],
)
def test_the_text_without_its_calls(text, rest):
    assert split_tool_calls(text)[0] == rest


@pytest.mark.parametrize(
    ("tools", "names"),
    [
        ([{"type": "function", "function": {"name": "a"}}, {"name": "b"}], {"a", "b"}),
        ([{"name": "a"}, {"type": "search"}], None),
        ([], None),
        (None, None),
    ],
)
def test_names_of_tools(tools, names):
    assert tool_names(tools) == names


def test_calls_are_bounded():
    assert len(parse_tool_calls('<tool_call>{"name": "a"}</tool_call>' * 1000)) == 128


@given(st.text('{}[]":,;<tool_call>/|pythgname \\1'))
def test_no_text_fails(text):
    assert all(isinstance(call, ToolCall) for call in parse_tool_calls(text))
