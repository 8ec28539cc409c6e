"""Embeddings by HTTP: those that the model gives, in each API's shape, and what is refused."""

from __future__ import annotations

import base64
import socket
import threading
import time

import httpx
import numpy as np
import pytest

import edge_rt
from edge_rt.export import export_model
from tests.helpers.embedding_folder import END_ID, write_embedding_folder
from tests.helpers.native_profile import require_native
from tests.helpers.served import models_of, served, until

TEXTS = ["The little boat left the harbour at dawn.", "x", "How are you today?"]
PATH = "/v1/embeddings"


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    require_native()
    root = tmp_path_factory.mktemp("embeds")
    export_model(write_embedding_folder(root / "m"), root / "p", weights="f32", accept_loss=True, profile="native")
    return root / "p"


@pytest.fixture(scope="module", params=[2, 1], ids=["slots", "no slots"])
def running(request, package, native_package):
    models = models_of({"embeds": package, "small": native_package}, slots=request.param, ctx=64, max_queue=2)
    with served(models) as (server, client):
        yield server, client


@pytest.fixture
def client(running):
    return running[1]


@pytest.fixture(scope="module")
def alone(package):
    with edge_rt.load(package, ctx=64) as model:
        yield model


def asked(client, **fields):
    response = client.post(PATH, json={"input": TEXTS, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def vectors(answer):
    assert [one["index"] for one in answer["data"]] == list(range(len(answer["data"])))
    return np.array([one["embedding"] for one in answer["data"]], np.float32)


def test_embeddings_are_those_of_the_model_and_usage_counts_their_tokens(client, alone):
    answer = asked(client, model="embeds")
    np.testing.assert_array_equal(vectors(answer), alone.embed(TEXTS))
    count = sum(len(alone.tokenizer.encode_prompt(text)) + 1 for text in TEXTS)
    assert answer["usage"] == {"prompt_tokens": count, "total_tokens": count}
    assert (answer["object"], answer["model"], answer["data"][0]["object"]) == ("list", "embeds", "embedding")
    assert asked(client)["model"] == "embeds"
    lines = client.get("/metrics").text.splitlines()
    assert float(next(one for one in lines if one.startswith("edge_rt:embedded_tokens_total")).split()[1]) >= 2 * count


def test_base64_is_the_same_numbers(client, alone):
    answer = asked(client, encoding_format="base64", input=TEXTS[0])
    (one,) = answer["data"]
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(one["embedding"]), "<f4"), alone.embed(TEXTS[:1])[0])


def test_token_ids_are_taken_as_they_are_with_the_end_token_once(client, alone):
    ids = [alone.tokenizer.encode_prompt(text) for text in TEXTS]
    expected = alone.embed(TEXTS)
    np.testing.assert_array_equal(vectors(asked(client, input=ids)), expected)
    np.testing.assert_array_equal(vectors(asked(client, input=[*ids[0], END_ID])), expected[:1])
    np.testing.assert_array_equal(vectors(asked(client, input=[TEXTS[0], ids[1]])), expected[:2])


def test_many_texts_are_computed_some_at_a_time(client, alone):
    texts = [f"boat {number}" for number in range(70)]
    np.testing.assert_array_equal(vectors(asked(client, input=texts)), alone.embed(texts))


def test_prompts_are_those_of_the_package(client, alone):
    answer = asked(client, input="x", prompt_name="query")
    np.testing.assert_array_equal(vectors(answer), alone.embed(["x"], prompt="query"))


@pytest.mark.parametrize("path", ["/api/embed", "/api/embeddings"])
def test_ollamas_routes_give_the_same(client, alone, path):
    expected = alone.embed(TEXTS[:1])[0]
    if path == "/api/embeddings":
        answer = client.post(path, json={"model": "embeds:latest", "prompt": TEXTS[0]}).json()
        np.testing.assert_array_equal(np.array(answer["embedding"], np.float32), expected)
        return
    answer = client.post(path, json={"model": "embeds:latest", "input": TEXTS}).json()
    np.testing.assert_array_equal(np.array(answer["embeddings"][0], np.float32), expected)
    assert (answer["model"], len(answer["embeddings"])) == ("embeds:latest", 3)
    shown = [client.post("/api/show", json={"model": name}).json()["capabilities"] for name in ("embeds", "small")]
    assert ["embedding" in one for one in shown] == [True, False]
    assert answer["prompt_eval_count"] == sum(len(alone.tokenizer.encode_prompt(text)) + 1 for text in TEXTS)


@pytest.mark.parametrize(("path", "name"), [(PATH, "input"), ("/api/embed", "input"), ("/api/embeddings", "prompt")])
def test_texts_are_cut_only_if_it_is_asked_for(client, alone, path, name):
    long = "harbour " * 200
    refused = client.post(path, json={name: long})
    assert refused.status_code == 400
    assert "too long" in refused.text
    if name == "input":
        answer = client.post(path, json={name: long, "truncate": True}).json()
        found = answer["data"][0]["embedding"] if "data" in answer else answer["embeddings"][0]
        np.testing.assert_array_equal(np.array(found, np.float32), alone.embed([long], truncate=True)[0])


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"input": []}, "input", None),
        ({"input": [1.5]}, "input[0]", None),
        ({"input": [10**6]}, None, None),
        ({"input": {"a": 1}}, "input", None),
        ({"input": ["x"] * 2049}, "input", None),
        ({"input": "harbour " * 200}, "input", "context_length_exceeded"),
        ({"input": "x", "dimensions": 7}, "dimensions", "unsupported"),
        ({"input": "x", "encoding_format": "int8"}, "encoding_format", None),
        ({"input": "x", "prompt_name": "code"}, None, None),
        ({"input": "x", "model": "small"}, "model", "unsupported"),
        ({}, "input", "missing_required_parameter"),
    ],
)  # fmt: skip
def test_what_cannot_be_embedded_says_why(client, fields, param, code):
    refused = client.post(PATH, json=fields)
    error = refused.json()["error"]
    assert (refused.status_code, error["type"], error["param"], error["code"]) == (
        400, "invalid_request_error", param, code
    )  # fmt: skip
    assert refused.headers["x-should-retry"] == "false"


def test_ollamas_errors_are_in_its_own_shape(client):
    refused = client.post("/api/embed", json={"model": "small", "input": "x"})
    assert refused.status_code == 400
    assert "no embeddings" in refused.json()["error"]


def test_a_dimension_that_is_the_models_own_is_taken(client, alone):
    size = alone.package.manifest.model.hidden_size
    assert vectors(asked(client, input="x", dimensions=size)).shape == (1, size)


def test_requests_beyond_the_queue_are_told_when_to_come_again_and_clients_that_leave_wait_no_longer(running):
    server, client = running
    asked(client)
    entry = server.models.loaded["embeds"]
    outcomes = []

    def ask(timeout):
        try:
            with httpx.Client(base_url=client.base_url) as one:
                outcomes.append(one.post(PATH, json={"input": "x"}, timeout=timeout).status_code)
        except httpx.TimeoutException:
            outcomes.append("left")

    if entry.turn is not None:
        pytest.skip("without slots nothing waits for the batch")
    threads = [threading.Thread(target=ask, args=(timeout,)) for timeout in (60, 60, 3)]
    # One whose turn it is, and two that wait; the model has no time for any.
    with entry.model.passes():
        for number, thread in enumerate(threads):
            thread.start()
            until(lambda number=number: entry.embedding == number + 1)
        refused = client.post(PATH, json={"input": "x"})
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        until(lambda: "left" in outcomes)
        until(lambda: entry.embedding == 2)
    for thread in threads:
        thread.join(60)
    assert sorted(map(str, outcomes)) == ["200", "200", "left"]
    assert entry.embedding == 0


def test_a_client_that_leaves_keeps_model_and_turn_until_what_is_computed_has_ended(running):
    server, client = running
    asked(client)
    entry = server.models.loaded["embeds"]
    turn = entry.turn or entry.embedding_turn
    embed, begun, going, tokens = entry.model.embed, threading.Event(), threading.Event(), []

    def held(texts, *, cancel):
        tokens.append(cancel)
        begun.set()
        going.wait(60)
        return embed(texts, cancel=cancel)

    until(lambda: entry.users == 0)
    entry.model.embed = held
    try:
        body = b'{"input": "x", "model": "embeds"}'
        head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        with socket.create_connection((client.base_url.host, client.base_url.port)) as connection:
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            assert begun.wait(20)
        until(lambda: tokens[0].cancelled)
        for _ in range(20):
            time.sleep(0.01)
            assert (entry.users, turn.locked(), entry.embedding) == (1, True, 1)
    finally:
        going.set()
        del entry.model.embed
    until(lambda: (entry.users, turn.locked(), entry.embedding) == (0, False, 0))


def test_openais_client_gets_them(client, alone):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="none", max_retries=0) as api:
        answer = api.embeddings.create(model="embeds", input=TEXTS)
        np.testing.assert_array_equal(np.array([one.embedding for one in answer.data], np.float32), alone.embed(TEXTS))
        assert api.embeddings.create(model="embeds", input="x", encoding_format="float").usage.prompt_tokens > 1
        with pytest.raises(openai.BadRequestError, match="gives no embeddings") as refused:
            api.embeddings.create(model="small", input="x")
        assert refused.value.code == "unsupported"
