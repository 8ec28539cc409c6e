"""The listing of models by name, and of what a repository holds."""

from __future__ import annotations

import json
import subprocess

import pytest

from edge_rt.store.catalogue import load_catalogue
from tests.cli.conftest import PROGRAM
from tests.helpers.fake_hub import serve_fake_hub
from tests.store.builders import MODEL


def test_all_models_are_listed_for_a_machine(inline):
    document = json.loads(inline("models", "--device", "rpi5-8gb", "--json").stdout)
    assert [entry["name"] for entry in document["models"]] == list(load_catalogue())
    assert document["device"] == "rpi5-8gb"
    by_name = {entry["name"]: entry for entry in document["models"]}
    small, large = by_name["smollm2-135m-instruct"], by_name["olmo-3-7b"]
    assert small["fits"]
    assert (small["state"], small["speed_basis"], small["ctx"]) == ("untried", "figures", 8192)
    assert small["tokens_per_second"] > 10 * large["tokens_per_second"]
    assert small["memory_bytes"] < large["memory_bytes"]
    lines = inline("models", "--device", "rpi5-8gb").stdout.decode().splitlines()
    assert len(lines) == 1 + len(document["models"])
    assert "8K of 8K" in lines[1]


def test_a_budget_tells_what_fits(cli, inline):
    # In a process of its own: a budget holds what the process has already.
    document = json.loads(cli("models", "--memory", "600MiB", "--json").stdout)
    fitting = {entry["name"] for entry in document["models"] if entry["fits"]}
    assert "smollm2-135m-instruct" in fitting
    assert "qwen3-4b" not in fitting
    assert all(entry["memory_bytes"] <= 600 << 20 for entry in document["models"] if entry["fits"])
    # Nothing has run here: how fast this machine reads was measured for the listing.
    assert {entry["speed_basis"] for entry in document["models"]} == {"bandwidth"}
    shown = inline("models", "qwen3:4B", "--memory", "600MiB").stdout.decode()
    assert "no: it needs at least" in shown
    assert "unsloth/Qwen3-4B-GGUF:Qwen3-4B-Q4_K_M.gguf, seen in a listing of 2025-11-01" in shown


def test_a_model_that_is_here_and_presets_are_marked(inline, small_gguf, tmp_path):
    config = tmp_path / "config.toml"
    config.write_text('[presets.poet]\nmodel = "qwen3-0.6b"\n')
    places = ("--store", tmp_path / "store", "--config", config)
    inline("pull", small_gguf, "--name", "qwen3-0.6b", *places)
    document = json.loads(inline("models", "--json", *places).stdout)
    states = {entry["name"]: entry["state"] for entry in document["models"]}
    assert (states["qwen3-0.6b"], states["qwen3-1.7b"]) == ("here", "untried")
    assert document["presets"]["poet"]["model"] == "qwen3-0.6b"
    # What is here is planned as it is, whatever the catalogue's file would be.
    entry = next(entry for entry in document["models"] if entry["name"] == "qwen3-0.6b")
    made = json.loads(inline("plan", "-m", "qwen3-0.6b", "--device", "cpu", "--json", *places).stdout)
    assert entry["ctx"] == made["choice"]["ctx"]
    assert entry["memory_bytes"] == pytest.approx(made["total_bytes"], rel=0.1)


def test_an_unknown_name(inline):
    error = json.loads(inline("models", "qwen3-0.7b", "--json").stdout)["error"]
    assert "Did you mean 'qwen3-" in error["numbers"]
    assert inline("models", "--device", "cuda").returncode == 2
    assert inline("models", "org/name", "--offline").returncode == 2


@pytest.fixture
def repository(cli_env):
    files = {"m-Q4_K_M.gguf": MODEL, "m-Q8_0.gguf": MODEL + b"8", "mmproj-m.gguf": b"x", "README.md": b"#"}
    with serve_fake_hub(repos={"org/m": files, "org/bare": {"a.bin": b"x"}}) as hub:

        def run(*arguments):
            env = {**cli_env, "HF_ENDPOINT": hub.endpoint}
            return subprocess.run([*PROGRAM, "models", *arguments], capture_output=True, env=env, text=True)

        yield run


def test_a_repository_is_listed(repository):
    document = json.loads(repository("https://huggingface.co/org/m", "--json").stdout)
    assert [(one["file"], one["weights"], one["size_bytes"]) for one in document["models"]] == [
        ("m-Q4_K_M.gguf", "Q4_K_M", len(MODEL)),
        ("m-Q8_0.gguf", "Q8_0", len(MODEL) + 1),
    ]
    assert (document["chosen"], document["license"]) == (["m-Q4_K_M.gguf"], "apache-2.0")
    shown = repository("org/m").stdout.splitlines()
    assert shown[1].endswith("fetched by default")
    assert repository("org/m:Q8_0").stdout.splitlines()[2].endswith("fetched by default")
    assert "only as pickles" in repository("org/bare").stderr
