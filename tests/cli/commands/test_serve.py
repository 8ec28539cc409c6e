"""``edge-rt serve`` as its users start and stop it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys

import httpx
import pytest

from tests.cli.conftest import PROGRAM

pytest.importorskip("uvicorn")

ENDLESS = {"temperature": 0, "logit_bias": {"0": -100, "1": -100, "2": -100}}


@pytest.fixture
def started(cli_env, native_package):
    """Return a function that starts a server, and returns its process and address."""
    processes = []

    def start(*arguments, env=None):
        command = [*PROGRAM, "serve", "-m", native_package, "--port", "0", *arguments]
        process = subprocess.Popen(
            [str(part) for part in command], stderr=subprocess.PIPE, env={**cli_env, **(env or {})}, text=True
        )
        processes.append(process)
        for line in process.stderr:
            if " on http://" in line:
                return process, line.split(" on ")[1].split("/v1")[0]
        raise AssertionError("it did not start")

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_an_answer_under_way_is_finished_before_a_server_stops(started):
    process, address = started("--slots", "2", "--ctx", "512")
    given = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 300, "stream": True, **ENDLESS}
    lines = []
    with httpx.stream("POST", f"{address}/v1/chat/completions", json=given, timeout=60) as response:
        for line in response.iter_lines():
            if not lines:
                process.send_signal(signal.SIGTERM)
            lines.append(line)
    assert lines[-2:] == ["data: [DONE]", ""]
    _, rest = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "stopped" in rest
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{address}/health")


def test_a_port_that_the_system_has_chosen_is_told_in_any_case(started):
    _, address = started("-q")
    assert httpx.get(f"{address}/health").status_code == 200


def test_prompts_are_in_no_log(started):
    process, address = started("-v")
    given = {"messages": [{"role": "user", "content": "a secret word"}], "max_tokens": 2}
    assert httpx.post(f"{address}/v1/chat/completions?q=secret", json=given, timeout=60).status_code == 200
    assert httpx.post(f"{address}/v1/chat/completions", json={**given, "n": "secret"}, timeout=60).status_code == 400
    process.send_signal(signal.SIGTERM)
    _, rest = process.communicate(timeout=60)
    assert "POST /v1/chat/completions 200" in rest
    assert "secret" not in rest


def test_what_was_computed_of_prompts_outlives_a_server(started, native_package):
    given = {"messages": [{"role": "user", "content": "word " * 60}], "max_tokens": 2}
    cached = []
    for flags in ((), (), ("--no-prompt-cache",)):
        process, address = started(*flags)
        answer = httpx.post(f"{address}/v1/chat/completions", json=given, timeout=60).json()
        cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert cached[0] == cached[2] == 0
    assert cached[1] >= 64


def test_a_key_comes_from_a_file_or_a_variable(started, tmp_path):
    key = "of-a-variable-1234"
    _, address = started(env={"EDGE_RT_API_KEY": key})
    assert httpx.get(f"{address}/v1/models").status_code == 401
    assert httpx.get(f"{address}/v1/models", headers={"x-api-key": key}).status_code == 200


def test_that_keys_and_texts_travel_as_they_are_is_told_where_others_can_ask(started):
    process, _ = started("--host", "0.0.0.0", env={"EDGE_RT_API_KEY": "of-a-variable-1234"})
    assert "for HTTPS put a proxy in front" in process.stderr.readline()


def test_other_machines_need_a_key(inline, native_package, tmp_path):
    result = inline("serve", "-m", native_package, "--host", "0.0.0.0", "--port", "0")
    assert result.returncode == 2
    assert b"Other machines reach 0.0.0.0, and there is no key." in result.stderr
    (tmp_path / "key").write_text("short\n")
    result = inline("serve", "-m", native_package, "--host", "0.0.0.0", "--api-key-file", tmp_path / "key")
    assert result.returncode == 2
    assert b"short" not in result.stderr
    assert inline("serve", "-m", native_package, "--api-key-file", tmp_path / "none").returncode == 6


def test_a_port_that_is_taken_is_told_before_a_model_is_looked_for(inline):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        result = inline("serve", "-m", "org/name", "--port", port)
    assert result.returncode == 2
    assert f"Port {port} is taken.".encode() in result.stderr
    assert f"--port {port + 1}".encode() in result.stderr


def test_a_machine_without_models_is_told_how_to_get_one(inline):
    result = inline("serve", "--port", "0")
    assert result.returncode == 3
    assert "There is no model on this machine." in result.stderr.decode()
    assert "edge-rt serve -m smollm2-135m-instruct" in result.stderr.decode()


def test_a_model_that_does_not_fit_is_told_before_anything_is_answered(inline, native_package):
    result = inline("serve", "-m", native_package, "--port", "0", "--memory", "80MiB")
    assert result.returncode == 4


@pytest.mark.parametrize(
    "flags",
    [
        ("--port", "70000"),
        ("--allow-origin", "*"),
        ("--allow-origin", "localhost:3000"),
        ("--slots", "0"),
        ("--slots", "65"),
        ("--unload-after", "-5"),
        ("--unload-after", "nan"),
        ("--allowed-host", "http://x y"),
        ("--prompt-cache", "x", "--no-prompt-cache"),
        ("--device-memory", "1GiB", "--device", "cpu"),
        ("--host", "no such address"),
    ],
)
def test_wrong_flags_are_refused(inline, native_package, flags):
    assert inline("serve", "-m", native_package, "--port", "0", *flags).returncode == 2


def test_a_missing_extra_is_told_with_what_installs_it(inline, native_package, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    result = inline("serve", "-m", native_package)
    assert result.returncode == 5
    assert "The server needs starlette and uvicorn." in result.stderr.decode()
    assert "pip install" in result.stderr.decode()


def test_a_budget_that_is_advised_is_enough(cli, inline, started, native_package):
    result = cli("serve", "-m", native_package, "--port", "0", "--memory", "100MiB")
    told = result.stderr.decode()
    assert result.returncode == 4
    assert "the budget is 100.0 MiB, 64.0 MiB of it for requests" in told
    advised = told.partition("Try ")[2].partition(" (needs")[0].split()
    _, address = started(*advised)
    assert httpx.get(f"{address}/health").status_code == 200
    assert inline("serve", "-m", native_package, "--port", "0", "--memory", "10").returncode == 4
