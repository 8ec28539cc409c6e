"""Trained drafters on the command line: what inspect shows of them, and modes that cannot run."""

from __future__ import annotations

import dataclasses
import json
import shutil

import pytest

from edge_rt.cli.options.flags import SPEC
from edge_rt.package.drafter import DraftTarget
from edge_rt.package.reader import open_package
from edge_rt.package.spec_modes import COMPUTED_MODES, SHOWN_MODES
from tests.helpers.packages import copied
from tests.helpers.tiny_adapters import adapters_of
from tests.helpers.tiny_drafter import INFO, for_package, write_drafter


@pytest.fixture(scope="module")
def package(native_package, tmp_path_factory):
    """A package with a drafter that fits, and one that does not."""
    path = copied(native_package, tmp_path_factory.mktemp("drafting"))
    target = DraftTarget.of(open_package(path).manifest)
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
        assert "head 1 block of 32, 20 tokens" in shown

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
            (("--spec", "exit"), 2, "no exits at which a draft could end"),
            (("--spec", "self"), 2, "no nested weights to draft with"),
            (("--spec", "model:/nowhere"), 3, "There is no model '/nowhere'"),
            (("--drafter", "/nowhere"), 3, "There is no drafter at /nowhere"),
            (("--drafter", "nowhere"), 3, "There is no drafter at "),
            (("--drafter", "no/where"), 3, "There is no drafter at "),
            (("--drafter", "smollm2-135m-instruct"), 2, "is not a package on this machine"),
            (("--drafter", "~nobody-of-that-name"), 6, "names an unknown user"),
        ],
    )
    def test_what_cannot_run_says_why(self, inline, native_package, arguments, code, words):
        found = inline("generate", "-m", native_package, "-p", "Hi", "-n", "1", *arguments)
        assert (found.returncode, words in found.stderr.decode()) == (code, True), found.stderr.decode()

    @pytest.mark.parametrize(
        "arguments", [("plan",), ("generate", "-p", "Hi", "-n", "2"), ("verify", "--limit", "1", "-n", "2")]
    )
    def test_a_package_that_drafts_may_be_named_by_its_name_in_the_store(
        self, inline, native_package, tmp_path, arguments
    ):
        shutil.copytree(native_package, tmp_path / "store" / "packages" / "second")
        verb, *more = arguments
        asked = (verb, "-m", native_package, "--store", tmp_path / "store", "--ctx", "64", "--json", *more)
        by_name, by_path = (
            inline(*asked, "--drafter", name) for name in ("second", tmp_path / "store" / "packages" / "second")
        )
        assert by_name.returncode == by_path.returncode == 0, by_name.stderr
        assert "draft_model" in json.loads(inline("plan", *asked[1:7], "--json", "--drafter", "second").stdout)["terms"]
        if verb == "verify":
            assert f"model:{tmp_path / 'store'}" in list(json.loads(by_name.stdout)["by_drafter"])[-1]

    def test_a_folder_goes_before_a_name(self, inline, native_package, package, tmp_path, monkeypatch):
        shutil.copytree(native_package, tmp_path / "store" / "packages" / "tiny")
        monkeypatch.chdir(package / "drafters")
        asked = ("plan", "-m", package, "--store", tmp_path / "store", "--drafter", "tiny", "--json")
        assert json.loads(inline(*asked).stdout)["drafter"] == "tiny-head"

    def test_a_package_without_a_drafter_runs_and_names_the_command_that_makes_one(self, inline, native_package):
        command = ("generate", "-m", native_package, "-p", "Hi", "-n", "2", "--ctx", "64")
        assert inline(*command).returncode == 0
        refused = inline(*command, "--spec", "head")
        assert refused.returncode == 2
        assert "edge-rt train drafter" in refused.stderr.decode()

    def test_one_for_another_model_is_refused_by_name_and_passed_over_by_auto(
        self, inline, native_package, package, tmp_path
    ):
        command = ("generate", "-m", package, "-p", "Hi", "-n", "2", "--ctx", "64")
        refused = inline(*command, "--drafter", package / "drafters" / "other")
        assert refused.returncode == 3
        assert "trained for another model" in refused.stderr.decode()
        assert "drafter: tiny-head" in inline(*command, "-v").stderr.decode()
        alone = copied(native_package, tmp_path / "alone")
        shutil.copytree(package / "drafters" / "other", alone / "drafters" / "other")
        command = ("generate", "-m", alone, *command[3:])
        found = inline(*command, "-v")
        assert found.returncode == 0
        assert "drafter other is not used: its tokenizer is 333333333333" in found.stderr.decode()
        assert b"drafter" not in inline(*command).stderr

    @pytest.mark.parametrize("command", ["plan", "verify"])
    def test_plan_and_verify_refuse_the_same(self, inline, native_package, command):
        for spec, words in (
            ("head", "edge-rt train drafter"),
            ("self", "no nested weights to draft with"),
            ("exit", "no exits at which a draft could end"),
        ):
            found = inline(command, "-m", native_package, "--spec", spec)
            assert (found.returncode, words in found.stderr.decode()) == (2, True), found.stderr.decode()

    def test_a_checkpoint_has_no_drafter(self, inline, small_gguf):
        found = inline("plan", "-m", small_gguf, "--drafter", "x")
        assert (found.returncode, b"A drafter is for packages" in found.stderr) == (2, True)
        for spec in ("head", "exit", "self", "model:x"):
            found = inline("plan", "-m", small_gguf, "--spec", spec)
            words = f"The mode of speculation '{spec}' is for packages"
            assert (found.returncode, words in found.stderr.decode()) == (2, True)

    def test_in_a_chat_a_mode_that_was_not_loaded_is_refused(self, inline, native_package):
        command = ("chat", "-m", native_package, "--ctx", "128", "-n", "2")
        found = inline(*command, stdin=b"/set spec head\n")
        assert (found.returncode, b"loaded without the drafter 'head'" in found.stderr) == (2, True)
        found = inline(*command, stdin=b"/set spec model\n")
        assert (found.returncode, b"names no package that drafts" in found.stderr) == (2, True)

    def test_help_names_all_modes(self):
        assert all(mode in SPEC.help for mode in SHOWN_MODES)
        assert {"head", "exit", "self"} < set(COMPUTED_MODES)


class TestExits:
    """Adapters of exits, in every command that takes drafters."""

    @pytest.fixture
    def adapters(self, agreeing, tmp_path):
        return adapters_of(agreeing.cut, tmp_path / "exits").path

    def test_inspect(self, inline, adapters):
        facts = json.loads(inline("inspect", adapters, "--json").stdout)
        assert facts["drafter_kind"] == "exit"
        assert facts["exits"][2] == {"layer": 4, "top1": 0.5, "top2": 0.6, "top4": 0.7}
        shown = lines(inline("inspect", adapters).stdout)
        assert "exit 1 0.50 of 500 tokens, 0.60 among 2, 0.70 among 4" in shown
        assert not any(line.startswith("acceptance") for line in shown)

    def test_generate_and_plan(self, inline, agreeing, adapters):
        command = ("-m", agreeing.cut, "--spec", "exit", "--drafter", adapters, "--ctx", "64")
        found = inline("generate", "-p", "Hi", "-n", "3", "-v", *command)
        assert found.returncode == 0
        assert "drafter: tiny-exits" in found.stderr.decode()
        made = json.loads(inline("plan", "--json", *command).stdout)
        assert made["drafter"] == "tiny-exits"

    def test_a_package_without_its_exits(self, inline, agreeing, adapters):
        found = inline("generate", "-m", agreeing.whole, "-p", "Hi", "-n", "1", "--drafter", adapters)
        assert found.returncode == 3
        assert "Export the model with --exits 1,3,4" in found.stderr.decode()

    def test_verify_takes_the_mode_once(self, inline, agreeing, adapters):
        command = ("-m", agreeing.cut, "--drafter", adapters, "-n", "6", "--limit", "1", "--json")
        found = inline("verify", *command)
        assert found.returncode == 0, found.stderr.decode()
        document = json.loads(found.stdout)
        assert document["identical"] == document["prompts"]
        # Twice in the list of modes, it would have two answers to the one prompt.
        assert document["by_drafter"]["exit"]["prompts"] == 1
