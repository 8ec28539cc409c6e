"""The application inside another one: below a path, whose lifespan is the outer application's."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

import edge_rt
from tests.helpers.models import load_package
from tests.helpers.small import GREEDY
from tests.server.conftest import ENDLESS

KEY = "a-key-of-some-length"
HELLO = [{"role": "user", "content": "Hello"}]
ASKED = {"messages": HELLO, "max_tokens": 8, **ENDLESS}


@pytest.fixture
def model(native_package):
    with load_package(native_package, ctx=256, slots=2) as model:
        yield model


def ask(app, path, body=None, **headers):
    async def send():
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
            if body is None:
                return await client.get(path, headers=headers)
            return await client.post(path, json=body, headers=headers)

    return asyncio.run(send())


def test_a_mounted_application_answers_below_its_path(model, alone):
    expected = alone.generate(HELLO, max_tokens=8, **GREEDY).text
    app = Starlette(routes=[Mount("/a/llm", edge_rt.asgi_app({"small": model}))])
    assert ask(app, "/a/llm/v1/chat/completions", ASKED).json()["choices"][0]["message"]["content"] == expected
    streamed = ask(app, "/a/llm/v1/chat/completions", {**ASKED, "stream": True}).text
    assert streamed.endswith("data: [DONE]\n\n")
    assert [one["id"] for one in ask(app, "/a/llm/v1/models").json()["data"]] == ["small"]
    assert ask(app, "/a/llm/").text.startswith("<!doctype html>")
    assert ask(app, "/v1/models").status_code == 404


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("/llm/v1/chat/completions", {"error"}),
        ("/llm/v1/messages", {"type", "error"}),
        ("/llm/api/chat", {"error"}),
    ],
)
def test_errors_below_a_path_have_the_shape_of_their_api(model, path, shape):
    app = Starlette(routes=[Mount("/llm", edge_rt.asgi_app({"small": model}))])
    answer = ask(app, path, {"messages": 7, "max_tokens": 1})
    assert (answer.status_code, set(answer.json())) == (400, shape)
    assert isinstance(answer.json()["error"], str) == path.startswith("/llm/api/")


def test_the_rules_hold_below_a_path(model):
    app = Starlette(routes=[Mount("/llm", edge_rt.asgi_app({"small": model}, key=KEY, allowed_hosts=["box.lan"]))])
    assert ask(app, "/llm/v1/models").status_code == 401
    assert ask(app, "/llm/v1/models", host="box.lan", authorization=f"Bearer {KEY}").status_code == 200
    assert ask(app, "/llm/v1/models", host="evil.example", authorization=f"Bearer {KEY}").status_code == 403
    for path in ("/llm/health", "/llm/", "/llm/page.js"):
        assert ask(app, path).status_code == 200


def test_models_are_closed_when_the_lifespan_of_the_application_ends(model):
    app = edge_rt.asgi_app({"small": model})

    async def run():
        async with app.router.lifespan_context(app):
            assert (await asyncio.to_thread(ask, app, "/v1/chat/completions", ASKED)).status_code == 200

    asyncio.run(run())
    with pytest.raises(edge_rt.ModelClosed):
        model.generate("Hello")


def test_an_application_needs_a_model():
    with pytest.raises(edge_rt.ConfigError, match="needs a model"):
        edge_rt.asgi_app({})
