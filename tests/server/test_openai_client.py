"""OpenAI's own client against a running server."""

from __future__ import annotations

import json

import pytest

from tests.helpers.packages import copied, replace_file
from tests.helpers.served import models_of, served
from tests.helpers.small import GREEDY
from tests.helpers.tool_templates import TOOL_TEMPLATES
from tests.server.conftest import ENDLESS
from tests.server.test_chat_tools import ASKED, CITY

openai = pytest.importorskip("openai")
pydantic = pytest.importorskip("pydantic")

HELLO = [{"role": "user", "content": "Hello"}]
KEY = "a-key-of-some-length"


@pytest.fixture(scope="module")
def api(long_package, tmp_path_factory):
    made = copied(long_package, tmp_path_factory.mktemp("tools"))
    replace_file(made, "chat_template.jinja", TOOL_TEMPLATES["Qwen"].encode())
    with (
        served(models_of({"small": made}, slots=2, ctx=2048), key=KEY) as (_, client),
        openai.OpenAI(base_url=f"{client.base_url}/v1", api_key=KEY, max_retries=0) as api,
    ):
        yield api


def test_models(api):
    assert [model.id for model in api.models.list()] == ["small"]
    assert api.models.retrieve("small").owned_by == "edge-rt"


def test_a_chat(api, alone):
    expected = alone.generate(HELLO, max_tokens=12, **GREEDY)
    answer = api.chat.completions.create(model="small", messages=HELLO, max_tokens=12, extra_body=ENDLESS)
    assert answer.choices[0].message.content == expected.text
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 12


def test_a_streamed_chat_with_log_probabilities(api, alone):
    expected = alone.generate(HELLO, max_tokens=12, logprobs=1, **GREEDY)
    options = {"stream_options": {"include_usage": True}, "logprobs": True, "top_logprobs": 1, "extra_body": ENDLESS}
    chunks = list(api.chat.completions.create(model="small", messages=HELLO, max_tokens=12, stream=True, **options))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == expected.text
    assert chunks[-1].usage.completion_tokens == 12
    entries = [entry for chunk in chunks if chunk.choices and chunk.choices[0].logprobs
               for entry in chunk.choices[0].logprobs.content]  # fmt: skip
    assert [entry.logprob for entry in entries] == pytest.approx([token.logprob for token in expected.logprobs])


class Age(pydantic.BaseModel):
    years: int = pydantic.Field(ge=1, le=9)


def test_an_answer_as_a_type(api):
    answer = api.chat.completions.parse(
        model="small", messages=HELLO, response_format=Age, max_tokens=100, temperature=1, seed=1
    )
    assert 1 <= answer.choices[0].message.parsed.years <= 9


def test_streamed_tools_add_up_to_the_call(api):
    given = {key: value for key, value in ASKED.items() if key != "tool_choice"}
    choice = {"type": "function", "function": {"name": "weather"}}
    with api.chat.completions.stream(model="small", tool_choice=choice, **given) as stream:
        for _ in stream:
            pass
        answer = stream.get_final_completion()
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "weather"
    assert set(json.loads(call.function.arguments)) <= set(CITY["properties"])


def test_errors_are_those_that_clients_know(api):
    with pytest.raises(openai.NotFoundError) as missing:
        api.chat.completions.create(model="gpt-4o", messages=HELLO)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        api.chat.completions.create(model="small", messages=[{"role": "user", "content": "word " * 4000}])
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.AuthenticationError):
        api.with_options(api_key="wrong").models.list()
    with pytest.raises(openai.LengthFinishReasonError):
        api.chat.completions.parse(model="small", messages=HELLO, max_tokens=2, response_format=Age)


def test_what_will_fail_again_is_not_tried_again(api, monkeypatch):
    tries = []
    send = api._client.send
    monkeypatch.setattr(api._client, "send", lambda *args, **kwargs: tries.append(1) or send(*args, **kwargs))
    with pytest.raises(openai.NotFoundError):
        api.with_options(max_retries=2).chat.completions.create(model="gpt-4o", messages=HELLO)
    assert len(tries) == 1
