"""The examples that need libraries of others run with them as they stand."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.models import load_package

for server_needs in ("httpx", "starlette", "uvicorn"):
    pytest.importorskip(server_needs)

from tests.helpers.served import models_of, served  # noqa: E402 - where they are

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
QUESTION = [{"role": "user", "content": "What is a haiku?"}]


@pytest.fixture(scope="module")
def expected(native_package):
    """The answer that all of them print."""
    with load_package(native_package) as model:
        return model.generate(QUESTION, max_tokens=60, temperature=0).text


def run(name, url):
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, "What is a haiku?", url], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def url(native_package):
    with served(models_of({"small": native_package}, slots=2, formats=True)) as (_, client):
        yield str(client.base_url).rstrip("/") + "/v1"


def test_langchain(url, expected):
    pytest.importorskip("langchain_openai")
    answer, _, person = run("langchain_chat.py", url).rstrip("\n").rpartition("\n")
    assert answer == expected
    assert set(ast.literal_eval(person)) == {"name", "age"}


def test_llamaindex(url, expected):
    pytest.importorskip("llama_index.llms.openai_like")
    assert run("llamaindex_chat.py", url) == expected + "\n"


def test_fastapi(native_package, expected):
    pytest.importorskip("fastapi")
    from fastapi.testclient import TestClient

    spec = importlib.util.spec_from_file_location("fastapi_app", EXAMPLES / "fastapi_app.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["fastapi_app"] = module
    spec.loader.exec_module(module)
    with TestClient(module.make_app(str(native_package)), base_url="http://127.0.0.1:8000") as client:
        asked = {"question": "What is a haiku?", "max_tokens": 60}
        assert client.post("/ask", json=asked).text == expected
        too_long = client.post("/ask", json={"question": "word " * 9000})
        assert (too_long.status_code, "context" in too_long.text) == (400, True)
        chat = {"messages": QUESTION, "max_tokens": 60, "temperature": 0}
        answer = client.post("/llm/v1/chat/completions", json=chat).json()
        assert answer["choices"][0]["message"]["content"] == expected
