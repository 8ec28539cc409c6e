"""Plans for checkpoints: exact where an export would succeed, else estimated, with a note."""

from __future__ import annotations

import json
import struct

import pytest

from edge_rt import load
from edge_rt.package.reader import open_package
from tests.helpers.family_cases import load_case, write_gguf
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.gguf_split import split
from tests.helpers.hf_factory import write_hf_folder
from tests.helpers.native_profile import require_native
from tests.helpers.packed_factory import write_packed_folder

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


def test_a_gguf_file_is_planned_as_its_package_is(inline, small_gguf, native_package):
    ahead = json.loads(inline("plan", "-m", small_gguf, "--device", "generic", "--json").stdout)
    after = json.loads(inline("plan", "-m", native_package, "--device", "generic", "--json").stdout)
    manifest = open_package(native_package).manifest
    assert ahead["is_estimate"] is True
    assert ahead["shape"]["weights_bytes"] == manifest.files["weights.bin"].size
    assert ahead["shape"]["tokenizer_bytes"] == manifest.files["tokenizer.json"].size
    assert ahead["terms"] == after["terms"]


@pytest.mark.parametrize("files", [1, 3])
def test_a_folder_is_planned_as_its_package_is(inline, hf_model, tmp_path, files):
    require_native()
    folder = write_hf_folder(tmp_path / "m", hf_model, files=files)
    ahead = inline("plan", "-m", f"{folder}/", "--device", "generic", "--json")
    assert inline("export", "-m", folder, "--out", tmp_path / "package").returncode == 0
    manifest = open_package(tmp_path / "package").manifest
    plan = json.loads(ahead.stdout)
    assert all("4 bits" in note for note in plan["notes"])
    assert plan["shape"]["weights_bytes"] == manifest.files["weights.bin"].size
    assert plan["shape"]["tokenizer_bytes"] == manifest.files["tokenizer.json"].size
    after = json.loads(inline("plan", "-m", tmp_path / "package", "--device", "generic", "--json").stdout)
    assert plan["terms"] == after["terms"]
    assert "edge-rt chat -m" in inline("plan", "-m", folder).stdout.decode()


def test_a_plan_says_that_floats_become_4_bits_and_takes_another_choice(inline, hf_model, tmp_path):
    folder = write_hf_folder(tmp_path / "m", hf_model)
    command = ("plan", "-m", folder, "--device", "generic", "--json")
    usual = json.loads(inline(*command).stdout)
    assert any("An export makes 4 bits of these floats" in note for note in usual["notes"])
    sizes = []
    for name in ("int4", "int8", "f16", "keep"):
        chosen = json.loads(inline(*command, "--weights", name).stdout)
        assert not any("4 bits" in note for note in chosen["notes"])
        sizes.append(chosen["shape"]["weights_bytes"])
    assert sizes[0] == usual["shape"]["weights_bytes"]
    assert sizes == sorted(set(sizes))
    assert inline(*command, "--weights", "int5").returncode == 2


def test_the_weights_of_a_package_are_not_chosen(inline, small_package):
    result = inline("plan", "-m", small_package, "--weights", "int8")
    assert (result.returncode, b"--weights is for checkpoints" in result.stderr) == (2, True)


def test_a_split_file_is_planned_as_the_whole_one(inline, small_gguf, tmp_path):
    parts = split(small_gguf, tmp_path, 2)
    command = ("plan", "--device", "generic", "--json", "-m")
    whole = json.loads(inline(*command, small_gguf).stdout)
    for part in (*parts, tmp_path):
        assert json.loads(inline(*command, part).stdout)["terms"] == whole["terms"]
    parts[1].unlink()
    refused = inline(*command, parts[0])
    assert (refused.returncode, b"m-00002-of-00002.gguf" in refused.stdout) == (3, True)


@pytest.mark.parametrize("change", [{"clip_qkv": 8.0}, {"hidden_act": "gelu"}])
def test_a_variant_that_cannot_run_is_planned_from_headers_alone(inline, tmp_path, change):
    folder = write_checkpoint(tmp_path / "org-model", change)
    text = inline("plan", "-m", folder).stdout.decode()
    assert "edge-rt plan -m" in text
    assert "edge-rt generate" not in text
    plan = json.loads(inline("plan", "-m", folder, "--json").stdout)
    # 8 bits: 34 bytes for 32 elements; 4 bits with scale and minimum: 20. Then norms, rotations, constants of keys.
    weights = 320 * 64 // 32 * 34 + 2 * (64 * 64 + 64 * 128) // 32 * 20 + 64 * 4 + 2 * 2048 * 8 * 4 + KEY_CONSTANTS
    assert plan["shape"]["weights_bytes"] == weights
    assert any("Estimated from headers" in note for note in plan["notes"])
    assert any("cannot run this model yet" in note and next(iter(change)) in note for note in plan["notes"])


def test_a_tokenizer_that_cannot_be_read_is_said(inline, hf_model, tmp_path):
    folder = write_hf_folder(tmp_path / "m", hf_model)
    (folder / "tokenizer.json").unlink()
    plan = json.loads(inline("plan", "-m", folder, "--json").stdout)
    assert any("cannot run this model yet: m has no tokenizer.json" in note for note in plan["notes"])


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
    ("config", "text"),
    [
        ({"model_type": "gpt2", "hidden_size": None}, "'gpt2' is not supported. m/config.json: the size"),
        ({"model_type": "bert"}, "m is an encoder; edge-rt runs decoders"),
    ],
)
def test_what_cannot_be_sized_is_refused_for_what_it_is(inline, tmp_path, config, text):
    result = inline("plan", "-m", write_checkpoint(tmp_path / "m", config))
    assert (result.returncode, text in result.stderr.decode()) == (3, True)


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
    folder = write_checkpoint(tmp_path / "model", {"model_type": "novel"})
    shard(folder, "a.safetensors", LAYERS)
    write_index(folder, weights)
    result = inline("plan", "-m", folder)
    assert result.returncode == 3
    assert reason in " ".join(result.stderr.decode().split())


def test_only_files_of_the_index_are_counted(inline, tmp_path):
    folder = write_checkpoint(tmp_path / "model", {"model_type": "novel"})
    shard(folder, "a.safetensors", LAYERS)
    write_index(folder, dict.fromkeys(LAYERS, "a.safetensors"))
    plan = json.loads(inline("plan", "-m", folder, "--json").stdout)
    assert plan["shape"]["weights_bytes"] == 2 * 64 * 64 // 32 * 20 + 2 * 2048 * 8 * 4 + KEY_CONSTANTS


def test_layers_that_are_missing_are_told(inline, tmp_path):
    result = inline("plan", "-m", write_checkpoint(tmp_path / "model", {"model_type": "novel", "num_hidden_layers": 5}))
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
    folder = write_checkpoint(tmp_path / "model", {"quantization_config": {"quant_method": "novel"}})
    shard(folder, "model.safetensors", PACKED, "I32")
    plan = json.loads(inline("plan", "-m", folder, "--json").stdout)
    layer = (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 128) // 32 * 20 + 2 * 64 * 4
    assert plan["shape"]["weights_bytes"] == 320 * 64 // 32 * 34 + 2 * layer + 64 * 4 + 2 * 2048 * 8 * 4 + KEY_CONSTANTS
    assert any("quantised already, in a form that edge-rt does not read" in note for note in plan["notes"])


def test_a_quantised_checkpoint_that_is_read_has_exact_sizes(inline, tmp_path):
    require_native()
    sizes = {"layers": 2, "hidden": 128, "heads": 4, "kv_heads": 2, "ffn": 256}
    model = write_llama_gguf(tmp_path / "m.gguf", weight_type="F32", embedding_type="F32", **sizes)
    folder = tmp_path / "m"
    write_packed_folder(folder, model, "gptq")
    ahead = json.loads(inline("plan", "-m", folder, "--device", "generic", "--json").stdout)
    assert not any("quantised already" in note or "4 bits" in note for note in ahead["notes"])
    assert inline("export", "-m", folder, "--out", tmp_path / "p", "--calibration", "none").returncode == 0
    constants = ahead["shape"]["weights_bytes"] - (tmp_path / "p" / "weights.bin").stat().st_size
    # The plan counts the constants of 4-bit keys, which this package was asked to leave out.
    assert 0 < constants < 1 << 20


def test_a_packed_variant_that_cannot_run_is_not_called_unreadable(inline, tmp_path):
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
    folder = write_checkpoint(tmp_path / "model", {"quantization_config": settings, "hidden_act": "gelu"})
    shard(folder, "model.safetensors", PACKED, "I32")
    notes = json.loads(inline("plan", "-m", folder, "--json").stdout)["notes"]
    assert any("quantised already: sizes are those of a usual model" in note for note in notes)


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
    # Variants that cannot be exported are planned from their headers alone.
    folder = write_checkpoint(tmp_path / "model", {"sliding_window": 256, "clip_qkv": 8.0, **config})
    assert json.loads(inline("plan", "-m", folder, "--json").stdout)["shape"]["window_layers"] == windows


@pytest.mark.parametrize(
    ("ctx", "text", "kind"), [(16, "for contexts of up to 16", "short"), (96, "for contexts longer than 16", "long")]
)
def test_a_plan_says_which_rotation_a_context_gets(inline, tmp_path, ctx, text, kind):
    path = write_gguf(tmp_path / "m.gguf", load_case("phi3_partial"))
    assert f"{text} tokens" in inline("plan", "-m", path, "--ctx", ctx).stdout.decode()
    made = inline("export", "-m", path, "--out", tmp_path / "package", "--profile", "portable")
    assert (made.returncode, b"Load it with --ctx 16 for short texts" in made.stderr) == (0, True)
    asked = inline("generate", "-m", tmp_path / "package", "--raw", "-p", "a", "-n", "1", "--ctx", ctx)
    assert (b"rotates short texts like long ones" in asked.stderr) == (kind == "long")
    with load(tmp_path / "package", ctx=ctx) as model:
        assert model.describe()["rotation"] == kind
