"""Workers of Ray as they are without Ray: batches in, batches out, and the application that a replica builds."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from edge_rt.errors import ConfigError
from edge_rt.ray_workers import Answerer, Share, app_builder, plain
from tests.helpers.models import load_package

GREEDY = {"max_tokens": 8, "temperature": 0}


def column(*values):
    result = np.empty(len(values), dtype=object)
    result[:] = values
    return result


@pytest.fixture(scope="module")
def answerer(native_package):
    worker = Answerer(
        native_package,
        memory="1GiB",
        result_column="result",
        option_columns=["max_tokens", "seed"],
        options={"temperature": 1.0},
        load={"ctx": 256},
    )
    yield worker
    worker.model.close()


@pytest.fixture(scope="module")
def plain_model(native_package):
    with load_package(native_package) as model:
        yield model


def test_every_row_has_the_answer_that_it_has_alone(answerer, plain_model):
    prompts = [f"Count to {number}" for number in range(11)]
    batch = {"prompt": column(*prompts), "max_tokens": np.arange(3, 14), "seed": np.arange(11), "kept": np.arange(11)}
    done = answerer(batch)
    expected = [
        plain_model.generate([{"role": "user", "content": prompt}], temperature=1.0, max_tokens=3 + row, seed=row).text
        for row, prompt in enumerate(prompts)
    ]
    assert list(done["answer"]) == expected
    assert list(done["error"]) == [""] * 11
    assert list(done["kept"]) == list(range(11))
    assert [json.loads(one)["text"] for one in done["result"]] == expected


def test_a_bad_row_has_its_error_and_the_others_their_answers(answerer, plain_model):
    messages = [{"role": "user", "content": "Hello", "name": None}]
    batch = {
        "prompt": column("Hello", None, "word " * 900, column(*messages), 5),
        "max_tokens": column(3, 3, 3, 3, 3),
        "seed": column(1, 1, 1, float("nan"), 1),
    }
    done = answerer(batch)
    expected = plain_model.generate([{"role": "user", "content": "Hello"}], max_tokens=3, temperature=1.0, seed=1).text
    assert [one.partition(":")[0] for one in done["error"]] == ["", "ConfigError", "ContextOverflow", "", "ConfigError"]
    assert done["answer"][0] == expected
    assert list(done["answer"][[1, 2, 4]]) == ["", "", ""]
    assert [one != "" for one in done["result"]] == [True, False, False, True, False]


def test_a_batch_without_a_row_has_the_columns(answerer):
    done = answerer({"prompt": column(), "max_tokens": np.arange(0), "seed": np.arange(0)})
    assert {name: len(values) for name, values in done.items()} == dict.fromkeys(done, 0)
    assert {"answer", "error", "result"} < done.keys()


def test_what_is_wrong_for_every_row_is_an_error_at_once(answerer, native_package):
    with pytest.raises(ConfigError, match=r"no column 'prompt'.*It has 'text'"):
        answerer({"text": column("Hello")})
    for wrong in (
        {"option_columns": ["max_token"]},
        {"options": {"max_token": 3}},
        {"answer_column": "prompt"},
        {"load": {"slots": 2}},
        {"load": {"contex": 2}},
        {"promt_column": "a"},
    ):
        with pytest.raises(ConfigError):
            Answerer(native_package, **wrong)


def test_an_actor_has_the_memory_and_the_threads_that_ray_has_assigned():
    assigned = {"memory": 1e9, "CPU": 2.5}
    assert Share.of(None, None, assigned) == Share(10**9, 2)
    assert Share.of("600MiB", 1, assigned) == Share("600MiB", 1)
    # A part of a CPU, or none, is a thread nevertheless.
    assert Share.of(None, None, {"memory": 1e9, "CPU": 0.5}).threads == 1
    assert Share.of(None, None, {"memory": 1e9}).threads == 1
    with pytest.raises(ConfigError, match="memory= of map_batches"):
        Share.of(None, None, {"CPU": 1.0})
    assert Share.of(None, None, None) == Share(None, None)


def test_cells_of_tables_are_plain_data():
    nested = {"a": np.array([1, 2]), "b": None, "c": column({"d": np.float32(0.5), "e": float("nan")})}
    assert plain(nested) == {"a": [1, 2], "c": [{"d": 0.5, "e": None}]}
    assert (plain(np.int64(3)), plain(np.str_("x")), plain(float("nan"))) == (3, "x", None)
    assert isinstance(plain(np.str_("x")), str)


def test_the_application_of_a_replica_answers_as_the_model_does(native_package, plain_model):
    for name in ("httpx", "starlette", "uvicorn"):
        pytest.importorskip(name)
    from starlette.testclient import TestClient

    build = app_builder(native_package, memory="1GiB", slots=2, load={"ctx": 256})
    with TestClient(build(), base_url="http://127.0.0.1") as client:
        # Before anybody has asked for it.
        assert [one["name"] for one in client.get("/v1/edge/status").json()["models"]] == [native_package.name]
        asked = {"messages": [{"role": "user", "content": "Hello"}], **GREEDY}
        answer = client.post("/v1/chat/completions", json=asked).json()["choices"][0]["message"]["content"]
    assert answer == plain_model.generate([{"role": "user", "content": "Hello"}], **GREEDY).text


def test_an_option_of_a_load_that_does_not_exist_is_refused_before_a_replica_starts():
    with pytest.raises(ConfigError, match="Did you mean 'ctx'"):
        app_builder("a-model", load={"ctxx": 1})


def test_a_replica_that_others_reach_needs_a_key(native_package, monkeypatch, tmp_path):
    for name in ("starlette", "uvicorn"):
        pytest.importorskip(name)
    monkeypatch.delenv("EDGE_RT_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="there is no key"):
        app_builder(native_package, memory="1GiB", host="0.0.0.0")()
    key = tmp_path / "key"
    key.write_text("k" * 20)
    assert app_builder(native_package, memory="1GiB", host="0.0.0.0", api_key_file=key)().routes


def test_nothing_heavy_is_imported_before_a_worker_begins():
    code = (
        "import sys, edge_rt.ray_workers;"
        "print([m for m in ('numpy', 'onnxruntime', 'tokenizers', 'starlette', 'ray') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
