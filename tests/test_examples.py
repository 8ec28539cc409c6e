"""The programs of examples/ run as they stand."""

from __future__ import annotations

import http.client
import importlib.util
import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest

from tests.helpers.models import load_package
from tests.helpers.small import GREEDY

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name, *arguments):
    """Run an example and return what it printed."""
    command = [sys.executable, EXAMPLES / name, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done


def test_async_chat(small_package):
    assert "tokens in the conversation; messages: ['system', 'user', " in run("async_chat.py", small_package).stdout


def test_fit_documents(small_package, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"Boat {number} left the harbour." for number in range(200)))
    done = run("fit_documents.py", small_package, "Which boat left?", text)
    used, room = (int(word) for word in done.stderr.split() if word.isdigit())
    assert room == 512
    assert 380 < used <= 412


def test_processes(small_package):
    lines = run("processes.py", small_package).stdout.splitlines()
    assert [line.split("'")[1] for line in lines] == [
        "Name a fruit.",
        "Name a colour.",
        "word word word word ",
        "Name an animal.",
    ]
    assert "does not fit the context" in lines[2]


@pytest.fixture(scope="module")
def served(small_package):
    """A model, and the address of the server that answers with it."""
    spec = importlib.util.spec_from_file_location("serve_http", EXAMPLES / "serve_http.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with load_package(small_package) as model, module.serve(model, port=0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield model, f"http://localhost:{server.server_port}"
        server.shutdown()
        thread.join()


def post(url, text, **options):
    """Ask the server and return its answer."""
    body = {"messages": [{"role": "user", "content": text}], **options}
    with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=60) as answer:
        return answer.read().decode()


def test_serve_http_answers_as_the_model_does(served):
    model, url = served
    options = {"max_tokens": 5, "temperature": 0}
    expected = model.generate([{"role": "user", "content": "Hello"}], **options).text
    assert post(url, "Hello", **options) == expected


@pytest.mark.parametrize(
    ("text", "options", "status"),
    [("Hello", {"temprature": 0}, 400), ("word " * 600, {}, 400), ("Hello", {}, 503)],
    ids=["unknown option", "too long", "busy"],
)
def test_serve_http_refuses_before_it_answers(served, text, options, status):
    model, url = served
    for _ in model.stream("Hello", max_tokens=3, **GREEDY):
        with pytest.raises(urllib.error.HTTPError) as caught:
            post(url, text, **options)
        with caught.value as answer:
            assert answer.status == status
            assert json.loads(answer.read())["error"]["action"]
        break


HELLO = b'{"messages": "Hello", '


@pytest.mark.parametrize(
    ("body", "length", "status"),
    [
        (b"messages=Hello", None, 400),
        (b"[" * 100_000, None, 400),
        (b'["Hello"]', None, 400),
        (b'{"max_tokens": 3}', None, 400),
        (HELLO + b'"prompt": "Hello"}', None, 400),
        (HELLO + b'"config": {}}', None, 400),
        (HELLO + b'"cancel": 1}', None, 400),
        (HELLO + b'"on_prefill_progress": 1}', None, 400),
        (HELLO + b'"seed": [1]}', None, 400),
        (b'{"messages": [{"role": {}, "content": 1}]}', None, 400),
        (b"", "", 411),
        (b"", "-1", 411),
        (b"", "1048577", 413),
        (b"", "9" * 5000, 413),
    ],
    ids=lambda value: str(value)[:40],
)
def test_serve_http_refuses_what_is_no_request(served, body, length, status):
    _, url = served
    with closing(http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)) as connection:
        connection.putrequest("POST", "/")
        if length != "":
            connection.putheader("Content-Length", length or str(len(body)))
        connection.endheaders(body)
        assert connection.getresponse().status == status
