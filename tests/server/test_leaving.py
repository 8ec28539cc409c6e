"""Clients that leave, read slowly or send slowly: their slots are free within a step, and others go on."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import httpx
import pytest

from edge_rt.server import responding, running
from edge_rt.server.answers import Answers, Piece
from edge_rt.server.deadlines import BoundedProtocol
from edge_rt.server.failures import HTTPFailure
from tests.helpers.served import models_of, ran, served, until
from tests.server.conftest import ENDLESS

PATH = "/v1/chat/completions"
LONG = {"max_tokens": 4000, "repetition_guard": False}


@pytest.fixture(scope="module")
def large(long_package):
    """A server whose answers and prompts take a while."""
    with served(models_of({"small": long_package}, slots=2, ctx=4096, prefill_chunk=16)) as (server, client):
        yield server, client


def raw(client, fields, *, is_whole=True):
    """Send a request over a socket of its own."""
    body = json.dumps(fields).encode()
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode()
    connection = socket.create_connection((client.base_url.host, client.base_url.port))
    connection.sendall(head + (body if is_whole else body[:-1]))
    return connection


def users(server):
    entry = server.models.loaded.get("small")
    return 0 if entry is None else entry.users


def is_free(server):
    model = server.models.loaded["small"].model
    return users(server) == 0 and not model._batch._active and not model._batch.admission.waiting


def stays(is_so):
    """Return whether something is so for as long as it takes what must not happen to happen."""
    return all((time.sleep(0.01), is_so())[1] for _ in range(20))


def asked(content, **fields):
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 300, **ENDLESS, **fields}


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
def test_leaving_while_the_prompt_is_computed_frees_the_slot(large, is_streamed):
    server, client = large
    model = server.models.loaded["small"].model
    model.reset()
    # Nobody else computes until the server has seen that the client has left.
    with model._batch._turns.take():
        connection = raw(client, asked("leave " * 500, stream=is_streamed))
        until(lambda: bool(model._batch.admission.waiting))
        model._batch._step()
        (ticket,) = model._batch._active
        connection.close()
        until(lambda: ticket.outcome.cancel.cancelled)
        # The pass goes on: whoever unloaded the model now would wait for it.
        assert stays(lambda: users(server) == 1)
    until(lambda: is_free(server))
    # It had not come to its first token.
    assert ticket.generation.sequence.num_answer_tokens == 0
    model._batch.check()


def test_leaving_while_the_answer_is_streamed_frees_the_slot(large):
    server, client = large
    model = server.models.loaded["small"].model
    # Nobody else computes until the server has seen that the client has left.
    with model._batch._turns.take():
        connection = raw(client, asked("Hello", max_tokens=3500, stream=True))
        until(lambda: bool(model._batch.admission.waiting))
        model._batch._step()
        (ticket,) = model._batch._active
        while ticket.generation.sequence.num_answer_tokens < 20:
            model._batch._step()
        model._batch._turns.tell()
        received = b""
        while b"chat.completion.chunk" not in received:
            received += connection.recv(1 << 16)
        connection.close()
        until(lambda: ticket.outcome.cancel.cancelled)
    until(lambda: is_free(server))
    assert 0 < ticket.generation.sequence.num_answer_tokens < 3500


@pytest.mark.parametrize("turns", range(6))
def test_leaving_as_a_piece_comes_is_not_lost(turns):
    async def run():
        answers = Answers(None, [None], [], 1, lambda _: None)
        reading = asyncio.create_task(answers.next(60))
        await asyncio.sleep(0.01)
        answers._pieces.put_nowait(Piece(0))
        for _ in range(turns):
            await asyncio.sleep(0)
        if reading.cancel():
            await asyncio.wait((reading,), timeout=10)
            assert reading.cancelled()

    asyncio.run(run())


@pytest.mark.parametrize("waiting", [0, 1], ids=["nothing", "a piece"])
def test_a_stop_is_told_at_once_behind_the_pieces_that_wait(waiting):
    async def run():
        answers = Answers(None, [None], [], 1, lambda _: None)
        for _ in range(waiting):
            answers._pieces.put_nowait(Piece(0))
        reading = [asyncio.create_task(answers.next(60))] if not waiting else []
        # The reader waits, with no ping to wake it.
        await asyncio.sleep(0)
        answers.stop()
        for _ in range(waiting):
            assert await answers.next(60) == Piece(0)
        with pytest.raises(HTTPFailure) as stopped:
            async with asyncio.timeout(10):
                await (reading[0] if reading else answers.next(60))
        assert (stopped.value.status, stopped.value.code) == (503, "overloaded")

    asyncio.run(run())


def test_leaving_while_waiting_for_a_slot_gives_up_the_place(large):
    server, client = large
    model = server.models.loaded["small"].model
    with model._batch._turns.take():
        connections = [raw(client, asked(f"wait {number}", max_tokens=3500)) for number in range(5)]
        until(lambda: len(model._batch.admission.waiting) == 5)
        model._batch._step()
        waiting = model._batch.admission.waiting
        assert len(waiting) == 3
        for connection in connections:
            connection.close()
        until(lambda: all(ticket.outcome.cancel.cancelled for ticket in waiting))
    until(lambda: is_free(server))


def test_half_closed_connections_are_left_ones(large):
    server, client = large
    connection = raw(client, asked("Hello", max_tokens=3500, stream=True))
    connection.recv(1 << 16)
    connection.shutdown(socket.SHUT_WR)
    until(lambda: is_free(server))
    connection.close()


def test_a_client_that_takes_nothing_is_given_up_and_others_are_not(large, monkeypatch):
    server, client = large
    monkeypatch.setattr(responding, "STALLED_SECONDS", 0.5)
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    slow.connect((client.base_url.host, client.base_url.port))
    body = json.dumps(asked("Hello", max_tokens=3500, stream=True, logprobs=True, top_logprobs=20)).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    slow.sendall(head.encode() + b"\r\n\r\n" + body)
    until(lambda: users(server) == 1)
    assert client.post(PATH, json=asked("Hi", max_tokens=5)).status_code == 200
    until(lambda: is_free(server), 60)
    slow.close()


def test_comments_keep_the_connection_while_a_prompt_is_computed(large, monkeypatch):
    server, client = large
    server.models.loaded["small"].model.reset()
    monkeypatch.setattr(responding, "PING_SECONDS", 0.01)
    with client.stream("POST", PATH, json=asked("ping " * 500, max_tokens=2, stream=True)) as response:
        lines = list(response.iter_lines())
    assert lines[0].startswith(":")
    assert lines[-2:] == ["data: [DONE]", ""]


def is_closed(connection, more):
    """Return whether the other side has closed a connection that sends more and more."""
    try:
        return connection.recv(1000) == b""
    except TimeoutError:
        with suppress(OSError):
            connection.sendall(more)
        return False
    except OSError:
        return True


@pytest.fixture
def hurried(monkeypatch):
    monkeypatch.setattr(BoundedProtocol, "header_seconds", 0.4)
    monkeypatch.setattr(BoundedProtocol, "body_seconds", 0.4)


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ", b"body"],
    ids=["nothing", "headers", "body"],
)
def test_what_arrives_byte_by_byte_is_cut_off(large, hurried, sent):
    server, client = large
    connection = (
        raw(client, asked("Hello"), is_whole=False)
        if sent == b"body"
        else socket.create_connection((client.base_url.host, client.base_url.port))
    )
    with connection:
        connection.settimeout(0.05)
        if sent != b"body":
            connection.sendall(sent)
        until(lambda: is_closed(connection, more=b"x" if sent.startswith(b"GET") else b""))
    assert client.get("/health").status_code == 200
    until(lambda: is_free(server))


def test_a_connection_that_rests_between_requests_is_not_in_a_hurry(large, hurried):
    _, client = large
    with socket.create_connection((client.base_url.host, client.base_url.port)) as connection:
        for _ in range(3):
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = b""
            while not answer.endswith(b"}"):
                answer += connection.recv(4096)
            assert answer.startswith(b"HTTP/1.1 200")
            time.sleep(0.5)


def test_connections_are_bounded_and_idle_ones_make_room(large, monkeypatch):
    _, client = large
    monkeypatch.setattr(BoundedProtocol, "most_connections", 4)
    address = (client.base_url.host, client.base_url.port)
    idle = [socket.create_connection(address) for _ in range(20)]
    for number, connection in enumerate(idle):
        with suppress(OSError):
            connection.sendall(b"GET /health HTTP/1.1\r\n"[: number % 20])
    assert httpx.get(f"{client.base_url}/health").status_code == 200
    is_open = [not is_closed(connection, more=b"") for connection in idle if connection.settimeout(0.05) is None]
    assert sum(is_open) <= 4
    for connection in idle:
        connection.close()


def test_connections_that_are_answered_are_not_closed_for_others(large, monkeypatch):
    server, client = large
    monkeypatch.setattr(BoundedProtocol, "most_connections", 4)
    with server.models.loaded["small"].model._batch._turns.take():
        busy = [raw(client, asked(f"wait {number}", max_tokens=3500)) for number in range(4)]
        until(lambda: users(server) == 4)
        with socket.create_connection((client.base_url.host, client.base_url.port)) as last:
            assert last.recv(4096).startswith(b"HTTP/1.1 503")
        assert users(server) == 4
    for connection in busy:
        connection.close()
    until(lambda: is_free(server))


@pytest.mark.parametrize("head", [b"GET /health?" + b"y" * 70_000, b"GET /health HTTP/1.1\r\nX: " + b"y" * 70_000])
def test_headers_that_come_at_once_are_bounded(large, head):
    _, client = large
    end = b" HTTP/1.1\r\nHost: localhost\r\n\r\n" if b"?" in head else b"\r\nHost: localhost\r\n\r\n"
    with socket.create_connection((client.base_url.host, client.base_url.port)) as connection:
        connection.sendall(head + end)
        assert connection.recv(4096)[:12] in (b"HTTP/1.1 431", b"HTTP/1.1 400")
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize("header", [b"X: " + b"y" * 700_000, b"Host: other", b"Transfer-Encoding: chunked, chunked"])
def test_malformed_requests_are_answered_or_closed_and_no_news(large, header, caplog):
    _, client = large
    with socket.create_connection((client.base_url.host, client.base_url.port)) as connection:
        answer = b""
        with suppress(ConnectionError):
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + header + b"\r\n\r\n")
            answer = connection.recv(4096)
        assert answer[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 403", b"")
    assert not [one for one in caplog.records if one.name.startswith("uvicorn")]
    assert client.get("/health").status_code == 200


def test_requests_beyond_the_queue_are_told_when_to_come_again(long_package):
    with served(models_of({"small": long_package}, slots=2, ctx=4096, max_queue=1)) as (server, client):
        assert client.post(PATH, json=asked("Hi", max_tokens=1)).status_code == 200
        batch = server.models.loaded["small"].model._batch
        # More than ever fit are refused for good.
        for path, fields in ((PATH, asked("Hi", n=4)), ("/v1/completions", {"prompt": ["Hi"] * 4})):
            refused = client.post(path, json=fields)
            assert (refused.status_code, refused.headers["x-should-retry"]) == (400, "false")
            assert "'n'" in refused.json()["error"]["message"]
        until(lambda: is_free(server))
        with batch._turns.take():
            connections = [raw(client, asked(f"wait {number}", max_tokens=3500)) for number in range(3)]
            until(lambda: batch.admission.is_full)
            batch._step()
            for is_streamed in (False, True):
                refused = client.post(PATH, json=asked("Hi", stream=is_streamed))
                assert (refused.status_code, refused.json()["error"]["type"]) == (429, "rate_limit_error")
                assert int(refused.headers["retry-after"]) >= 1
                assert refused.headers["x-should-retry"] == "true"
            status = client.get("/v1/edge/status").json()
            assert (status["answering"], status["waiting"]) == (2, 1)
        for connection in connections:
            connection.close()
        until(lambda: is_free(server))


def test_a_failure_while_an_answer_is_sent_is_told_without_what_was_asked(large, caplog):
    class Broken(dict):
        def __missing__(self, name):
            raise RuntimeError("the prompt")

    server, client = large
    lines, requests = [], server.counters.requests
    server.log, log = lines.append, server.log
    server.counters.requests = Broken()
    try:
        answer = client.get("/health")
    finally:
        server.log, server.counters.requests = log, requests
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "server_error")
    assert lines == ["/health failed: RuntimeError"]
    server.shows_tracebacks, server.log, server.counters.requests = True, lines.append, Broken()
    try:
        client.get("/health")
    finally:
        server.shows_tracebacks, server.log, server.counters.requests = False, log, requests
    assert lines[1].startswith("Traceback")
    assert "the prompt" not in answer.text + caplog.text


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
def test_a_connection_outlives_a_failure_behind_a_whole_answer(large, is_streamed):
    server, client = large

    class Broken(dict):
        def __missing__(self, name):
            raise RuntimeError

    body = json.dumps(asked("Hi", max_tokens=1, stream=True)).encode()
    post = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    requests, server.counters.requests = server.counters.requests, Broken()
    try:
        with socket.create_connection((client.base_url.host, client.base_url.port), timeout=60) as connection:
            get = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
            connection.sendall(post.encode() + b"\r\n\r\n" + body if is_streamed else get)
            answer = b""
            while not answer.endswith(b"\r\n0\r\n\r\n" if is_streamed else b"}}"):
                answer += connection.recv(4096)
            connection.settimeout(0.1)
            with pytest.raises(TimeoutError):
                connection.recv(1)
    finally:
        server.counters.requests = requests
    assert answer.startswith(b"HTTP/1.1 200" if is_streamed else b"HTTP/1.1 500")


@pytest.mark.parametrize("is_asked_twice", [False, True], ids=["at-the-limit", "asked-twice"])
def test_answers_that_outlast_the_end_fail_in_the_shape_of_their_api(long_package, monkeypatch, is_asked_twice):
    monkeypatch.setattr(responding, "PING_SECONDS", 0.01)
    if not is_asked_twice:
        monkeypatch.setattr(running, "DRAIN_SECONDS", running.ENDING_SECONDS + 0.2)
    said = asked("Hi", max_tokens=3500, repetition_guard=False)
    anthropic = {name: value for name, value in said.items() if name != "logit_bias"}
    lines = []
    with ExitStack() as held, ThreadPoolExecutor(4) as threads:
        run, server, client = held.enter_context(ran(models_of({"small": long_package}, slots=4, ctx=4096)))
        server.log = lines.append
        batch = server.models.loaded["small"].model._batch
        with batch._turns.take():
            tasks = [
                threads.submit(client.post, path, json=fields)
                for path, fields in (
                    (PATH, said),
                    (PATH, {**said, "stream": True}),
                    ("/v1/messages", anthropic),
                    ("/v1/messages", {**anthropic, "stream": True}),
                )
            ]
            # Those that are streamed have begun: with events that say nothing.
            until(lambda: len(batch.admission.waiting) == 4 and len(server.requests) == 2)
            # No ping wakes those that read, once the last short one has.
            monkeypatch.setattr(responding, "PING_SECONDS", 60.0)
            time.sleep(0.1)
            for _ in range(1 + is_asked_twice):
                run.leave()
            # While a pass is computed, which takes as long as it takes.
            whole, streamed, message, streamed_message = [task.result(60) for task in tasks]
    assert (whole.status_code, whole.json()["error"]["code"]) == (503, "overloaded")
    assert (message.status_code, message.json()["error"]["type"]) == (503, "overloaded_error")
    assert '"error"' in streamed.text
    assert "event: error" in streamed_message.text
    # Streams are logged when they end, with their outcome.
    ended = sorted(line.rpartition(" ms")[0].rpartition(" ")[0] for line in lines if line.startswith("POST"))
    assert ended == [f"POST {path} 503" for path in (PATH, PATH, "/v1/messages", "/v1/messages")]
