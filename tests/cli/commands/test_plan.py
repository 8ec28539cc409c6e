from __future__ import annotations

import json
import shlex
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from edge_rt.package.reader import open_package

KEYS = {"fits", "budget_bytes", "total_bytes", "minimum_bytes", "terms", "choice", "alternatives"}
TERMS = [
    "runtime", "tokenizer", "weights", "session", "kv_cache", "activations", "logits", "sampling", "drafters",
]  # fmt: skip
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 320,
    "max_position_embeddings": 2048, "tie_word_embeddings": True,
}  # fmt: skip
KEY_CONSTANTS = 2 * 2 * 4 * (16 + 16 + 16 * 16)
"""Bytes of two layers' constants for 4-bit keys: two heads of 16."""


def write_checkpoint(folder, config=None, tensors=None):
    """Write a folder as the hub has it: headers without any data behind them."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**LLAMA, **(config or {})}))
    shapes = {"model.embed_tokens.weight": [320, 64], "model.norm.weight": [64]}
    for layer in range(2):
        begin = f"model.layers.{layer}"
        shapes |= {f"{begin}.self_attn.q_proj.weight": [64, 64], f"{begin}.mlp.down_proj.weight": [64, 128]}
    header = {name: {"dtype": "BF16", "shape": shape, "data_offsets": [0, 0]} for name, shape in shapes.items()}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header, **(tensors or {})}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    return folder


def test_json_says_what_fits_and_what_each_part_takes(inline, native_package):
    result = inline("plan", "-m", native_package, "--memory", "1GiB", "--json")
    plan = json.loads(result.stdout)
    assert result.returncode == 0
    assert set(plan) >= KEYS
    assert list(plan["terms"]) == TERMS
    assert plan["total_bytes"] == sum(plan["terms"].values()) <= plan["budget_bytes"] == 1 << 30
    assert plan["fits"] is True
    assert plan["is_estimate"] is False


def test_what_does_not_fit_ends_in_code_4_with_the_plan_and_a_setting_that_fits(inline, native_package):
    # Of this machine's memory a part is read from the process, which grows.
    command = ("plan", "-m", native_package, "--device", "generic", "--json")
    result = inline(*command, "--memory", "10MiB")
    plan = json.loads(result.stdout)
    assert (result.returncode, plan["fits"]) == (4, False)
    flags = plan["alternatives"][0]["flags"]
    again = inline(*command, *flags)
    assert again.returncode == 0
    assert json.loads(again.stdout)["total_bytes"] == plan["alternatives"][0]["total_bytes"]


def test_the_table_names_every_part_and_commands_to_type(inline, native_package):
    result = inline("plan", "-m", native_package, "--memory", "1GiB")
    text = result.stdout.decode()
    for word in (*TERMS, "total", "budget", "smallest budget that works", "tokens per second"):
        assert word in text
    lines = text.splitlines()
    commands = [line for line in lines if line.startswith("  edge-rt generate -m ")]
    assert commands
    assert text.count("(+-") > len(commands)
    for command in commands:
        words = lines[lines.index(command) + 1]
        assert all(word in words for word in (" cache, ", "speculation", "context ", "chunk "))
    assert text.count("slightly less exact") == 1
    # Budgets that are just enough are tried for another machine: this process grows.
    within = [command for command in commands if "--memory 1024MiB" in command]
    assert within
    for command in within:
        assert inline("plan", *shlex.split(command)[2:]).returncode == 0


def test_the_minimum_is_exact_for_what_is_pinned(inline, native_package):
    # Of this machine's memory a part is read from the process, which grows.
    flags = (
        "plan",
        "-m",
        native_package,
        "--device",
        "generic",
        "--ctx",
        "64",
        "--kv-type",
        "f32",
        "--spec",
        "off",
        "--json",
    )
    minimum = json.loads(inline(*flags).stdout)["minimum_bytes"]
    assert inline(*flags, "--memory", minimum).returncode == 0
    assert inline(*flags, "--memory", minimum - 1).returncode == 4


def test_a_gguf_file_is_planned_as_its_package_is(inline, small_gguf, native_package):
    ahead = json.loads(inline("plan", "-m", small_gguf, "--device", "generic", "--json").stdout)
    after = json.loads(inline("plan", "-m", native_package, "--device", "generic", "--json").stdout)
    manifest = open_package(native_package).manifest
    assert ahead["is_estimate"] is True
    assert ahead["shape"]["weights_bytes"] == manifest.files["weights.bin"].size
    assert ahead["shape"]["tokenizer_bytes"] == manifest.files["tokenizer.json"].size
    assert ahead["terms"] == after["terms"]


def test_a_folder_is_planned_from_headers_alone(inline, tmp_path):
    folder = write_checkpoint(tmp_path / "org-model")
    text = inline("plan", "-m", folder).stdout.decode()
    assert "edge-rt plan -m" in text
    assert "edge-rt generate" not in text
    plan = json.loads(inline("plan", "-m", folder, "--json").stdout)
    # 8 bits: 34 bytes for 32 elements; 4 bits with scale and minimum: 20. Then norms, rotations, constants of keys.
    weights = 320 * 64 // 32 * 34 + 2 * (64 * 64 + 64 * 128) // 32 * 20 + 64 * 4 + 2 * 2048 * 8 * 4 + KEY_CONSTANTS
    assert plan["shape"]["weights_bytes"] == weights
    assert any("Estimated" in note for note in plan["notes"])
    assert not any("cannot run" in note for note in plan["notes"])


def test_an_architecture_that_cannot_run_is_sized_and_said(inline, tmp_path):
    config = {
        "model_type": "novel", "architectures": ["NovelForCausalLM"], "sliding_window": 256,
        "layer_types": ["sliding_attention", "full_attention"],
    }  # fmt: skip
    folder = write_checkpoint(tmp_path / "novel", config)
    result = inline("plan", "-m", folder, "--json")
    plan = json.loads(result.stdout)
    assert result.returncode == 0
    assert any("cannot run the architecture novel" in note for note in plan["notes"])
    assert (plan["shape"]["sliding_window"], plan["shape"]["window_layers"]) == (256, 1)


@pytest.mark.parametrize(
    ("config", "tensors", "code"),
    [
        ({"hidden_size": None}, None, 3),
        ({"num_hidden_layers": 10**9}, None, 3),
        ({"num_attention_heads": "many"}, None, 3),
        (None, {"x": {"dtype": "F32", "shape": [-1]}}, 3),
        (None, {"x": {"dtype": "F32", "shape": [1 << 40, 1 << 40]}}, 3),
        (None, {"x": 5}, 3),
    ],
)
def test_a_malformed_folder_is_refused(inline, tmp_path, config, tensors, code):
    result = inline("plan", "-m", write_checkpoint(tmp_path / "bad", config, tensors))
    assert result.returncode == code
    assert result.stderr.startswith(b"error: ")


@pytest.mark.parametrize("data", [b"", b"\xff" * 8, struct.pack("<Q", 100) + b"{}", struct.pack("<Q", 2) + b"[]"])
def test_a_damaged_header_is_refused(inline, tmp_path, data):
    folder = write_checkpoint(tmp_path / "bad")
    (folder / "model.safetensors").write_bytes(data)
    assert inline("plan", "-m", folder).returncode == 3


def shard(folder, name, shapes, kind="BF16"):
    header = {key: {"dtype": kind, "shape": shape, "data_offsets": [0, 0]} for key, shape in shapes.items()}
    text = json.dumps(header).encode()
    (folder / name).write_bytes(struct.pack("<Q", len(text)) + text)


def write_index(folder, weights):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))


LAYERS = {f"model.layers.{layer}.self_attn.q_proj.weight": [64, 64] for layer in range(2)}


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        (dict(zip(LAYERS, ("a.safetensors", "b.safetensors"), strict=True)), "1 of 2 are missing, the first is b.safe"),
        (dict.fromkeys((*LAYERS, "x"), "a.safetensors"), "1 of 3 are missing, the first is 'x'"),
        ({"x": "../a.safetensors"}, "names the file"),
        ({}, "no weight_map"),
        ({"x": 5}, "names the file"),
    ],
)
def test_an_index_that_does_not_hold_is_refused(inline, tmp_path, weights, reason):
    folder = write_checkpoint(tmp_path / "model")
    shard(folder, "a.safetensors", LAYERS)
    write_index(folder, weights)
    result = inline("plan", "-m", folder)
    assert result.returncode == 3
    assert reason in " ".join(result.stderr.decode().split())


def test_only_files_of_the_index_are_counted(inline, tmp_path):
    folder = write_checkpoint(tmp_path / "model")
    shard(folder, "a.safetensors", LAYERS)
    write_index(folder, dict.fromkeys(LAYERS, "a.safetensors"))
    plan = json.loads(inline("plan", "-m", folder, "--json").stdout)
    assert plan["shape"]["weights_bytes"] == 2 * 64 * 64 // 32 * 20 + 2 * 2048 * 8 * 4 + KEY_CONSTANTS


def test_layers_that_are_missing_are_told(inline, tmp_path):
    result = inline("plan", "-m", write_checkpoint(tmp_path / "model", {"num_hidden_layers": 5}))
    assert result.returncode == 3
    assert "3 of 5 layers are missing, the first is layer 2" in " ".join(result.stderr.decode().split())


def test_a_folder_without_weights_says_which_file_is_missing(inline, tmp_path):
    folder = write_checkpoint(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    result = inline("plan", "-m", folder)
    assert result.returncode == 3
    assert "*.safetensors is missing" in " ".join(result.stderr.decode().split())


PACKED = {f"model.layers.{layer}.mlp.down_proj.qweight": [8, 64] for layer in range(2)}


def test_a_quantised_checkpoint_has_the_size_of_its_configuration(inline, tmp_path):
    folder = write_checkpoint(tmp_path / "model", {"quantization_config": {"bits": 4}})
    shard(folder, "model.safetensors", PACKED, "I32")
    plan = json.loads(inline("plan", "-m", folder, "--json").stdout)
    layer = (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 128) // 32 * 20 + 2 * 64 * 4
    assert plan["shape"]["weights_bytes"] == 320 * 64 // 32 * 34 + 2 * layer + 64 * 4 + 2 * 2048 * 8 * 4 + KEY_CONSTANTS
    assert any("quantised already" in note for note in plan["notes"])


def test_experts_are_counted_or_refused(inline, tmp_path):
    experts = {"num_local_experts": 8}
    note = json.loads(inline("plan", "-m", write_checkpoint(tmp_path / "one", experts), "--json").stdout)["notes"]
    assert any("mixture of 8 experts" in text for text in note)
    folder = write_checkpoint(tmp_path / "two", experts)
    shard(folder, "model.safetensors", PACKED, "I32")
    assert inline("plan", "-m", folder).returncode == 3


@pytest.mark.parametrize(
    ("config", "windows"),
    [
        ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 1}, 1),
        ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 2}, 0),
        ({"model_type": "qwen2", "use_sliding_window": False, "max_window_layers": 0}, 0),
        ({"model_type": "qwen2", "max_window_layers": 0}, 0),
        ({"model_type": "mistral"}, 2),
        ({"model_type": "gemma2"}, 1),
        ({"model_type": "other", "sliding_window_pattern": 2}, 1),
    ],
)
def test_windows_are_those_of_the_layers_that_have_one(inline, tmp_path, config, windows):
    folder = write_checkpoint(tmp_path / "model", {"sliding_window": 256, **config})
    assert json.loads(inline("plan", "-m", folder, "--json").stdout)["shape"]["window_layers"] == windows


def test_plans_for_another_machine_offer_plans_for_it(inline, native_package):
    text = inline("plan", "-m", native_package, "--device", "rpi5-8gb", "--memory", "1GiB").stdout.decode()
    commands = [line for line in text.splitlines() if line.startswith("  edge-rt ")]
    assert commands
    for command in commands:
        assert command.startswith("  edge-rt plan -m ")
        assert command.endswith("--device rpi5-8gb")
        assert inline("plan", *shlex.split(command)[2:]).returncode == 0


def test_presets_stand_for_other_machines(inline, native_package):
    shown = inline("plan", "--device", "list").stdout.decode()
    assert "rpi5-8gb" in shown
    plan = json.loads(inline("plan", "-m", native_package, "--device", "rpi5-8gb", "--json").stdout)
    assert plan["budget_bytes"] == 6_900_000_000
    assert plan["device"]["name"] == "rpi5-8gb"
    documents = json.loads(inline("plan", "--device", "list", "--json").stdout)
    assert all(len(entry["evidence"]["bandwidth_gb_s"]) == 2 for entry in documents["presets"])


@pytest.mark.parametrize(
    "flags",
    [
        ("--device", "abacus"), ("--memory", "much"), ("--ctx", "1"), ("--kv-type", "int3"), ("--spec", "magic"),
        ("--spec", "off", "--draft-max", "3"), ("--draft-max", "0"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_a_usage_error(inline, native_package, flags):
    assert inline("plan", "-m", native_package, *flags).returncode == 2


def test_a_model_that_is_not_here_is_told(inline):
    result = inline("plan", "-m", "smollm2-135m-instruct")
    assert result.returncode == 3
    assert b"edge-rt pull" in result.stderr


def test_nothing_heavy_is_imported_for_a_package(native_package, cli_env):
    program = (
        "import sys; from edge_rt.cli.main import main; "
        f"code = main(['plan', '-m', {str(native_package)!r}, '--json']); "
        "print(sorted({'numpy', 'onnxruntime', 'tokenizers', 'onnx'} & set(sys.modules)), code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=cli_env, check=True)
    assert done.stdout.splitlines()[-1] == "[] 0"


def test_doctor_measures_this_machine_and_keeps_it(cli, tmp_path):
    facts = json.loads(cli("doctor", "--save-profile", "--profile-name", "bench-1", "--json").stdout)
    saved = json.loads(Path(facts["profile"]).read_text())
    assert saved["name"] == "bench-1"
    assert saved["is_measured"] is True
    assert saved["bandwidth"] > 1e8
    assert 20 << 20 < saved["base_bytes"] < 200 << 20
    listed = json.loads(cli("plan", "--device", "list", "--json").stdout)
    assert [entry["name"] for entry in listed["saved"]] == ["bench-1"]


@pytest.mark.parametrize("name", ["../x", "list", "rpi5-8gb"])
def test_doctor_refuses_a_name_before_it_measures(inline, name):
    assert inline("doctor", "--save-profile", "--profile-name", name).returncode == 2


def test_doctor_refuses_a_name_for_nothing(inline):
    assert inline("doctor", "--profile-name", "mine").returncode == 2


def test_a_small_saved_base_does_not_lower_the_minimum(cli, native_package):
    flags = ("plan", "-m", native_package, "--json")
    before = json.loads(cli(*flags).stdout)["minimum_bytes"]
    path = Path(json.loads(cli("doctor", "--save-profile", "--json").stdout)["profile"])
    path.write_text(json.dumps({**json.loads(path.read_text()), "base_bytes": 10 << 20}))
    after = json.loads(cli(*flags).stdout)
    assert after["device"]["is_measured"] is True
    # Resident memory is not the same to the page in two processes.
    assert after["minimum_bytes"] >= before - (1 << 20)


def test_flags_that_a_portable_package_does_not_use_are_named(inline, small_package):
    command = ("plan", "-m", small_package, "--draft-max", "5")
    said = "speculation is off (auto, op profile portable): not used: --draft-max."
    shown = inline(*command)
    assert said in shown.stderr.decode()
    assert "--draft-max" not in shown.stdout.decode()
    assert said in json.loads(inline(*command, "--json").stdout)["notes"]
    assert said not in json.loads(inline(*command, "--spec", "suffix", "--json").stdout)["notes"]


def test_a_folder_is_no_corpus(inline, native_package, tmp_path):
    result = inline("plan", "-m", native_package, "--corpus", tmp_path, "--json")
    assert result.returncode == 6
    assert "Is a directory" in json.loads(result.stdout)["error"]["numbers"]
