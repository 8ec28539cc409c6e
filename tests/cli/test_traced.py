"""Commands with a package whose graph was traced."""

from __future__ import annotations

import json

import pytest

from edge_rt.cli.notices import WHY_NOTHING
from edge_rt.export.options import ExportOptions
from edge_rt.export.traced.export import export_traced
from tests.helpers.packages import copied, edit_manifest
from tests.helpers.traced_factory import TracedModel, tracer_of, write_folder

MODEL = TracedModel()
GREEDY = ("--temp", "0", "-n", "8", "--raw")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    root = tmp_path_factory.mktemp("traced")
    folder = write_folder(root / "small", MODEL)
    export_traced(folder, root / "out", ExportOptions(), 0.0, tracer_of(MODEL))
    return folder, root / "out"


@pytest.fixture
def package(exported, tmp_path):
    """A package whose rows are said not to be exact, whatever this machine found."""
    folder = copied(exported[1], tmp_path / "package")
    edit_manifest(folder, lambda document: document["traced"].update(exact_rows=0))
    return folder


def test_generate_answers_and_says_that_nothing_is_drafted(inline, package):
    result = inline("generate", "-m", package, "-p", "sea", *GREEDY, "--json")
    assert result.returncode == 0
    assert f"speculation is off: {WHY_NOTHING}" in result.stderr.decode()
    document = json.loads(result.stdout)
    assert (document["model"]["op_profile"], document["model"]["speculation"]) == ("traced", "off")
    assert "speculation" not in inline("generate", "-m", package, "-p", "sea", *GREEDY, "-q").stderr.decode()


def test_a_drafter_that_is_asked_for_has_no_effect_and_the_text_is_the_same(inline, package):
    plain = inline("generate", "-m", package, "-p", "sea", *GREEDY, "--spec", "off")
    asked = inline("generate", "-m", package, "-p", "sea", *GREEDY, "--spec", "ngram")
    assert plain.stdout == asked.stdout
    assert plain.stderr.decode() == ""
    assert "--spec ngram has no effect" in asked.stderr.decode()


def test_inspect_and_plan(inline, package):
    shown = inline("inspect", package).stdout.decode()
    assert "a tracer 1.0" in shown
    assert "off: tokens that are computed together" in shown
    assert json.loads(inline("inspect", package, "--json").stdout)["traced"]["exact_rows"] == 0
    planned = inline("plan", "-m", package, "--draft-max", "4", "--json")
    assert planned.returncode == 0
    text = inline("plan", "-m", package, "--draft-max", "4")
    assert f"speculation is off ({WHY_NOTHING}): not used: --draft-max" in (text.stdout + text.stderr).decode()


def test_inspect_says_how_many_rows_are_exact(inline, package):
    edit_manifest(package, lambda document: document["traced"].update(exact_rows=8))
    assert "chains: up to 8 tokens" in inline("inspect", package).stdout.decode()


def test_verify_has_nothing_to_compare(inline, package):
    result = inline("verify", "-m", package)
    assert result.returncode == 2
    assert "speculation is off with this package" in result.stderr.decode()


def test_other_formats_of_the_cache_are_refused(inline, package):
    result = inline("generate", "-m", package, "-p", "sea", "--raw", "--kv-type", "int8")
    assert result.returncode == 2
    assert "with the op profile traced it can be f32" in result.stderr.decode()


def test_export_names_the_other_way_and_what_it_does_not_carry(inline, exported, tmp_path):
    folder, _ = exported
    plain = inline("export", "-m", folder, "--out", tmp_path / "out")
    assert plain.returncode == 3
    assert "--via transformers" in plain.stderr.decode()
    options = ("--activations", "int8", "--weights", "int8")
    asked = inline("export", "-m", folder, "--out", tmp_path / "out", "--via", "transformers", *options)
    assert asked.returncode == 2
    assert "activations, weights int8" in asked.stderr.decode()
