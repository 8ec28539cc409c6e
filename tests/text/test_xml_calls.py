"""Calls in XML: how the parameters of a tool tell texts from other values, and which texts fit a schema."""

from __future__ import annotations

import json

import pytest

from edge_rt.errors import InvalidGrammar
from edge_rt.text.json_schema import read_schema
from edge_rt.text.tool_calls import parse_tool_calls
from edge_rt.text.xml_calls import arguments_rules, read_arguments, read_call
from tests.helpers.argument_texts import closed, fitting

SEPARATORS = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
TEXT = {"type": "string"}
REFERENCE = {"$ref": "#/$defs/text"}


def argument(text, key="A"):
    return f"<parameter={key}>\n{text}\n</parameter>\n"


def value_of(text, part):
    schema = {**closed(A=part), "$defs": {"text": TEXT}}
    calls, end = read_call(f"<function=f>\n{argument(text)}</function>", 0)
    assert end == len(argument(text)) + 24
    return read_arguments(calls[0]["arguments"], schema)["A"]


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("3", TEXT, "3"),
        ("3", {"type": "integer"}, 3),
        ("3", {}, 3),
        ("3", {"type": ["string", "null"]}, "3"),
        ("3", {"type": ["string", "integer"]}, 3),
        ("[3]", {"type": ["string", "integer"]}, "[3]"),
        ('"3"', {"type": ["string", "integer"]}, "3"),
        ('"3"', TEXT, '"3"'),
        ("null", TEXT, "null"),
        ("null", {"anyOf": [TEXT, {"type": "null"}]}, None),
        ("null", {"enum": ["null", "x"]}, "null"),
        ("3", {"const": "3"}, "3"),
        ("3", REFERENCE, "3"),
        ("3", {"allOf": [TEXT, {"maxLength": 3}]}, "3"),
        ("True", {"type": "boolean"}, True),
        ("true", {}, True),
        ("True", TEXT, "True"),
        ("some words", {"type": "integer"}, "some words"),
        ("NaN", {}, "NaN"),
        ('{"a": [1, null]}', {"type": "object"}, {"a": [1, None]}),
        ("", TEXT, ""),
        ("\n two\nlines \n", TEXT, "\n two\nlines \n"),
        ("a</parameter>\n</function> <tool_call>", TEXT, "a</parameter>\n</function> <tool_call>"),
        ("[" * 100_000, {}, "[" * 100_000),
        ("3", {"$ref": "#"}, 3),
        ("3", {"type": {}, "enum": 1, "anyOf": 2, "allOf": 3, "$ref": 4}, 3),
    ],
)
def test_parameters_tell_texts_from_other_values(text, schema, value):
    read = value_of(text, schema)
    assert read == value
    assert type(read) is type(value)


def test_calls_are_read_with_the_parameters_of_their_tools():
    text = f"<tool_call>\n<function=f>\n{argument('1')}{argument('2', 'b')}</function>\n</tool_call>"
    (call,) = parse_tool_calls(text, {"f": closed(A=TEXT, b={"type": "integer"})})
    assert call.arguments == {"A": "1", "b": 2}
    assert parse_tool_calls(text, {"g": {}}) == ()
    assert parse_tool_calls(text, {"f": "any"})[0].arguments == {"A": 1, "b": 2}


@pytest.fixture(scope="module")
def fits(small_package):
    def rules_of(schema):
        return ['start: args0 "</function>"', *arguments_rules(schema, "args0", SEPARATORS)[0]]

    return fitting(small_package, rules_of, end="</function>")


@pytest.mark.parametrize(
    ("part", "good", "bad"),
    [
        (TEXT, ["", "it's", "\n\n", "two\nlines", "</parameter", "a\n</parameters>", "a</parameter>\n</function>", "3"],
         ["</parameter>", "a\n</parameter>b"]),
        ({"type": "string", "minLength": 1, "maxLength": 2}, ["a", "ä\n"], ["", "abc"]),
        ({"type": "string", "pattern": "^[a-z]+/$"}, ["ab/"], ["AB/", "a"]),
        ({"enum": ["red", "", "a b\n", "x\n</parameter>"]}, ["red", "", "a b\n"], ["blue", '"red"', "x"]),
        ({"type": ["string", "null"], "maxLength": 2}, ["a", "null", "3"], ["abc"]),
        ({"enum": ["red", None]}, ["red", "null"], ["None"]),
        ({"anyOf": [REFERENCE, {"type": "null"}]}, ["any words", "null", "none"], []),
        (REFERENCE, ["3"], []),
        ({"type": "integer", "maximum": 9}, ["3"], ["10", "a", "3 ", ""]),
        ({"type": "boolean"}, ["true", "False"], ["yes"]),
        ({"type": "null"}, ["null", "None"], ["nil"]),
        ({"type": ["string", "integer"]}, ["3", '"3"'], ["a"]),
        ({"enum": ["x", 1]}, ['"x"', "1"], ["x"]),
        ({"type": "array", "items": TEXT}, ["[]", '["</parameter>\\n"]'], ["[1]", '["\n"]']),
        (closed(K={"type": "number"}), ['{"K": 1.5}'], ["{}"]),
        (True, ["a", "", '{"a": 1}', "</parameter", "3"], ["\n</parameter>"]),
    ],
)  # fmt: skip
def test_values_that_fit(fits, part, good, bad):
    schema = {**closed(A=part), "$defs": {"text": TEXT}}
    assert [text for text in good if not fits(schema, argument(text))] == []
    assert [text for text in bad if fits(schema, argument(text))] == []


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (closed(), [""], [argument("1")]),
        (closed(a={"const": 1}, B={"const": 2}), [argument("2", "B"), argument("1", "a") + argument("2", "B")],
         ["", argument("1", "a"), argument("2", "B") + argument("1", "a")]),
        ({"type": "object", "properties": {"a": {"const": 1}}, "additionalProperties": {"const": 2}},
         ["", argument("1", "a"), argument("2", "ab") + argument("2", "z"), argument("1", "a") + argument("2", "z")],
         [argument("2", "a"), argument("1", "z")]),
        ({"type": "object"}, ["", argument("any text", "x"), argument("1", "x") + argument("2", "y")],
         [argument("", "<")]),
    ],
)  # fmt: skip
def test_arguments_that_fit(fits, schema, good, bad):
    assert [text for text in good if not fits(schema, text)] == []
    assert [text for text in bad if fits(schema, text)] == []


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "object", "minProperties": 1}, "'minProperties' of an object of arguments cannot be"),
        (closed(**{"a b": TEXT}), "name of a parameter cannot be written"),
        (closed(A={"allOf": [TEXT, {"maxLength": 3}]}), "'allOf' cannot be enforced in this model's notation"),
        (closed(A={"enum": ["</parameter>", "a\n</parameter>"]}), "No value of a parameter can be written"),
    ],
)  # fmt: skip
def test_what_cannot_be_enforced_is_refused(schema, message):
    with pytest.raises(InvalidGrammar, match=message):
        arguments_rules(read_schema(schema)[0], "args0", SEPARATORS)


def test_a_format_of_a_text_is_said_not_to_be_enforced():
    _, warnings = arguments_rules(read_schema(closed(A={"type": "string", "format": "date"}))[0], "args0", SEPARATORS)
    assert [one for one in warnings if "'date'" in one] == warnings != []


def test_what_fits_is_read_as_it_is_written(fits):
    schema = closed(A=TEXT, B={"type": "array"}, C={"type": ["string", "integer"]})
    value = {"A": "ä\\\n\"'\U0001f600/ 3\n", "B": ["</parameter>\n", {"k": None}], "C": "3"}
    text = argument(value["A"]) + argument(json.dumps(value["B"]), "B") + argument(json.dumps(value["C"]), "C")
    assert fits(schema, text)
    calls, _ = read_call(f"<function=f>\n{text}</function>", 0)
    assert read_arguments(calls[0]["arguments"], schema) == value
