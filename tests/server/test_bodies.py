"""JSON that clients send: what is no object, too deep, too large, or has numbers that JSON has not."""

from __future__ import annotations

import json
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest

from edge_rt.server.bodies import MOST_BODY_BYTES, parse_object, read_bytes
from edge_rt.server.failures import HTTPFailure
from edge_rt.server.fields import FLAG, TEXT, Fields, either, inner, whole
from tests.helpers.served import until


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b"\xff\xfe{}",
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": 1e400}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a": ' * 65 + b"1" + b"}" * 65,
        b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"[" * 1_000_000,
    ],
)
def test_what_is_no_bounded_object_is_refused(data):
    with pytest.raises(HTTPFailure) as refused:
        parse_object(data)
    assert refused.value.status == 400


def test_objects_as_deep_as_allowed_are_read():
    data = b'{"a": ' * 63 + b"[1]" + b"}" * 63
    assert parse_object(data) == json.loads(data)


def test_null_is_as_if_the_field_were_not_there():
    fields = Fields({"a": None, "b": {"c": 1}}, {"a": either(TEXT, FLAG), "b": inner({"c": TEXT})})
    assert (fields.text("a"), "a" in fields, fields.flag("a", default=True)) == (None, False, True)
    with pytest.raises(HTTPFailure, match=r"'b\.c' is a text"):
        fields.inner("b").text("c")


@pytest.mark.parametrize(("least", "value"), [(0, True), (0, 1.0), (1, 0), (0, "1"), (0, 1 << 70)])
def test_whole_numbers_are_numbers_within_their_range(least, value):
    with pytest.raises(HTTPFailure) as refused:
        Fields({"n": value}, {"n": whole(least, 100)}).whole("n")
    assert refused.value.param == "n"


@pytest.mark.parametrize(
    "entry",
    ["{}", "[]", "[[]]", "[1000]", "1000", "1.5", '"xy"', '{"a": 1000}', '{"%x": []}', '{"%x": "%x", "y%x": 1000}'],
)
def test_what_values_take_is_bounded_before_they_are_read(entry):
    def listed(count):
        return b'{"x": [' + b",".join((entry.replace("%x", f"{i:x}")).encode() for i in range(count)) + b"]}"

    data = listed(20_000)
    tracemalloc.start()
    value = parse_object(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(value["x"]) == 20_000
    # It is read from a copy, of which nothing stays.
    assert peak - len(data) <= read_bytes(data) < 20 * peak
    many = b'{"x": [' + (listed(1000)[7:-2] + b",") * (MOST_BODY_BYTES // len(listed(1000))) + b"1]}"
    if len(entry) < 3:
        with pytest.raises(HTTPFailure) as refused:
            read_bytes(many)
        assert (refused.value.status, refused.value.code) == (413, "too_large")


def test_marks_within_texts_are_no_values():
    def bytes_of(text):
        return read_bytes(json.dumps({"x": text}, ensure_ascii=False).encode())

    assert bytes_of('{"a": [1, 2]}, \\' * 200_000) < 6 << 20
    assert bytes_of("[" * (1 << 20)) < 2 << 20
    # A character of four bytes makes a text that has it four times as large.
    assert bytes_of("x" * (3 << 20) + "\U0001f600") > 12 << 20
    with pytest.raises(HTTPFailure):
        bytes_of("x" * (7 << 20) + "\U0001f600")


def test_more_tokens_than_are_listed_are_refused_with_about_their_number(client):
    text = "a b c " * 60_000
    for path, fields in (
        ("/tokenize", {"content": text}),
        ("/tokenize", {"content": text, "with_pieces": True}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": text}]}),
    ):
        refused = client.post(path, json=fields)
        assert refused.status_code == 400
        assert "about " in refused.text
    for path, fields in (
        ("/tokenize", {"content": text * 6}),
        ("/apply-template", {"messages": [{"role": "user", "content": text * 6}]}),
    ):
        assert client.post(path, json=fields).status_code == 413


def test_bodies_are_bounded_alone_and_together(client, server):
    long = json.dumps({"messages": [{"role": "user", "content": "x" * MOST_BODY_BYTES}]})
    headers = {"content-type": "application/json"}
    refused = client.post("/v1/chat/completions", content=long, headers=headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "too_large")
    server.bodies._most, most = 1000, server.bodies._most
    try:
        refused = client.post("/v1/chat/completions", content=long[:2000], headers=headers)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.headers["x-should-retry"] == "true"
    finally:
        server.bodies._most = most
    assert server.bodies._held == 0


def test_bodies_compressed_with_zstd_are_read_within_the_same_bounds(client, server):
    zstd = pytest.importorskip("zstandard")
    headers = {"content-type": "application/json", "content-encoding": "zstd"}

    def tokens(content):
        return client.post("/tokenize", content=content, headers=headers)

    # While it is answered, a request holds no more than what it has become.
    chat = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
    compressed = zstd.ZstdCompressor().compress(json.dumps(chat).encode())
    with ThreadPoolExecutor(6) as threads, server.models.loaded["small"].model._batch._turns.take():
        path = "/v1/chat/completions"
        tasks = [threads.submit(client.post, path, content=compressed, headers=headers) for _ in range(6)]
        until(lambda: server.models.loaded["small"].users == 6)
        assert 0 < server.bodies._held < 1 << 16
    assert [task.result().status_code for task in tasks] == [200] * 6
    body = json.dumps({"content": "Hello"}).encode()
    packed = zstd.ZstdCompressor().compress(body)
    assert tokens(packed).json() == client.post("/tokenize", json={"content": "Hello"}).json()
    bomb = zstd.ZstdCompressor().compress(b" " * (200 << 20))
    assert len(bomb) < 1 << 20
    for content, status in ((bomb, 413), (body, 400), (packed[:-3], 400), (b"", 400)):
        assert tokens(content).status_code == status
    wide = zstd.ZstdCompressor(compression_params=zstd.ZstdCompressionParameters(window_log=27)).compressobj()
    assert tokens(wide.compress(body) + wide.flush()).status_code == 400
    assert server.bodies._held == 0
