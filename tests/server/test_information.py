"""What a server tells: tokens, templates, settings, sums, memory, and its routes."""

from __future__ import annotations

import re
from pathlib import Path

import jsonschema
import pytest

from edge_rt.server.app import ENDPOINTS
from edge_rt.server.guard import OPEN_PATHS
from tests.server.test_hostile_fields import BODIES

HELLO = [{"role": "user", "content": "Hello"}]


def test_tokens_are_those_of_the_model_and_become_its_text(client, alone):
    text = "Hello, wörld <|im_end|>"
    answer = client.post("/tokenize", json={"content": text}).json()
    assert answer["tokens"] == alone.encode(text)
    assert (answer["count"], answer["max_model_len"]) == (len(answer["tokens"]), 256)
    whole = client.post("/tokenize", json={"content": text, "add_special": True}).json()["tokens"]
    assert whole == alone.tokenizer.encode_prompt(text)
    pieces = client.post("/tokenize", json={"content": text, "with_pieces": True}).json()["tokens"]
    assert "".join(piece["piece"] for piece in pieces if "\ufffd" not in piece["piece"])
    assert client.post("/detokenize", json={"tokens": answer["tokens"]}).json()["content"] == text


def test_messages_are_counted_as_an_answer_counts_them(client, alone):
    assert client.post("/tokenize", json={"messages": HELLO}).json()["count"] == alone.count_tokens(HELLO)
    assert client.post("/apply-template", json={"messages": HELLO}).json() == {"prompt": alone.render(HELLO).text}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"content": 1}),
        ("/tokenize", {"content": "\ud800"}),
        ("/detokenize", {"tokens": ["a"]}),
        ("/detokenize", {"tokens": [10**7]}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": [True]}),
        ("/apply-template", {"messages": []}),
        ("/apply-template", {"messages": HELLO, "chat_template": "{{ 7 }}"}),
    ],
)
def test_what_is_no_text_and_no_token_is_refused(client, path, fields):
    import json

    response = client.post(path, content=json.dumps(fields), headers={"content-type": "application/json"})
    assert response.status_code == 400, response.text


def test_settings_say_the_context_and_the_template(client, alone):
    props = client.get("/props").json()
    assert props["default_generation_settings"] == {"n_ctx": 256}
    assert (props["total_slots"], props["chat_template"]) == (3, alone.template_source)


def test_sums_grow_with_answers(client):
    def sums():
        lines = client.get("/metrics").text.splitlines()
        return {line.split()[0]: float(line.split()[1]) for line in lines if not line.startswith("#")}

    before = sums()
    given = {"messages": [{"role": "user", "content": "Sum up"}], "max_tokens": 5}
    answer = client.post("/v1/chat/completions", json=given).json()
    after = sums()
    grown = {name: after[name] - before.get(name, 0) for name in after}
    assert grown["edge_rt:tokens_predicted_total"] == answer["usage"]["completion_tokens"]
    assert grown["edge_rt:answers_total"] == 1
    assert grown['edge_rt:requests_total{path="/v1/chat/completions",status="200"}'] == 1
    assert after["edge_rt:requests_processing"] == 0
    assert after["edge_rt:models_loaded"] == 1


def test_the_status_has_memory_as_planned_and_used(client):
    status = client.get("/v1/edge/status").json()
    (model,) = status["models"]
    assert (model["name"], model["slots"], model["requests"]) == ("small", 3, 0)
    assert 0 < status["memory"]["resident_bytes"] <= status["memory"]["peak_bytes"]
    assert model["planned_bytes"] > 0


def test_the_description_of_the_routes_is_that_of_the_routes(client, server):
    paths = client.get("/openapi.json").json()["paths"]
    described = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert described == {(one.method, one.path.replace(":path}", "}")) for one in ENDPOINTS}
    for path, methods in paths.items():
        for described in methods.values():
            assert described["summary"].endswith(".")
            assert ("security" in described) == (path not in OPEN_PATHS)


def test_the_description_has_the_fields_that_requests_are_read_by(client):
    paths = client.get("/openapi.json").json()["paths"]
    chat = paths["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert chat["required"] == ["messages"]
    assert {"type": "number", "minimum": 0.0, "maximum": 100.0} in chat["properties"]["temperature"]["anyOf"]
    for path, methods in paths.items():
        if "post" in methods:
            schema = methods["post"]["requestBody"]["content"]["application/json"]["schema"]
            jsonschema.Draft202012Validator.check_schema(schema)
            # What the schema refuses is refused, and what it takes is not refused for its kind.
            jsonschema.validate(BODIES[path], schema)


@pytest.mark.parametrize("path", BODIES)
def test_what_is_no_request_by_the_description_is_refused(client, path):
    schema = client.get("/openapi.json").json()["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    valid = jsonschema.Draft202012Validator(schema["schema"]).is_valid
    for name in schema["schema"]["properties"]:
        for value in (True, -1, 1.5, "x", {}):
            body = {**BODIES[path], name: value}
            if not valid(body):
                response = client.post(path, json=body)
                assert (name, value, response.status_code) == (name, value, 400)


def test_the_manual_names_every_route_and_no_other():
    text = (Path(__file__).parents[2] / "docs" / "server.md").read_text()
    table = text.partition("## Routes")[2].partition("##")[0]
    named = set(re.findall(r"`(?:GET |POST )?(/[^`]*)`", table))
    assert named == {one.path.replace(":path}", "}") for one in ENDPOINTS}
