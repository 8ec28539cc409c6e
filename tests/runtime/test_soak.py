"""A short form of the long chat: random turns, cancellations and resets do not make memory grow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "soak.py"


def soak(package, log, *options):
    command = [sys.executable, SCRIPT, "--package", package, "--log", log, "--threads", "1", *options]
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=300)


def test_sixty_turns_do_not_grow(native_package, tmp_path):
    log = tmp_path / "turns.jsonl"
    done = soak(native_package, log, "--turns", 60, "--first", 30, "--most-words", 20, "--most-tokens", 24)
    assert done.returncode == 0, done.stdout + done.stderr
    turns = [json.loads(line) for line in log.read_text().splitlines()]
    assert [turn["turn"] for turn in turns] == list(range(1, 61))
    kinds = {turn["kind"] for turn in turns}
    assert {"sent", "cancelled"} <= kinds
    assert kinds & {"cleared", "begun anew"}
    assert all(turn["cached_tokens"] <= 512 for turn in turns)


@pytest.mark.parametrize(("resident", "grown"), [([10, 20, 15, 20], 0), ([10, 20, 21, 15], 1), ([9, 8, 7, 6], -2)])
def test_growth_is_counted_from_the_highest_of_the_first_turns(resident, grown, tmp_path):
    code = f"import soak; print(soak.growth({resident}, 2))"
    done = subprocess.run([sys.executable, "-c", code], cwd=SCRIPT.parent, capture_output=True, text=True)
    assert done.stdout.split(",")[0] == f"({grown}", done.stderr


def test_a_few_seconds_of_clients_beside_each_other_are_right(native_package, tmp_path):
    options = ["--hours", 0.001, "--requests", 12, "--slots", 4, "--clients", 6, "--log", tmp_path / "seconds.jsonl"]
    command = [sys.executable, "-m", "tests.soak_batches", native_package, *options]
    done = subprocess.run([*map(str, command)], cwd=SCRIPT.parents[1], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "wrong: 0;" in done.stdout
    assert "'whole'" in done.stdout
