"""Qwen 2 and 2.5: biases of queries, keys and values, which no key of the configuration mentions."""

from __future__ import annotations

from typing import Final

from edge_rt.export.families.config_reader import ConfigReader
from edge_rt.export.families.config_rope import read_rope
from edge_rt.export.families.family import Family
from edge_rt.export.families.header_reader import HeaderReader
from edge_rt.export.families.header_rope import read_header_rope
from edge_rt.export.families.layers import with_attention
from edge_rt.package.decoder import MAX_CONTEXT, MAX_LAYERS, Decoder, Dimensions
from edge_rt.package.layers import Layer


def from_config(config: ConfigReader, name: str) -> Decoder:
    """Describe the model of a ``config.json``."""
    dims = config.dimensions(name)
    layer = Layer(dims.attention(has_qkv_bias=True), dims.feed_forward())
    return dims.decoder(
        "qwen2", qwen_layers(config, dims, layer), read_rope(config, dims.head_dim, dims.context_length)
    )


def from_header(reader: HeaderReader) -> Decoder:
    """Describe the model of a GGUF header."""
    dims = reader.dimensions()
    layer = Layer(dims.attention(has_qkv_bias=True), dims.feed_forward())
    return dims.decoder("qwen2", layer, read_header_rope(reader, dims))


def qwen_layers(config: ConfigReader, dims: Dimensions, layer: Layer) -> tuple[Layer, ...]:
    """Return the layers of a Qwen model: with ``use_sliding_window`` some of them have a window, else none."""
    kinds = config.layer_types(dims.num_layers)
    if not config.flag("use_sliding_window"):
        if kinds is not None and any(kinds):
            raise config.refused("layer_types has sliding layers, use_sliding_window is false")
        return (layer,) * dims.num_layers
    window = config.count("sliding_window", MAX_CONTEXT, default=4096)
    if kinds is None:
        first = config.count("max_window_layers", MAX_LAYERS, least=0, default=28)
        kinds = tuple(index >= first for index in range(dims.num_layers))
    if window >= dims.context_length:
        return (layer,) * dims.num_layers
    windowed = with_attention(layer, window=window)
    return tuple(windowed if kind else layer for kind in kinds)


QWEN2: Final = Family("qwen2", ("qwen2",), ("qwen2",), from_config, from_header)
