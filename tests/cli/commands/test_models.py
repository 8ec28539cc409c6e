from __future__ import annotations

import json
import re

import pexpect
import pytest

from edge_rt.cli.commands.doctor import native_facts
from edge_rt.ort.op_library import library_path, native_status
from tests.helpers.packages import copied, edit_manifest, manifest_setter


@pytest.fixture
def store_cli(inline, tmp_path):
    return lambda *arguments, **options: inline(*arguments, "--store", tmp_path / "store", **options)


def test_pull_list_inspect_rm(store_cli, small_gguf):
    pulled = json.loads(store_cli("pull", small_gguf, "--name", "mine", "--json").stdout)
    assert (pulled["name"], pulled["was_present"]) == ("mine", False)
    assert json.loads(store_cli("pull", small_gguf, "--name", "mine", "--json").stdout)["was_present"]
    listed = json.loads(store_cli("list", "--json").stdout)["models"]
    assert [(entry["name"], entry["architecture"]) for entry in listed] == [("mine", "llama")]
    assert store_cli("list").stdout.decode().splitlines()[1].startswith("mine ")
    facts = json.loads(store_cli("inspect", "mine", "--verify", "--json").stdout)
    assert facts["verified"]
    assert facts["model"]["num_layers"] == 2
    assert store_cli("rm", "mine").returncode == 2
    assert json.loads(store_cli("rm", "mine", "--yes", "--json").stdout)["name"] == "mine"
    assert json.loads(store_cli("list", "--json").stdout)["models"] == []


def test_a_gguf_as_model_is_exported_once(store_cli, small_gguf):
    arguments = ("generate", "-m", small_gguf, "-p", "x", "-n", "1")
    first, second = store_cli(*arguments), store_cli(*arguments)
    assert (first.returncode, second.returncode) == (0, 0)
    assert re.search(rb"3/[678] weights", first.stderr)
    assert b"weights" not in second.stderr


def test_rm_asks_at_a_terminal(spawn, store_cli, small_gguf, tmp_path):
    store_cli("pull", small_gguf, "--name", "mine")
    for answer, status, left in (("n", 1, True), ("y", 0, False)):
        child = spawn("rm", "mine", "--store", tmp_path / "store")
        child.expect("Remove mine")
        child.sendline(answer)
        child.expect(pexpect.EOF)
        child.wait()
        assert child.exitstatus == status
        assert (tmp_path / "store" / "packages" / "mine").exists() is left


def test_offline_pull_of_an_absent_model_fails(store_cli):
    result = store_cli("pull", "nobody/nothing", "--offline", "--json")
    assert result.returncode == 6
    assert json.loads(result.stdout)["error"]["type"] == "DownloadError"
    assert b"will fetch" not in result.stderr
    # A variable that is not set is not the default model.
    assert store_cli("pull", "").returncode == 2


def test_inspect_a_gguf(store_cli, small_gguf):
    facts = json.loads(store_cli("inspect", small_gguf, "--json").stdout)
    assert (facts["kind"], facts["architecture"]) == ("gguf", "llama")
    assert sum(facts["bytes_by_type"].values()) <= facts["size_bytes"]
    assert b"chat template" in store_cli("inspect", small_gguf).stdout
    assert store_cli("inspect", small_gguf, "--verify").returncode == 2


def test_inspect_shows_the_sampling_values_in_force_and_those_that_are_recommended(inline, small_package, tmp_path):
    plain = json.loads(inline("inspect", small_package, "--json").stdout)
    defaults = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.0}
    assert (plain["sampling"], plain["recommended_sampling"]) == (defaults, None)
    package = copied(small_package, tmp_path)
    edit_manifest(package, manifest_setter("sampling", {"temperature": 0.4, "top_p": 0.9}))
    facts = json.loads(inline("inspect", package, "--json").stdout)
    assert facts["sampling"] == {**defaults, "temperature": 0.4, "top_p": 0.9}
    assert facts["recommended_sampling"] == {"temperature": 0.4, "top_p": 0.9}
    shown = [" ".join(line.split()) for line in inline("inspect", package).stdout.decode().splitlines()]
    own = "(the model's)"
    assert f"sampling temperature 0.4 {own}, top_k 40, top_p 0.9 {own}, min_p 0.05, repetition_penalty 1.0" in shown


def test_greedy_answers_that_repeat_themselves_are_told_of_the_penalty_of_the_package(inline, small_package, tmp_path):
    package = copied(small_package, tmp_path)
    edit_manifest(package, manifest_setter("sampling", {"repetition_penalty": 1.1}))
    note = b"--repeat-penalty 1.1 asks for it"
    repeats = ("generate", "-m", package, "-p", "Hi", "--logit-bias", "5=100", "--temp")
    told = inline(*repeats, "0").stderr
    assert b"repeated itself" in told
    assert note in told
    assert note in inline(*repeats, "0", "-n", "1", "-v").stderr
    for others in (("0", "-n", "1"), ("0", "-n", "1", "-v", "--repeat-penalty", "1"), ("0.8", "-n", "1", "-v")):
        assert note not in inline(*repeats, *others).stderr


def test_inspect_verify_finds_damage(store_cli, small_gguf, tmp_path):
    store_cli("pull", small_gguf, "--name", "mine")
    weights = tmp_path / "store" / "packages" / "mine" / "weights.bin"
    data = bytearray(weights.read_bytes())
    data[100] ^= 1
    weights.write_bytes(data)
    unread = store_cli("inspect", "mine")
    assert (unread.returncode, b"not checked (--verify)" in unread.stdout) == (0, True)
    result = store_cli("inspect", "mine", "--verify", "--json")
    assert (result.returncode, json.loads(result.stdout)["error"]["type"]) == (3, "InvalidPackage")


def test_doctor(store_cli, tmp_path):
    result = store_cli("doctor", "--json")
    facts = json.loads(result.stdout)
    assert result.returncode == 0
    assert facts["store"] == str(tmp_path / "store")
    assert "CPUExecutionProvider" in facts["providers"]
    assert facts["problems"] == []
    status = native_status(library_path())
    assert (facts["native_library"], facts["native_reason"]) == (status.library, status.reason)
    assert facts["instruction_sets"] == list(status.instruction_sets)
    assert facts["best_instruction_set"] == status.best


def test_doctor_says_why_native_packages_cannot_be_run():
    warnings = []
    facts = native_facts(native_status(None), warnings)
    assert facts["native_library"] is facts["best_instruction_set"] is None
    assert facts["instruction_sets"] == []
    assert warnings == ["Native packages cannot be run: " + facts["native_reason"]]


def test_bench(store_cli, small_package):
    arguments = ("bench", "-m", small_package, "-r", "2", "--pp", "16", "--tg", "8", "--depth", "8")
    document = json.loads(store_cli(*arguments, "--json").stdout)
    assert document["pp16_tok_s"] > 0
    assert document["tg8_tok_s_std"] >= 0
    assert list(document["row_cost_ms"]) == ["1", "2", "4", "8", "16"]
    table = store_cli(*arguments).stdout.decode().splitlines()
    assert [line.split("|")[6].strip() for line in table[:4]] == ["test", table[1].split("|")[6].strip(), "pp16", "tg8"]
