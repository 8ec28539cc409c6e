"""OpenAI's responses, by its own client and as coding assistants send them."""

from __future__ import annotations

import json

import pytest

from tests.helpers.packages import copied, replace_file
from tests.helpers.served import models_of, served
from tests.helpers.small import GREEDY
from tests.helpers.tool_templates import TOOL_TEMPLATES
from tests.server.conftest import ENDLESS
from tests.server.test_chat_tools import CITY

openai = pytest.importorskip("openai")

HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {"type": "function", "name": "weather", "description": "d", "parameters": CITY, "strict": False}


@pytest.fixture(scope="module")
def api(long_package, tmp_path_factory):
    made = copied(long_package, tmp_path_factory.mktemp("tools"))
    replace_file(made, "chat_template.jinja", TOOL_TEMPLATES["Qwen"].encode())
    with (
        served(models_of({"small": made}, slots=2, ctx=4096)) as (_, client),
        openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="none", max_retries=0) as api,
    ):
        yield api


def test_an_answer(api, client, alone):
    expected = alone.generate(HELLO, max_tokens=12, **GREEDY)
    answer = api.responses.create(model="small", input="Hello", max_output_tokens=12, extra_body=ENDLESS)
    assert answer.output_text == expected.text
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (expected.usage.prompt_tokens, 12)
    given = {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}], **ENDLESS}
    same = client.post("/v1/responses", json={**given, "max_output_tokens": 12}).json()
    assert same["output"][0]["content"][0]["text"] == expected.text


def test_the_events_of_a_stream_are_in_order_and_numbered(api, alone):
    expected = alone.generate(HELLO, max_tokens=12, **GREEDY).text
    options = {"max_output_tokens": 12, "extra_body": ENDLESS, "stream": True}
    events = list(api.responses.create(model="small", input="Hello", **options))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
    ]  # fmt: skip
    assert kinds[-4:] == [
        "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.incomplete",
    ]  # fmt: skip
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events[4:-4]) == expected
    assert events[-1].response.output_text == expected


def test_a_call_is_streamed_and_its_result_sent_back(api):
    given = {"tools": [TOOL, {"type": "web_search"}, {"type": "custom", "name": "c"}], "temperature": 1.0}
    choice = {"type": "function", "name": "weather"}
    more = {"extra_body": {"seed": 3}, "max_output_tokens": 900}
    events = list(api.responses.create(model="small", input="Hello", tool_choice=choice, stream=True, **given, **more))
    assert events[-1].type == "response.completed"
    (call,) = [item for item in events[-1].response.output if item.type == "function_call"]
    pieces = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert len(pieces) > 1
    assert "".join(pieces) == call.arguments
    assert set(json.loads(call.arguments)) <= set(CITY["properties"])
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "noon"}
    conversation = [*HELLO, {"type": "reasoning", "summary": []}, call.to_dict(), result]
    answer = api.responses.create(model="small", input=conversation, **given, max_output_tokens=3)
    assert answer.output


def test_an_answer_fits_its_schema(api):
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    text = {"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": True}}
    answer = api.responses.create(model="small", input="Hello", text=text, max_output_tokens=60)
    assert json.loads(answer.output_text)["n"] in (1, 2)
    assert answer.status == "completed"


def test_instructions_come_in_front_and_probes_are_answered(client, alone):
    told = [{"role": "system", "content": "Be kind\n\nand short"}, *HELLO]
    expected = alone.generate(told, max_tokens=5, **GREEDY).text
    given = {"instructions": "Be kind", "input": [{"role": "developer", "content": "and short"}, *HELLO], **ENDLESS}
    answer = client.post("/v1/responses", json={**given, "max_output_tokens": 5}).json()
    assert answer["output"][0]["content"][0]["text"] == expected
    assert answer["instructions"] == "Be kind"
    assert client.post("/v1/responses", json={"input": [], "max_output_tokens": 1}).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "alien", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0]"),
        ({"input": 7}, "input"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": 7}, "tools"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
    ],
)
def test_what_cannot_be_answered_says_which_field(client, fields, param):
    response = client.post("/v1/responses", json={"input": "Hello", **fields})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text
