"""Calls in Python's notation: what values are read, and which texts fit a schema."""

from __future__ import annotations

import json

import pytest

from edge_rt.errors import InvalidGrammar
from edge_rt.text.call_syntaxes import find_syntax
from edge_rt.text.json_schema import read_schema
from edge_rt.text.python_calls import arguments_rules, read_calls
from tests.helpers.argument_texts import closed, fitting

SEPARATORS = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("'a'", "a"),
        ('"a\\"b"', 'a"b'),
        (r"'\u00e4\ud83d\ude00\x41\n'", "ä\U0001f600A\n"),
        (r"'C:\dir \/'", r"C:\dir /"),
        ("'two\nlines'", "two\nlines"),
        ("-7", -7),
        ("+1_000", 1000),
        (".5", 0.5),
        ("2.", 2.0),
        ("1e3", 1000.0),
        ("[1, 'a', ]", [1, "a"]),
        ("{'a': [true, False], \"b\": null}", {"a": [True, False], "b": None}),
        ("()", []),
    ],
)
def test_values(written, value):
    calls, end = read_calls(f"[f(x={written})]", 0)
    assert (calls, end) == ([{"name": "f", "arguments": {"x": value}}], len(written) + 7)
    assert type(calls[0]["arguments"]["x"]) is type(value)


@pytest.mark.parametrize("written", ["nan", "1 2", "'a' 'b'", "x", "{1: 2}", "{'a'}", "", "f()", "--1", "'\\"])
def test_what_is_no_value(written):
    with pytest.raises(ValueError):  # noqa: PT011 - its text is for nobody
        read_calls(f"[f(x={written})]", 0)


@pytest.fixture(scope="module")
def fits(small_package):
    return fitting(small_package, lambda schema: arguments_rules(schema, "start", SEPARATORS))


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (closed(), [""], ["x=1"]),
        (closed(a={"type": "null"}, B={"type": "integer"}), ["B=1", "a=None, B=1"], ["a=None", "B=1, a=None", "B=1, "]),
        (closed(a={"type": "integer"}, b={"type": "integer"}, c={"type": "boolean"}),
         ["", "a=1", "b=1", "c=True", "a=1, c=False", "a=1, b=2, c=True"], ["c=true", "b=1, a=1", ", c=True"]),
        (closed(A={"type": "integer"}, B={"type": "integer"}), ["A=1, B=2"], ["A=1", "B=2", "A=1,B=2"]),
        (closed(A={"type": "string"}), ["A='it is'", 'A="it\'s"', r"A='it\'s'"], ["A='it's'", "A=it", 'A="\'']),
        (closed(A={"type": "string", "maxLength": 2}), ['A="ab"'], ['A="abc"', "A='abc'"]),
        (closed(A={"enum": ["x", 1]}), ['A="x"', "A=1"], ['A="y"', "A=2"]),
        (closed(A={"type": "array", "items": {"const": 1}, "maxItems": 2}), ["A=[1, 1]", "A=[]"], ["A=[1, 1, 1]"]),
        (closed(A=closed(K={"type": "number"})), ['A={"K": 1.5}'], ["A={}", 'A={"K": 1, "L": 2}']),
        (closed(A=True), ["A=True", "A=[1]", "A='x'", "A=None", 'A={"a": true}'], ["A=open"]),
        ({"type": "object"}, ["", "x=1", "x=1, y_2='a'"], ["1", "x=1 y=2"]),
        ({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": {"const": 2}},
         ["a=1", "a=1, z=2"], ["z=2", "a=1, z=1"]),
        ({**closed(A={"$ref": "#/$defs/n"}), "$defs": {"n": {"type": "integer"}}}, ["A=3"], ["A=\"3\""]),
    ],
)  # fmt: skip
def test_texts_that_fit(fits, schema, good, bad):
    assert [text for text in good if not fits(schema, text)] == []
    assert [text for text in bad if fits(schema, text)] == []


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "object", "minProperties": 1}, "'minProperties' of an object of arguments cannot be enforced"),
        ({"type": "object", "anyOf": [{"required": ["a"]}]}, "'anyOf' of an object"),
        (closed(A={"type": "array", "items": {"$ref": "#"}}), "reference to anything but a definition"),
        (closed(**{"a-b": {"type": "integer"}}), "name of a parameter cannot be written"),
    ],
)
def test_what_cannot_be_enforced_is_refused(schema, message):
    with pytest.raises(InvalidGrammar, match=message):
        arguments_rules(read_schema(schema)[0], "start", SEPARATORS)


def test_what_fits_is_read_as_it_is_written(fits):
    schema = closed(A={"type": "string"}, B={"type": "array"}, c={"type": "boolean"})
    value = {"A": "ä\\\n\"'\U0001f600/", "B": [1, {"k": None}], "c": True}
    text = f"A={json.dumps(value['A'], ensure_ascii=False)}, B={json.dumps(value['B'])}, c=True"
    assert fits(schema, text)
    assert read_calls(f"f({text})", 0)[0][0]["arguments"] == value


def test_a_template_may_ask_for_json_between_the_same_marks():
    found = find_syntax("""{{ '<|tool_call_start|>[{"name": "' + name + '", "arguments": ' }}""")
    assert (found.notation, found.call[0]) == ("json", '{"name": "')
