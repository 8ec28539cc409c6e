"""Calls in answers, in every syntax, and which syntax a template teaches."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from edge_rt.text.call_syntaxes import find_syntax
from edge_rt.text.tool_calls import ToolCall, parse_tool_calls, split_tool_calls, tool_names
from tests.helpers.tool_templates import TOOL_TEMPLATES
from tests.text.family_templates import DEEPSEEK, LLAMA3, QWEN3

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
        ('{"name": "b", "parameters": {"x": "<tool_call>"}}', (ToolCall("b", {"x": "<tool_call>"}),)),
        ('[TOOL_CALLS] [{"name": "a", "arguments": {"x": 1}, "id": "abc123DEF"}, {"name": "b"}]', (A, B)),
        ('Well. [TOOL_CALLS]a[CALL_ID]abc123DEF[ARGS]{"x": 1}[TOOL_CALLS]b{}', (A, B)),
        ("[TOOL_CALLS]a", ()),
        ('<|tool_call|>[{"name": "a", "arguments": {"x": 1}}, {"name": "b"', (A,)),
        ('<|tool_call|>[{"name": "a", "arguments": {"x": 1}}]<|/tool_call|>', (A,)),
        ('<|tool_call|>[{"name": "a"} {"name": "b"}]', ()),
        ("<|tool_call>call:a{x:1}<tool_call|><|tool_call>call:b{}<tool_call|>", (A, B)),
        ("<start_function_call>call:a{x:1}<end_function_call>", (A,)),
        (
            '<|tool_call>call:b{s:<|"|>}<tool_call|>"<|"|>,t:[true,null,{k:<|"|><|"|>}],"u":"v"}',
            (ToolCall("b", {"s": '}<tool_call|>"', "t": [True, None, {"k": ""}], "u": "v"}),),
        ),
        ("<|tool_call>call:a{x:1} then<tool_call|><|tool_call>call:b{}", (B,)),
        ('<|tool_call>call:b{s:<|"|>open}<tool_call|>', ()),
        ("<|tool_call_start|>[a(x=1), b()]<|tool_call_end|>", (A, B)),
        ('Well. <|tool_call_start|>[{"name": "a", "arguments": {"x": 1}}]<|tool_call_end|>', (A,)),
        ("<|tool_call_start|>[a(x=1), b(", (A,)),
        ("<|tool_call_start|>a(x=1)<|tool_call_end|>", (A,)),
        (
            "<|tool_call_start|>[b(s='it\\'s )]\\n', t=[True, None, {'k': -1.5e1}], u=(\"v\",))]<|tool_call_end|>",
            (ToolCall("b", {"s": "it's )]\n", "t": [True, None, {"k": -15.0}], "u": ["v"]}),),
        ),
        ("<|tool_call_start|>[b(1)]<|tool_call_end|>", ()),
        ("<|tool_call_start|>[b(x=open('f'))]<|tool_call_end|>", ()),
        ("<|tool_call_start|>[b(x=1, x=2)]<|tool_call_end|>", ()),
        ("<|tool_call_start|>[b(s='open)]<|tool_call_end|>", ()),
        ("<|tool_call_start|>[a(x=" + "[" * 100_000, ()),
        ("<|tool_call_start|>[a(x=" + "1" * 100_000, ()),
        ("<|tool_call_start|>" + "[" * 100_000, ()),
        ("<tool_call><function=a><parameter=x>1</parameter></function></tool_call>", (A,)),
        (
            "Well.\n<tool_call>\n<function=b>\n</function>\n</tool_call>\n<tool_call>\n<function=a></function></tool_call>",
            (B, ToolCall("a", {})),
        ),
        ("<tool_call>\n<function=a>\n<parameter=x>\n1\n</parameter>\n</function>", (A,)),
        (
            "<tool_call><function=a></function> then</tool_call><tool_call><function=b></function></tool_call>",
            (B,),
        ),
        ("<tool_call><function=a><parameter=x>1</parameter>", ()),
        ("<tool_call><function=a><parameter=x>1", ()),
        ("<tool_call><function=a>x</function></tool_call>", ()),
        ("<tool_call><function=></function></tool_call>", ()),
        ('<|channel|>commentary to=functions.a <|constrain|>json<|message|>{"x": 1}', (A,)),
        ('<|channel|>commentary to=functions.a<|message|>{"x": 1}<|call|>', (A,)),
        (' to=functions.a<|channel|>commentary json<|message|>{"x": 1}<|call|>', (A,)),
        ('<|channel|>commentary to=functions.a code<|message|>{"x": 1}', ()),
        ('<|channel|>commentary to=functions.a <|constrain|>json<|message|>{"x": ', ()),
        ("<|channel|>commentary to=functions.a <|constrain|>json<|message|>[1]", ()),
        ("[1]", ()),
        ("<tool_call>[1]</tool_call>", ()),
        ('{"name": "a"', ()),
        ("", ()),
        ("{" * 100_000, ()),
        ("<tool_call>" + "[" * 100_000, ()),
        ("<|tool_call>call:a{x:" + "[" * 100_000, ()),
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
    assert names == (None if (read := tool_names(tools)) is None else set(read))


def test_calls_are_bounded():
    assert len(parse_tool_calls('<tool_call>{"name": "a"}</tool_call>' * 1000)) == 128


@given(
    st.sampled_from(
        (
            "",
            "<tool_call>",
            "<tool_call><function=a><parameter=x>",
            "[TOOL_CALLS]",
            "<|tool_call|>",
            "<|tool_call>call:a{",
            "<|tool_call_start|>[a(x=",
            "<|python_tag|>",
            "<|channel|>commentary to=functions.a<|message|>",
        )
    ),
    st.text("{}[]()=\":,;<tool_call>/|pythgname \\1'"),
)
def test_no_text_fails(mark, text):
    assert all(isinstance(call, ToolCall) for call in parse_tool_calls(mark + text))


@pytest.mark.parametrize(
    ("source", "name"),
    [
        *((source, name.split(" 11")[0]) for name, source in TOOL_TEMPLATES.items()),
        (r"""{{ "<tool_call>\n{\"name\": <name>, \"arguments\": <args>}\n</tool_call>" }}""", "Qwen"),
        ("<tool_call>\n<function=name>{}</function>", None),
        (QWEN3, "Qwen"),
        (LLAMA3, "Llama"),
        (DEEPSEEK, None),
        ("{{ '[TOOL_CALLS] [' }}", "Mistral"),
        ("{{ '<start_function_call>call:' }}", "FunctionGemma"),
        ("{{ '<|tool_call|>[' ~ ']<|/tool_call|>' }}", "Phi 4"),
        ('{{ \'{"name": "f", "arguments": {}}\' }}', "JSON"),
        ("{{ 'List of tools: <|tool_list_start|>[' }}", "LFM2"),
        ('{{ "List of tools: [" + tools | tojson }}', "LFM2"),
        ('{{ \'<TOOLCALL>[{{"name": "a", "arguments": \' }}', "Nemotron Nano 2"),
        ("{{ '<tool_call>\n<function=' ~ n ~ '>\n<parameter=' }}", "Qwen 3.5"),
        ("{{ messages }}", None),
    ],
)
def test_a_template_shows_its_syntax(source, name):
    syntax = find_syntax(source)
    assert syntax is None if name is None else syntax.name.startswith(name)
