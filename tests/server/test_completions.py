"""Completions of plain texts and ids, several at once, with log probabilities in their old shape, and between texts."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from edge_rt.server.answers import infill_prompt
from edge_rt.server.failures import HTTPFailure
from tests.helpers.small import GREEDY
from tests.server.conftest import ENDLESS

PATH = "/v1/completions"


def asked(client, **fields):
    response = client.post(PATH, json={"max_tokens": 8, **ENDLESS, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def test_texts_and_ids_are_continued_as_they_are(client, alone):
    expected = alone.generate("One two", max_tokens=8, **GREEDY)
    answer = asked(client, prompt="One two")
    assert (answer["object"], answer["choices"][0]["text"]) == ("text_completion", expected.text)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["prompt_tokens"] == expected.usage.prompt_tokens
    ids = alone.tokenizer.encode_prompt("One two")
    assert asked(client, prompt=ids)["choices"][0]["text"] == expected.text
    usual = client.post(PATH, json={"prompt": "One two", **ENDLESS}).json()
    assert usual["usage"]["completion_tokens"] == 16


def test_several_prompts_have_their_answers_in_order(client, alone):
    prompts = ["One two", alone.encode("three four"), "five"]
    expected = [alone.generate(prompt, max_tokens=8, **GREEDY) for prompt in prompts]
    answer = asked(client, prompt=prompts, n=2)
    assert [choice["text"] for choice in answer["choices"]] == [one.text for one in expected for _ in range(2)]
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    assert answer["usage"]["prompt_tokens"] == sum(one.usage.prompt_tokens for one in expected)
    assert answer["usage"]["completion_tokens"] == 48


def test_streams_end_with_the_reason_and_the_counts(client, alone):
    expected = alone.generate("One two", max_tokens=8, **GREEDY).text
    given = {"prompt": "One two", "max_tokens": 8, "stream": True, "stream_options": {"include_usage": True}, **ENDLESS}
    events = client.post(PATH, json=given).text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    *chunks, counts = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == expected
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert (counts["choices"], counts["usage"]["completion_tokens"]) == ([], 8)
    assert all(chunk["id"] for chunk in chunks)


def test_log_probabilities_have_places_in_the_text(client, alone):
    expected = alone.generate("One two", max_tokens=8, logprobs=2, **GREEDY).logprobs
    logprobs = asked(client, prompt="One two", logprobs=2)["choices"][0]["logprobs"]
    assert logprobs["tokens"] == [token.text for token in expected]
    assert logprobs["token_logprobs"] == pytest.approx([token.logprob for token in expected])
    assert logprobs["text_offset"][:2] == [0, len(expected[0].text)]
    assert all(len(top) <= 2 for top in logprobs["top_logprobs"])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": 7}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": ["x"] * 17}, "prompt"),
        ({"prompt": ["x"] * 9, "n": 2}, "n"),
        ({"prompt": "x", "best_of": 2}, "best_of"),
        ({"prompt": "x", "echo": True}, "echo"),
        ({"prompt": "x", "suffix": "y"}, "suffix"),
        ({"prompt": ["x", "y"], "suffix": "z"}, "prompt"),
        ({"prompt": "x", "logprobs": 21}, "logprobs"),
        ({"prompt": "word " * 400}, "prompt"),
    ],
)
def test_what_cannot_be_answered_says_which_field(client, fields, param):
    response = client.post(PATH, json=fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("token", [10**6, 2**62])
def test_ids_that_no_token_has_are_refused(client, token):
    assert client.post(PATH, json={"prompt": [token]}).status_code == 400


def test_a_text_between_two_needs_a_model_with_tokens_for_it(client):
    response = client.post("/infill", json={"input_prefix": "def f(", "input_suffix": "return 1"})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "unsupported")
    assert client.post("/infill", json={}).status_code == 400


def test_the_prompt_between_two_texts_is_that_of_the_models_tokens():
    ids = {"<|fim_prefix|>": 1, "<|fim_suffix|>": 2, "<|fim_middle|>": 3}
    tokenizer = SimpleNamespace(
        token_to_id=ids.get, encode_text=lambda text: [len(text) + 10], add_bos=True, bos_token_id=7
    )
    model = SimpleNamespace(tokenizer=tokenizer)
    assert infill_prompt(model, "abc", "de") == [7, 1, 13, 2, 12, 3]
    ids.clear()
    with pytest.raises(HTTPFailure, match="no tokens"):
        infill_prompt(model, "abc", "de")
