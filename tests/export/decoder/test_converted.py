"""Folders in FP8 and bitsandbytes: which tensors make a matrix, what stays a float, and what is said of it."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from edge_rt.errors import EdgeRTError, InvalidModelFile, UnsupportedModel
from edge_rt.export.entry import open_checkpoint
from edge_rt.export.sources.compound import ConvertedTensor
from edge_rt.export.sources.model_file import TensorReader
from edge_rt.export.weights.codes import values as values_of
from edge_rt.export.weights.linear import Part
from edge_rt.export.weights.rows import CheckpointRows
from edge_rt.export.weights.tile_formats import tile_format
from tests.helpers.converted_factory import (
    FLOAT8_SETTINGS,
    MLX_SETTINGS,
    SETTINGS,
    WRITERS,
    float8,
    mlx,
    write_converted_folder,
    write_float_folder,
)
from tests.helpers.examples import share_of
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.graphs import matrices_and_logits

SIZES = {"layers": 1, "hidden": 128, "heads": 4, "kv_heads": 2, "ffn": 192}
FLOATS = {"weight_type": "F32", "embedding_type": "F32", "output_type": "F32", "tied": False}
QUERY, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_llama_gguf(tmp_path_factory.mktemp("m") / "m.gguf", **SIZES, **FLOATS)


@pytest.mark.parametrize("name", SETTINGS)
def test_weights_are_those_of_the_folder_with_floats(name, model, tmp_path):
    weights = write_converted_folder(tmp_path / "m", model, name, also=("model.embed_tokens", "lm_head"))
    assert len(weights) == 9
    ours, logits = matrices_and_logits(tmp_path / "m")
    expected, wanted = matrices_and_logits(write_float_folder(tmp_path / "floats", model, weights))
    assert ours.keys() == expected.keys()
    for tensor, values in expected.items():
        np.testing.assert_array_equal(ours[tensor], values, err_msg=tensor)
    np.testing.assert_allclose(logits, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_rows_of_a_package_are_the_weights(name, model, tmp_path):
    weights = write_converted_folder(tmp_path / "m", model, name)
    source, _ = open_checkpoint(tmp_path / "m")
    tensor, order = source.tensors["blk.0.ffn_down.weight"], np.random.default_rng(0).permutation(128)
    with TensorReader(source.paths) as reader:
        for row_order in (None, order):
            pieces = list(CheckpointRows(reader).rows(Part(tensor, row_order), multiple=16))
            expected = weights[DOWN] if row_order is None else weights[DOWN][order]
            np.testing.assert_array_equal(np.concatenate([piece for piece, _ in pieces]), expected)
            assert sum(read for _, read in pieces) == tensor.nbytes


def test_powers_of_two_make_bfloat16(model, tmp_path):
    weights = write_converted_folder(tmp_path / "m", model, "fp8", write=lambda values: float8(values, powers=True))
    source, _ = open_checkpoint(tmp_path / "m")
    tensor = source.tensors["blk.0.attn_q.weight"]
    assert tensor.type_name == "BF16"
    with TensorReader(source.paths) as reader:
        ((rows, _),) = CheckpointRows(reader).rows(Part(tensor))
    assert rows.dtype == np.uint16
    np.testing.assert_array_equal((rows.astype(np.uint32) << 16).view(np.float32), weights[QUERY])


def test_mlx_of_4_bits(model, tmp_path):
    """With an embedding of 8 bits and a layer that has groups of its own."""
    layers = {"model.embed_tokens": {"bits": 8, "group_size": 32}, DOWN: {"bits": 4, "group_size": 32}}
    kinds = {(128, 192): {"group": 32}, (419, 128): {"bits": 8, "group": 32}}
    weights = write_converted_folder(
        tmp_path / "m", model, "mlx", also=("model.embed_tokens",), settings=MLX_SETTINGS | layers,
        write=lambda values: mlx(values, **kinds.get(values.shape, {})),
    )  # fmt: skip
    found, logits = matrices_and_logits(tmp_path / "m")
    expected, wanted = matrices_and_logits(write_float_folder(tmp_path / "floats", model, weights))
    for tensor, values in expected.items():
        np.testing.assert_array_equal(found[tensor], values, err_msg=tensor)
    np.testing.assert_allclose(logits, wanted, rtol=0, atol=1e-5)
    source, _ = open_checkpoint(tmp_path / "m")
    assert source.remarks == ("The checkpoint's MLX weights of 8 bits are converted through float.",)
    assert {source.tensors[f"blk.0.{kind}.weight"].type_name for kind in ("attn_q", "ffn_down")} == {"Q4_1"}
    with TensorReader(source.paths) as reader:
        ((rows, read),) = CheckpointRows(reader).rows(Part(source.tensors["blk.0.ffn_down.weight"]))
    assert read == 128 * 192 // 2
    np.testing.assert_array_equal(values_of(rows, tile_format("Q4_1")), weights[DOWN])


def test_matrices_that_are_left_out_stay_floats(model, tmp_path):
    weights = write_converted_folder(tmp_path / "m", model, "fp8", floats=(QUERY, DOWN))
    source, _ = open_checkpoint(tmp_path / "m")
    converted = {name for name, tensor in source.tensors.items() if isinstance(tensor, ConvertedTensor)}
    assert len(weights) == len(converted) == 5
    assert converted.isdisjoint({"blk.0.attn_q.weight", "blk.0.ffn_down.weight"})


class TestRemarks:
    def test_fp8(self, model, tmp_path):
        write_converted_folder(tmp_path / "m", model, "fp8")
        (remark,) = open_checkpoint(tmp_path / "m")[0].remarks
        assert remark == (
            "The checkpoint's weights are FP8: they are converted through float. What it says of activations and "
            "caches in 8 bits is ignored."
        )

    def test_fp8_of_weights_alone(self, model, tmp_path):
        settings = FLOAT8_SETTINGS["fp8"] | {"activation_scheme": None}
        write_converted_folder(tmp_path / "m", model, "fp8", settings=settings)
        remarks = open_checkpoint(tmp_path / "m")[0].remarks
        assert remarks == ("The checkpoint's weights are FP8: they are converted through float.",)

    @pytest.mark.parametrize("kind", ["nf4", "fp4"])
    def test_bitsandbytes(self, kind, model, tmp_path):
        write_converted_folder(tmp_path / "m", model, kind)
        remarks = open_checkpoint(tmp_path / "m")[0].remarks
        assert remarks == (f"The checkpoint's weights are bitsandbytes {kind}: they are converted through float.",)

    def test_none_where_nothing_is_converted(self, model, tmp_path):
        write_converted_folder(tmp_path / "m", model, "fp8", write=lambda values: ({"weight": ("F32", values)}, values))
        assert open_checkpoint(tmp_path / "m")[0].remarks == ()


def test_scales_of_activations_and_caches_are_ignored(model, tmp_path):
    one = ("F32", np.ones(1, np.float32))
    tensors = {f"{QUERY}.input_scale": one, "model.layers.0.self_attn.k_scale": one, f"{DOWN}.activation_scale": one}
    write_converted_folder(tmp_path / "m", model, "fp8 of tensors", tensors=tensors)
    assert len(open_checkpoint(tmp_path / "m")[0].tensors) == 12


WEIGHT, SCALE = f"{QUERY}.weight", ("F32", np.ones(1, np.float32))
FLOATS_AND_SCALES = {"floats": (QUERY,), "tensors": {f"{QUERY}.weight_scale": SCALE}}
SMALL = {f"{QUERY}.{suffix}": part for suffix, part in float8(np.ones((64, 128), np.float32))[0].items()}
SILENT = {"config": {"quantization_config": None}}


@pytest.mark.parametrize(
    ("name", "options", "error", "words"),
    [
        ("fp8 of tensors", FLOATS_AND_SCALES, InvalidModelFile, r"as floats and packed, as .*q_proj\.weight_scale"),
        ("fp8", {"tensors": {f"{WEIGHT}_scale_inv": None}}, InvalidModelFile, "It has 0 tensors of scales"),
        ("fp8", {"tensors": {WEIGHT: None}}, InvalidModelFile, r"q_proj\.weight is missing"),
        ("nf4", {"tensors": {f"{WEIGHT}.absmax": None}}, InvalidModelFile, r"q_proj\.weight\.absmax is missing"),
        ("fp8", {"tensors": SMALL}, InvalidModelFile, r"attn_q\.weight \(128, 64\) instead of \(128, 128\)"),
        ("fp8 of tensors", SILENT, UnsupportedModel, "7 tensors that this architecture does not use"),
        ("fp8", {"tensors": {WEIGHT: ("U8", np.ones((128, 128)))}}, InvalidModelFile, "must be F8_E4M3 with two dim"),
    ],
)
def test_what_does_not_fit(name, options, error, words, model, tmp_path):
    write_converted_folder(tmp_path / "m", model, name, **options)
    with pytest.raises(error, match=words):
        open_checkpoint(tmp_path / "m")


@settings(max_examples=share_of(60))
@given(st.sampled_from(sorted(SETTINGS)), st.data(), st.integers(0, 2**32 - 1))
def test_whatever_a_header_says_nothing_else_is_raised(model, tmp_path_factory, name, data, seed):
    """Parts of a matrix get other types, shapes and names."""
    rng = np.random.default_rng(seed)
    parts, _ = WRITERS[name](rng.standard_normal((128, 128)).astype(np.float32))
    tensors = {}
    for suffix in data.draw(st.lists(st.sampled_from(sorted(parts)), min_size=1, max_size=3)):
        dtype = data.draw(st.sampled_from(["F8_E4M3", "F16", "F32", "U8", "BF16"]))
        shape = data.draw(st.lists(st.sampled_from([0, 1, 2, 127, 128, 129]), max_size=3))
        other = data.draw(st.sampled_from([suffix, suffix, suffix, "weight", "bias", "weight_scale", "g_idx"]))
        tensors[f"{QUERY}.{other}"] = (dtype, rng.integers(0, 200, shape))
    folder = tmp_path_factory.mktemp("f") / "m"
    write_converted_folder(folder, model, name, tensors=tensors)
    with contextlib.suppress(EdgeRTError):
        matrices_and_logits(folder)
