"""The stages of ``benchmarks/on_gpu.py`` on the emulated GPU, with a tiny model of random weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu import test_provider

ROOT, pytestmark = test_provider.ROOT, test_provider.pytestmark


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("figures")


def run(out, stage, *options):
    """Run a stage; return the lines that it has kept."""
    build = str(Path(os.environ["EDGE_RT_TEST_BUILD"]).resolve())
    command = [sys.executable, str(ROOT / "benchmarks" / "on_gpu.py"), stage, "--out", str(out), "--build", build]
    command += ["--emulated", "--shape", "tiny", *options]
    done = subprocess.run(command, cwd=out, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout}{done.stderr}"
    lines = [json.loads(line) for line in (out / f"{stage}.jsonl").read_text().splitlines()]
    assert all(line["emulated"] and line["stage"] == stage for line in lines)
    return lines


def test_bits_of_passes(out):
    lines = run(out, "bits", "--only", "pass_worker")
    assert [line["code"] for line in lines] == [0]


def test_texts_are_compared_and_drafted(out):
    lines = run(out, "verify", "--limit", "1", "--tokens", "6")
    by_name = {line["name"]: line for line in lines if "name" in line}
    assert {name: line["identical"] for name, line in by_name.items()} == {
        "cuda off": 1, "cuda suffix": 1, "cuda recycling": 1, "half off": 1, "half suffix": 1,
    }  # fmt: skip
    assert len([line for line in lines if "answer" in line]) == 6


def test_speed_is_measured_against_copies(out):
    lines = run(out, "speed", "--rounds", "2")
    samples = {line["name"]: line["seconds"] for line in lines if "seconds" in line}
    names = ("copy", "pass of 1 row", "pass of 8 rows", "products of 1 row", "products of 8 rows")
    assert {name: len(samples[name]) for name in names} == dict.fromkeys(names, 2)
    assert all(seconds > 0 for own in samples.values() for seconds in own)
    assert any("share of the bandwidth" in line["text"] and line["median"] > 0 for line in lines)


def test_recorded_passes_are_timed_against_others(out):
    lines = run(out, "launches", "--rounds", "2")
    assert lines[-1]["low"] <= lines[-1]["median"] <= lines[-1]["high"]


def test_memory_stays_below_its_plan(out):
    (line,) = run(out, "memory")
    found = line["device"]
    assert 0 < found["measured_without_context_bytes"] <= found["planned_without_context_bytes"]
