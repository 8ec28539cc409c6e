"""Plans for checkpoints: the sizes that an export gives, or its refusal."""

from __future__ import annotations

import json

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


def check_terms(ahead, after):
    """All are the same but activations: the export measures how many blocks of them have 16 bits, a plan guesses."""
    names = ("activations",)
    assert {k: v for k, v in ahead.items() if k not in names} == {k: v for k, v in after.items() if k not in names}
    assert 0.98 * ahead["activations"] <= after["activations"] <= ahead["activations"]


def test_a_gguf_file_is_planned_as_its_package_is(inline, small_gguf, native_package):
    flags = ("--device", "generic", "--kv-type", "f16", "--json")
    ahead, after = (json.loads(inline("plan", "-m", one, *flags).stdout) for one in (small_gguf, native_package))
    manifest = open_package(native_package).manifest
    assert ahead["is_estimate"] is True
    assert ahead["shape"]["weights_bytes"] == manifest.files["weights.bin"].size
    assert ahead["shape"]["tokenizer_bytes"] == manifest.files["tokenizer.json"].size
    check_terms(ahead["terms"], after["terms"])


@pytest.mark.parametrize("files", [1, 3])
def test_a_folder_is_planned_as_its_package_is(inline, hf_model, tmp_path, files):
    require_native()
    folder = write_hf_folder(tmp_path / "m", hf_model, files=files)
    flags = ("--device", "generic", "--kv-type", "f16", "--json")
    ahead = inline("plan", "-m", f"{folder}/", *flags)
    assert inline("export", "-m", folder, "--out", tmp_path / "package").returncode == 0
    manifest = open_package(tmp_path / "package").manifest
    plan = json.loads(ahead.stdout)
    assert all("4 bits" in note for note in plan["notes"])
    assert plan["shape"]["weights_bytes"] == manifest.files["weights.bin"].size
    assert plan["shape"]["tokenizer_bytes"] == manifest.files["tokenizer.json"].size
    after = json.loads(inline("plan", "-m", tmp_path / "package", *flags).stdout)
    check_terms(plan["terms"], after["terms"])
    shown = inline("plan", "-m", folder).stdout.decode()
    assert "edge-rt chat -m" in shown
    assert "f16; an export measures whether int8 is the package's default" in shown


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


SETTINGS = {"quant_method": "novel"}


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"clip_qkv": 8.0}, "clip_qkv"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"model_type": "novel"}, "the architecture 'novel' is not supported"),
        ({"model_type": "bert"}, "m is an encoder; edge-rt runs decoders"),
        ({"quantization_config": SETTINGS}, "novel"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"hidden_size": None}, "hidden_size"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_attention_heads": "many"}, "num_attention_heads"),
    ],
)
def test_what_cannot_be_exported_is_refused_as_an_export_refuses_it(inline, tmp_path, config, text):
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**LLAMA, **config}))
    (folder / "model.safetensors").write_bytes(b"")
    planned = inline("plan", "-m", folder)
    exported = inline("export", "-m", folder, "--out", tmp_path / "p", "--dry-run")
    assert (planned.returncode, exported.returncode) == (3, 3)
    assert text in planned.stderr.decode()
    assert planned.stderr == exported.stderr


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
