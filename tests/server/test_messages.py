"""Anthropic's messages, by its own client."""

from __future__ import annotations

import json

import pytest

from tests.helpers.packages import copied, replace_file
from tests.helpers.served import models_of, served
from tests.helpers.tool_templates import TOOL_TEMPLATES
from tests.server.test_chat_tools import CITY

HELLO = [{"role": "user", "content": "Hello"}]
GREEDY_API = {"temperature": 0.0}
KEY = "a-key-of-some-length"
PATH = "/v1/messages"
TOOL = {"name": "weather", "description": "d", "input_schema": CITY}


@pytest.fixture(scope="module")
def api(long_package, tmp_path_factory):
    anthropic = pytest.importorskip("anthropic")
    made = copied(long_package, tmp_path_factory.mktemp("tools"))
    replace_file(made, "chat_template.jinja", TOOL_TEMPLATES["Qwen"].encode())
    with (
        served(models_of({"small": made}, slots=2, ctx=4096), key=KEY) as (_, client),
        anthropic.Anthropic(base_url=str(client.base_url), api_key=KEY, max_retries=0) as api,
    ):
        yield api


def test_a_message(api, alone):
    expected = alone.generate(HELLO, max_tokens=12, temperature=0.0)
    answer = api.messages.create(model="small", messages=HELLO, max_tokens=12, extra_body=GREEDY_API)
    assert answer.content[0].text == expected.text
    reason = {"length": "max_tokens", "stop": "end_turn", "repetition": "end_turn"}[expected.finish_reason]
    assert (answer.stop_reason, answer.role) == (reason, "assistant")
    counts = answer.usage
    assert counts.input_tokens + counts.cache_read_input_tokens == expected.usage.prompt_tokens
    assert counts.output_tokens == expected.usage.completion_tokens


def test_a_streamed_message_adds_up(api, alone):
    expected = alone.generate(HELLO, max_tokens=12, temperature=0.0)
    with api.messages.stream(model="small", messages=HELLO, max_tokens=12, extra_body=GREEDY_API) as stream:
        kinds = [event.type for event in stream]
        answer = stream.get_final_message()
    assert answer.content[0].text == expected.text
    assert answer.usage.output_tokens == expected.usage.completion_tokens
    assert (kinds[0], kinds[1], kinds[-1]) == ("message_start", "content_block_start", "message_stop")


def test_a_call_is_streamed_and_its_result_sent_back(api):
    options = {"model": "small", "max_tokens": 900, "tools": [TOOL], "extra_body": {"temperature": 1.0}}
    choice = {"type": "tool", "name": "weather"}
    with api.messages.stream(messages=HELLO, tool_choice=choice, **options) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        answer = stream.get_final_message()
    assert answer.stop_reason == "tool_use"
    (call,) = [block for block in answer.content if block.type == "tool_use"]
    assert len(pieces) > 1
    assert json.loads("".join(pieces)) == call.input
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "noon"}]}
    told = [*HELLO, {"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    again = api.messages.create(messages=told, **{**options, "max_tokens": 3})
    assert again.usage.output_tokens == 3


def test_tokens_are_counted_as_a_message_counts_them(api, alone):
    system = [{"type": "text", "text": "Be kind", "cache_control": {"type": "ephemeral"}}]
    count = api.messages.count_tokens(model="small", messages=HELLO, system=system).input_tokens
    assert count == alone.count_tokens([{"role": "system", "content": "Be kind"}, *HELLO])


def test_errors_are_those_that_clients_know(api):
    import anthropic

    with pytest.raises(anthropic.NotFoundError):
        api.messages.create(model="claude", messages=HELLO, max_tokens=5)
    with pytest.raises(anthropic.BadRequestError) as long:
        api.messages.create(model="small", messages=[{"role": "user", "content": "word " * 4000}], max_tokens=5)
    assert long.value.body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.AuthenticationError):
        api.with_options(api_key="wrong").messages.create(model="small", messages=HELLO, max_tokens=5)


def test_a_large_limit_ends_where_the_context_does(client):
    given = {"messages": [{"role": "user", "content": "Count"}], "max_tokens": 32_000, "temperature": 1.0}
    answer = client.post(PATH, json=given).json()
    assert answer["usage"]["output_tokens"] < 256


def test_blocks_are_closed_before_the_next_begins(client):
    with client.stream("POST", PATH, json={"messages": HELLO, "max_tokens": 5, "stream": True}) as response:
        events = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: ")]
    open_blocks = 0
    for event in events:
        open_blocks += {"content_block_start": 1, "content_block_stop": -1}.get(event["type"], 0)
        assert open_blocks in (0, 1)
    assert [event["type"] for event in events][-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert events[0]["message"]["usage"]["input_tokens"] > 0


def test_a_prompt_that_does_not_fit_is_told_in_the_words_that_programs_look_for(client):
    long = {"messages": [{"role": "user", "content": "word " * 400}], "max_tokens": 5}
    message = client.post(PATH, json=long).json()["error"]["message"]
    assert message.startswith("prompt is too long: This model's maximum context length is 256 tokens")


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": None},
        {"max_tokens": 0},
        {"messages": []},
        {"messages": [{"role": "system", "content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "tool_use", "name": "f"}]}]},
        {"messages": [{"role": "user", "content": 7}]},
        {"messages": [{"role": "user", "content": [7]}]},
        {"system": 7},
        {"system": [{"type": "image"}]},
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        {"tools": [{"input_schema": {}}]},
        {"tool_choice": {"type": "any"}},
        {"tool_choice": {"type": "other"}},
        {"stop_sequences": [""]},
        {"temperature": "hot"},
        {"thinking": "yes"},
    ],
)
def test_what_cannot_be_answered_is_told_in_anthropics_shape(client, fields):
    response = client.post(PATH, json={"messages": HELLO, "max_tokens": 5, **fields})
    assert response.status_code == 400, response.text
    assert response.json()["type"] == "error"
    assert response.json()["error"]["type"] == "invalid_request_error"
