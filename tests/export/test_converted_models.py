"""Whole models whose weights are stored in fewer bits and converted through float, in both op profiles."""

from __future__ import annotations

import functools
import json

import numpy as np
import pytest

from edge_rt.errors import InvalidModelFile
from edge_rt.export import export_model
from edge_rt.export.entry import plan_export
from edge_rt.package.reader import open_package
from tests.helpers.converted_factory import (
    MLX_SETTINGS,
    SETTINGS,
    WRITERS,
    float8,
    mlx,
    write_converted_folder,
    write_float_folder,
)
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.graphs import package_logits
from tests.helpers.models import load_package
from tests.helpers.native_profile import require_native

SIZES = {"layers": 2, "hidden": 128, "heads": 4, "kv_heads": 2, "ffn": 256}
FLOATS = {"weight_type": "F32", "embedding_type": "F32", "output_type": "F32", "tied": False}
TOKEN_IDS = [(7 * i) % 419 for i in range(30)]
WORD = {
    **dict.fromkeys(("fp8", "fp8 of tensors", "compressed-tensors"), "weights are FP8: they are"),
    "nf4": "weights are bitsandbytes nf4: they are",
    "fp4": "weights are bitsandbytes fp4: they are",
    "mlx of 8 bits": "MLX weights of 8 bits are",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_llama_gguf(tmp_path_factory.mktemp("m") / "m.gguf", **SIZES, **FLOATS)


def logits(path, profile):
    assert open_package(path).manifest.op_profile == profile
    return package_logits(path, TOKEN_IDS)


@pytest.mark.parametrize("name", SETTINGS)
def test_an_export_makes_4_bits_of_it_and_says_so(name, model, tmp_path):
    require_native()
    write_converted_folder(tmp_path / "m", model, name)
    ahead = plan_export(tmp_path / "m", tmp_path / "package", profile="native")
    result = export_model(tmp_path / "m", tmp_path / "package", profile="native", calibration=None, accept_loss=True)
    expected = f"The checkpoint's {WORD[name]} converted through float."
    for warnings in (ahead.warnings, result.warnings):
        assert sum(text.startswith(expected) for text in warnings) == 1
    manifest = open_package(tmp_path / "package").manifest
    assert (ahead.choice, manifest.weights.choice) == ("int4", "int4")
    assert manifest.quantisation["embedding"] == "Q8_0"
    assert "IQ4_NL" in manifest.quantisation["attention"]
    assert ahead.classes["attention"].types == manifest.weights.classes["attention"].types
    with load_package(tmp_path / "package") as loaded:
        assert len(loaded.generate("the sea", max_tokens=5, temperature=0.0).token_ids) > 0


@pytest.mark.parametrize(
    ("profile", "weights"),
    [
        *(("native", weights) for weights in ("keep", "int4", "int8", "f16", "f32")),
        ("portable", "keep"),
        ("portable", "int4"),
    ],
)
def test_a_package_is_that_of_the_folder_with_floats(weights, profile, model, tmp_path):
    """Byte by byte, but for what the manifest says of its origin."""
    if profile == "native":
        require_native()
    written = write_converted_folder(tmp_path / "m", model, "fp8")
    write_float_folder(tmp_path / "f", model, written)
    for folder in ("m", "f"):
        export_model(
            tmp_path / folder,
            tmp_path / f"p{folder}",
            profile=profile,
            weights=weights,
            calibration=None,
            accept_loss=True,
        )
    for file in ("weights.bin", "model.onnx"):
        assert (tmp_path / "pm" / file).read_bytes() == (tmp_path / "pf" / file).read_bytes()
    both = [json.loads((tmp_path / package / "manifest.json").read_text()) for package in ("pm", "pf")]
    for manifest in both:
        manifest.pop("source")
        manifest["decoder"].pop("name")
        manifest["files"].pop("manifest.json", None)
    assert both[0] == both[1]


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("profile", ["native", "portable"])
def test_kept_weights_pass_the_check(name, profile, model, tmp_path):
    if profile == "native":
        require_native()
    write_converted_folder(tmp_path / "m", model, name, also=("model.embed_tokens", "lm_head"))
    result = export_model(tmp_path / "m", tmp_path / "package", profile=profile, weights="keep")
    assert set(open_package(tmp_path / "package").manifest.quantisation.values()) == {"F32"}
    assert result.disk_bytes <= result.predicted_disk_bytes
    if profile == "native":
        assert result.check[-1].steps.largest < 1.1


@pytest.mark.parametrize("profile", ["native", "portable"])
def test_powers_of_two_are_kept_in_two_bytes(profile, model, tmp_path):
    if profile == "native":
        require_native()
    weights = write_converted_folder(
        tmp_path / "m", model, "fp8", floats=("model.layers.1.mlp.up_proj",),
        write=lambda values: float8(values, powers=True),
    )  # fmt: skip
    export_model(tmp_path / "m", tmp_path / "package", profile=profile, weights="keep")
    found = open_package(tmp_path / "package").manifest.quantisation
    assert (found["attention"], found["feed_forward"]) == ("BF16", "BF16+F32")
    write_float_folder(tmp_path / "f", model, weights)
    export_model(tmp_path / "f", tmp_path / "floats", profile=profile, weights="keep")
    expected = logits(tmp_path / "floats", profile)
    np.testing.assert_allclose(
        logits(tmp_path / "package", profile), expected, rtol=0, atol=2e-5 * np.abs(expected).max()
    )


def test_a_code_that_is_no_number_leaves_nothing_behind(model, tmp_path):
    parts, _ = WRITERS["fp8"](np.ones((128, 128), np.float32))
    parts["weight"][1][100, 3] = 0x7F
    name = "model.layers.1.self_attn.q_proj"
    write_converted_folder(
        tmp_path / "m", model, "fp8", tensors={f"{name}.{suffix}": part for suffix, part in parts.items()}
    )
    for weights in ("keep", "int8"):
        with pytest.raises(InvalidModelFile, match=r"'blk\.1\.attn_q\.weight' holds a value that is not finite"):
            export_model(tmp_path / "m", tmp_path / "package", weights=weights)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


class TestMLX:
    """Matrices of 4 bits are what GGUF calls Q4_1."""

    @pytest.mark.parametrize("profile", ["native", "portable"])
    @pytest.mark.parametrize("tied", [True, False])
    def test_an_export_keeps_4_bits(self, tied, profile, tmp_path):
        if profile == "native":
            require_native()
        model = write_llama_gguf(tmp_path / "m.gguf", **SIZES, **{**FLOATS, "tied": tied})
        ends = ("model.embed_tokens",) if tied else ("model.embed_tokens", "lm_head")
        weights = write_converted_folder(
            tmp_path / "m", model, "mlx", also=ends, settings=MLX_SETTINGS, write=functools.partial(mlx, dtype="F16")
        )
        assert len(weights) == 14 + len(ends)
        result = export_model(tmp_path / "m", tmp_path / "package", profile=profile)
        assert not any("MLX" in text for text in result.warnings)
        manifest = open_package(tmp_path / "package").manifest
        assert set(manifest.quantisation.values()) == {"Q4_1"}
        assert manifest.weights is None
        if profile == "native":
            assert result.check[-1].steps.largest < 1.1
        with load_package(tmp_path / "package") as loaded:
            assert len(loaded.generate("the sea", max_tokens=5, temperature=0.0).token_ids) > 0

    @pytest.mark.parametrize("profile", ["native", "portable"])
    def test_only_matrices_that_are_not_exact_are_converted(self, profile, model, tmp_path):
        if profile == "native":
            require_native()
        name = "model.layers.1.mlp.up_proj"
        parts, _ = mlx(np.random.default_rng(0).standard_normal((256, 128)).astype(np.float32), dtype="F32")
        tensors = {f"{name}.{suffix}": part for suffix, part in parts.items()}
        write_converted_folder(tmp_path / "m", model, "mlx", settings=MLX_SETTINGS, write=mlx, tensors=tensors)
        result = export_model(tmp_path / "m", tmp_path / "package", profile=profile)
        assert sum("not exact in float16: these matrices are converted" in text for text in result.warnings) == 1
        assert open_package(tmp_path / "package").manifest.quantisation["feed_forward"] == "Q4_1+F32"
