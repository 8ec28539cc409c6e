"""Experts of a layer in one tensor, as gpt-oss has them: in MXFP4, bit for bit, and transposed floats."""

from __future__ import annotations

import numpy as np
import pytest

from edge_rt.errors import InvalidModelFile, UnsupportedModel
from edge_rt.export import export_model
from edge_rt.export.opening import open_checkpoint
from edge_rt.export.sources.gguf_types import TensorInfo
from edge_rt.export.sources.model_file import TensorReader
from edge_rt.export.weights.gguf_blocks import read_codes
from edge_rt.export.weights.linear import Part
from edge_rt.export.weights.matrices import CheckpointMatrices
from edge_rt.export.weights.rows import CheckpointRows
from edge_rt.package.reader import open_package
from tests.helpers.family_cases import load_case, write_folder, write_gguf
from tests.helpers.native_profile import require_native
from tests.helpers.packed_factory import write_tensors

CASE = load_case("gpt_oss_plain")
CONFIG = CASE.text_config
E, H, F = CONFIG["num_local_experts"], CONFIG["hidden_size"], CONFIG["intermediate_size"]
EXPERTS = "model.layers.{}.mlp.experts."
VALUES = [0, 0.5, 1, 1.5, 2, 3, 4, 6]


def decoded(blocks, exponents):
    """Return the numbers of blocks, one after the other: the low half of a byte comes first."""
    found = []
    for codes, exponent in zip(blocks.reshape(-1, 16), exponents.reshape(-1), strict=True):
        for byte in codes:
            for code in (int(byte) & 15, int(byte) >> 4):
                sign = -1.0 if code & 8 else 1.0
                found.append(sign * VALUES[code & 7] * 2.0 ** (int(exponent) - 127))
    return np.array(found).reshape(*exponents.shape[:-1], -1)


def packed(rng, outputs, inputs):
    blocks = rng.integers(0, 256, (E, outputs, inputs // 32, 16), dtype=np.uint8)
    return blocks, rng.integers(110, 135, (E, outputs, inputs // 32), dtype=np.uint8)


@pytest.fixture
def tensors():
    """The tensors of a folder whose experts are in MXFP4."""
    rng = np.random.default_rng(7)
    found = {name: values for name, values in CASE.tensors().items() if not name.endswith(("up_proj", "down_proj"))}
    for layer in range(CONFIG["num_hidden_layers"]):
        for name, outputs, inputs in (("gate_up_proj", 2 * F, H), ("down_proj", H, F)):
            module = EXPERTS.format(layer) + name
            found[f"{module}_blocks"], found[f"{module}_scales"] = packed(rng, outputs, inputs)
    return found


def folder(tmp_path, tensors, **config):
    path = write_folder(tmp_path / "m", CASE, config={"quantization_config": {"quant_method": "mxfp4"}, **config})
    write_tensors(path / "model.safetensors", {name: (_type(one), one) for name, one in tensors.items()})
    return path


def _type(values):
    return "U8" if values.dtype == np.uint8 else "F32"


def test_values_are_those_of_the_format(tensors, tmp_path):
    source, decoder = open_checkpoint(folder(tmp_path, tensors))
    assert decoder.layers[0].experts.count == E
    with TensorReader(source.paths) as stream:
        matrices = CheckpointMatrices(stream, source.tensors)
        for expert in (0, E - 1):
            both = decoded(*(tensors[f"{EXPERTS.format(1)}gate_up_proj_{end}"][expert] for end in ("blocks", "scales")))
            down = decoded(*(tensors[f"{EXPERTS.format(1)}down_proj_{end}"][expert] for end in ("blocks", "scales")))
            for kind, expected in (("gate", both[0::2]), ("up", both[1::2]), ("down", down)):
                name = f"blk.1.ffn_{kind}.{expert}.weight"
                assert np.array_equal(np.concatenate(list(matrices.pieces(name))), expected)
                assert np.array_equal(matrices.rows(name, [3, 1]), expected[[3, 1]])
            bias = tensors[f"{EXPERTS.format(1)}gate_up_proj_bias"][expert]
            (found,) = matrices.pieces(f"blk.1.ffn_up.{expert}.bias")
            assert np.array_equal(found[0], bias[1::2])


def test_a_package_gets_the_codes_that_a_file_of_the_same_blocks_would_give(tensors, tmp_path):
    source, _ = open_checkpoint(folder(tmp_path, tensors))
    tensor = source.tensors["blk.2.ffn_up.3.weight"]
    with TensorReader(source.paths) as stream:
        found = [rows for rows, _ in CheckpointRows(stream).rows(Part(tensor))]
    blocks, exponents = (tensors[f"{EXPERTS.format(2)}gate_up_proj_{end}"][3][1::2] for end in ("blocks", "scales"))
    codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(F, H // 32, 32)
    raw = np.concatenate([exponents[..., None], codes[..., :16] | (codes[..., 16:] << 4)], axis=-1).reshape(F, -1)
    like = TensorInfo("t", (H, F), 39, "MXFP4", 0, raw.nbytes, 0)
    expected = read_codes(like, raw)
    assert np.array_equal(np.concatenate([one.codes for one in found]), expected.codes)
    assert np.array_equal(np.concatenate([one.scales for one in found]), expected.scales)


def test_a_folder_and_a_file_give_the_same_package(tensors, tmp_path):
    """The file's blocks hold the same codes in another order; both packages have them bit for bit."""
    require_native()
    # Of the sizes of a model's weights: others make logits of what is rounded alone.
    tensors |= {name: 119 + values % 3 for name, values in tensors.items() if name.endswith("_scales")}
    found = {}
    for layer in range(CONFIG["num_hidden_layers"]):
        for kind, own in (("gate", slice(0, None, 2)), ("up", slice(1, None, 2)), ("down", slice(None))):
            stored = "down_proj" if kind == "down" else "gate_up_proj"
            blocks, exponents = (
                tensors[f"{EXPERTS.format(layer)}{stored}_{end}"][:, own] for end in ("blocks", "scales")
            )
            codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*exponents.shape, 32)
            raw = np.concatenate([exponents[..., None], codes[..., :16] | (codes[..., 16:] << 4)], axis=-1)
            found[f"blk.{layer}.ffn_{kind}_exps.weight"] = raw.reshape(*exponents.shape[:2], -1)
    write_gguf(tmp_path / "m.gguf", CASE, raw={name: (values, "MXFP4") for name, values in found.items()})
    folder(tmp_path, tensors)
    options = {"profile": "native", "calibration": None, "accept_loss": True}
    for name in ("m", "m.gguf"):
        export_model(tmp_path / name, tmp_path / f"{name}-p", **options)
    weights = [tmp_path / f"{name}-p" / "weights.bin" for name in ("m", "m.gguf")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert open_package(tmp_path / "m-p").manifest.quantisation["feed_forward"] == "MXFP4"


def spoiled(tensors, name, change):
    key = EXPERTS.format(1) + name
    tensors[key] = change(tensors[key].copy())
    return tensors


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("gate_up_proj_blocks", lambda a: a[:, :-2], "does not fit the quantisation"),
        ("gate_up_proj_blocks", lambda a: a.reshape(E, 2 * F, -1), "does not fit the quantisation"),
        ("gate_up_proj_blocks", lambda a: a.astype(np.float32), "It is F32, must be U8"),
        ("down_proj_scales", lambda a: a[..., :1], "does not fit the quantisation"),
        ("down_proj_bias", lambda a: a[:-1], "does not fit the quantisation"),
    ],
)
def test_tensors_that_do_not_fit_each_other(tensors, tmp_path, name, change, message):
    with pytest.raises(InvalidModelFile, match=message):
        open_checkpoint(folder(tmp_path, spoiled(tensors, name, change)))


@pytest.mark.parametrize("name", ["gate_up_proj_blocks", "gate_up_proj_scales", "down_proj_bias"])
def test_tensors_that_are_missing(tensors, tmp_path, name):
    del tensors[EXPERTS.format(1) + name]
    with pytest.raises(InvalidModelFile, match=r"tensors are missing"):
        open_checkpoint(folder(tmp_path, tensors))


def test_experts_that_are_there_twice(tensors, tmp_path):
    tensors[EXPERTS.format(0) + "down_proj"] = np.zeros((E, F, H), np.float32)
    with pytest.raises(InvalidModelFile, match="It is there as floats and packed"):
        open_checkpoint(folder(tmp_path, tensors))


def test_other_families_have_none(tensors, tmp_path):
    config = {"model_type": "granitemoe", "swiglu_limit": None, "sliding_window": None, "layer_types": None}
    with pytest.raises(UnsupportedModel, match="this architecture does not use"):
        open_checkpoint(folder(tmp_path, tensors, **config))


@pytest.mark.parametrize("exponent", [255, 254])
def test_an_exponent_that_gives_no_number_is_refused_when_it_is_read(tensors, tmp_path, exponent):
    tensors = spoiled(tensors, "down_proj_scales", lambda a: np.full_like(a, exponent))
    tensors = spoiled(tensors, "down_proj_blocks", lambda a: np.full_like(a, 0x77))
    source, _ = open_checkpoint(folder(tmp_path, tensors))
    with TensorReader(source.paths) as stream, pytest.raises(InvalidModelFile, match=r"ffn_down\.0\.weight"):
        list(CheckpointMatrices(stream, source.tensors).pieces("blk.1.ffn_down.0.weight"))


def test_floats_are_transposed(tmp_path):
    source, _ = open_checkpoint(write_folder(tmp_path / "m", CASE, dtype="BF16"))
    whole = CASE.tensors()[EXPERTS.format(0) + "gate_up_proj"]
    tensor = source.tensors["blk.0.ffn_gate.2.weight"]
    assert (tensor.type_name, tensor.shape) == ("BF16", (H, F))
    assert source.remarks == ("The checkpoint's experts are stored with their inputs first: they are transposed.",)
    with TensorReader(source.paths) as stream:
        found = np.concatenate(list(CheckpointMatrices(stream, source.tensors).pieces(tensor.name)))
    assert np.array_equal(found, whole[2, :, 0::2].T)
