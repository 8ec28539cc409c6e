"""Settings of MLX's folders: what is read, and what is refused by name."""

from __future__ import annotations

import pytest

from edge_rt.errors import InvalidModelFile, UnsupportedModel
from edge_rt.export.sources.packed_config import MLXSettings, read_packed_settings

PLAIN = {"group_size": 64, "bits": 4}


def read(document, **more):
    return read_packed_settings("m", {"quantization": document, **more})


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (PLAIN, MLXSettings(4, 64)),
        (PLAIN | {"mode": "affine"}, MLXSettings(4, 64)),
        (PLAIN | {"bits": 8, "group_size": 128}, MLXSettings(8, 128)),
        (PLAIN | {"lm_head": False, "model.embed_tokens": True}, MLXSettings(4, 64)),
        (PLAIN | {"lm_head": {"bits": 8, "group_size": 32}}, MLXSettings(4, 64, {"lm_head": (8, 32)})),
    ],
)
def test_what_is_read(document, expected):
    assert read(document) == read(document, quantization_config=document) == expected


def test_settings_of_layers():
    found = MLXSettings(4, 64, {"lm_head": (8, 32)})
    assert (found.of("lm_head"), found.of("model.embed_tokens")) == ((8, 32), (4, 64))


@pytest.mark.parametrize(
    ("document", "numbers"),
    [
        (PLAIN | {"bits": 3}, "'bits' is 3; edge-rt reads 4 or 8"),
        (PLAIN | {"group_size": 16}, "'group_size' is 16; edge-rt reads 32, 64, 128"),
        (PLAIN | {"group_size": -1}, "'group_size' is -1"),
        (PLAIN | {"mode": "mxfp4"}, "'mode' is mxfp4; edge-rt reads affine"),
        (PLAIN | {"lm_head": {"bits": 6, "group_size": 64}}, "'bits' is 6; edge-rt reads 4 or 8"),
        (PLAIN | {"lm_head": {"bits": 4, "group_size": 32, "mode": "mxfp4"}}, "'mode' is mxfp4"),
        (
            PLAIN | {"quantize_input": 1},
            "'quantize_input' is 1; edge-rt reads bits, group_size, mode and settings of layers",
        ),
    ],
)
def test_what_is_refused_by_name(document, numbers):
    with pytest.raises(UnsupportedModel) as caught:
        read(document)
    assert caught.value.numbers.startswith(numbers)


def test_another_quantisation_besides():
    with pytest.raises(UnsupportedModel, match="'quantization_config' is another object than 'quantization'"):
        read(PLAIN, quantization_config={"quant_method": "gptq"})


@pytest.mark.parametrize(
    ("document", "key"),
    [
        (4, "quantization"),
        ({"bits": 4}, "group_size"),
        ({"group_size": 64}, "bits"),
        (PLAIN | {"bits": "4"}, "bits"),
        (PLAIN | {"bits": True}, "bits"),
        (PLAIN | {"mode": 1}, "mode"),
        (PLAIN | {"lm_head": {"bits": 4}}, "group_size"),
    ],
)
def test_what_has_the_wrong_type(document, key):
    with pytest.raises(InvalidModelFile, match=f"'{key}' of the quantisation in config.json is missing or has the"):
        read(document)
