"""Matrices of 4-bit floats, bit for bit: by formulas written again from the formats' definitions."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

from edge_rt.errors import InvalidModelFile, UnsupportedModel
from edge_rt.export import export_model
from edge_rt.export.opening import open_checkpoint
from edge_rt.export.sources.float4 import REMARK, Float4Layout
from edge_rt.export.sources.model_file import TensorReader
from edge_rt.export.sources.packed_config import Float4Settings
from edge_rt.export.weights.codes import values as values_of
from edge_rt.export.weights.linear import Part
from edge_rt.export.weights.matrices import CheckpointMatrices
from edge_rt.export.weights.rows import CheckpointRows
from edge_rt.export.weights.tile_formats import tile_format
from edge_rt.package.reader import open_package
from tests.export.sources.test_packed_config import float4
from tests.helpers.converted_factory import write_converted_folder, write_float_folder
from tests.helpers.ggml_blocks import random_rows
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.graphs import package_logits
from tests.helpers.native_profile import require_native
from tests.helpers.packed_factory import stored

needs_type = pytest.mark.skipif(not hasattr(gguf.GGMLQuantizationType, "NVFP4"), reason="gguf does not know NVFP4 yet")

NAME = "compressed-tensors"
SIZES = {"layers": 2, "hidden": 128, "heads": 4, "kv_heads": 2, "ffn": 256}
NUMBERS = [0, 0.5, 1, 1.5, 2, 3, 4, 6]


def number_of(code):
    """Return what a code of 4 bits stands for."""
    return (-1.0 if code & 8 else 1.0) * NUMBERS[code & 7]


def small_float(byte):
    """Return what a scale of NVFP4 stands for."""
    exponent, fraction = byte >> 3 & 15, byte & 7
    return fraction * 2.0**-9 if exponent == 0 else (1 + fraction / 8) * 2.0 ** (exponent - 7)


def decoded(pairs, scales, whole, group):
    """Return the weights of a matrix in a folder, float32 ``[rows, inputs]``."""
    numbers = np.array([number_of(code) for code in range(16)])
    sizes = np.array([small_float(byte) if group == 16 else 2.0 ** (byte - 127) for byte in range(256)])
    codes = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(len(pairs), -1)
    found = numbers[codes] * np.repeat(sizes[scales], group, axis=1)
    return found.astype(np.float32) * whole


def modelopt(rng, rows, inputs, whole=0.0123):
    """Return suffix -> type and array of a random matrix of NVFP4, and its weights."""
    pairs = rng.integers(0, 256, (rows, inputs // 2), dtype=np.uint8)
    scales = rng.integers(0, 127, (rows, inputs // 16), dtype=np.uint8)
    scale = np.float32(whole)
    parts = {"weight": ("U8", pairs), "weight_scale": ("F8_E4M3", scales), "weight_scale_2": ("F32", scale)}
    return parts, decoded(pairs, scales, scale, 16)


def compressed(rng, rows, inputs, kind="NVFP4"):
    """The same as compressed-tensors has it, where the matrix's scale is one over ModelOpt's; or of MXFP4."""
    pairs = rng.integers(0, 256, (rows, inputs // 2), dtype=np.uint8)
    if kind == "MXFP4":
        scales = rng.integers(110, 130, (rows, inputs // 32), dtype=np.uint8)
        parts = {"weight_packed": ("U8", pairs), "weight_scale": ("U8", scales)}
        return parts, decoded(pairs, scales, np.float32(1), 32)
    scales, divisor = rng.integers(0, 127, (rows, inputs // 16), dtype=np.uint8), np.array([96.3], np.float32)
    parts = {
        "weight_packed": ("U8", pairs),
        "weight_scale": ("F8_E4M3", scales),
        "weight_global_scale": ("F32", divisor),
    }
    return parts, decoded(pairs, scales, np.float32(1) / divisor[0], 16)


def opened(parts, kind="NVFP4", tool="modelopt"):
    """Return the tensor and what reads it."""
    found, source = stored(parts)
    return Float4Layout(Float4Settings(kind, tool)).tensor("m", found, source), source


def packed(parts, **settings):
    """Return all rows as a package has them."""
    tensor, source = opened(parts, **settings)
    return list(CheckpointRows(source).rows(Part(tensor)))


CASES = {
    "modelopt": (modelopt, {}),
    "compressed-tensors": (compressed, {"tool": NAME}),
    "mxfp4": (lambda rng, *sizes: compressed(rng, *sizes, "MXFP4"), {"kind": "MXFP4", "tool": NAME}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_matrix_of_a_folder_is_read_bit_for_bit(case):
    make, settings = CASES[case]
    parts, expected = make(np.random.default_rng(1), 21, 128)
    tensor, source = opened(parts, **settings)
    assert tensor.shape == (128, 21)
    order = np.array([7, 3, 4, 5, 20, 0])
    np.testing.assert_array_equal(tensor.open(source).values(order), expected[order])
    ((found, _),) = packed(parts, **settings)
    np.testing.assert_array_equal(values_of(found, tile_format(tensor.type_name)), expected)


@needs_type
def test_every_scale_of_a_file_is_what_ggml_takes_it_for():
    raw = np.zeros((256, 36), np.uint8)
    raw[:, :4], raw[:, 4:] = np.arange(256)[:, None], np.arange(32) * 8 + 7
    tensor = opened_gguf_tensor(raw)
    expected = dequantize(raw, gguf.GGMLQuantizationType.NVFP4)
    np.testing.assert_array_equal(values_of(tensor, tile_format("NVFP4")), expected)
    byte = 0x5B  # written again: exponent 11, fraction 3
    np.testing.assert_array_equal(expected[byte, :2], [number_of(7) * 22, number_of(15) * 22])


def opened_gguf_tensor(raw):
    from edge_rt.export.sources.gguf_types import TensorInfo
    from edge_rt.export.weights.gguf_blocks import read_codes

    return read_codes(TensorInfo("m", (64, len(raw)), 40, "NVFP4", 0, raw.nbytes), raw)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"weight_scale": ("F8_E4M3", np.full((21, 8), 0x7F, np.uint8))}, InvalidModelFile, "negative or no number"),
        ({"weight_scale": ("F8_E4M3", np.full((21, 8), 0x81, np.uint8))}, InvalidModelFile, "negative or no number"),
        ({"weight_scale": ("F8_E4M3", np.zeros((21, 4), np.uint8))}, InvalidModelFile, r"must have \[21, 8\]"),
        ({"weight_scale": ("U8", np.zeros((21, 8), np.uint8))}, InvalidModelFile, "must be F8_E4M3"),
        ({"weight_scale_2": ("F32", np.float32(np.inf))}, InvalidModelFile, "not finite"),
        ({"weight_scale_2": ("F32", np.float32(0))}, InvalidModelFile, "out of range"),
        ({"weight_scale_2": ("F32", np.ones(21, np.float32))}, InvalidModelFile, r"must have \[1\]"),
        ({"weight": ("U8", np.zeros((21, 40), np.uint8))}, UnsupportedModel, "80 inputs"),
        ({"weight": ("U8", np.zeros((21, 64, 2), np.uint8))}, InvalidModelFile, "two dimensions"),
    ],
)
def test_what_contradicts_itself_is_refused(change, error, match):
    parts, _ = modelopt(np.random.default_rng(1), 21, 128)
    with pytest.raises(error, match=match):
        packed(parts | change)


# --- files of GGUF ---


def nvfp4_file(path, scales=None, **more):
    """Write a model whose matrices in layers are NVFP4, with tensors of scales beside them."""
    return write_llama_gguf(
        path, **SIZES, weight_type="NVFP4", embedding_type="F32", tied=True, extra_tensors=scales or {}, **more
    )


@needs_type
def test_scales_of_a_file_multiply_their_matrices(tmp_path):
    """Those of activations are left out with a word."""
    scales = {
        "blk.0.attn_q.scale": np.array([0.37], np.float32),
        "blk.1.ffn_down.scale": np.array([1.9e-3], np.float32),
        "blk.1.ffn_down.input_scale": np.array([3], np.float32),
    }
    written = nvfp4_file(tmp_path / "m.gguf", scales)
    source, _ = open_checkpoint(tmp_path / "m.gguf")
    assert source.remarks == (REMARK,)
    with TensorReader(source.paths) as stream:
        for name in ("blk.0.attn_q.weight", "blk.1.ffn_down.weight", "blk.0.attn_k.weight"):
            scale = scales.get(name.replace("weight", "scale"), [np.float32(1)])[0]
            expected = written.weights[name] * scale
            found = np.concatenate(list(CheckpointMatrices(stream, source.tensors).pieces(name)))
            np.testing.assert_array_equal(found, expected)
            codes = [
                values_of(one, tile_format("NVFP4"))
                for one, _ in CheckpointRows(stream).rows(Part(source.tensors[name]))
            ]
            np.testing.assert_array_equal(np.concatenate(codes), expected)


@needs_type
@pytest.mark.parametrize(
    ("scale", "match"),
    [
        (np.ones(2, np.float32), "2 numbers, must be F32 with 1"),
        (np.array([np.nan], np.float32), "not finite"),
        (np.array([1e30], np.float32), "out of range"),
        (np.array([0], np.float32), "out of range"),
    ],
)
def test_a_scale_that_is_none_is_refused(scale, match, tmp_path):
    nvfp4_file(tmp_path / "m.gguf", {"blk.0.attn_q.scale": scale})
    with pytest.raises(InvalidModelFile, match=match):
        export_model(tmp_path / "m.gguf", tmp_path / "package", profile="portable")


def test_a_scale_of_no_such_matrix_is_a_surplus_tensor(tmp_path):
    write_llama_gguf(tmp_path / "m.gguf", **SIZES, extra_tensors={"blk.0.attn_q.scale": np.ones(1, np.float32)})
    with pytest.raises(UnsupportedModel, match=r"attn_q\.scale"):
        open_checkpoint(tmp_path / "m.gguf")


@needs_type
def test_parts_of_a_tensor_have_the_scales_of_their_experts():
    from dataclasses import replace

    from edge_rt.export.sources.float4 import join_scales
    from edge_rt.export.sources.gguf_types import TensorInfo
    from tests.helpers.packed_factory import BytesReader

    rng = np.random.default_rng(3)
    raw = random_rows(rng, "NVFP4", 3 * 5, 64)
    scales = np.array([0.5, 0.3, 7], np.float32)
    data = raw.tobytes() + scales.tobytes()
    name = "blk.0.ffn_up_exps"
    tensors = {
        f"{name}.weight": TensorInfo(f"{name}.weight", (64, 5, 3), 40, "NVFP4", 0, raw.nbytes),
        f"{name}.scale": TensorInfo(f"{name}.scale", (3,), 0, "F32", raw.nbytes, 12),
    }
    (whole,) = join_scales("m", tensors).values()
    for expert in range(3):
        size = raw.nbytes // 3
        one = replace(whole, name=f"up.{expert}", shape=(64, 5), offset=expert * size, nbytes=size)
        expected = dequantize(raw[5 * expert : 5 * expert + 5], gguf.GGMLQuantizationType.NVFP4) * scales[expert]
        np.testing.assert_array_equal(one.open(BytesReader(data)).values(np.arange(5)), expected)


@pytest.mark.parametrize("profile", ["native", "portable"])
@pytest.mark.parametrize("kind", ["nvfp4 modelopt", "nvfp4", "mxfp4"])
def test_a_folder_is_exported_as_it_is(kind, profile, tmp_path):
    """The export's own check compares every value; logits are those of the same floats."""
    if profile == "native":
        require_native()
    rng = np.random.default_rng(9)
    model = write_llama_gguf(tmp_path / "m.gguf", **SIZES, weight_type="F32", embedding_type="F32", tied=True)
    settings, type_name = {
        "nvfp4 modelopt": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "NVFP4"),
        "nvfp4": (float4("nvfp4", 16), "NVFP4"),
        "mxfp4": (float4("mxfp4", 32), "MXFP4"),
    }[kind]
    make = modelopt if "modelopt" in kind else lambda *sizes: compressed(*sizes, type_name)

    def write(values):
        parts, _ = make(rng, *values.shape)
        # Scales of sizes that weights have.
        low = 118 if type_name == "MXFP4" else 56
        scales = parts["weight_scale"][1]
        scales[:] = low + scales % 6
        return parts, decoded_again(parts, type_name)

    written = write_converted_folder(tmp_path / "m", model, "", settings=settings, write=write)
    result = export_model(tmp_path / "m", tmp_path / "package", profile=profile, calibration=None)
    manifest = open_package(tmp_path / "package").manifest
    assert (manifest.quantisation["attention"], manifest.quantisation["feed_forward"]) == (type_name, type_name)
    if profile == "native":
        assert result.check[-1].steps.largest < 1.1
    floats = write_float_folder(tmp_path / "f", model, written)
    export_model(floats, tmp_path / "floats", profile="portable", weights="keep")
    ids = [(7 * i) % 419 for i in range(30)]
    found, expected = package_logits(tmp_path / "package", ids), package_logits(tmp_path / "floats", ids)
    assert np.linalg.norm(found - expected) / np.linalg.norm(expected) < 0.05


def decoded_again(parts, type_name):
    """Return the weights of parts whose scales were changed."""
    pairs = parts.get("weight", parts.get("weight_packed"))[1]
    whole = np.float32(1)
    if "weight_scale_2" in parts:
        whole = parts["weight_scale_2"][1]
    if "weight_global_scale" in parts:
        whole = np.float32(1) / parts["weight_global_scale"][1][0]
    return decoded(pairs, parts["weight_scale"][1], whole, 16 if type_name == "NVFP4" else 32)
