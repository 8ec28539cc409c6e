"""Answers in a format, from a small model whose answers are noise: only the grammar can make them fit."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import sys
import time
from typing import Literal

import jsonschema
import pytest

from edge_rt.errors import ConfigError, InvalidGrammar, MemoryBudgetExceeded, RuntimeUnavailable
from edge_rt.memory.terms import format_bytes
from edge_rt.runtime.answer_forms import PLAIN_ANSWER, AnswerGrammars
from edge_rt.runtime.config import GenerationConfig
from edge_rt.text.answer_format import answer_format
from edge_rt.text.grammar import TokenTable
from tests.helpers.json_schemas import ENFORCED, IDLE
from tests.helpers.models import load_package

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["new", "old", "<|im_end|>"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def native(native_package):
    with load_package(native_package) as model:
        yield model


@pytest.mark.parametrize("name", [*ENFORCED, *IDLE])
def test_answers_to_every_keyword_are_valid_and_the_same_with_drafts(native, name):
    schema = (ENFORCED | IDLE)[name]
    for options in ({"temperature": 0.0}, {"temperature": 1.0, "seed": 7}):
        plain, drafted = (
            native.generate("x", response_format=schema, max_tokens=200, spec=spec, **options)
            for spec in ("off", "suffix")
        )
        assert (plain.text, plain.token_ids) == (drafted.text, drafted.token_ids)
        if plain.finish_reason == "stop":
            assert json.loads(plain.text) == plain.parsed
            jsonschema.Draft202012Validator(schema).validate(plain.parsed)


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 8, 20])
def test_a_cut_answer_is_the_beginning_of_the_whole_one_and_says_so(native, max_tokens):
    options = {"response_format": PERSON, "temperature": 1.0, "seed": 1}
    whole = native.generate("x", max_tokens=300, **options)
    cut = native.generate("x", max_tokens=max_tokens, **options)
    assert whole.finish_reason == "stop"
    assert (cut.finish_reason, cut.parsed) == ("length", None)
    assert cut.token_ids == whole.token_ids[:max_tokens]


def test_a_text_that_looks_like_a_marker_is_text(native):
    schema = {"const": {"end": "<|im_end|>"}}
    answer = native.generate("x", response_format=schema)
    assert answer.parsed == {"end": "<|im_end|>"}
    assert answer.usage.forced_tokens > 10


def test_the_time_of_a_prompt_ends_with_the_first_token_that_is_chosen_behind_those_that_are_forced(native):
    form = {"regex": "start: [a-z]{4}"}

    def slow(token_ids, logits):
        time.sleep(0.05)

    assert native.generate("time", logits_processor=slow, **form).timings.prompt_ms >= 50
    forced = native.generate("none of it", max_tokens=2, **form).timings
    assert (forced.prompt_n, forced.prompt_per_second, forced.predicted_per_second) == (0, 0.0, 0.0)


@pytest.mark.parametrize("spec", ["off", "suffix"])
def test_a_run_that_is_forced_without_end_is_cut_where_the_budget_is(native, spec):
    answer = native.generate("x", regex="a{1000000}", max_tokens=10, spec=spec)
    assert (answer.finish_reason, answer.usage.completion_tokens) == ("length", 10)
    assert answer.text == "a" * len(answer.text) != ""


def test_a_long_run_that_was_drafted_alone_leaves_no_trace(native):
    table = TokenTable(native.tokenizer, native.tokenizer.vocab_size)
    matcher = table.matcher(answer_format(regex="b+c|da{1000000}"))
    matcher.take(native.tokenizer.encode_text("d"))
    assert len(matcher.forced(3)) == 3
    matcher.take_back(0)
    matcher.take(native.tokenizer.encode_text("bbbc"))
    assert matcher.must_end


@pytest.mark.parametrize(
    "pattern", ['[^"]', r"[^\\]", r'[^a"\\\n]', "[^]a]", r"[^\x00-\x1f]", r"(?:[^\x22]|b)", r"\[?[[:alpha:]]"]
)
def test_classes_of_a_pattern_hold_for_characters_that_json_escapes(native, pattern):
    table = TokenTable(native.tokenizer, native.tokenizer.vocab_size)
    for letter in 'a"\\\nb\té€]':
        matcher = table.matcher(answer_format({"type": "string", "pattern": f"^{pattern}$"}))
        token_ids = native.tokenizer.encode_text(json.dumps(letter, ensure_ascii=False))
        fits = matcher._matcher.try_consume_tokens(token_ids) == len(token_ids)
        assert fits == (re.search(f"^{pattern.replace('[[:alpha:]]', '[a-z]')}$", letter) is not None), letter


@pytest.mark.parametrize("spec", ["off", "suffix"])
def test_what_is_forced_again_and_again_is_no_repetition_but_what_is_chosen_is(native, spec):
    text = "-+" * 200
    answer = native.generate("x", regex=re.escape(text) + "[ab]", max_tokens=500, spec=spec)
    assert (answer.finish_reason, answer.text[:-1]) == ("stop", text)
    assert answer.usage.forced_tokens > 320
    options = {"grammar": 'start: (/[a]/ "b")+', "max_tokens": 500, "banned": native.tokenizer.eos_token_ids}
    circle = native.generate("x", spec=spec, **options)
    assert circle.finish_reason == "repetition"
    assert circle.usage.forced_tokens < circle.usage.completion_tokens


@pytest.mark.parametrize("spec", ["off", "suffix"])
@pytest.mark.parametrize(
    ("form", "reason"),
    [
        # Items or characters that are wanted, with a choice for each.
        ({"response_format": {"type": "array", "items": {"enum": [0, 1]}, "minItems": 230, "maxItems": 230}}, "stop"),
        ({"response_format": {"type": "string", "minLength": 400, "maxLength": 420, "pattern": "^[ab]*$"}}, "stop"),
        ({"regex": "([ab] ){240}"}, "stop"),
        # A way out in every place.
        ({"response_format": {"type": "array", "items": {"enum": [0, 1]}, "maxItems": 240}}, "repetition"),
        ({"response_format": {"type": "object", "additionalProperties": {"type": "string"}}}, "repetition"),
        ({"regex": "([ab] )*c"}, "repetition"),
    ],
    ids=str,
)
def test_what_a_format_demands_is_no_circle_but_what_is_free_is(native, form, reason, spec):
    # A bias that makes the model write one letter for as long as it may.
    wishes = dict.fromkeys((native.tokenizer.encode_text(text)[0] for text in ("b", "1", ",", " ")), 90.0)
    answer = native.generate("x", **form, spec=spec, temperature=0.0, logit_bias=wishes, max_tokens=510)
    assert answer.finish_reason == reason, answer.text


def test_json_is_compact_unless_asked_otherwise(native):
    schema = {"type": "array", "items": {"const": 1}, "minItems": 2, "maxItems": 2}
    assert native.generate("x", response_format=schema).text == "[1,1]"
    spaced = native.generate("x", response_format=schema, json_spaces=True, temperature=1.0, seed=1, max_tokens=200)
    assert json.loads(spaced.text) == [1, 1]
    assert spaced.text != "[1,1]"


def test_expressions_and_grammars_are_followed(native):
    for seed in range(3):
        options = {"temperature": 1.0, "seed": seed, "max_tokens": 60}
        assert re.fullmatch(r"[a-c]{2,4}-[0-9]{2}", native.generate("x", regex=r"[a-c]{2,4}-[0-9]{2}", **options).text)
        text = native.generate("x", grammar='start: "<" WORD ">"\nWORD: /[a-z]{1,3}/', **options).text
        assert re.fullmatch("<[a-z]{1,3}>", text)


@dataclasses.dataclass
class Point:
    x: Literal[1, 2]
    y: bool


def test_types_come_back_as_objects(native):
    # Nothing but what the type names: a model of noise would go on with names of its own.
    answer = native.generate("x", response_format=Point, temperature=1.0, seed=1, max_tokens=60)
    assert isinstance(answer.parsed, Point)
    assert json.loads(answer.text) == dataclasses.asdict(answer.parsed)
    assert "parsed" not in answer.to_json()
    points = native.generate("x", response_format=tuple[Point], temperature=1.0, seed=1, max_tokens=60)
    assert json.loads(json.dumps(points.to_json()))["text"] == points.text
    listed = dataclasses.replace(points, parsed=[answer.parsed])
    assert "parsed" not in listed.to_json()
    wanted = set[Literal[1, 2, 3]]
    numbers = native.generate("x", response_format=wanted, logit_bias={native.tokenizer.eos_token_ids[0]: 50.0})
    assert isinstance(numbers.parsed, set)
    counts = native.generate("x", response_format=dict[Literal["a", "b"], bool], temperature=1.0, seed=1, max_tokens=60)
    assert counts.parsed is None or counts.parsed.keys() <= {"a", "b"}
    colours = native.generate("x", response_format=list[bool], temperature=1.0, seed=2, max_tokens=60)
    assert colours.parsed is None or all(isinstance(one, bool) for one in colours.parsed)


def test_a_stream_shows_the_object_as_far_as_it_goes(native):
    with native.stream("x", response_format=PERSON, temperature=1.0, seed=1, max_tokens=300) as stream:
        seen = [stream.partial for _ in stream]
    assert seen[-1] == stream.result().parsed
    assert any(isinstance(one, dict) and 0 < len(one) < 3 for one in seen)


def test_answers_that_are_awaited_fit_too(native):
    async def ask():
        return await native.agenerate("x", response_format=PERSON, temperature=1.0, seed=1, max_tokens=300)

    jsonschema.validate(asyncio.run(ask()).parsed, PERSON)


def test_chats_take_formats(native):
    chat = native.chat()
    assert chat.send("x", response_format={"enum": ["yes", "no"]}, max_tokens=30).parsed in ("yes", "no")
    assert chat.send("x", regex="ok|no", max_tokens=30).text in ("ok", "no")


def test_penalties_and_bias_count_within_the_format(native):
    t, f = (native.encode(word)[0] for word in ("t", "f"))
    for token, value in ((t, True), (f, False)):
        options = {"logit_bias": {token: 1e4}, "temperature": 1.0, "seed": 1, "repetition_penalty": 1.3}
        assert native.generate("x", response_format={"type": "boolean"}, **options).parsed is value


@pytest.mark.parametrize(
    "options",
    [
        {"regex": "a", "grammar": "start: \"a\""},
        {"regex": "a", "stop": "x"},
        {"regex": "a", "accept": "ratio"},
        {"regex": ""},
        {"regex": 5},
        {"response_format": "json"},
        {"response_format": 5},
    ],
    ids=str,
)  # fmt: skip
def test_options_that_contradict_each_other_are_refused(native, options):
    with pytest.raises(ConfigError):
        native.generate("x", **options)


@pytest.mark.parametrize(
    "options",
    [
        {"regex": "("}, {"regex": r"(a)\1"}, {"grammar": "start: nobody"}, {"grammar": "start: start"},
        {"regex": "(?=a)b"}, {"response_format": {"type": "any"}}, {"response_format": {"$ref": "#"}},
        {"response_format": {"$ref": "https://example.com/a.json"}}, {"response_format": {"enum": []}},
        {"response_format": {"type": "integer", "minimum": 10**400}}, {"response_format": False},
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_used_is_an_error_and_the_next_answer_fits(native, options):
    with pytest.raises(InvalidGrammar) as caught:
        native.generate("x", temperature=1.0, seed=1, **options)
    assert len(str(caught.value)) < 700
    assert native.generate("x", regex="ok").text == "ok"


@pytest.mark.parametrize("spec", ["off", "suffix"])
def test_a_grammar_that_fails_in_the_middle_of_an_answer_is_an_error_with_its_cause(native, spec):
    wide = [
        {"type": "object", "properties": {f"{name}{number}": {} for number in range(900)}} for name in ("a", "b", "c")
    ]
    begun = []
    with pytest.raises(InvalidGrammar, match=r"too costly to follow.*items"):
        native.generate("x", response_format={"anyOf": wide}, spec=spec, temperature=0.0, on_token=begun.append)
    assert "{".startswith("".join(event.text for event in begun))
    assert native.generate("x", regex="ok").text == "ok"


def test_log_probabilities_are_those_of_what_was_chosen(native):
    options = {"response_format": PERSON, "temperature": 1.0, "seed": 1, "max_tokens": 300, "logprobs": 2}
    plain, drafted = (native.generate("x", spec=spec, **options).logprobs for spec in ("off", "suffix"))
    assert plain == drafted
    assert {one.logprob for one in plain if not one.top} == {0.0}
    assert all(one.logprob < 0 for one in plain if one.top)


def test_the_plan_keeps_room_for_tables_or_they_take_what_is_left(native_package):
    with load_package(native_package, formats=True, spec="off") as model:
        (term,) = (one for one in model.plan.terms if one.name == "formats")
        assert term.bytes == format_bytes(model.package.manifest.model.vocab_size)
        assert model.generate("x", regex="ok").text == "ok"
    with load_package(native_package, memory=2 << 30, spec="off") as model, pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "llguidance", None)
        for _ in range(2):
            with pytest.raises(RuntimeUnavailable, match="llguidance"):
                model.generate("x", regex="ok")
        patch.undo()
        planned = model.generate("x", regex="ok").memory.planned_bytes
        assert planned == model.plan.total_bytes + term.bytes


@pytest.mark.parametrize(
    ("format_", "error"),
    [
        ({"regex": "("}, InvalidGrammar),
        ({"response_format": {"type": "bogus"}}, InvalidGrammar),
        ({"grammar": "start: nothing"}, InvalidGrammar),
        ({"regex": "a+"}, MemoryBudgetExceeded),
        ({"response_format": PERSON}, MemoryBudgetExceeded),
    ],
    ids=str,
)
def test_a_format_that_is_wrong_is_said_to_be_where_there_is_no_room_either(native, format_, error):
    def reserve():
        raise MemoryBudgetExceeded("The tables do not fit.")

    grammars = AnswerGrammars(native.tokenizer, native.package.manifest.model.vocab_size, reserve)
    with pytest.raises(error):
        grammars.of(GenerationConfig(**format_), PLAIN_ANSWER)
