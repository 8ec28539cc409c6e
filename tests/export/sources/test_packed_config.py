"""Settings of quantised folders: what is read, and what is refused by name."""

from __future__ import annotations

import copy
import string

import pytest
from hypothesis import given, settings, strategies as st

from edge_rt.errors import EdgeRTError, InvalidModelFile, UnsupportedModel
from edge_rt.export.sources.packed_config import (
    BitsAndBytesSettings,
    Float4Settings,
    Float8Settings,
    MLXSettings,
    PackedSettings,
    read_packed_settings,
)
from tests.helpers import converted_factory, packed_factory
from tests.helpers.documents import replaced
from tests.helpers.examples import share_of

SETTINGS = packed_factory.SETTINGS
FLOATS = converted_factory.SETTINGS
WEIGHTS = ("config_groups", "group_0", "weights")
NAME = "compressed-tensors"
MLX = {"group_size": 64, "bits": 4}


def read(document, key="quantization_config"):
    return read_packed_settings("m", {key: document})


def read_mlx(document, **more):
    return read_packed_settings("m", {"quantization": document, **more})


def changed(name, *path_and_value):
    """Return settings with one value replaced."""
    return replaced(SETTINGS[name], *path_and_value)


def floats(name, *path_and_value):
    """The same of what is converted through float."""
    return replaced(FLOATS[name], *path_and_value)


def block(value):
    """Return settings of compressed-tensors with blocks of a size."""
    return replaced(floats(NAME, *WEIGHTS, "strategy", "block"), *WEIGHTS, "block_structure", value)


AUTO_ROUND = {
    None: PackedSettings("gptq", 128, zero_added=1),
    "auto": PackedSettings("gptq", 128, zero_added=1),
    "auto_round:gptq": PackedSettings("gptq", 128, zero_added=1),
    "auto_round": PackedSettings("gptq", 128),
    "auto_round:gptqmodel": PackedSettings("gptq", 128),
    "auto_round:awq": PackedSettings("awq", 128),
    "auto_round:auto_awq": PackedSettings("awq", 128),
}
"""Packing format -> settings: as in GPTQ's first format, in its second one, or as in AWQ."""


MODEL_OPT = Float4Settings("NVFP4", "modelopt", ignores_activations=True)


def float4(kind, group, **weights):
    """Return settings of compressed-tensors with floats of 4 bits."""
    scheme = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": group, "symmetric": True}
    groups = {"group_0": {"targets": ["Linear"], "weights": {**scheme, **weights}}}
    return {"quant_method": NAME, "format": f"{kind}-pack-quantized", "config_groups": groups}


READ = [
        (SETTINGS["gptq"], PackedSettings("gptq", 128, zero_added=1)),
        (SETTINGS["gptq_v2"], PackedSettings("gptq", 128)),
        (changed("gptq", "format", "gptq_v2"), PackedSettings("gptq", 128)),
        (changed("gptq_v2", "format", "gptq"), PackedSettings("gptq", 128)),
        (changed("gptq", "desc_act", True), PackedSettings("gptq", 128, zero_added=1, needs_order=True)),
        (changed("gptq", "group_size", -1), PackedSettings("gptq", 0, zero_added=1)),
        (changed("gptq", "dynamic", {"-:.*lm_head": {}}), PackedSettings("gptq", 128, zero_added=1)),
        (changed("gptq", "dynamic", None), PackedSettings("gptq", 128, zero_added=1)),
        (SETTINGS["awq"], PackedSettings("awq", 128)),
        (changed("awq", "version", "GEMM"), PackedSettings("awq", 128)),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, PackedSettings("awq", 64)),
        (SETTINGS["auto-round"], PackedSettings("gptq", 128, zero_added=1)),
        *((changed("auto-round", "packing_format", form), expected) for form, expected in AUTO_ROUND.items()),
        (changed("auto-round", "group_size", -1), PackedSettings("gptq", 0, zero_added=1)),
        (changed("auto-round", "act_bits", 16), PackedSettings("gptq", 128, zero_added=1)),
        (changed("auto-round", "extra_config", None), PackedSettings("gptq", 128, zero_added=1)),
        (changed("auto-round", "extra_config", {"lm_head": {"bits": 4, "group_size": 128, "sym": False}}),
         PackedSettings("gptq", 128, zero_added=1)),
        (SETTINGS["compressed-tensors"], PackedSettings("compressed-tensors", 128)),
        (
            changed("compressed-tensors", *WEIGHTS, "symmetric", True),
            PackedSettings("compressed-tensors", 128, has_zeros=False),
        ),
        (changed("compressed-tensors", *WEIGHTS, "strategy", "channel"), PackedSettings("compressed-tensors", 0)),
        (
            changed("compressed-tensors", *WEIGHTS, "actorder", "group"),
            PackedSettings("compressed-tensors", 128, needs_order=True),
        ),
        (changed("compressed-tensors", *WEIGHTS, "actorder", "static"), PackedSettings("compressed-tensors", 128)),
        (
            changed("compressed-tensors", "sparsity_config", {"format": "dense"}),
            PackedSettings("compressed-tensors", 128),
        ),
    # Floats of 4 bits.
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}, MODEL_OPT),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "NVFP4", "group_size": 16}}, MODEL_OPT),
        (float4("nvfp4", 16), Float4Settings("NVFP4", NAME)),
        (float4("mxfp4", 32), Float4Settings("MXFP4", NAME)),
    # Converted through float.
        (FLOATS["fp8"], Float8Settings(("block",), (128, 128), True)),
        (floats("fp8", "weight_block_size", [64, 32]), Float8Settings(("block",), (64, 32), True)),
        (floats("fp8", "fmt", None), Float8Settings(("block",), (128, 128), True)),
        (floats("fp8", "activation_scheme", None), Float8Settings(("block",), (128, 128))),
        (FLOATS["fp8 of tensors"], Float8Settings(("tensor", "channel"), None, True)),
        (FLOATS[NAME], Float8Settings(("channel",), None, True)),
        (floats(NAME, "format", "naive-quantized"), Float8Settings(("channel",), None, True)),
        (floats(NAME, "config_groups", "group_0", "input_activations", None), Float8Settings(("channel",))),
        (floats(NAME, *WEIGHTS, "strategy", "tensor"), Float8Settings(("tensor",), None, True)),
        (block([128, 128]), Float8Settings(("block",), (128, 128), True)),
        (FLOATS["nf4"], BitsAndBytesSettings("nf4")),
        (FLOATS["fp4"], BitsAndBytesSettings("fp4")),
        (floats("nf4", "bnb_4bit_quant_type", None), BitsAndBytesSettings("fp4")),
        (floats("nf4", "bnb_4bit_quant_storage", None), BitsAndBytesSettings("nf4")),
]  # fmt: skip
MLX_READ = [
    (MLX, MLXSettings(4, 64)),
    (MLX | {"mode": "affine"}, MLXSettings(4, 64)),
    (MLX | {"bits": 8, "group_size": 128}, MLXSettings(8, 128)),
    (MLX | {"lm_head": False, "model.embed_tokens": True}, MLXSettings(4, 64)),
    (MLX | {"lm_head": {"bits": 8, "group_size": 32}}, MLXSettings(4, 64, {"lm_head": (8, 32)})),
]


@pytest.mark.parametrize(("document", "expected"), READ)
def test_what_is_read(document, expected):
    assert read(document) == expected


@pytest.mark.parametrize(("document", "expected"), MLX_READ)
def test_what_is_read_of_mlx(document, expected):
    assert read_mlx(document) == read_mlx(document, quantization_config=document) == expected


def test_settings_of_layers_of_mlx():
    found = MLXSettings(4, 64, {"lm_head": (8, 32)})
    assert (found.of("lm_head"), found.of("model.embed_tokens")) == ((8, 32), (4, 64))


def test_a_cache_in_8_bits_is_something_that_is_ignored():
    document = floats(NAME, "config_groups", "group_0", "input_activations", None)
    assert read({**document, "kv_cache_scheme": {"num_bits": 8}}) == Float8Settings(("channel",), None, True)


def test_floats():
    assert read_packed_settings("m", {}) is None
    assert read(None) is None


def test_an_older_key_of_compressed_tensors():
    document = {key: value for key, value in SETTINGS["compressed-tensors"].items() if key != "quant_method"}
    assert read(document, "compression_config") == PackedSettings("compressed-tensors", 128)


REFUSED = [
        ({"quant_method": "intel/auto-round"}, "'quant_method' is intel/auto-round"),
        (changed("auto-round", "packing_format", "auto_round:exllamav2"), "'packing_format' is auto_round:exll"),
        (changed("auto-round", "packing_format", "auto_round:llm_compressor"), "'packing_format' is auto_round:llm"),
        (changed("auto-round", "bits", 2), "'bits' is 2; edge-rt reads 4"),
        (changed("auto-round", "data_type", "mx_fp"), "'data_type' is mx_fp; edge-rt reads int"),
        (changed("auto-round", "act_bits", 8), "'act_bits' is 8; edge-rt reads 16 and more"),
        (changed("auto-round", "group_size", 16), "'group_size' is 16"),
        (changed("auto-round", "extra_config", {"lm_head": {"bits": 8}}), "'extra_config' is lm_head: {'bits': 8}"),
        (changed("auto-round", "extra_config", {"x": {"group_size": 32}}), "'extra_config' is x: {'group_size': 32}"),
        ({"quant_method": "hqq"}, "'quant_method' is hqq; edge-rt reads gptq, awq,"),
        (changed("gptq", "bits", 8), "'bits' is 8; edge-rt reads 4"),
        (changed("gptq", "bits", 3), "'bits' is 3; edge-rt reads 4"),
        (changed("gptq", "group_size", 16), "'group_size' is 16; edge-rt reads -1, and multiples of 32"),
        (changed("gptq", "group_size", 0), "'group_size' is 0"),
        (changed("gptq", "group_size", -2), "'group_size' is -2"),
        (changed("gptq", "group_size", 1 << 40), "'group_size' is 1099511627776"),
        (changed("gptq", "format", "marlin"), "'format' is marlin; edge-rt reads gptq, gptq_v2"),
        (changed("awq", "format", "gemv"), "'format' is gemv; edge-rt reads gemm"),
        (changed("gptq", "checkpoint_format", "marlin"), "'checkpoint_format' is marlin; edge-rt reads gptq, gptq_v2"),
        (changed("gptq", "is_marlin_format", True), "'is_marlin_format' is true"),
        (changed("gptq", "dynamic", {"+:.*0.*": {"bits": 8}}), "'dynamic' is {'+:"),
        (changed("awq", "bits", 3), "'bits' is 3; edge-rt reads 4"),
        (changed("awq", "version", "gemv"), "'version' is gemv; edge-rt reads gemm"),
        (changed("awq", "version", "gemv_fast"), "'version' is gemv_fast; edge-rt reads gemm"),
        (changed("awq", "zero_point", False), "'zero_point' is false; edge-rt reads true"),
        (changed("compressed-tensors", "format", "int-quantized"), "'format' is int-quantized; edge-rt reads pack"),
        (changed("compressed-tensors", "format", "float-quantized"), "'type' is int; edge-rt reads float"),
        (changed("compressed-tensors", "sparsity_config", {"format": "sparse-24-bitmask"}), "'sparsity_config' is"),
        (changed("compressed-tensors", "config_groups", "group_0", "input_activations", {"num_bits": 8}),
         "'input_activations' is {'num_bits': 8}; edge-rt reads none: only weights"),
        (changed("compressed-tensors", "config_groups", "group_0", "format", "int-quantized"), "'format' is 'int-"),
        (changed("compressed-tensors", "config_groups", "other", {"weights": {}}), "'config_groups' is 2 different"),
        (changed("compressed-tensors", *WEIGHTS, "num_bits", 8), "'bits' is 8; edge-rt reads 4"),
        (changed("compressed-tensors", *WEIGHTS, "type", "float"), "'type' is float; edge-rt reads int"),
        (changed("compressed-tensors", *WEIGHTS, "strategy", "tensor"), "'strategy' is tensor; edge-rt reads group"),
        (changed("compressed-tensors", *WEIGHTS, "group_size", 48), "'group_size' is 48"),
    # Floats of 4 bits.
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "'quant_algo' is FP8; edge-rt reads NVFP4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 32}, "'group_size' is 32; edge-rt reads 16"),
        (float4("nvfp4", 32), "'group_size' is 32; edge-rt reads 16"),
        (float4("mxfp4", 32, type="int"), "'type' is int; edge-rt reads float"),
        (float4("nvfp4", 16, num_bits=8), "'bits' is 8; edge-rt reads 4"),
        (float4("nvfp4", 16, symmetric=False), "'symmetric' is false; edge-rt reads true"),
    # Converted through float.
        (floats("fp8", "fmt", "e5m2"), "'fmt' is e5m2; edge-rt reads e4m3"),
        (floats("fp8", "weight_block_size", [0, 128]), "'weight_block_size' is [0, 128]; edge-rt reads two sizes"),
        (floats("fp8", "weight_block_size", [128, 1 << 30]), "'weight_block_size' is [128, 1073741824]"),
        (
            floats(NAME, "format", "int-quantized"),
            "'format' is int-quantized; edge-rt reads pack-quantized, float-quant",
        ),
        (
            floats(NAME, "config_groups", "group_0", "format", "pack-quantized"),
            "'format' is 'pack-quantized'; edge-rt reads",
        ),
        (floats(NAME, *WEIGHTS, "type", "int"), "'type' is int; edge-rt reads float"),
        (floats(NAME, *WEIGHTS, "num_bits", 4), "'num_bits' is 4; edge-rt reads 8"),
        (floats(NAME, *WEIGHTS, "strategy", "group"), "'strategy' is group; edge-rt reads tensor, channel, block"),
        (floats(NAME, *WEIGHTS, "symmetric", False), "'symmetric' is false; edge-rt reads true"),
        (block([128, -1]), "'block_structure' is [128, -1]"),
        (
            floats("nf4", "load_in_8bit", True),
            "'load_in_8bit' is true; edge-rt reads load_in_4bit: int8 keeps outliers of a",
        ),
        ({"quant_method": "bitsandbytes"}, "'load_in_4bit' is false; edge-rt reads true"),
        (floats("nf4", "bnb_4bit_quant_type", "af4"), "'bnb_4bit_quant_type' is af4; edge-rt reads nf4, fp4"),
        (
            floats("nf4", "bnb_4bit_quant_storage", "bfloat16"),
            "'bnb_4bit_quant_storage' is bfloat16; edge-rt reads uint8",
        ),
]  # fmt: skip
MLX_REFUSED = [
    (MLX | {"bits": 3}, "'bits' is 3; edge-rt reads 4 or 8"),
    (MLX | {"group_size": 16}, "'group_size' is 16; edge-rt reads 32, 64, 128"),
    (MLX | {"group_size": -1}, "'group_size' is -1"),
    (MLX | {"mode": "mxfp4"}, "'mode' is mxfp4; edge-rt reads affine"),
    (MLX | {"lm_head": {"bits": 6, "group_size": 64}}, "'bits' is 6; edge-rt reads 4 or 8"),
    (MLX | {"lm_head": {"bits": 4, "group_size": 32, "mode": "mxfp4"}}, "'mode' is mxfp4"),
    (
        MLX | {"quantize_input": 1},
        "'quantize_input' is 1; edge-rt reads bits, group_size, mode and settings of layers",
    ),
]


@pytest.mark.parametrize(("document", "numbers"), REFUSED)
def test_what_is_refused_by_name(document, numbers):
    with pytest.raises(UnsupportedModel) as caught:
        read(document)
    assert caught.value.numbers.startswith(numbers)
    assert "Get the model in BF16" in caught.value.action


@pytest.mark.parametrize(("document", "numbers"), MLX_REFUSED)
def test_what_is_refused_by_name_of_mlx(document, numbers):
    with pytest.raises(UnsupportedModel) as caught:
        read_mlx(document)
    assert caught.value.numbers.startswith(numbers)


def test_another_quantisation_beside_that_of_mlx():
    with pytest.raises(UnsupportedModel, match="'quantization_config' is another object than 'quantization'"):
        read_mlx(MLX, quantization_config={"quant_method": "gptq"})


WRONG_TYPES = [
        ("gptq", "quantization_config"),
        ({}, "quant_method"),
        ({"quant_method": 3}, "quant_method"),
        (changed("gptq", "bits", "4"), "bits"),
        (changed("gptq", "bits", True), "bits"),
        (changed("gptq", "group_size", None), "group_size"),
        (changed("gptq", "desc_act", 1), "desc_act"),
        (changed("gptq", "checkpoint_format", 2), "checkpoint_format"),
        (changed("awq", "version", 1), "version"),
        (changed("auto-round", "packing_format", 1), "packing_format"),
        (changed("auto-round", "bits", None), "bits"),
        (changed("auto-round", "act_bits", "8"), "act_bits"),
        (changed("auto-round", "extra_config", [1]), "extra_config"),
        (changed("auto-round", "extra_config", {"lm_head": 4}), "extra_config"),
        (changed("compressed-tensors", "format", None), "format"),
        (changed("compressed-tensors", "config_groups", {}), "config_groups"),
        (changed("compressed-tensors", "config_groups", {"group_0": 3}), "config_groups"),
        (changed("compressed-tensors", *WEIGHTS, None), "weights"),
        (changed("compressed-tensors", *WEIGHTS, "strategy", None), "strategy"),
    # Converted through float.
        (floats("fp8", "fmt", 4), "fmt"),
        (floats("fp8", "weight_block_size", 128), "weight_block_size"),
        (floats("fp8", "weight_block_size", [128]), "weight_block_size"),
        (floats("fp8", "weight_block_size", [128, 1.5]), "weight_block_size"),
        (floats("fp8", "weight_block_size", [True, True]), "weight_block_size"),
        (floats(NAME, *WEIGHTS, "num_bits", None), "num_bits"),
        (floats(NAME, *WEIGHTS, "strategy", None), "strategy"),
        (block(None), "block_structure"),
        (floats("nf4", "load_in_4bit", 1), "load_in_4bit"),
        (floats("nf4", "load_in_8bit", "no"), "load_in_8bit"),
        (floats("nf4", "bnb_4bit_quant_type", 4), "bnb_4bit_quant_type"),
        (floats(NAME, *WEIGHTS, None), "weights"),
]  # fmt: skip
MLX_WRONG_TYPES = [
    (4, "quantization"),
    ({"bits": 4}, "group_size"),
    ({"group_size": 64}, "bits"),
    (MLX | {"bits": "4"}, "bits"),
    (MLX | {"bits": True}, "bits"),
    (MLX | {"mode": 1}, "mode"),
    (MLX | {"lm_head": {"bits": 4}}, "group_size"),
]


@pytest.mark.parametrize(
    ("document", "key", "reader"),
    [*((*row, read) for row in WRONG_TYPES), *((*row, read_mlx) for row in MLX_WRONG_TYPES)],
)
def test_what_has_the_wrong_type(document, key, reader):
    words = f"'{key}' of the quantisation in config.json is missing or has the wrong"
    with pytest.raises(InvalidModelFile, match=words):
        reader(document)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(string.printable, max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=share_of(300))
@given(st.sampled_from(sorted(SETTINGS)), st.data())
def test_whatever_the_settings_are_nothing_else_is_raised(name, data):
    document = copy.deepcopy(SETTINGS[name])
    for _ in range(data.draw(st.integers(1, 3))):
        at = document
        while True:
            key = data.draw(st.sampled_from(sorted(at) or ["x"]))
            if not isinstance(at.get(key), dict) or data.draw(st.booleans()):
                break
            at = at[key]
        at[key] = data.draw(ANY)
    try:
        found = read(document)
    except EdgeRTError:
        return
    assert not isinstance(found, PackedSettings) or found.group % 32 == 0
