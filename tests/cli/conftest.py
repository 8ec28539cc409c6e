"""The command line as its users run it: a process of its own, with folders of its own."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import pexpect
import pytest

from edge_rt.cli.main import main
from edge_rt.export import export_model
from tests.helpers.gguf_factory import write_llama_gguf

PROGRAM = [sys.executable, "-m", "edge_rt"]
GREEDY_AND_LONG = ("--temp", "0", "--logit-bias", "0=-1000", "--logit-bias", "1=-1000", "--logit-bias", "2=-1000")
"""Greedy answers that no end token ends."""
ENDLESS = (*GREEDY_AND_LONG, "--no-repetition-guard")
"""Such that nothing ends, but a limit."""


@pytest.fixture
def cli_env(tmp_path):
    """Environment in which nothing of the user's is read or written."""
    env = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR", "EDITOR")}
    home = tmp_path / "home"
    folders = {f"XDG_{name}_HOME": str(home / name.lower()) for name in ("STATE", "DATA", "CONFIG", "CACHE")}
    return {**env, **folders, "HOME": str(home), "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}


@pytest.fixture
def cli(cli_env):
    """Run one command line to its end; stdin is empty unless given."""

    def execute(*arguments, stdin=b""):
        command = [*PROGRAM, *map(str, arguments)]
        return subprocess.run(command, input=stdin, capture_output=True, env=cli_env)

    return execute


@pytest.fixture
def inline(cli_env, monkeypatch):
    """Do what ``cli`` does inside this process, where nothing has to be imported and no signal is sent."""
    for name in ("HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, cli_env[name])

    def execute(*arguments, stdin=b""):
        out, err = io.BytesIO(), io.BytesIO()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with redirect_stdout(io.TextIOWrapper(out)), redirect_stderr(io.TextIOWrapper(err)):
            code = main([*map(str, arguments)])
            return SimpleNamespace(returncode=code, stdout=out.getvalue(), stderr=err.getvalue())

    return execute


@pytest.fixture
def start(cli_env):
    """Start a command line that is going to be sent a signal."""
    started = []

    def run(*arguments, program=PROGRAM, **options):
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen([*program, *map(str, arguments)], env=cli_env, **{**pipes, **options})
        started.append(process)
        return process

    yield run
    for process in started:
        with process:
            process.kill()


@pytest.fixture
def spawn(cli_env):
    """Start a command line at a pseudo-terminal."""
    children = []

    def run(*arguments, program=PROGRAM, **options):
        child = pexpect.spawn(
            program[0],
            [*program[1:], *map(str, arguments)],
            env={**cli_env, **options.pop("env", {})},
            encoding="utf-8",
            codec_errors="replace",
            dimensions=(50, 200),
            timeout=120,
            **options,
        )
        children.append(child)
        return child

    yield run
    for child in children:
        # Killed and waited for: ``close`` alone gives it a tenth of a second to die.
        if child.isalive():
            child.kill(signal.SIGKILL)
            child.wait()
        child.close()


@pytest.fixture(scope="session")
def slow_gguf(made_once) -> Path:
    """A checkpoint whose prompts, answers and export take seconds."""
    sizes = {"context": 8192, "layers": 8, "hidden": 512, "heads": 8, "kv_heads": 4, "ffn": 1536}
    return made_once("slow.gguf", lambda path: write_llama_gguf(path, **sizes))


@pytest.fixture(scope="session")
def slow_package(slow_gguf, made_once) -> Path:
    """The package of ``slow_gguf``."""
    return made_once("slow", lambda path: export_model(slow_gguf, path, profile="portable"))
