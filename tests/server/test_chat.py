"""Chat completions: answers are those of the model alone, in the shapes that OpenAI's clients read."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from edge_rt.server.app import ENDPOINTS
from edge_rt.server.fields import Fields
from edge_rt.server.openai_chat import CHAT_COMPLETION
from tests.helpers.small import GREEDY
from tests.server.conftest import ENDLESS

HELLO = [{"role": "user", "content": "Hello"}]
PATH = "/v1/chat/completions"
BESIDE = """
user store metadata service_tier prompt_cache_key prompt_cache_retention safety_identifier verbosity modalities
audio web_search_options functions function_call best_of echo min_tokens stop_token_ids skip_special_tokens
include_stop_str_in_output guided_json guided_regex length_penalty use_beam_search truncate_prompt_tokens
prompt_logprobs add_generation_prompt continue_final_message top_a typical_p tfs_z min_keep n_probs n_keep n_indent
cache_prompt id_slot samplers mirostat mirostat_tau mirostat_eta dry_multiplier xtc_probability grammar json_schema
t_max_prompt_ms t_max_predict_ms response_fields timings_per_token models provider transforms route reasoning
include_reasoning usage plugins ttl draft_model betas container mcp_servers context_management output_config
output_format anthropic_version include background conversation max_tool_calls prompt_id num_ctx num_batch num_gpu
num_thread num_keep repeat_last_n verbose insecure tool mode text query input_type truncation extra_body api_key
timeout
"""
"""Fields that clients send which mean nothing here."""


def asked(client, **fields):
    response = client.post(PATH, json={"messages": HELLO, "max_tokens": 12, **ENDLESS, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def chunks(client, **fields):
    """Return the chunks of a streamed answer, and the lines between them."""
    given = {"messages": HELLO, "max_tokens": 12, "stream": True, **ENDLESS, **fields}
    with client.stream("POST", PATH, json=given) as response:
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        events = [event for event in response.read().decode().split("\n\n") if event]
    assert events.pop() == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]


def test_an_answer_is_that_of_the_model_alone(client, alone):
    expected = alone.generate(HELLO, max_tokens=12, **GREEDY)
    answer = asked(client)
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": expected.text, "refusal": None}
    assert (choice["finish_reason"], choice["index"], choice["logprobs"]) == ("length", 0, None)
    assert (answer["object"], answer["model"]) == ("chat.completion", "small")
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (expected.usage.prompt_tokens, 12)
    assert usage["total_tokens"] == expected.usage.total_tokens
    assert answer["edge_rt"] == {"finish": "length"}
    assert answer["timings"]["predicted_n"] == 12


def test_a_streamed_answer_has_every_field_that_clients_need(client, alone):
    expected = alone.generate(HELLO, max_tokens=12, **GREEDY)
    first, *middle, last, counts = chunks(client, stream_options={"include_usage": True})
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in middle) == expected.text
    assert (last["choices"][0]["delta"], last["choices"][0]["finish_reason"]) == ({}, "length")
    assert (counts["choices"], counts["usage"]["completion_tokens"]) == ([], 12)
    for chunk in (first, *middle, last):
        assert chunk["usage"] is None
        assert chunk["choices"][0].keys() == {"index", "delta", "logprobs", "finish_reason"}
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in (first, *middle))
    heads = {(one["id"], one["object"], one["created"], one["model"]) for one in (first, *middle, last, counts)}
    assert len(heads) == 1
    assert all("usage" not in chunk for chunk in chunks(client))


def test_answers_at_once_are_those_alone(client, alone):
    prompts = [[{"role": "user", "content": "word " * count}] for count in range(1, 13)]
    expected = [alone.generate(prompt, max_tokens=10, **GREEDY).text for prompt in prompts]
    with ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(lambda prompt: asked(client, messages=prompt, max_tokens=10), prompts))
    assert [answer["choices"][0]["message"]["content"] for answer in answers] == expected


def test_several_answers_have_seeds_of_their_own(client, alone):
    sampled = {"temperature": 1.0, "seed": 7}
    expected = [alone.generate(HELLO, max_tokens=6, temperature=1.0, seed=seed).text for seed in (7, 8, 9)]
    answer = asked(client, max_tokens=6, n=3, logit_bias=None, **sampled)
    assert [choice["message"]["content"] for choice in answer["choices"]] == expected
    texts = ["", "", ""]
    for chunk in chunks(client, max_tokens=6, n=3, logit_bias=None, **sampled):
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == expected


def test_log_probabilities_have_bytes_and_others(client, alone):
    expected = alone.generate(HELLO, max_tokens=12, logprobs=2, **GREEDY).logprobs
    content = asked(client, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    assert [entry["logprob"] for entry in content] == pytest.approx([token.logprob for token in expected])
    assert [len(entry["top_logprobs"]) for entry in content] == [2] * 12
    assert bytes(content[0]["bytes"]).decode("utf-8", "replace") == content[0]["token"]
    assert asked(client, logprobs=True)["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []
    streamed = [
        entry
        for chunk in chunks(client, logprobs=True, top_logprobs=2)
        if chunk["choices"][0]["logprobs"]
        for entry in chunk["choices"][0]["logprobs"]["content"]
    ]
    assert streamed == content


def test_a_stop_text_ends_the_answer(client, alone):
    text = alone.generate(HELLO, max_tokens=12, **GREEDY).text
    stop = text[4:6]
    answer = asked(client, stop=[stop])
    assert answer["choices"][0]["message"]["content"] == text[: text.index(stop)]
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["edge_rt"] == {"finish": "stop", "stop_string": stop}


@pytest.mark.parametrize("form", ["json_schema", "flat"])
def test_answers_fit_a_schema(client, form):
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    wrapped = {"name": "x", "schema": schema, "strict": True}
    given = {"type": "json_schema", "json_schema": wrapped} if form == "json_schema" else {
        "type": "json_object", "schema": schema}  # fmt: skip
    answer = asked(client, response_format=given, max_tokens=40, logit_bias=None)
    assert json.loads(answer["choices"][0]["message"]["content"])["n"] in (1, 2)
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_a_prediction_is_a_reference_and_its_tokens_are_counted(client, alone):
    text = alone.generate(HELLO, max_tokens=40, **GREEDY).text
    prediction = {"type": "content", "content": [{"type": "text", "text": text}]}
    answer = asked(client, max_tokens=40, prediction=prediction)
    assert answer["choices"][0]["message"]["content"] == text
    details = answer["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] >= 0
    assert details["rejected_prediction_tokens"] >= 0


@pytest.mark.parametrize(
    ("fields", "param", "status"),
    [
        ({"messages": None}, "messages", 400),
        ({"messages": []}, "messages", 400),
        ({"messages": "hello"}, "messages", 400),
        ({"messages": [1]}, "messages[0]", 400),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content", 400),
        ({"messages": [{"content": "x"}]}, "messages[0].role", 400),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
         "messages[0].content[0]", 400),
        ({"messages": [{"role": "alien", "content": "x"}]}, None, 400),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, None, 400),
        ({"temperature": -1}, "temperature", 400),
        ({"temperature": "hot"}, "temperature", 400),
        ({"top_p": 1.5}, "top_p", 400),
        ({"max_tokens": -2}, "max_tokens", 400),
        ({"max_tokens": 0}, "max_tokens", 400),
        ({"min_p": 1}, "min_p", 400),
        ({"repetition_penalty": 0}, "repetition_penalty", 400),
        ({"max_completion_tokens": 0}, "max_completion_tokens", 400),
        ({"n": 0}, "n", 400),
        ({"n": 100}, "n", 400),
        ({"top_logprobs": 3}, "top_logprobs", 400),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", 400),
        ({"logit_bias": {"a": 1}}, "logit_bias", 400),
        ({"logit_bias": {"1": 101}}, "logit_bias.1", 400),
        ({"stop": [""]}, "stop", 400),
        ({"stop": ["x"] * 17}, "stop", 400),
        ({"stream": "yes"}, "stream", 400),
        ({"seed": 1.5}, "seed", 400),
        ({"tools": [{"type": "function"}]}, "tools[0].function", 400),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", 400),
        ({"tool_choice": "required"}, "tool_choice", 400),
        ({"functions": [{}]}, "functions", 400),
        ({"modalities": ["text", "audio"]}, "modalities", 400),
        ({"chat_template": "{{ 1 }}"}, "chat_template", 400),
        ({"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}, "chat_template", 400),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}}},
         "response_format", 400),
        ({"response_format": {"type": "zzz"}}, "response_format.type", 400),
        ({"response_format": {"type": "json_object"}, "stop": "x"}, None, 400),
        ({"model": "gpt-4o"}, "model", 404),
        ({"model": "../small"}, "model", 404),
        ({"messages": [{"role": "user", "content": "word " * 400}]}, "messages", 400),
        ({"max_tokens": 10_000}, "max_tokens", 400),
        ({"max_completion_tokens": 10_000}, "max_completion_tokens", 400),
        ({"max_completion_tokens": 10_000, "max_tokens": 3}, "max_completion_tokens", 400),
        ({"max_tokens": 255}, "messages", 400),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
def test_what_cannot_be_answered_says_which_field_and_not_to_try_again(client, fields, param, status, is_streamed):
    given = {"messages": HELLO, "stream": is_streamed, **fields}
    response = client.post(PATH, content=json.dumps(given), headers={"content-type": "application/json"})
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert response.headers["x-should-retry"] == "false"
    if "word word" in str(fields):
        assert error["message"].startswith("This model's maximum context length is 256 tokens")
    # Programs that see it shorten the conversation.
    is_long = "word word" in str(fields) or fields.get("max_tokens") == 255
    assert (error["code"] == "context_length_exceeded") == is_long


@pytest.mark.parametrize(
    ("fields", "param", "meant"),
    [
        ({"max_token": 5}, "max_token", "max_tokens"),
        ({"maxTokens": 5}, "maxTokens", "max_tokens"),
        ({"temprature": 0}, "temprature", "temperature"),
        ({"tempreature": 0}, "tempreature", "temperature"),
        ({"respomse_format": {}}, "respomse_format", "response_format"),
        ({"stream_options": {"includeUsage": True}}, "stream_options.includeUsage", "include_usage"),
    ],
)
def test_a_slip_in_the_name_of_a_field_is_told(client, fields, param, meant):
    response = client.post(PATH, json={"messages": HELLO, **fields})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert f"Did you mean '{meant}'?" in response.json()["error"]["message"]


def test_a_name_like_that_of_a_field_which_is_there_or_refused_is_no_slip(client):
    Fields({"function": 1}, CHAT_COMPLETION).check()
    assert asked(client, max_token=5, max_tokens=2)["usage"]["completion_tokens"] <= 2


@pytest.mark.parametrize("endpoint", [one for one in ENDPOINTS if one.table is not None], ids=lambda one: one.path)
def test_what_clients_send_besides_is_no_slip(endpoint):
    Fields({name: 1 for name in BESIDE.split() if name not in endpoint.table}, endpoint.table).check()


def test_fields_that_change_nothing_here_are_told_once_and_ignored(client, server):
    lines, log = [], server.log
    server.log = lines.append
    try:
        for _ in range(2):
            asked(client, unheard_one=1, **{"what was asked": 1})
    finally:
        server.log = log
    assert [line for line in lines if "ignored" in line] == [
        f"{PATH}: fields of requests that are ignored: unheard_one"
    ]


def test_fields_that_change_nothing_here_are_ignored(client):
    ignored = {"user": "u", "store": True, "metadata": {}, "service_tier": "auto", "verbosity": "low"}
    plain = asked(client)["choices"]
    assert asked(client, **ignored, prompt_cache_key="k", unheard_of={"a": [1]})["choices"] == plain


def test_models_are_listed_and_shown(client):
    (model,) = client.get("/v1/models").json()["data"]
    assert (model["id"], model["object"], model["owned_by"]) == ("small", "model", "edge-rt")
    assert model["edge_rt"] == {"is_loaded": True, "context_tokens": 256, "slots": 3, "device": "cpu"}
    assert client.get("/v1/models/small").json() == model
    missing = client.get("/v1/models/other")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


def test_unknown_routes_and_methods_are_told_as_json(client):
    assert client.get("/v1/nothing").json()["error"]["code"] == "unknown_url"
    refused = client.get(PATH)
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
    assert "It takes POST." in refused.json()["error"]["message"]
    for path in ("/chat/completions", "/v1/v1/chat/completions", f"{PATH}/"):
        missing = client.post(path, json={})
        assert missing.status_code == 404
        assert f"Did you mean {PATH}?" in missing.json()["error"]["message"]
    assert client.get("/health").json() == {"status": "ok"}


def test_a_top_p_of_zero_takes_the_most_likely_tokens(client, alone):
    expected = alone.generate(HELLO, max_tokens=8, **GREEDY).text
    given = {"messages": HELLO, "top_p": 0, "max_tokens": 8, "logit_bias": ENDLESS["logit_bias"]}
    answer = client.post("/v1/chat/completions", json=given).json()
    assert answer["choices"][0]["message"]["content"] == expected
