"""Calls of tools in answers that are cut anywhere: the pieces add up to what the whole answer holds."""

from __future__ import annotations

import json
import random

import pytest

from edge_rt.text.call_stream import CallStream
from edge_rt.text.call_syntaxes import SYNTAXES
from edge_rt.text.tool_calls import Tools, split_tool_calls

TOOLS = ({"type": "function", "function": {"name": "f", "parameters": {}}}, {"name": "gee_2"})
ARGUMENTS = ({"a": 'x } " ] <tool_call> ☃'}, {}, {"b": [1, {"c": None}]})
NO_CALLS = (
    "hello { } there", '{"a": 1}', "  x", '{"name": "q"}', '{"name": "\\x"', '{ "a": "}', "{}", "{ print 1 }",
    '{"arguments": {}, "name": "q"} {"name": "f"}',
)  # fmt: skip
UNTAUGHT = (
    '{"name": "f", "arguments": {"a": "}"}}', ' {"arguments": {"b": [1]}, "id": 3, "name": "gee_2"}\n',
    '{"name": "f"} ; {"name": "gee_2", "parameters": {"a": 1}}', '{"name": "f", "arguments": "{}"}',
    '<|python_tag|>{"name": "f", "parameters": {}}', 'Well. <|python_tag|>{"name": "f"}',
    "<tool_call><function=f><parameter=a>1</parameter></function></tool_call>",
    '<|channel|>commentary to=functions.f<|message|>{"a": 1}',
    ' to=functions.f<|channel|>commentary json<|message|>{"a": 1}',
    'Yes <tool_call>{"name": "f", "arguments": {}}</tool_call>', '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]',
)  # fmt: skip
"""Calls as some templates teach them, and others not."""


def written(syntax, rng):
    """Return an answer with some calls, and sometimes text around them."""
    count = rng.randint(1, 3 if syntax.several else 1)
    calls = [(rng.choice(["f", "gee_2"]), rng.choice(ARGUMENTS)) for _ in range(count)]

    def spelled(arguments):
        if syntax.notation == "python":
            return ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        if syntax.notation == "xml":
            texts = ((key, one if isinstance(one, str) else json.dumps(one)) for key, one in arguments.items())
            return "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in texts)
        if not syntax.quote:
            return json.dumps(arguments, ensure_ascii=False)
        texts = ((key, value) for key, value in arguments.items() if isinstance(value, str))
        return "{" + ",".join(f"{key}:{syntax.quote}{value}{syntax.quote}" for key, value in texts) + "}"

    body = syntax.between.join(
        syntax.call[0] + name + syntax.call[1] + spelled(given) + syntax.call[2] for name, given in calls
    )
    before = rng.choice(["", "Let me see.\n"]) if syntax.mark else ""
    behind = rng.choice(["", " done"]) if syntax.mark and not syntax.end and syntax.call[2] else ""
    return before + syntax.begin + body + syntax.end + behind


def pieces_of(text, rng):
    while text:
        size = rng.randint(1, 6)
        yield text[:size]
        text = text[size:]


def read(stream, text, rng, calls):
    """Return the text and the calls that a stream gives of an answer in pieces."""
    shown, called = "", {}
    for new, pieces in [*(stream.push(piece) for piece in pieces_of(text, rng)), stream.finish(calls)]:
        shown += new
        for piece in pieces:
            if piece.name is not None:
                assert piece.index not in called
                called[piece.index] = [piece.name, ""]
            called[piece.index][1] += piece.arguments
    return shown, [(name, json.loads(arguments)) for name, arguments in called.values()]


@pytest.mark.parametrize("syntax", SYNTAXES, ids=[str(number) for number in range(len(SYNTAXES))])
def test_the_pieces_add_up_to_the_whole_answer(syntax):
    rng, tools = random.Random(syntax.name), Tools(TOOLS, syntax)
    for _ in range(60):
        text = written(syntax, rng) if rng.random() < 0.8 else rng.choice(NO_CALLS)
        rest, calls = split_tool_calls(text, tools.names)
        shown, called = read(CallStream(tools), text, rng, calls)
        assert called == [(call.name, call.arguments) for call in calls]
        assert shown.split() == rest.split() or "".join(shown.split()) == "".join(rest.split())
        if not calls:
            assert shown == text


@pytest.mark.parametrize("syntax", [*SYNTAXES, None], ids=[str(number) for number in range(len(SYNTAXES) + 1)])
def test_a_call_that_nobody_taught_is_never_text_as_well(syntax):
    rng, tools = random.Random(7), Tools(TOOLS, syntax)
    for text in UNTAUGHT:
        rest, calls = split_tool_calls(text, tools.names)
        assert calls
        for _ in range(8):
            shown, called = read(CallStream(tools), text, rng, calls)
            assert called == [(call.name, call.arguments) for call in calls]
            assert shown.strip() == rest


def test_an_object_that_is_no_call_is_told_as_soon_as_that_is_seen():
    tools = Tools(TOOLS, next(one for one in SYNTAXES if one.name.startswith("Qwen")))
    stream = CallStream(tools)
    assert [stream.push(piece)[0] for piece in (' {"a": ', '"}"', "}", " x")] == ["", "", ' {"a": "}"}', " x"]
    stream = CallStream(tools)
    assert [stream.push(piece)[0] for piece in ("{", " x", " y")] == ["", "{ x", " y"]
    stream = CallStream(tools)
    whole = '{"name": "f", "arguments": {}}'
    assert [stream.push(piece)[0] for piece in (whole, "\n", "is a call")] == ["", "", f"{whole}\nis a call"]


def test_a_call_is_told_before_it_is_whole():
    stream = CallStream(Tools(TOOLS, next(one for one in SYNTAXES if one.name.startswith("Qwen,"))))
    assert stream.push("Yes.\n<tool_c") == ("Yes.", ())
    assert stream.push('all>{"name": "f", "arg') == ("", ())
    _, (head, first) = stream.push('uments": {"a": "b')
    assert (head.index, head.name, first.arguments) == (0, "f", '{"a": "b')
    _, (rest,) = stream.push('c"}}</tool')
    assert rest.arguments == 'c"}'
    assert stream.finish(()) == ("", ())


def test_arguments_with_names_are_told_one_by_one():
    """In XML and in Python's notation; a number is whole when something follows."""

    def pushed(stream, text):
        return "".join(f"{piece.name or ''}{piece.arguments}" for piece in stream.push(text)[1])

    typed = ({"name": "f", "parameters": {"properties": {"n": {"type": "integer"}, "t": {"type": "string"}}}},)
    xml = CallStream(Tools(typed, next(one for one in SYNTAXES if one.notation == "xml")))
    parts = ("<tool_call>\n<func", "tion=f>\n<parameter=t>\n1", "2\n</parameter>", "\n<parameter=n>\n3\n</param")
    assert [pushed(xml, part) for part in parts] == ["", "f", '{"t": "12"', ""]
    assert [pushed(xml, part) for part in ("eter>\n</func", "tion>\n</tool_call>")] == [', "n": 3', "}"]
    python = CallStream(Tools(TOOLS, next(one for one in SYNTAXES if one.notation == "python")))
    parts = ("<|tool_call_start|>[f", "(a='x", "', b=1", "2, c=[1", "]), gee_2(", ")]<|tool_call_end|>")
    assert [pushed(python, part) for part in parts] == [
        "", "f", '{"a": "x"', ', "b": 12', ', "c": [1]}gee_2', "{}",
    ]  # fmt: skip


def test_arguments_without_names_are_no_call_and_no_text_is_lost():
    stream = CallStream(Tools(TOOLS, next(one for one in SYNTAXES if one.notation == "python")))
    text = "<|tool_call_start|>[f('x')]<|tool_call_end|> so"
    shown = stream.push(text)[0] + stream.finish(())[0]
    assert shown.endswith("'x')]<|tool_call_end|> so")


def test_text_without_tools_passes_as_it_is():
    stream = CallStream(None)
    assert stream.push('<tool_call>{"name": "f"') == ('<tool_call>{"name": "f"', ())
    assert stream.finish(()) == ("", ())
