"""Ollama's routes: chats and texts as lines of JSON, and what its clients ask first."""

from __future__ import annotations

import json

import pytest

from tests.helpers.small import GREEDY
from tests.server.conftest import ENDLESS

HELLO = [{"role": "user", "content": "Hello"}]
OPTIONS = {"num_predict": 8, **ENDLESS}


def lines(client, path, **fields):
    with client.stream("POST", path, json=fields) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("application/x-ndjson")
        return [json.loads(line) for line in response.iter_lines()]


def test_chats_stream_unless_told_otherwise(client, alone):
    expected = alone.generate(HELLO, max_tokens=8, **GREEDY)
    *pieces, last = lines(client, "/api/chat", model="small:latest", messages=HELLO, options=OPTIONS)
    assert "".join(piece["message"]["content"] for piece in pieces) == expected.text
    assert all(piece["done"] is False for piece in pieces)
    assert (last["done"], last["done_reason"], last["eval_count"]) == (True, "length", 8)
    assert (last["model"], last["prompt_eval_count"]) == ("small:latest", expected.usage.prompt_tokens)
    whole = client.post("/api/chat", json={"messages": HELLO, "options": OPTIONS, "stream": False}).json()
    assert whole["message"] == {"role": "assistant", "content": expected.text}
    assert whole["done"] is True


def test_a_text_is_a_message_or_taken_as_it_is(client, alone):
    told = [{"role": "system", "content": "Be kind"}, *HELLO]
    expected = alone.generate(told, max_tokens=8, **GREEDY).text
    given = {"prompt": "Hello", "options": OPTIONS, "stream": False}
    assert client.post("/api/generate", json={**given, "system": "Be kind"}).json()["response"] == expected
    plain = alone.generate("Hello", max_tokens=8, **GREEDY).text
    assert client.post("/api/generate", json={**given, "raw": True}).json()["response"] == plain
    pieces = lines(client, "/api/generate", prompt="Hello", raw=True, options=OPTIONS)
    assert "".join(piece["response"] for piece in pieces) == plain


def test_an_answer_fits_its_format(client):
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    given = {"messages": HELLO, "format": schema, "options": {"num_predict": 40}, "stream": False}
    assert json.loads(client.post("/api/chat", json=given).json()["message"]["content"])["n"] in (1, 2)


def test_models_are_listed_and_shown(client):
    (model,) = client.get("/api/tags").json()["models"]
    assert (model["name"], model["details"]["family"]) == ("small", "llama")
    (loaded,) = client.get("/api/ps").json()["models"]
    assert (loaded["name"], loaded["digest"], loaded["context_length"]) == ("small", model["digest"], 256)
    assert loaded["size"] > 0
    shown = client.post("/api/show", json={"model": "small:latest"}).json()
    assert shown["model_info"]["llama.context_length"] == 256
    assert shown["capabilities"][0] == "completion"
    assert shown["modified_at"] == model["modified_at"] > "202"
    assert client.get("/api/version").json()["version"].count(".") == 2


def test_ollamas_own_client(client, alone):
    ollama = pytest.importorskip("ollama", reason="Ollama's client is not installed")
    expected = alone.generate(HELLO, max_tokens=8, **GREEDY).text
    plain = alone.generate("Hello", max_tokens=8, **GREEDY).text
    with ollama.Client(host=str(client.base_url)) as api:
        assert api.list().models[0].model == "small"
        assert api.show("small").details.family == "llama"
        assert api.chat("small", messages=HELLO, options=OPTIONS).message.content == expected
        pieces = list(api.chat("small", messages=HELLO, options=OPTIONS, stream=True))
        assert "".join(piece.message.content for piece in pieces) == expected
        assert (pieces[-1].done, pieces[-1].eval_count) == (True, 8)
        assert api.generate("small", "Hello", raw=True, options=OPTIONS).response == plain
        with pytest.raises(ollama.ResponseError, match="other") as raised:
            api.chat("other", messages=HELLO)
        assert raised.value.status_code == 404


@pytest.mark.parametrize(
    ("path", "fields", "status"),
    [
        ("/api/chat", {"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, 400),
        ("/api/chat", {"messages": HELLO, "format": "xml"}, 400),
        ("/api/chat", {"messages": HELLO, "options": {"temperature": "hot"}}, 400),
        ("/api/chat", {"messages": HELLO, "think": 7}, 400),
        ("/api/chat", {"messages": HELLO, "model": "other"}, 404),
        ("/api/generate", {"prompt": "x", "images": ["aGk="]}, 400),
        ("/api/generate", {"prompt": "x", "template": "{{ .Prompt }}"}, 400),
        ("/api/generate", {"prompt": "x", "suffix": "y"}, 400),
        ("/api/show", {"model": "../small"}, 404),
    ],
)
def test_what_cannot_be_answered_is_a_text(client, path, fields, status):
    response = client.post(path, json=fields)
    assert (response.status_code, type(response.json()["error"])) == (status, str), response.text


@pytest.mark.parametrize(("method", "path", "way"), [("POST", "pull", "pull NAME"), ("DELETE", "delete", "rm NAME")])
def test_what_changes_models_says_how_it_is_done(client, method, path, way):
    response = client.request(method, f"/api/{path}", json={"model": "smollm2"})
    assert (response.status_code, response.headers["x-should-retry"]) == (501, "false")
    assert f"Run 'edge-rt {way}' on its machine" in response.json()["error"]


def test_a_request_without_a_prompt_loads_a_model(client, server):
    for path, empty in (("/api/generate", {}), ("/api/generate", {"prompt": ""}), ("/api/chat", {"messages": []})):
        told = client.post(path, json={"model": "small:latest", **empty}).json()
        assert (told["model"], told["done"], told["done_reason"]) == ("small:latest", True, "load")
    assert client.post("/api/generate", json={"model": "none"}).status_code == 404
    told = client.post("/api/generate", json={"model": "small", "keep_alive": 0}).json()
    assert told["done_reason"] == "unload"
    assert not server.models.loaded
