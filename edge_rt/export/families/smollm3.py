"""SmolLM 3: llama in which every fourth layer is not told positions."""

from __future__ import annotations

from typing import Final

from edge_rt.export.families.config_reader import ConfigReader
from edge_rt.export.families.config_rope import read_rope
from edge_rt.export.families.family import Family
from edge_rt.export.families.header_reader import HeaderReader
from edge_rt.export.families.header_rope import read_header_rope
from edge_rt.export.families.layers import every, windows_of, with_attention
from edge_rt.package.decoder import MAX_CONTEXT, MAX_LAYERS, Decoder, Dimensions
from edge_rt.package.layers import Layer

_PERIOD: Final = 4
"""GGUF files have no key for it."""


def from_config(config: ConfigReader, name: str) -> Decoder:
    """Describe the model of a ``config.json``."""
    config.defaults(num_key_value_heads=4)
    dims = config.dimensions(name, is_tied=True)
    has_bias = config.flag("attention_bias")
    layer = Layer(
        dims.attention(has_qkv_bias=has_bias, has_output_bias=has_bias),
        dims.feed_forward(has_bias=config.flag("mlp_bias")),
    )
    if config.has("no_rope_layers"):
        # 0 stands for a layer without rotation.
        rotated = tuple(bool(one) for one in config.numbers("no_rope_layers", dims.num_layers, least=0, most=1))
    else:
        rotated = every(dims.num_layers, config.count("no_rope_layer_interval", MAX_LAYERS, default=_PERIOD))
    layers = (
        one if is_rotated else with_attention(one, rope=None)
        for one, is_rotated in zip(_windowed(config, dims, layer, rotated), rotated, strict=True)
    )
    rope = read_rope(config, dims.head_dim, dims.context_length, theta=2_000_000.0)
    return dims.decoder("smollm3", tuple(layers), rope)


def _windowed(config: ConfigReader, dims: Dimensions, layer: Layer, rotated: tuple[bool, ...]) -> tuple[Layer, ...]:
    """Return the layers; with ``use_sliding_window`` and no list, those that are not rotated have a window."""
    # Configurations have it from Qwen; it does not count here.
    config.get("max_window_layers")
    has_window = config.flag("use_sliding_window") and config.has("sliding_window")
    kinds = config.layer_types(dims.num_layers)
    if kinds is None:
        kinds = tuple(has_window and not is_rotated for is_rotated in rotated)
    if not any(kinds):
        config.get("sliding_window")
        return (layer,) * dims.num_layers
    if not has_window:
        raise config.refused("layer_types has sliding layers without use_sliding_window and sliding_window")
    windows = windows_of(dims, kinds, config.count("sliding_window", MAX_CONTEXT))
    return tuple(with_attention(layer, window=size) for size in windows.sizes)


def from_header(reader: HeaderReader) -> Decoder:
    """Describe the model of a GGUF header."""
    dims = reader.dimensions()
    layer = Layer(dims.attention(), dims.feed_forward())
    layers = (
        layer if is_rotated else with_attention(layer, rope=None) for is_rotated in every(dims.num_layers, _PERIOD)
    )
    return dims.decoder("smollm3", tuple(layers), read_header_rope(reader, dims))


SMOLLM3: Final = Family("smollm3", ("smollm3",), ("smollm3",), from_config, from_header, header_has_halves=False)
