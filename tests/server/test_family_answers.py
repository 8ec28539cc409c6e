"""Calls of tools and formats through the server, of small models with short convolutions and with experts."""

from __future__ import annotations

import json

import jsonschema
import pytest

from edge_rt.export import export_model
from tests.helpers.family_cases import load_case, write_folder
from tests.helpers.native_profile import require_native
from tests.helpers.packages import replace_file
from tests.helpers.served import models_of, served
from tests.helpers.tool_templates import TOOL_TEMPLATES

TEMPLATES = {"lfm2": "LFM2", "qwen3_moe": "Qwen 3.5"}
"""Model -> the syntax of calls that its template teaches."""
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "d", "parameters": SCHEMA}}]
FORMAT = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA, "strict": True}}
ASKED = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 400, "temperature": 1.0, "seed": 3}


@pytest.fixture(scope="module", params=TEMPLATES)
def client(request, tmp_path_factory):
    require_native()
    folder = tmp_path_factory.mktemp("families")
    source = write_folder(folder / "model", load_case(request.param), config={"max_position_embeddings": 2048})
    options = {"profile": "native", "weights": "int8", "calibration": None, "accept_loss": True}
    export_model(source, folder / "package", **options)
    replace_file(folder / "package", "chat_template.jinja", TOOL_TEMPLATES[TEMPLATES[request.param]].encode())
    with served(models_of({"small": folder / "package"}, memory=1 << 30)) as (_, found):
        yield found


def asked(client, **fields):
    response = client.post("/v1/chat/completions", json={**ASKED, **fields})
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    return choice


def streamed(client, **fields):
    """Return the deltas of a streamed answer."""
    with client.stream("POST", "/v1/chat/completions", json={**ASKED, **fields, "stream": True}) as response:
        assert response.status_code == 200
        events = [line.removeprefix("data: ") for line in response.read().decode().split("\n\n") if line]
    return [choice["delta"] for event in events[:-1] for choice in json.loads(event)["choices"]]


def test_a_call_fits_its_tool_and_is_the_same_in_a_stream(client):
    options = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    choice = asked(client, **options)
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "weather"
    arguments = json.loads(call["function"]["arguments"])
    jsonschema.validate(arguments, SCHEMA)
    pieces = [one["function"] for delta in streamed(client, **options) for one in delta.get("tool_calls", ())]
    assert pieces[0]["name"] == "weather"
    assert json.loads("".join(piece.get("arguments", "") for piece in pieces)) == arguments


def test_an_answer_fits_its_schema_and_the_conversation_goes_on(client):
    text = asked(client, response_format=FORMAT)["message"]["content"]
    jsonschema.validate(json.loads(text), SCHEMA)
    assert "".join(delta.get("content") or "" for delta in streamed(client, response_format=FORMAT)) == text
    turns = [*ASKED["messages"], {"role": "assistant", "content": text}, {"role": "user", "content": "Again"}]
    jsonschema.validate(json.loads(asked(client, messages=turns, response_format=FORMAT)["message"]["content"]), SCHEMA)
