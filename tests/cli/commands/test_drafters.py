"""Trained drafters on the command line: what inspect shows of them, and modes that cannot run."""

from __future__ import annotations

import dataclasses
import json
import shutil

import pytest

from edge_rt.cli.options.flags import SPEC
from edge_rt.package.reader import open_package
from edge_rt.runtime.drafters.makers import MAKERS
from edge_rt.spec_modes import COMPUTED_MODES, SHOWN_MODES
from tests.helpers.packages import copied
from tests.helpers.tiny_drafter import INFO, for_package, target_of, write_drafter


@pytest.fixture(scope="module")
def package(native_package, tmp_path_factory):
    """A package with a drafter that fits, and one that does not."""
    path = copied(native_package, tmp_path_factory.mktemp("drafting"))
    target = target_of(open_package(path).manifest)
    for_package(path / "drafters" / "tiny", open_package(path).manifest)
    other = dataclasses.replace(INFO, name="other", target=dataclasses.replace(target, tokenizer_sha256="3" * 64))
    write_drafter(path / "drafters" / "other", other)
    return path


@pytest.fixture(scope="module")
def drafter(package):
    return package / "drafters" / "tiny"


def lines(text):
    return [" ".join(line.split()) for line in text.decode().splitlines()]


class TestInspect:
    def test_a_package_lists_its_drafters_and_why_one_does_not_fit(self, inline, package):
        other, tiny = json.loads(inline("inspect", package, "--json").stdout)["drafters"]
        assert (tiny["name"], tiny["drafter_kind"], tiny["origin"], tiny["reason"]) == (
            "tiny-head", "head", "package", None,
        )  # fmt: skip
        assert tiny["acceptance"] == {"tokens": 500, "positions": [0.5, 0.25], "top2": 0.6, "top4": 0.75}
        assert tiny["training"]["recipe"] == "head-1"
        assert other["reason"].startswith("its tokenizer is 333333333333; the package's is ")
        shown = lines(inline("inspect", package).stdout)
        assert "drafter tiny-head" in shown
        assert "acceptance 0.50, 0.25 by position on 500 tokens" in shown
        assert "found in the package's folder; fits" in shown
        assert any(line.startswith("found in the package's folder; its tokenizer is 333333333333") for line in shown)

    def test_a_package_without_one(self, inline, native_package):
        assert json.loads(inline("inspect", native_package, "--json").stdout)["drafters"] == []

    def test_a_damaged_one_is_shown_as_such(self, inline, native_package, tmp_path):
        path = copied(native_package, tmp_path)
        for_package(path / "drafters" / "bad", open_package(path).manifest).weights.unlink()
        (found,) = json.loads(inline("inspect", path, "--json").stdout)["drafters"]
        assert found["name"] == "bad"
        assert "is missing" in found["reason"]
        assert "drafter bad" in lines(inline("inspect", path).stdout)

    def test_a_drafter_itself(self, inline, drafter):
        facts = json.loads(inline("inspect", drafter, "--json").stdout)
        assert (facts["kind"], facts["name"], facts["verified"]) == ("drafter", "tiny-head", False)
        assert "tensors" not in facts["head"]
        shown = lines(inline("inspect", drafter, "--verify").stdout)
        assert "verified yes" in shown
        assert "training head-1, seed 7, 300 steps" in shown
        assert "head 1 blocks of 32, 20 tokens" in shown

    def test_a_damaged_drafter_is_refused(self, inline, drafter, tmp_path):
        path = copied(drafter, tmp_path)
        data = bytearray((path / "weights.bin").read_bytes())
        data[0] ^= 1
        (path / "weights.bin").write_bytes(data)
        assert inline("inspect", path).returncode == 0
        refused = inline("inspect", path, "--verify", "--json")
        assert refused.returncode == 3
        assert json.loads(refused.stdout)["error"]["type"] == "InvalidDrafter"


class TestModes:
    @pytest.mark.parametrize(
        ("arguments", "code", "words"),
        [
            (("--spec", "model"), 2, "names no package that drafts"),
            (("--spec", "head:x"), 2, "model:PACKAGE"),
            (("--spec", "suffix", "--drafter", "x"), 2, "--drafter is not used with --spec suffix"),
            (("--spec", "exit"), 2, "no early exits"),
            (("--spec", "self"), 2, "no weights of nested precision"),
            (("--spec", "model:/nowhere"), 2, "is no folder of a package"),
            (("--drafter", "/nowhere"), 3, "There is no drafter at /nowhere"),
        ],
    )
    def test_what_cannot_run_says_why(self, inline, native_package, arguments, code, words):
        found = inline("generate", "-m", native_package, "-p", "Hi", "-n", "1", *arguments)
        assert (found.returncode, words in found.stderr.decode()) == (code, True), found.stderr.decode()

    def test_a_package_without_a_drafter_runs_and_names_the_command_that_makes_one(self, inline, native_package):
        command = ("generate", "-m", native_package, "-p", "Hi", "-n", "2", "--ctx", "64")
        assert inline(*command).returncode == 0
        refused = inline(*command, "--spec", "head")
        assert refused.returncode == 2
        assert "edge-rt train drafter" in refused.stderr.decode()

    def test_one_for_another_model_is_refused_by_name_and_passed_over_by_auto(self, inline, package, tmp_path):
        package = copied(package, tmp_path)
        shutil.rmtree(package / "drafters" / "tiny")
        command = ("generate", "-m", package, "-p", "Hi", "-n", "2", "--ctx", "64")
        refused = inline(*command, "--drafter", package / "drafters" / "other")
        assert refused.returncode == 3
        assert "trained for another model" in refused.stderr.decode()
        found = inline(*command, "-v")
        assert found.returncode == 0
        assert "drafter other is not used: its tokenizer is 333333333333" in found.stderr.decode()
        assert b"drafter" not in inline(*command).stderr

    @pytest.mark.skipif("head" in MAKERS, reason="this build runs heads")
    def test_a_build_that_cannot_run_heads_says_so(self, inline, package):
        refused = inline("generate", "-m", package, "-p", "Hi", "-n", "2", "--ctx", "64", "--spec", "head")
        assert refused.returncode == 5
        assert "cannot run with this build" in refused.stderr.decode()

    @pytest.mark.parametrize("command", ["plan", "verify"])
    def test_plan_and_verify_refuse_the_same(self, inline, native_package, command):
        for spec, words in (("head", "edge-rt train drafter"), ("self", "nested precision")):
            found = inline(command, "-m", native_package, "--spec", spec)
            assert (found.returncode, words in found.stderr.decode()) == (2, True), found.stderr.decode()

    def test_a_checkpoint_has_no_drafter(self, inline, small_gguf):
        found = inline("plan", "-m", small_gguf, "--drafter", "x")
        assert (found.returncode, b"--drafter is for packages" in found.stderr) == (2, True)
        for spec in ("head", "exit", "self", "model:x"):
            found = inline("plan", "-m", small_gguf, "--spec", spec)
            assert (found.returncode, f"--spec {spec} is for packages" in found.stderr.decode()) == (2, True)

    def test_in_a_chat_a_mode_that_was_not_loaded_is_refused(self, inline, native_package):
        command = ("chat", "-m", native_package, "--ctx", "128", "-n", "2")
        found = inline(*command, stdin=b"/set spec head\n")
        assert (found.returncode, b"loaded without the drafter 'head'" in found.stderr) == (2, True)
        found = inline(*command, stdin=b"/set spec model\n")
        assert (found.returncode, b"names no package that drafts" in found.stderr) == (2, True)

    def test_help_names_all_modes(self):
        assert all(mode in SPEC.help for mode in SHOWN_MODES)
        assert {"head", "exit", "self"} < set(COMPUTED_MODES)
