from __future__ import annotations

import json
import shlex
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from edge_rt.package import open_package

KEYS = {"fits", "budget_bytes", "total_bytes", "minimum_bytes", "terms", "choice", "alternatives"}
TERMS = [
    "runtime", "tokenizer", "weights", "session", "kv_cache", "activations", "logits", "sampling", "drafters",
]  # fmt: skip
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 320,
    "max_position_embeddings": 2048, "tie_word_embeddings": True,
}  # fmt: skip


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
    result = inline("plan", "-m", native_package, "--memory", "10MiB", "--json")
    plan = json.loads(result.stdout)
    assert (result.returncode, plan["fits"]) == (4, False)
    flags = plan["alternatives"][0]["flags"]
    again = inline("plan", "-m", native_package, *flags, "--json")
    assert again.returncode == 0
    assert json.loads(again.stdout)["total_bytes"] == plan["alternatives"][0]["total_bytes"]


def test_the_table_names_every_part_and_commands_to_type(inline, native_package):
    result = inline("plan", "-m", native_package, "--memory", "1GiB")
    text = result.stdout.decode()
    for word in (*TERMS, "total", "budget", "smallest budget that works", "tokens per second"):
        assert word in text
    commands = [line for line in text.splitlines() if line.startswith("  edge-rt generate -m ")]
    assert commands
    for command in commands:
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
    plan = json.loads(inline("plan", "-m", folder, "--json").stdout)
    # 8 bits: 34 bytes for 32 elements; 4 bits with scale and minimum: 20. Then norms and rotations.
    weights = 320 * 64 // 32 * 34 + 2 * (64 * 64 + 64 * 128) // 32 * 20 + 64 * 4 + 2 * 2048 * 8 * 4
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
        "import sys; from edge_rt.cli.main import run; "
        f"code = run(['plan', '-m', {str(native_package)!r}, '--json']); "
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


def test_doctor_refuses_a_name_before_it_measures(inline):
    assert inline("doctor", "--save-profile", "--profile-name", "../x").returncode == 2
