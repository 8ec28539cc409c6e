"""``edge-rt train drafter``: what it refuses before anything is trained."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from edge_rt.cli.commands.train import KINDS, TrainFlags, parse_duration
from edge_rt.errors import ConfigError, InputError, StorageError


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("1.5m", 90), (" 30 M ", 1800), ("8h", 28800), ("1d", 86400)]
)
def test_durations(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-3m", "m", "1w", "3m5", "1e3", "0.0h", "9" * 30])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ConfigError, match="cannot be read"):
        parse_duration(text)


def test_an_unknown_kind_is_refused():
    with pytest.raises(ConfigError, match="kind"):
        TrainFlags(kind="tail").seconds()


def test_exits_are_those_of_the_package_or_named():
    package = SimpleNamespace(manifest=SimpleNamespace(exits=(6, 10, 15)))
    assert TrainFlags().exits_of(package) == ()
    assert TrainFlags(kind="exit").exits_of(package) == (6, 10, 15)
    assert TrainFlags(kind="exit", exits="15,6").exits_of(package) == (6, 15)
    with pytest.raises(ConfigError, match="must be a list of layer numbers"):
        TrainFlags(kind="exit", exits="six").exits_of(package)
    with pytest.raises(ConfigError, match="no exits at which a draft could end"):
        TrainFlags(kind="exit").exits_of(SimpleNamespace(manifest=SimpleNamespace(exits=())))
    with pytest.raises(ConfigError, match="--exits does not go together with --kind head"):
        TrainFlags(exits="6").seconds()


@pytest.mark.parametrize(
    ("kind", "given"),
    [("model", {"dropout": 0.1}), ("head", {"layers": 2}), ("head", {"weights": "int8"}), ("model", {"unrolled": 2})],
)
def test_options_of_another_kind_are_refused(kind, given):
    with pytest.raises(ConfigError, match=f"--{next(iter(given))} does not go together with --kind {kind}"):
        TrainFlags(kind=kind, **given).seconds()


def test_a_share_is_below_one():
    assert TrainFlags(dropout=0.1, time="1m").seconds() == 60
    with pytest.raises(ConfigError, match="share is out of range"):
        TrainFlags(dropout=1.0).seconds()


def test_options_of_a_draft_model():
    assert TrainFlags(kind="model", layers=1, weights="int8", time="1m").seconds() == 60
    with pytest.raises(ConfigError, match="type of weights is unknown"):
        TrainFlags(kind="model", weights="int3").seconds()


def test_where_drafters_are_written():
    package = SimpleNamespace(path=Path("packages") / "small")
    assert KINDS["head"].usual_place("small", package) == Path("packages") / "small" / "drafters" / "head"
    assert KINDS["model"].usual_place("small", package) == Path("small-draft")


def test_prompts_come_from_a_file(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("Hello\n\nWhy is it so?\n")
    assert TrainFlags(data=str(path)).prompts() == ("Hello", "Why is it so?")
    assert TrainFlags().prompts() is None
    with pytest.raises(StorageError, match="nothing here"):
        TrainFlags(data=str(tmp_path / "nothing here")).prompts()
    path.write_text("\n")
    with pytest.raises(InputError, match="no prompt"):
        TrainFlags(data=str(path)).prompts()


def test_a_drafter_that_is_there_stays(inline, native_package, tmp_path):
    out = tmp_path / "head"
    out.mkdir()
    (out / "mine").write_text("kept")
    result = inline("train", "drafter", "-m", native_package, "-o", out)
    assert result.returncode != 0
    assert b"Nothing was trained" in result.stderr
    assert (out / "mine").read_text() == "kept"


@pytest.mark.parametrize(
    ("package", "flags", "said"),
    [
        ("small_package", (), "No drafter can be trained for this package."),
        ("small_package", ("--kind", "model"), "No draft model can be trained for this package."),
        ("native_package", ("--kind", "model", "--layers", "99"), "must have fewer layers than the model"),
        ("native_package", ("--kind", "exit"), "no exits at which a draft could end"),
    ],
)
def test_a_package_that_nothing_can_be_trained_for_is_refused_without_torch(inline, request, package, flags, said):
    result = inline("train", "drafter", "-m", request.getfixturevalue(package), "--time", "1s", *flags)
    assert result.returncode in (2, 3)
    assert said in result.stderr.decode()


@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed")
def test_without_torch_it_is_said_before_anything_is_fetched(inline, native_package):
    for model in (native_package, "smollm2-135m-instruct"):
        result = inline("train", "drafter", "-m", model)
        assert (result.returncode, b"Training needs torch" in result.stderr) == (5, True)
    result = inline("train", "drafter", "-m", "no-such-model")
    assert (result.returncode, b"torch" in result.stderr) == (3, False)


def test_the_help_of_kinds(inline):
    shown = inline("train", "drafter", "--help").stdout.decode()
    assert "--layers" in shown
    assert all(kind in shown for kind in KINDS)


def test_the_help_names_the_extra(inline):
    assert b"extra [train]" in inline("train", "--help").stdout
