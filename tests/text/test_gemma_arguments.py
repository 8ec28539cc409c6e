"""Arguments of calls in Gemma's notation: which texts fit a schema."""

from __future__ import annotations

import pytest

from edge_rt.errors import InvalidGrammar
from edge_rt.text.gemma_arguments import arguments_rules
from edge_rt.text.json_schema import read_schema
from tests.helpers.argument_texts import closed, fitting

Q = '<|"|>'
TREE = {
    "type": "object",
    "properties": {"below": {"type": "array", "items": {"$ref": "#"}}},
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def fits(small_package):
    return fitting(small_package, lambda schema: arguments_rules(schema, "start", '"<|\\"|>"', Q)[0])


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (closed(B={"type": "integer"}, a={"type": "null"}), ["{B:1}", "{a:null,B:1}"], ["{a:null}", "{B:1,a:null}"]),
        (closed(a=True, b=False, c={"type": "boolean"}), ["{}", "{a:[1,{k:true}]}", "{c:true}"], ["{b:1}"]),
        ({"type": "object"}, ["{}", f"{{x:{Q}{Q},y_1:-2.5}}"], ["{x}", '{"x":1}']),
        (
            {"type": "object", "properties": {"a": {"const": 1}}, "additionalProperties": {"const": 2}},
            ["{}", "{a:1,z:2}", "{z:2,y:2}"],
            ["{z:1}"],
        ),
        (closed(A={"enum": ["x", '<|"', {"k": [None]}]}), [f'{{A:{Q}<|"{Q}}}', "{A:{k:[null]}}"], [f"{{A:{Q}y{Q}}}"]),
        (closed(A={"type": "string", "enum": ["x", 1]}), [f"{{A:{Q}x{Q}}}"], ["{A:1}"]),
        (closed(A={"type": "string", "minLength": 1, "maxLength": 2}), [f"{{A:{Q}a\n{Q}}}"], [f"{{A:{Q}{Q}}}"]),
        (closed(A={"type": "string", "pattern": "^(a/b|c)$"}), [f"{{A:{Q}a/b{Q}}}"], [f"{{A:{Q}ac{Q}}}"]),
        (closed(A={"type": "string", "pattern": "b"}), [f"{{A:{Q}abc{Q}}}", f"{{A:{Q}b<|{Q}}}"], [f"{{A:{Q}ac{Q}}}"]),
        (closed(A={"type": "array", "items": {"enum": [1]}, "minItems": 1, "maxItems": 2}), ["{A:[1,1]}"], ["{A:[]}"]),
        (closed(A={"type": "array", "items": {"const": 1}, "maxItems": 1}), ["{A:[]}", "{A:[1]}"], ["{A:[1,1]}"]),
        (closed(A={"type": "array", "maxItems": 0}), ["{A:[]}"], ["{A:[1]}"]),
        (closed(A={"anyOf": [{"type": "integer", "minimum": 3}, {"type": "null"}]}), ["{A:3}", "{A:null}"], ["{A:2}"]),
        (closed(A={"type": ["integer", "null"], "maximum": 4}), ["{A:4}", "{A:null}"], ["{A:5}"]),
        (TREE, ["{below:[{},{below:[]}]}"], ["{below:[1]}"]),
    ],
)  # fmt: skip
def test_texts_that_fit(fits, schema, good, bad):
    assert [text for text in good if not fits(schema, text)] == []
    assert [text for text in bad if fits(schema, text)] == []


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (closed(a={"type": "array", "prefixItems": [True]}), "'prefixItems' cannot be enforced in.*#/properties/a"),
        (closed(a={"type": "string", "pattern": "^a|b$"}), "'pattern'"),
        (closed(a={"anyOf": [True], "minLength": 1}), "'minLength'.*beside 'anyOf'"),
        (closed(a={"$ref": "#/x"}), "'#/x', which is not there"),
        (closed(**{"a b": True}), "'a b' at #"),
        (closed(A=False), "No arguments fit"),
    ],
)  # fmt: skip
def test_what_cannot_be_said_is_refused_by_name(schema, message):
    with pytest.raises(InvalidGrammar, match=message):
        arguments_rules(read_schema(schema)[0], "start", '"q"', "q")


def test_formats_are_not_enforced_and_that_is_said():
    _, warnings = arguments_rules(closed(a={"type": "string", "format": "date"}), "start", '"q"', "q")
    assert warnings == ["The format 'date' at #/properties/a is not enforced in this notation."]
