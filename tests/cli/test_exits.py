"""Exits on the command line: cut, shown, drafted at, verified."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from edge_rt.cli.notices import NOT_SAVED, CalibrationNotices
from edge_rt.cli.render.console import Terminal
from tests.helpers.models import load_package
from tests.helpers.native_profile import require_native
from tests.helpers.packages import listing
from tests.helpers.segmented import EXITS, LAYERS


def test_export_and_inspect(inline, small_gguf, tmp_path):
    require_native()
    out = tmp_path / "out"
    result = inline("export", "-m", small_gguf, "--out", out, "--exits", "1", "--calibration", "none")
    assert result.returncode == 0
    facts = json.loads(inline("inspect", out, "--json").stdout)
    assert facts["exits"] == [1]
    lines = [line.split() for line in inline("inspect", out).stdout.decode().splitlines()]
    assert ["exits", "1"] in lines


def test_packages_without_exits_show_none(inline, native_package):
    assert json.loads(inline("inspect", native_package, "--json").stdout)["exits"] == []


@pytest.mark.parametrize("dry", [(), ("--dry-run",)], ids=["export", "dry run"])
@pytest.mark.parametrize(
    ("exits", "problem"),
    [
        ("2", "the model has 2 layers"),
        ("one", "a list of layer numbers"),
        ("1,1", "Got 1, 1"),
        ("", "a list of layer numbers"),
    ],
)
def test_bad_lists(inline, small_gguf, tmp_path, exits, problem, dry):
    require_native()
    arguments = ("export", "-m", small_gguf, "--out", tmp_path / "out", "--profile", "native", "--exits", exits)
    result = inline(*arguments, *dry)
    assert (result.returncode, problem in result.stderr.decode()) == (2, True)
    assert listing(tmp_path) == []


def test_answers_and_their_verification(inline, agreeing):
    flags = ("-p", "Hello", "--raw", "-n", "24", "--temp", "0", "--json")
    plain, drafted = (
        json.loads(inline("generate", "-m", agreeing.cut, "--spec", mode, *flags).stdout) for mode in ("off", "exit")
    )
    assert drafted["token_ids"] == plain["token_ids"]
    assert drafted["spec"]["mode"] == "exit"
    document = json.loads(inline("verify", "-m", agreeing.cut, "--limit", "2", "-n", "16", "--json").stdout)
    assert list(document["by_drafter"]) == ["auto", "ngram", "suffix", "recycling", "exit"]
    assert document["identical"] == document["prompts"]


def test_every_measurement_is_named(agreeing):
    told = []
    with load_package(agreeing.cut, spec="exit", on_calibrate=told.append, costs=None) as model:
        model.generate("Hello", max_tokens=2, temperature=0.0)
    assert told == ["passes", "exits"]
    terminal = Terminal(io.StringIO(), err := io.StringIO())
    CalibrationNotices(terminal).measuring(told[1])
    assert err.getvalue() == "measuring how long exits take, once for this model and these settings (2 s or more) ...\n"


@pytest.mark.parametrize("command", ["generate", "verify"])
def test_packages_without_exits_are_refused(inline, native_package, command):
    more = ("-p", "Hello") if command == "generate" else ()
    result = inline(command, "-m", native_package, "--spec", "exit", *more)
    assert (result.returncode, "no exits at which a draft could end" in result.stderr.decode()) == (2, True)


def test_plans_know_the_graphs(inline, segmented):
    result = inline("plan", "-m", segmented.cut, "--spec", "exit")
    assert result.returncode == 0
    assert f"{len(EXITS) + 2} graphs of {LAYERS} layers" in " ".join(result.stdout.decode().split())


def test_measurements_that_the_disk_does_not_take_are_told(inline, agreeing, cli_env):
    folder = Path(cli_env["XDG_CACHE_HOME"]) / "edge-rt"
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("a file where the folder should be")
    told = inline("generate", "-m", agreeing.cut, "-p", "Hello", "-n", "2", "--temp", "0", "--spec", "exit").stderr
    assert told.decode().count(f"warning: {NOT_SAVED}") == 1
    assert b"measuring how long exits take" in told
