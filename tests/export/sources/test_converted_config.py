"""Settings of folders in FP8 and bitsandbytes: what is read, and what is refused by name."""

from __future__ import annotations

import pytest

from edge_rt.errors import InvalidModelFile, UnsupportedModel
from edge_rt.export.sources.packed_config import BitsAndBytesSettings, Float8Settings, read_packed_settings
from tests.helpers.converted_factory import SETTINGS
from tests.helpers.documents import replaced

WEIGHTS = ("config_groups", "group_0", "weights")
NAME = "compressed-tensors"


def read(document):
    return read_packed_settings("m", {"quantization_config": document})


def changed(name, *path_and_value):
    """Return settings with one value replaced."""
    return replaced(SETTINGS[name], *path_and_value)


def block(value):
    """Return settings of compressed-tensors with blocks of a size."""
    document = changed(NAME, *WEIGHTS, "strategy", "block")
    document["config_groups"]["group_0"]["weights"]["block_structure"] = value
    return document


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (SETTINGS["fp8"], Float8Settings(("block",), (128, 128), True)),
        (changed("fp8", "weight_block_size", [64, 32]), Float8Settings(("block",), (64, 32), True)),
        (changed("fp8", "fmt", None), Float8Settings(("block",), (128, 128), True)),
        (changed("fp8", "activation_scheme", None), Float8Settings(("block",), (128, 128))),
        (SETTINGS["fp8 of tensors"], Float8Settings(("tensor", "channel"), None, True)),
        (SETTINGS[NAME], Float8Settings(("channel",), None, True)),
        (changed(NAME, "format", "naive-quantized"), Float8Settings(("channel",), None, True)),
        (changed(NAME, "config_groups", "group_0", "input_activations", None), Float8Settings(("channel",))),
        (changed(NAME, *WEIGHTS, "strategy", "tensor"), Float8Settings(("tensor",), None, True)),
        (block([128, 128]), Float8Settings(("block",), (128, 128), True)),
        (SETTINGS["nf4"], BitsAndBytesSettings("nf4")),
        (SETTINGS["fp4"], BitsAndBytesSettings("fp4")),
        (changed("nf4", "bnb_4bit_quant_type", None), BitsAndBytesSettings("fp4")),
        (changed("nf4", "bnb_4bit_quant_storage", None), BitsAndBytesSettings("nf4")),
    ],
)
def test_what_is_read(document, expected):
    assert read(document) == expected


def test_a_cache_in_8_bits_is_something_that_is_ignored():
    document = changed(NAME, "config_groups", "group_0", "input_activations", None)
    assert read({**document, "kv_cache_scheme": {"num_bits": 8}}) == Float8Settings(("channel",), None, True)


@pytest.mark.parametrize(
    ("document", "numbers"),
    [
        (changed("fp8", "fmt", "e5m2"), "'fmt' is e5m2; edge-rt reads e4m3"),
        (changed("fp8", "weight_block_size", [0, 128]), "'weight_block_size' is [0, 128]; edge-rt reads two sizes"),
        (changed("fp8", "weight_block_size", [128, 1 << 30]), "'weight_block_size' is [128, 1073741824]"),
        (
            changed(NAME, "format", "int-quantized"),
            "'format' is int-quantized; edge-rt reads pack-quantized, float-quant",
        ),
        (
            changed(NAME, "config_groups", "group_0", "format", "pack-quantized"),
            "'format' is 'pack-quantized'; edge-rt reads",
        ),
        (changed(NAME, *WEIGHTS, "type", "int"), "'type' is int; edge-rt reads float"),
        (changed(NAME, *WEIGHTS, "num_bits", 4), "'num_bits' is 4; edge-rt reads 8"),
        (changed(NAME, *WEIGHTS, "strategy", "group"), "'strategy' is group; edge-rt reads tensor, channel, block"),
        (changed(NAME, *WEIGHTS, "symmetric", False), "'symmetric' is false; edge-rt reads true"),
        (block([128, -1]), "'block_structure' is [128, -1]"),
        (
            changed("nf4", "load_in_8bit", True),
            "'load_in_8bit' is true; edge-rt reads load_in_4bit: int8 keeps outliers of a",
        ),
        ({"quant_method": "bitsandbytes"}, "'load_in_4bit' is false; edge-rt reads true"),
        (changed("nf4", "bnb_4bit_quant_type", "af4"), "'bnb_4bit_quant_type' is af4; edge-rt reads nf4, fp4"),
        (
            changed("nf4", "bnb_4bit_quant_storage", "bfloat16"),
            "'bnb_4bit_quant_storage' is bfloat16; edge-rt reads uint8",
        ),
    ],
)
def test_what_is_refused_by_name(document, numbers):
    with pytest.raises(UnsupportedModel) as caught:
        read(document)
    assert caught.value.numbers.startswith(numbers)
    assert "Get the model in BF16" in caught.value.action


@pytest.mark.parametrize(
    ("document", "key"),
    [
        (changed("fp8", "fmt", 4), "fmt"),
        (changed("fp8", "weight_block_size", 128), "weight_block_size"),
        (changed("fp8", "weight_block_size", [128]), "weight_block_size"),
        (changed("fp8", "weight_block_size", [128, 1.5]), "weight_block_size"),
        (changed("fp8", "weight_block_size", [True, True]), "weight_block_size"),
        (changed(NAME, *WEIGHTS, "num_bits", None), "num_bits"),
        (changed(NAME, *WEIGHTS, "strategy", None), "strategy"),
        (block(None), "block_structure"),
        (changed("nf4", "load_in_4bit", 1), "load_in_4bit"),
        (changed("nf4", "load_in_8bit", "no"), "load_in_8bit"),
        (changed("nf4", "bnb_4bit_quant_type", 4), "bnb_4bit_quant_type"),
        (changed(NAME, *WEIGHTS, None), "weights"),
    ],
)
def test_what_has_the_wrong_type(document, key):
    with pytest.raises(InvalidModelFile, match=f"'{key}' of the quantisation in config.json is missing or has the"):
        read(document)
