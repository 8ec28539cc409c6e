from __future__ import annotations

import itertools
import json
import time

import jsonschema
import pytest
from hypothesis import given, strategies as st

from edge_rt.errors import InvalidGrammar
from edge_rt.package.reader import open_package
from edge_rt.text.answer_format import answer_format
from edge_rt.text.grammar import TokenTable
from edge_rt.text.json_schema import MAX_BYTES, MAX_DEPTH, exact_pattern, read_schema
from edge_rt.text.tokenizer import Tokenizer
from tests.helpers.json_schemas import ENFORCED, IDLE, REFUSED, WARNED

OBJECT = {"type": "object"}


@pytest.mark.parametrize("name", [*ENFORCED, *IDLE])
def test_a_keyword_that_is_enforced_or_has_nothing_to_say_is_taken_without_a_warning(name):
    assert read_schema((ENFORCED | IDLE)[name])[1] == ()


@pytest.mark.parametrize("name", WARNED)
def test_a_keyword_that_is_not_enforced_is_said(name):
    (warning,) = read_schema(WARNED[name])[1]
    assert "not enforced" in warning
    assert name.split()[0] in warning


@pytest.mark.parametrize("name", REFUSED)
def test_a_keyword_that_cannot_be_enforced_is_refused_with_its_place(name):
    with pytest.raises(InvalidGrammar, match=f"'{name.replace('$', '[$]')}'") as caught:
        read_schema({"type": "array", "items": REFUSED[name]})
    assert "#/items" in caught.value.numbers
    assert caught.value.action


def test_options_of_the_engine_are_no_part_of_a_schema():
    assert "x-guidance" not in read_schema({"x-guidance": {"lenient": True}, "type": "object"})[0]


@pytest.mark.parametrize(
    "schema",
    [
        "text", 5, [OBJECT], {"properties": []}, {"anyOf": []}, {"anyOf": 5}, {"items": 5}, {"const": float("nan")},
        {"const": {1, 2}}, {"const": "\ud800"}, {"enum": ["x" * MAX_BYTES]},
        {"properties": {f"p{index}": {} for index in range(1001)}},
    ],
    ids=lambda schema: str(schema)[:20],
)  # fmt: skip
def test_what_is_no_schema_or_too_large_is_refused(schema):
    with pytest.raises(InvalidGrammar):
        read_schema(schema)


_INTEGER = {"type": "integer"}


@pytest.mark.parametrize(
    "schema",
    [
        {**_INTEGER, "multipleOf": 1000003},
        {"multipleOf": 604800},
        {**_INTEGER, "multipleOf": 604800, "minimum": 0, "maximum": 10**9},
        {"type": "number", "multipleOf": 5.001, "minimum": 0, "exclusiveMaximum": 10**9},
        {"type": "number", "multipleOf": 1.234567},
        {**_INTEGER, "multipleOf": 3**800},
        {"allOf": [{**_INTEGER, "multipleOf": 997}, {**_INTEGER, "multipleOf": 991}]},
        {"$ref": "#/$defs/a", "multipleOf": 997, "$defs": {"a": {**_INTEGER, "multipleOf": 991}}},
        {"type": "array", "prefixItems": [{**_INTEGER, "multipleOf": 9973}] * 11},
    ],
)
def test_multiples_that_would_take_seconds_and_gigabytes_are_refused(schema):
    with pytest.raises(InvalidGrammar, match="multipleOf"):
        read_schema(schema)
    with pytest.raises(InvalidGrammar, match="multipleOf"):
        answer_format(grammar=f"start: %json {json.dumps(schema)}")


def _chain(count, link, last):
    names = {f"d{number}": link({"$ref": f"#/$defs/d{number + 1}"}) for number in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": {**names, f"d{count}": last}}


def _tagged(count):
    tags = ({"const": number} for number in range(count))
    return {"oneOf": [{"type": "object", "properties": {"k": tag}, "required": ["k"]} for tag in tags]}


def _others(count):
    names = (f"a{number}" for number in range(count))
    return [{"type": "object", "properties": {n: {}}, "required": [n], "additionalProperties": False} for n in names]


_LARGE = {"enum": [*range(30_000)]}


@pytest.mark.parametrize(
    ("form", "message"),
    [
        # These would end the process: the engine has no limit on its stack.
        ({"response_format": _chain(2500, lambda link: {"type": "array", "items": link}, {})}, "nested too deeply"),
        ({"response_format": _chain(1200, lambda link: {"anyOf": [link, {"type": "null"}]}, {})}, "nested too deeply"),
        ({"grammar": "start: r0\n" + "".join(f"r{n}: r{n + 1} | /a/\n" for n in range(5000))}, "too large"),
        ({"grammar": "start: r0\n" + "".join(f"r{n}: (([r{n + 1}]))\n" for n in range(600))}, "too large"),
        # These would take seconds.
        ({"response_format": {"$defs": {str(n): {"$ref": f"#a{n}", "$anchor": f"a{n}"} for n in range(3000)}}}, "deep"),
        ({"regex": "a?" * 16_000}, "quantifiers"),
        ({"response_format": {"pattern": "^" + "(a|bc){0,1}" * 16_000}}, "quantifiers"),
        ({"response_format": {"patternProperties": {"a*" * 1500: {}, "b?" * 1500: {}}}}, "quantifiers"),
        ({"grammar": "start: " + "/a?/ " * 16_000}, "quantifiers"),
        ({"grammar": "start: " + '"ab" ' * 40_000}, "too large"),
        ({"response_format": {"oneOf": _others(400)}}, "too many to compare"),
        ({"response_format": {**_LARGE, "oneOf": [{"$ref": "#/$defs/a"}] * 900, "$defs": {"a": _LARGE}}}, "too large"),
        ({"response_format": {**_LARGE, "oneOf": [{"type": "string"}] * 2000}}, "too many to compare"),
    ],
)  # fmt: skip
def test_formats_that_would_take_seconds_or_too_much_stack_are_refused_within_one(form, message):
    started = time.process_time()
    with pytest.raises(InvalidGrammar, match=message):
        answer_format(**form)
    assert time.process_time() - started < 1.5


@pytest.mark.parametrize("given", ["max_tokens=5", "capture, stop = /x/", "temperature=0.1"])
def test_attributes_that_cannot_be_followed_are_refused_at_once(given):
    name = given.split("=")[0].split()[-1]
    with pytest.raises(InvalidGrammar, match=f"has the attribute '{name}'.* 'body'"):
        answer_format(grammar=f'start: "a" body\nbody[{given}]: /.*/')
    assert answer_format(grammar=f'start: "[{given}]" /{name}=/ body\nbody[suffix="x"]: /.*/') is not None


@pytest.mark.parametrize("schema", [_tagged(3000), {"oneOf": [{"const": number} for number in range(10_000)]}])
def test_branches_with_a_value_of_their_own_are_not_compared_in_pairs(schema):
    started = time.process_time()
    assert "anyOf" in read_schema(schema)[0]
    assert time.process_time() - started < 1.5


@pytest.mark.parametrize(
    ("schema", "longest", "shorter"),
    [
        (_INTEGER, "9" * 18, "-12"),
        ({"type": ["integer", "null"], "minimum": 0}, "9" * 18, "null"),
        ({**_INTEGER, "minimum": -(2**63), "maximum": 2**63 - 1}, "-" + "9" * 18, "-0"),
        ({**_INTEGER, "exclusiveMinimum": -1e300, "maximum": 7}, "-" + "9" * 18, "7"),
        ({"type": "number", "minimum": 0, "maximum": 10}, "0." + "3" * 10, "10"),
        ({"type": "number", "exclusiveMinimum": -1e300, "maximum": 1e300}, "-" + "9" * 18 + "." + "9" * 10, "0.5"),
        ({"type": ["number", "string"], "exclusiveMinimum": 0}, "9" * 18 + "." + "0" * 10, "1.25"),
    ],
)
def test_whole_numbers_and_those_with_bounds_are_written_with_so_many_digits(small_package, schema, longest, shorter):
    package = open_package(small_package)
    tokenizer = Tokenizer.from_file(package.file("tokenizer.json"), info=package.manifest.tokenizer)
    matcher = TokenTable(tokenizer, tokenizer.vocab_size).matcher(answer_format(schema))

    def fits(text):
        return matcher.allows_all(tokenizer.encode_spans([(text, False)], continues=True))

    assert fits(longest)
    assert fits(shorter)
    assert not fits(longest + "99")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "number"},
        {"type": "number", "minimum": 0, "maximum": 1e-6},
        {**_INTEGER, "minimum": 10**19},
        {"type": "number", "maximum": -1e19},
        {**_INTEGER, "minimum": "a bound that is no number"},
        {"allOf": [_INTEGER, {"minimum": 10**19}]},
    ],
)
def test_other_numbers_are_left_as_they_are(schema):
    assert read_schema(schema)[0] == schema


@pytest.mark.parametrize("multiple", [1e-10, 0.25, 86400, 10**9, 5e15, 10**400])
def test_round_multiples_are_taken(multiple):
    assert read_schema({"type": "number", "multipleOf": multiple})[0]["multipleOf"] == multiple


@pytest.mark.parametrize(
    ("bounds", "fit", "others"),
    [
        ({}, [0, 604800, -1209600], [604801, -1]),
        ({"minimum": 1}, [604800, 1814400], [0, -604800]),
        ({"exclusiveMaximum": 0}, [-604800], [0, 604800]),
        ({"exclusiveMinimum": -604800, "maximum": 2000000}, [0, 1209600], [-604800, 2419200, 1]),
        ({"minimum": 0.5, "exclusiveMaximum": 604800, "maximum": 10**7}, [], [0, 604800]),
    ],
)
def test_whole_multiples_are_read_in_another_form_of_the_same_meaning(bounds, fit, others):
    schema = {**_INTEGER, "multipleOf": 604800, **bounds}
    read = jsonschema.Draft202012Validator(read_schema({"properties": {"x": schema}})[0])
    assert [value for value in (*fit, *others, "604800") if read.is_valid({"x": value})] == fit


def test_schemas_in_a_grammar_are_read_like_others():
    schema = {"x-guidance": {"whitespace_flexible": False}, "oneOf": [{"const": "%json {"}, {"format": "colour"}]}
    with pytest.raises(InvalidGrammar, match="oneOf"):
        answer_format(grammar=f"start: %json {json.dumps(schema)}")
    schema["oneOf"][1]["type"] = "integer"
    asked = answer_format(grammar=f"start: one two\none: %json {json.dumps(schema)}\ntwo: %json {{}}")
    assert "oneOf" not in asked.source
    assert asked.source.endswith("two: %json {}")
    assert json.dumps(schema["x-guidance"]) in asked.source
    assert "colour" in asked.warnings[0]


@pytest.mark.parametrize(
    "schema",
    [
        {"propertyNames": {"enum": ["a", "b", 3]}, "additionalProperties": {"type": "integer"}},
        {"propertyNames": {"const": "a", "type": "string"}, "properties": {"a": {"const": 1}, "b": {}}},
        {"propertyNames": {"pattern": "^a"}, "additionalProperties": {"type": "integer"}},
    ],
)
def test_names_of_properties_are_listed_or_follow_an_expression(schema):
    read = read_schema(schema)[0]
    assert "propertyNames" not in read
    for value in ({}, {"a": 1}, {"a": 2}, {"a": "1"}, {"b": 1}, {"ab": 1}, {"a": 1, "c": 1}, 5):
        fits = [jsonschema.Draft202012Validator(one).is_valid(value) for one in (schema, read)]
        assert fits[0] == fits[1], value


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [(r"^\d{3}-\d$", "^[0-9]{3}-[0-9]$"), (r"[\dx]+\\d\D", r"[0-9x]+\\d\D"), (r"[^\d]", r"[^\x000-9]")],
)
def test_digits_of_patterns_are_those_of_ascii(pattern, expected):
    assert exact_pattern(pattern, "here") == expected


@pytest.mark.parametrize(
    "pattern", [r"[\x00-\x1f]", r"a\u0000", "[[:cntrl:]]", "[[:^alpha:]]", "[a&&[^b]]", "[^a--b]", r"\p{Cc}", "[\0-a]"]
)
def test_classes_that_the_engine_would_take_for_others_are_refused(pattern):
    with pytest.raises(InvalidGrammar, match="class of characters"):
        read_schema({"properties": {"a": {"pattern": pattern}}})
    with pytest.raises(InvalidGrammar, match="class of characters"):
        read_schema({"patternProperties": {pattern: {}}})


def test_python_data_is_taken_as_json_has_it():
    assert read_schema({"enum": ("a", "b")})[0] == {"enum": ["a", "b"]}
    assert "'1'" in read_schema({1: 2})[1][0]


@pytest.mark.parametrize("text", ["9" * 5000, "[" * 100_000 + "]" * 100_000])
def test_an_answer_that_python_cannot_read_is_an_error_that_says_so(text):
    with pytest.raises(InvalidGrammar, match="Python cannot read"):
        answer_format({}).convert(text)


def test_a_loop_in_python_data_is_refused():
    schema = {"type": "array"}
    schema["items"] = schema
    with pytest.raises(InvalidGrammar, match="too deeply"):
        read_schema(schema)


def test_depth_is_bounded():
    def nested(depth):
        return {"type": "array", "items": nested(depth - 1)} if depth else {"type": "null"}

    read_schema(nested(MAX_DEPTH - 1))
    with pytest.raises(InvalidGrammar, match="too deeply"):
        read_schema(nested(3 * MAX_DEPTH))


_KINDS = [{"type": name} for name in ("string", "integer", "number", "null", "array", "object", "boolean")]
_VALUES = [
    None,
    True,
    0,
    1,
    1.0,
    2.5,
    "a",
    "",
    [],
    [1],
    {},
    {"k": "a"},
    {"k": "b"},
    {"k": 1},
    {"k": "a", "v": 2},
    {"v": 1},
]
_PROPERTIES = st.dictionaries(
    st.sampled_from(["k", "v"]),
    st.sampled_from(
        [{"const": "a"}, {"const": "b"}, {"enum": ["a", "b"]}, {"type": "integer"}, {"type": "string"}, {}, False]
    ),
)
_BRANCHES = st.one_of(
    st.sampled_from(_KINDS),
    st.lists(st.sampled_from(_VALUES), min_size=1, max_size=3).map(lambda values: {"enum": values}),
    st.sampled_from(_VALUES).map(lambda value: {"const": value}),
    st.builds(
        lambda properties, required, closed: {"type": "object", "properties": properties, "required": required}
        | ({"additionalProperties": False} if closed else {}),
        _PROPERTIES, st.lists(st.sampled_from(["k", "v"]), unique=True), st.booleans(),
    ),
)  # fmt: skip


@given(st.lists(_BRANCHES, min_size=2, max_size=3))
def test_one_of_is_opened_only_where_no_value_fits_two_branches(branches):
    schema = {"oneOf": branches}
    try:
        opened = read_schema(schema)[0]
    except InvalidGrammar:
        return
    for value in [*_VALUES, *({"k": k, "v": v} for k, v in itertools.product(["a", "b", 1], repeat=2))]:
        fits = [jsonschema.Draft202012Validator(one).is_valid(value) for one in (schema, opened)]
        assert fits[0] == fits[1], (value, schema)


@pytest.mark.parametrize(
    "branches",
    [
        [{"type": "integer"}, {"type": "string"}],
        [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
        [{"allOf": [{"properties": {"k": {"enum": [1]}}, "required": ["k"]}], "type": "object"}, {"$ref": "#/$defs/a"}],
        [
            {"type": "object", "properties": {"x": {}}, "required": ["x"]},
            {"type": "object", "properties": {"y": {}}, "additionalProperties": False},
        ],
    ],
)
def test_disjoint_branches_of_one_of_are_accepted(branches):
    tagged = {name: {"type": "object", "properties": {"k": {"const": name}}, "required": ["k"]} for name in "ab"}
    assert "anyOf" in read_schema({"oneOf": branches, "$defs": tagged})[0]


@pytest.mark.parametrize(
    "branches",
    [
        # An anchor's name is no path, not even the empty one of the whole schema, which is an object.
        [{"$ref": "#a"}, {"type": "string"}],
        [{"const": {"a": 1}}, {"const": {"a": 1.0}}],
        # Within an $id, references start from it: both are the same texts.
        [{"$id": "u", "$defs": {"b": {"type": "string"}}, "allOf": [{"$ref": "#/$defs/b"}]}, {"type": "string"}],
        [{"$ref": "#/$defs/inner/$defs/both"}, {"type": "string"}],
        # A name is written with escapes: this one is "a b".
        [{"$ref": "#/$defs/a%20b"}, {"type": "string"}],
    ],
)
def test_branches_of_one_of_that_are_the_same_in_another_spelling_are_refused(branches):
    union = {
        "u": {"oneOf": branches}, "a": {"$anchor": "a", "type": "string"}, "b": {"type": "integer"},
        "a b": {"type": "string"}, "a%20b": {"type": "integer"},
        "inner": {
            "$id": "inner",
            "$defs": {"both": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"type": "string"}},
        },
    }  # fmt: skip
    with pytest.raises(InvalidGrammar, match="oneOf"):
        read_schema({"type": "object", "properties": {"x": {"$ref": "#/$defs/u"}}, "$defs": union})


@pytest.mark.parametrize(
    ("asked", "schema"),
    [
        ({"type": "json_object"}, {"type": "object"}),
        ({"type": "json_schema", "json_schema": {"name": "n", "schema": {"const": 1}, "strict": True}}, {"const": 1}),
        ({"type": "json_schema", "schema": {"const": 1}}, {"const": 1}),
        ({"type": "json_object", "schema": {"const": 1}}, {"const": 1}),
        ({"const": 1}, {"const": 1}),
    ],
)
def test_forms_of_other_servers_are_known(asked, schema):
    wanted = answer_format(asked)
    assert json.loads(wanted.source) == schema


def test_the_format_text_asks_for_nothing():
    assert answer_format({"type": "text"}) is None
