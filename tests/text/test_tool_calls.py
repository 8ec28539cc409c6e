"""Calls in answers, in the forms of Qwen and Llama 3."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from edge_rt.text.tool_calls import ToolCall, parse_tool_calls

A = ToolCall("a", {"x": 1})
B = ToolCall("b", {})


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('<tool_call>\n{"name": "a", "arguments": {"x": 1}}\n</tool_call>', (A,)),
        ('Well.\n<tool_call>{"name": "a", "arguments": "{\\"x\\": 1}"}</tool_call> <tool_call>{"name": "b"}', (A, B)),
        ('<tool_call>{"name": "a", </tool_call><tool_call>{"name": "b"}</tool_call>', (B,)),
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


def test_calls_are_bounded():
    assert len(parse_tool_calls('<tool_call>{"name": "a"}</tool_call>' * 1000)) == 128


@given(st.text('{}[]":,;<tool_call>/|pythgname \\1'))
def test_no_text_fails(text):
    assert all(isinstance(call, ToolCall) for call in parse_tool_calls(text))
