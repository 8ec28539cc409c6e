"""Whole models with 4-bit matrices of safetensors folders, in both op profiles."""

from __future__ import annotations

import json

import numpy as np
import onnxruntime
import pytest

from edge_rt.errors import UnsupportedModel
from edge_rt.export import export_model
from edge_rt.package.reader import open_package
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.graphs import package_logits
from tests.helpers.models import load_package
from tests.helpers.native_profile import require_native
from tests.helpers.packed_factory import (
    SETTINGS,
    WRITERS,
    random_matrix,
    write_float_folder,
    write_packed_folder,
)

SIZES = {"layers": 3, "hidden": 128, "heads": 4, "kv_heads": 2, "ffn": 256}
FLOATS = {"weight_type": "F32", "embedding_type": "F32", "output_type": "F32", "tied": False}
TOKEN_IDS = [(7 * i) % 419 for i in range(30)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_llama_gguf(tmp_path_factory.mktemp("m") / "m.gguf", **SIZES, **FLOATS)


def with_group(name, group):
    """Return settings with another size of groups."""
    return json.loads(json.dumps(SETTINGS[name]).replace('"group_size": 128', f'"group_size": {group}'))


def logits(path, profile):
    assert open_package(path).manifest.op_profile == profile
    return package_logits(path, TOKEN_IDS)


def apart(found, expected):
    """Return the size of the difference over that of what is expected; rounding activations makes it about 0.015."""
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("profile", ["native", "portable"])
def test_an_export_passes_its_check(name, profile, model, tmp_path):
    """The check compares the graph with a forward of the folder's own values; the native one step by step."""
    if profile == "native":
        require_native()
    write_packed_folder(tmp_path / "m", model, name)
    result = export_model(tmp_path / "m", tmp_path / "package", profile=profile, calibration=None)
    manifest = open_package(tmp_path / "package").manifest
    assert manifest.quantisation == {
        "embedding": "F32", "attention": "W4Z128", "feed_forward": "W4Z128", "head": "F32",
    }  # fmt: skip
    if profile == "native":
        assert result.check[-1].steps.largest < 1.1
    with load_package(tmp_path / "package") as loaded:
        assert len(loaded.generate("the sea", max_tokens=5, temperature=0.0).token_ids) > 0


@pytest.mark.parametrize("group", [32, 64, 96, -1])
def test_groups_of_every_size(group, tmp_path):
    """96 inputs are three units of 32; a whole row of 192 is three of 64."""
    require_native()
    model = write_llama_gguf(tmp_path / "m.gguf", **{**SIZES, "hidden": 192, "ffn": 384}, **FLOATS)
    packed = write_packed_folder(
        tmp_path / "m", model, "gptq", settings=with_group("gptq", group), group=group if group > 0 else 1 << 20
    )
    results = {
        profile: export_model(tmp_path / "m", tmp_path / profile, profile=profile, calibration=None)
        for profile in ("native", "portable")
    }
    assert results["native"].check[-1].steps.largest < 1.1
    types = {32: {"W4Z32"}, 64: {"W4Z64"}, 96: {"W4Z32"}, -1: {"W4Z64", "W4Z64+W4Z128"}}[group]
    manifest = open_package(tmp_path / "native").manifest
    assert {manifest.quantisation["attention"], manifest.quantisation["feed_forward"]} == types
    floats = write_float_folder(tmp_path / "f", model, packed)
    export_model(floats, tmp_path / "floats", profile="portable", weights="keep")
    assert apart(logits(tmp_path / "native", "native"), logits(tmp_path / "floats", "portable")) < 0.05


def test_inputs_of_down_in_the_order_of_importance(model, tmp_path):
    """Their moves, and those of the rows of gate and up, do not show in the logits."""
    require_native()
    rng, settings = np.random.default_rng(7), SETTINGS["gptq"] | {"desc_act": True}
    matrices = {
        f"model.layers.{layer}.mlp.down_proj": random_matrix(
            rng, 128, 256, 128, zeros=(1, 15), order=rng.permutation(256)
        )
        for layer in range(3)
    }
    packed = write_packed_folder(tmp_path / "m", model, "gptq", matrices=matrices, settings=settings)
    folder = write_float_folder(tmp_path / "f", model, packed)
    export_model(folder, tmp_path / "floats", profile="portable", activations="float", weights="keep")
    export_model(tmp_path / "m", tmp_path / "portable", profile="portable", activations="float")
    result = export_model(tmp_path / "m", tmp_path / "native", profile="native", calibration=None)
    expected = logits(tmp_path / "floats", "portable")
    assert result.check[-1].steps.largest < 1.1
    found = logits(tmp_path / "portable", "portable")
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * np.abs(expected).max())
    assert apart(logits(tmp_path / "native", "native"), expected) < 0.05


@pytest.mark.parametrize("profile", ["native", "portable"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_packed_embedding_and_head(tied, profile, tmp_path):
    if profile == "native":
        require_native()
    elif tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 27):
        pytest.skip("this ONNX Runtime gathers embeddings with zero points wrongly; the export's check refuses them")
    model = write_llama_gguf(tmp_path / "m.gguf", **SIZES, **{**FLOATS, "tied": tied})
    rng, tensors = np.random.default_rng(8), {}
    for prefix in ("model.embed_tokens.",) if tied else ("model.embed_tokens.", "lm_head."):
        matrix = random_matrix(rng, model.config["vocab"], 128, 128, zeros=(0, 15))
        parts = WRITERS["compressed-tensors"](matrix)
        tensors |= {prefix + "weight": None, **{prefix + suffix: part for suffix, part in parts.items()}}
    write_packed_folder(tmp_path / "m", model, "compressed-tensors", tensors=tensors)
    export_model(tmp_path / "m", tmp_path / "package", profile=profile, calibration=None)
    assert set(open_package(tmp_path / "package").manifest.quantisation.values()) == {"W4Z128"}


@pytest.mark.parametrize("profile", ["native", "portable"])
def test_matrices_that_are_left_out_stay_floats(profile, model, tmp_path):
    if profile == "native":
        require_native()
    floats = ("model.layers.0.self_attn.k_proj", "model.layers.1.mlp.up_proj", "model.layers.2.mlp.down_proj")
    write_packed_folder(tmp_path / "m", model, "awq", floats=floats)
    export_model(tmp_path / "m", tmp_path / "package", profile=profile, calibration=None)
    assert open_package(tmp_path / "package").manifest.quantisation["feed_forward"] == "W4Z128+F32"


def test_a_zero_point_of_16_needs_the_native_profile(model, tmp_path):
    matrix = random_matrix(np.random.default_rng(9), 128, 128, 128, zeros=(16, 16))
    write_packed_folder(tmp_path / "m", model, "gptq", matrices={"model.layers.1.self_attn.q_proj": matrix})
    with pytest.raises(UnsupportedModel, match=r"It is 16, they take 0 to 15\. Export with --profile native"):
        export_model(tmp_path / "m", tmp_path / "package", profile="portable")
    assert not (tmp_path / "package").exists()
    require_native()
    export_model(tmp_path / "m", tmp_path / "package", profile="native", calibration=None)


def test_scales_that_are_not_exact_leave_nothing_behind(model, tmp_path):
    scales = ("F32", np.full((128, 1), 0.1, np.float32))
    name = "model.layers.1.self_attn.q_proj.weight_scale"
    write_packed_folder(tmp_path / "m", model, "compressed-tensors", tensors={name: scales})
    with pytest.raises(UnsupportedModel, match="128 of 128 are not exact in float16"):
        export_model(tmp_path / "m", tmp_path / "package")
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
