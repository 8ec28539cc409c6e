from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from edge_rt.errors import Cancelled
from edge_rt.measure.prompts import Prompt, built_in_prompts, first_difference
from edge_rt.measure.verify import Answer, answers, summary
from edge_rt.runtime.config import GenerationConfig
from edge_rt.runtime.forward.cancel import CancelToken
from tests.helpers.fake_answers import FakeAnswers, result, spec_stats
from tests.helpers.models import load_package

PROMPTS = [Prompt(0, "zero"), Prompt(1, "one"), Prompt(5, "five")]
CONFIG = GenerationConfig(max_tokens=8, temperature=0.8, seed=7)


def plain_and(mode, model, prompts=PROMPTS):
    return [item for way in ("off", mode) for item in answers(model, prompts, CONFIG, way, kv="f32")]


def right(text, config):
    """Answer a prompt in 4 tokens that depend on its seed; speculatively in 2 steps."""
    return result([config.seed, 1, 2, 3], spec=spec_stats(steps=2) if config.spec != "off" else None)


def wrong_once(text, config):
    """Answer 'one' with another token when it is speculative."""
    if text == "one" and config.spec == "ngram":
        return result([config.seed, 1, 9, 3], spec=spec_stats(steps=2))
    return right(text, config)


def test_every_answer_has_a_seed_of_its_own_and_an_empty_cache():
    model = FakeAnswers(right)
    found = list(answers(model, PROMPTS, CONFIG, "reference", kv="int8"))
    assert [item.token_ids[0] for item in found] == [7, 8, 12]
    asked = [entry for text in ("zero", "one", "five") for entry in ("reset", (text, "reference", 8))]
    assert model.log == ["forget", *asked]
    assert [config.reference for config in model.configs] == ["zero", "one", "five"]
    assert {(item.kv, item.mode) for item in found} == {("int8", "reference")}


def test_only_the_reference_drafter_is_given_a_text():
    model = FakeAnswers(right)
    plain_and("auto", model)
    assert {config.reference for config in model.configs} == {None}


def test_the_same_answers_are_identical():
    document = summary(plain_and("ngram", FakeAnswers(right)), ["ngram"])
    figures = {"prompts": 3, "identical": 3, "first_difference": None}
    assert document == {
        **figures,
        "drafted": 150,
        "by_drafter": {"ngram": {**figures, "tokens": 12, "tokens_per_step": 9 / 6, "drafted": 150}},
        "left_out": [],
    }


def test_a_difference_is_found_with_its_place():
    model = FakeAnswers(wrong_once)
    found = [*plain_and("ngram", model), *answers(model, PROMPTS, CONFIG, "suffix", kv="f32")]
    document = summary(found, ["suffix", "ngram"])
    place = {"kv": "f32", "drafter": "ngram", "prompt": 1, "position": 2, "plain": 2, "speculative": 9}
    assert (document["prompts"], document["identical"]) == (3, 2)
    assert document["first_difference"] == document["by_drafter"]["ngram"]["first_difference"] == place
    assert [document["by_drafter"][mode]["identical"] for mode in ("suffix", "ngram")] == [3, 2]


def test_cache_formats_are_compared_apart():
    found = [Answer("f32", mode, 0, (1, 2), 1) for mode in ("off", "auto")]
    found += [Answer("int8", mode, 0, (3, 4), 1) for mode in ("off", "auto")]
    assert summary(found, ["auto"])["identical"] == summary(found, ["auto"])["prompts"] == 2


@given(st.lists(st.integers(0, 3), max_size=6), st.lists(st.integers(0, 3), max_size=6))
def test_the_first_difference_is_the_first(a, b):
    found = first_difference(a, b)
    if found is None:
        assert a == b
        return
    position, plain, speculative = found
    assert a[:position] == b[:position]
    assert plain != speculative
    assert a[position : position + 1] == ([] if plain is None else [plain])
    assert b[position : position + 1] == ([] if speculative is None else [speculative])


def test_answers_of_one_token_have_no_steps():
    found = plain_and("auto", FakeAnswers(lambda text, config: result([2])))
    assert summary(found, ["auto"])["by_drafter"]["auto"]["tokens_per_step"] is None


def test_prompts_that_do_not_fit_are_left_out_and_told():
    model = FakeAnswers(right, context_tokens=11)
    document = summary(plain_and("auto", model), ["auto"])
    assert document["prompts"] == document["by_drafter"]["auto"]["prompts"] == 1
    numbers = {"kv": "f32", "prompt_tokens": 4, "requested_tokens": 8, "context_tokens": 11}
    assert document["left_out"] == [{**numbers, "prompt": 0}, {**numbers, "prompt": 5}]


def test_stopping_yields_nothing_of_the_prompt_under_way():
    token = CancelToken()

    def stopped(text, config):
        if text == "one":
            token.cancel()
        return right(text, config)

    work = answers(FakeAnswers(stopped), PROMPTS, CONFIG, "auto", kv="f32", cancel=token)
    assert next(work).prompt == 0
    with pytest.raises(Cancelled):
        next(work)


@pytest.mark.parametrize(
    "answer", [Answer("f32", "auto", 3, (1, 2), 1, 4), Answer("int8", "off", 0, (), 0, 0, (9, 8, 7))]
)
def test_answers_survive_json(answer):
    assert Answer.from_json(json.loads(json.dumps(answer.to_json()))) == answer


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": -1},
        {"prompt": True},
        {"token_ids": [1.5]},
        {"token_ids": 5},
        {"steps": None},
        {"drafted": "3"},
        {"overflow": [1, 2]},
    ],
)
def test_malformed_answers_are_refused(change):
    document = Answer("f32", "auto", 3, (1, 2), 1).to_json() | change
    with pytest.raises((TypeError, ValueError)):
        Answer.from_json(document)


def test_a_small_model_answers_the_same_with_every_drafter(native_package):
    modes = ["auto", "ngram", "suffix", "recycling", "reference"]
    config = GenerationConfig(max_tokens=24, temperature=0.8, repetition_penalty=1.2, seed=1)
    with load_package(native_package) as model:
        found = [
            item for mode in ("off", *modes) for item in answers(model, built_in_prompts()[:3], config, mode, kv="f32")
        ]
    document = summary(found, modes)
    assert document["identical"] == document["prompts"] == 3
    assert len({item.token_ids for item in found}) == 3
