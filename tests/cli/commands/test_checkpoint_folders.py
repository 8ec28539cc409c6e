"""Commands that are given a folder of transformers, or a part of a split GGUF file."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from edge_rt.package.reader import open_package
from edge_rt.store.records import SourceRecord, record_file, write_record
from tests.helpers.converted_factory import write_converted_folder
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.gguf_split import split
from tests.helpers.hf_factory import write_hf_folder
from tests.helpers.native_profile import require_native

GENERATE = ("generate", "-p", "Hello", "--raw", "-n", "3", "--temp", "0", "--json")


@pytest.fixture
def folder(hf_model, tmp_path):
    return write_hf_folder(tmp_path / "My-Model", hf_model, files=2)


def packages(store):
    return sorted(path.name for path in (store / "packages").iterdir())


def test_a_folder_is_exported_once_and_used_by_path(inline, folder, tmp_path):
    store = tmp_path / "store"
    for path in folder.iterdir():
        os.utime(path, ns=(10**18, 10**18))
    first = inline(*GENERATE, "-m", folder, "--store", store)
    assert (first.returncode, len(json.loads(first.stdout)["token_ids"])) == (0, 3)
    (name,) = packages(store)
    assert name.startswith("my-model-")
    assert f"exporting {name} (once)".encode() in first.stderr
    again = inline(*GENERATE, "-m", f"{folder}/", "--store", store)
    assert json.loads(again.stdout)["token_ids"] == json.loads(first.stdout)["token_ids"]
    assert again.stderr.decode() == f"using {name}, the package made of {folder}\n"
    (folder / "generation_config.json").write_text('{"temperature": 0.5}')
    assert inline(*GENERATE, "-m", folder, "--store", store).returncode == 0
    assert len(packages(store)) == 2
    listed = inline("list", "--store", store).stdout.decode()
    assert name in listed
    removed = inline("rm", name, "--yes", "--store", store)
    assert (removed.returncode, name in packages(store)) == (0, False)


def test_a_part_of_a_split_file_is_the_model(inline, small_gguf, tmp_path):
    parts = split(small_gguf, tmp_path, 2)
    answers = []
    for source in (parts[1], small_gguf):
        out = tmp_path / source.stem
        exported = inline("export", "-m", source, "--out", out, "--calibration", "none")
        assert exported.returncode == 0
        answers.append(json.loads(inline(*GENERATE, "-m", out).stdout)["token_ids"])
    assert answers[0] == answers[1]
    assert open_package(tmp_path / parts[1].stem).manifest.source.name == parts[0].name


def test_the_package_says_what_it_was_made_from(inline, folder, tmp_path):
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    result = inline("export", "-m", folder, "--out", tmp_path / "out", "--calibration", "none", "--json")
    assert result.returncode == 0
    facts = json.loads(inline("inspect", tmp_path / "out", "--json").stdout)
    assert (facts["source"]["kind"], facts["source"]["name"], facts["license"]) == ("safetensors", "My-Model", "mit")


def test_inspect_describes_the_decoder_of_a_checkpoint_as_that_of_a_package(inline, small_gguf, folder):
    sections = [
        inline("inspect", path).stdout.decode().split("\ndecoder\n")[1].split("\n\n")[0].splitlines()
        for path in (small_gguf, folder)
    ]
    for rows in sections:
        assert rows[0].split() == ["family", "llama"]
        assert "every layer" in rows[1]
    facts = json.loads(inline("inspect", folder, "--json").stdout)
    assert (facts["decoder"]["family"], facts["not_described"]) == ("llama", None)


def test_inspect_shows_a_folder_of_an_unknown_family_and_says_so(inline, folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "mamba"}))
    result = inline("inspect", folder)
    line = "decoder: no description. My-Model: the architecture 'mamba' is not supported."
    assert (result.returncode, line in result.stdout.decode().splitlines()) == (0, True)
    facts = json.loads(inline("inspect", folder, "--json").stdout)
    assert (facts["decoder"], facts["architecture"]) == (None, "mamba")


def test_a_dry_run_writes_nothing(inline, folder, tmp_path):
    out = tmp_path / "out"
    shown = inline("export", "-m", folder, "--out", out, "--dry-run")
    rows = dict(line.split(maxsplit=1) for line in shown.stdout.decode().splitlines())
    assert shown.returncode == 0
    assert rows["weights"] == "int4"
    assert "bits a weight" in rows["attention"]
    found = json.loads(inline("export", "-m", folder, "--out", out, "--dry-run", "--weights", "int8", "--json").stdout)
    assert (found["choice"], found["refusal"], found["classes"]["head"]["types"].keys()) == ("int8", None, {"Q8_0"})
    assert not out.exists()


def test_a_dry_run_has_the_exit_code_of_the_export(inline, folder, tmp_path):
    command = ("export", "-m", folder, "--out", tmp_path / "out", "--memory", "1MiB")
    dry = inline(*command, "--dry-run")
    assert (dry.returncode, b"does not fit the memory budget" in dry.stderr) == (4, True)
    assert inline(*command).returncode == 4
    refusal = json.loads(inline(*command, "--dry-run", "--json").stdout)["refusal"]
    assert (refusal["type"], refusal["exit_code"]) == ("MemoryBudgetExceeded", 4)


def test_a_dry_run_of_a_name_needs_its_fetched_files(inline, small_gguf, tmp_path):
    store = tmp_path / "store"
    command = ("export", "-m", "smollm2-135m-instruct", "-o", tmp_path / "out", "--dry-run", "--store", store)
    missing = inline(*command)
    assert (missing.returncode, b"A dry run fetches nothing" in missing.stderr) == (3, True)
    folder = store / "sources" / "smollm2-135m-instruct"
    folder.mkdir(parents=True)
    copy = Path(shutil.copy(small_gguf, folder))
    write_record(folder, SourceRecord("recipe", "local", None, (record_file(copy, "0" * 64),)))
    assert inline(*command).returncode == 0


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_an_export_of_a_package_is_told_what_it_needs(inline, native_package, tmp_path, more):
    result = inline("export", "-m", native_package, "--out", tmp_path / "out", *more)
    assert (result.returncode, b"An export needs the checkpoint" in result.stderr) == (2, True)


def test_a_destination_that_exists_is_refused_before_anything_is_fetched(inline, native_package, tmp_path):
    command = ("export", "-m", "smollm2-135m-instruct", "-o", native_package, "--store", tmp_path / "store")
    result = inline(*command, "--offline")
    assert (result.returncode, result.stderr.startswith(b"error: ")) == (6, True)
    assert b"exists already" in result.stderr


def test_a_dry_run_says_as_an_error_what_the_export_would_fail_of(inline, folder, native_package):
    result = inline("export", "-m", folder, "--out", native_package, "--dry-run")
    assert (result.returncode, b"error: " in result.stderr, b"warning: " in result.stderr) == (6, True, False)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--weights", "int5"), b"Choose one of keep, int4"),
        (("--weights", "int8", "--size", "1MiB"), b"do not go together"),
        (("--size", "huge"), b"huge"),
        (("--size", "0"), b"0"),
        (("--size", "1KiB", "--profile", "portable"), b"needs the native op profile"),
    ],
)
@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_weights_that_there_are_not(inline, folder, tmp_path, flags, message, more):
    result = inline("export", "-m", folder, "--out", tmp_path / "out", *flags, *more)
    assert (result.returncode, message in result.stderr) == (2, True)
    assert not (tmp_path / "out").exists()


def test_what_quantising_lost_is_shown(inline, folder, tmp_path):
    out = tmp_path / "out"
    exported = inline("export", "-m", folder, "--out", out, "--weights", "int8", "--profile", "portable")
    for text in (exported.stdout, inline("inspect", out).stdout):
        rows = [line.split(maxsplit=1) for line in text.decode().splitlines() if line.strip()]
        found = {row[0]: row[1] for row in rows if len(row) == 2}
        assert found["feed-forward"].startswith("Q8_0, 9.00 bits a weight, error 0.00")
        assert "nats a token, on 256 tokens" in found["KL"]
        assert "checkpoint" in found["perplexity"]
    facts = json.loads(inline("inspect", out, "--json").stdout)
    assert facts["weights"]["quality"]["tokens"] == 256


@pytest.mark.parametrize("verb", [("pull",), (*GENERATE, "-m"), ("export", "--out", "out", "-m")])
def test_every_command_says_that_weights_were_converted(inline, hf_model, tmp_path, monkeypatch, verb):
    monkeypatch.chdir(tmp_path)
    write_converted_folder(tmp_path / "m", hf_model, "fp8 of tensors")
    result = inline(*verb, tmp_path / "m", "--store", tmp_path / "store")
    assert (result.returncode, result.stderr.count(b"warning: The checkpoint's weights are FP8")) == (0, 1)


def test_a_destination_that_exists_is_refused_before_anything_is_measured(inline, folder, tmp_path):
    export = ("export", "-m", folder, "--out", tmp_path / "out", "--calibration", "none")
    assert inline(*export).returncode == 0
    again = inline(*export)
    assert (again.returncode, b"exists already" in again.stderr, b"measuring" in again.stderr) == (6, True, False)


@pytest.mark.parametrize("flags", [("--size", "1GiB", "--weights", "int8"), ("--size", "much")])
def test_sizes_of_a_pull(inline, folder, tmp_path, flags):
    done = inline("pull", "-m", folder, "--store", tmp_path / "store", *flags)
    assert done.returncode == 2, done.stderr
    assert b"size" in done.stderr


def test_inspect_shows_a_folder(inline, folder, hf_model):
    facts = json.loads(inline("inspect", folder, "--json").stdout)
    assert (facts["kind"], facts["architecture"], facts["name"]) == ("safetensors", "llama", "My-Model")
    assert facts["bytes_by_type"] == {"F32": 4 * facts["parameters"]}
    assert facts["metadata"]["hidden_size"] == hf_model.config["hidden"]
    assert "<|im_start|>" in facts["chat_template"]
    assert "hidden_size" in inline("inspect", folder).stdout.decode()
    assert inline("inspect", folder, "--verify").returncode == 2


def missing_shard(folder):
    (folder / "model-00002-of-00002.safetensors").unlink()


def corrupt_index(folder):
    (folder / "model.safetensors.index.json").write_text("{")


def short_shard(folder):
    path = folder / "model-00001-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def no_config(folder):
    (folder / "config.json").unlink()


def no_tokenizer(folder):
    (folder / "tokenizer.json").unlink()


def linked_shard(folder):
    path = folder / "model-00001-of-00002.safetensors"
    path.rename(folder.parent / "blob")
    path.symlink_to(folder.parent / "blob")


FAULTS = {
    missing_shard: "1 of 2 are missing, the first is model-00002-of-00002.safetensors",
    corrupt_index: "model.safetensors.index.json is malformed",
    short_shard: "model-00001-of-00002.safetensors is malformed",
    no_config: "holds weights without their config.json",
    no_tokenizer: "has no tokenizer.json",
    linked_shard: "model-00001-of-00002.safetensors is a link",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("verb", ["export", "generate"])
def test_what_is_wrong_with_a_folder_is_said_and_nothing_is_left(inline, folder, tmp_path, verb, fault):
    fault(folder)
    flags = ("--out", tmp_path / "out") if verb == "export" else ("-p", "Hello", "--store", tmp_path / "store")
    result = inline(verb, "-m", folder, *flags, "--json")
    error = json.loads(result.stdout)["error"]
    assert result.returncode == error["exit_code"] == 3
    assert FAULTS[fault] in f"{error['what']} {error['numbers']}"
    assert not (tmp_path / "out").exists()
    store = tmp_path / "store" / "packages"
    assert not store.exists() or list(store.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model-00002-of-00002.safetensors"])
def test_a_file_that_cannot_be_read(inline, folder, tmp_path, name):
    (folder / name).chmod(0)
    result = inline("export", "-m", folder, "--out", tmp_path / "out")
    assert (result.returncode, name.encode() in result.stderr) == (6, True)


def test_gguf_comes_first_in_a_folder_with_both(inline, folder, small_gguf, tmp_path):
    (folder / "small.gguf").symlink_to(small_gguf)
    result = inline("export", "-m", folder, "--out", tmp_path / "out", "--calibration", "none")
    assert (result.returncode, b"safetensors beside it are not used" in result.stderr) == (0, True)
    assert open_package(tmp_path / "out").manifest.source.kind == "gguf"


def test_ctrl_c_in_the_middle_leaves_nothing(start, tmp_path):
    require_native()
    sizes = {"hidden": 512, "heads": 8, "kv_heads": 4, "ffn": 1536, "layers": 4}
    model = write_llama_gguf(tmp_path / "m.gguf", weight_type="F32", embedding_type="F32", **sizes)
    folder = write_hf_folder(tmp_path / "big", model)
    (tmp_path / "here").mkdir()
    process = start("export", "-m", folder, "--out", tmp_path / "here" / "out")
    for line in process.stderr:
        if line.split()[1:2] == [b"weights:"]:
            break
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate()
    assert (process.returncode, b"Traceback" in stderr) == (130, False)
    assert list((tmp_path / "here").iterdir()) == []
