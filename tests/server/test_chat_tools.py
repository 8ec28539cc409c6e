"""Calls of tools in chat completions: whole, and piece by piece, from a model whose answers are noise."""

from __future__ import annotations

import json

import jsonschema
import pytest

from tests.helpers.packages import copied, replace_file
from tests.helpers.served import models_of, served
from tests.helpers.tool_templates import TOOL_TEMPLATES

CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 5},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
        "quoted": {"enum": ['a "word" }', "\\"]},
    },
    "required": ["city", "quoted"],
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "d", "parameters": CITY}},
    {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}},
]
ASKED = {
    "messages": [{"role": "user", "content": "Hello"}],
    "tools": TOOLS,
    "tool_choice": "required",
    "max_tokens": 400,
    "temperature": 1.0,
    "seed": 3,
}
PATH = "/v1/chat/completions"


@pytest.fixture(scope="module", params=["Qwen", "Llama", "Mistral 11"])
def client(request, long_package, tmp_path_factory):
    made = copied(long_package, tmp_path_factory.mktemp("tools"))
    replace_file(made, "chat_template.jinja", TOOL_TEMPLATES[request.param].encode())
    with served(models_of({"small": made}, slots=2, ctx=2048)) as (_, client):
        yield client


def message_of(client, **fields):
    response = client.post(PATH, json={**ASKED, **fields})
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    return choice["message"], choice["finish_reason"]


def test_calls_that_are_asked_for_fit_their_parameters(client):
    message, reason = message_of(client)
    assert reason == "tool_calls"
    assert message["content"] is None
    for call in message["tool_calls"]:
        assert call["type"] == "function"
        assert call["id"].startswith("call_")
        arguments = json.loads(call["function"]["arguments"])
        if call["function"]["name"] == "weather":
            jsonschema.validate(arguments, CITY)
        else:
            assert (call["function"]["name"], arguments) == ("clock", {})


def test_a_named_function_is_called_once(client):
    message, _ = message_of(client, tool_choice={"type": "function", "function": {"name": "weather"}})
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["weather"]


def test_streamed_calls_come_in_pieces_with_their_name_once(client):
    choice = {"type": "function", "function": {"name": "weather"}}
    expected, _ = message_of(client, tool_choice=choice)
    names, arguments, ids, pieces, reasons, content = {}, {}, {}, 0, [], ""
    with client.stream("POST", PATH, json={**ASKED, "tool_choice": choice, "stream": True}) as response:
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            (choice,) = json.loads(line[6:])["choices"]
            reasons.append(choice["finish_reason"])
            content += choice["delta"].get("content") or ""
            for call in choice["delta"].get("tool_calls", ()):
                index, function = call["index"], call["function"]
                if "name" in function:
                    assert index not in names
                    assert function["arguments"] == ""
                    names[index], ids[index], arguments[index] = function["name"], call["id"], ""
                else:
                    assert call.keys() == {"index", "function"}
                    arguments[index] += function["arguments"]
                    pieces += 1
    assert [names[index] for index in sorted(names)] == [call["function"]["name"] for call in expected["tool_calls"]]
    for index, call in enumerate(expected["tool_calls"]):
        assert json.loads(arguments[index]) == json.loads(call["function"]["arguments"])
    assert pieces > len(names)
    assert len(set(ids.values())) == len(names)
    assert (reasons[-1], set(reasons[:-1]), content.strip()) == ("tool_calls", {None}, "")


def test_without_a_choice_to_call_the_tools_are_not_shown(client):
    given = {**ASKED, "tool_choice": "none", "max_tokens": 5}
    shown = {"messages": ASKED["messages"], "max_tokens": 5, "temperature": 1.0, "seed": 3}
    bare = client.post(PATH, json=shown).json()
    assert client.post(PATH, json=given).json()["choices"] == bare["choices"]


def test_calls_and_their_results_can_be_sent_back(client):
    message, _ = message_of(client, tool_choice={"type": "function", "function": {"name": "clock"}})
    (call,) = message["tool_calls"]
    told = [
        *ASKED["messages"],
        {**message, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "noon"},
    ]
    response = client.post(PATH, json={**ASKED, "messages": told, "tool_choice": "auto", "max_tokens": 3})
    assert response.status_code == 200, response.text


def test_a_function_that_there_is_not_cannot_be_chosen(client):
    choice = {"type": "function", "function": {"name": "nothing"}}
    refused = client.post(PATH, json={**ASKED, "tool_choice": choice})
    assert refused.status_code == 400
    assert "nothing" in refused.json()["error"]["message"]
