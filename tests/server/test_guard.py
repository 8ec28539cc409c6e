"""Who may ask: Host, Origin, key and the body's type, as rebound names and foreign pages send them."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from starlette.responses import JSONResponse

from edge_rt.server.guard import Guard, host_name

KEY = "a-key-of-some-length"
JSON = {"content-type": "application/json"}


def ask(headers, method="POST", path="/v1/chat/completions", **settings):
    async def hello(scope, receive, send):
        await JSONResponse({"ok": True})(scope, receive, send)

    async def send():
        transport = httpx.ASGITransport(app=Guard(hello, **settings))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(send())


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8080", 200),
        ("127.0.0.1", 200),
        ("[::1]:8080", 200),
        ("LOCALHOST.", 200),
        ("app.localhost", 200),
        ("box.lan", 200),
        ("evil.example", 403),
        ("evil.example:8080", 403),
        ("localhost.evil.example", 403),
        ("192.168.0.9", 403),
        ("localhost:80@evil.example", 403),
        ("", 403),
        ("[::1", 403),
    ],
)
def test_only_own_names_are_answered(host, status):
    assert ask({**JSON, "host": host}, allowed_hosts=["box.lan"]).status_code == status


@pytest.mark.parametrize(("host", "status"), [("192.168.0.9:80", 200), ("[fe80::1]", 200), ("evil.example", 403)])
def test_listening_on_every_address_it_answers_to_addresses_and_no_names(host, status):
    assert ask({**JSON, "host": host, "x-api-key": KEY}, host="0.0.0.0", key=KEY).status_code == status


@pytest.mark.parametrize(
    ("origin", "status", "allowed"),
    [
        ("http://127.0.0.1:8080", 200, None),
        ("http://localhost:3000", 200, "http://localhost:3000"),
        ("http://localhost:3001", 403, None),
        ("http://evil.example", 403, None),
        ("null", 403, None),
        ("file://", 403, None),
    ],
)
def test_pages_of_other_origins_are_refused_and_none_is_reflected(origin, status, allowed):
    response = ask({**JSON, "origin": origin}, allowed_origins=["http://localhost:3000"])
    assert response.status_code == status
    assert response.headers.get("access-control-allow-origin") == allowed
    assert "access-control-allow-credentials" not in response.headers
    assert response.headers["vary"] == "Origin"
    assert response.headers["cache-control"] == "no-store"


def test_a_browser_may_ask_whether_a_listed_page_may_ask():
    asked = {"origin": "http://localhost:3000", "access-control-request-method": "POST"}
    response = ask(asked, "OPTIONS", key=KEY, allowed_origins=["http://localhost:3000"])
    assert (response.status_code, response.headers["access-control-allow-origin"]) == (204, "http://localhost:3000")
    assert ask({**asked, "origin": "http://evil.example"}, "OPTIONS", key=KEY).status_code == 403


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"authorization": f"Bearer {KEY}"}, 200),
        ({"authorization": f"bearer  {KEY}"}, 200),
        ({"x-api-key": KEY}, 200),
        ({}, 401),
        ({"authorization": "Bearer "}, 401),
        ({"authorization": f"Basic {KEY}"}, 401),
        ({"authorization": f"Bearer {KEY}x"}, 401),
        ({"x-api-key": KEY[:-1]}, 401),
    ],
)
@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/v1/messages", "/api/tags", "/nothing"])
def test_a_key_is_asked_for_everywhere(headers, status, path):
    response = ask(headers, "GET", path, key=KEY)
    assert response.status_code == status
    if status == 401:
        assert response.headers["x-should-retry"] == "false"
        assert "API key" in response.text


def test_health_needs_no_key():
    assert ask({}, "GET", "/health", key=KEY).status_code == 200
    assert ask({"host": "evil.example"}, "GET", "/health", key=KEY).status_code == 403


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("text/plain; application/json", 415),
        (None, 415),
    ],
)
def test_bodies_that_a_form_could_send_are_refused(kind, status):
    assert ask({} if kind is None else {"content-type": kind}).status_code == status
    if status == 200:
        assert ask({"content-type": kind, "content-encoding": "gzip"}).status_code == 415


def test_errors_have_the_shape_of_the_api_that_was_asked():
    assert ask({}, "GET", "/v1/models", key=KEY).json()["error"]["code"] == "invalid_api_key"
    assert ask({}, "GET", "/v1/messages", key=KEY).json()["error"]["type"] == "authentication_error"
    assert isinstance(ask({}, "GET", "/api/tags", key=KEY).json()["error"], str)


def test_malformed_host_headers_name_nothing():
    assert [host_name(text) for text in ("a:b", "[::1]x", ":80", "a:80:90")] == [None] * 4


def test_headers_and_addresses_are_bounded():
    assert ask({**JSON, "x": "y" * 30_000}).status_code == 200
    assert ask({**JSON, "x": "y" * 33_000}).status_code == 431
    assert ask(JSON, path="/" + "y" * 33_000).status_code == 431
