"""Gemma 2: Gemma 3's norms without those of heads; soft-caps of scores and logits; a window in every other layer."""

from __future__ import annotations

from typing import Final

from edge_rt.export.families.config_reader import ConfigReader
from edge_rt.export.families.config_rope import read_rope
from edge_rt.export.families.family import SANDWICH_NAMES, Family
from edge_rt.export.families.gemma3 import GEMMA_ACTIVATIONS
from edge_rt.export.families.header_reader import HeaderReader
from edge_rt.export.families.header_rope import read_header_rope
from edge_rt.export.families.layers import Windows, config_windows, header_windows, with_attention
from edge_rt.package.decoder import Decoder, Dimensions, Rope
from edge_rt.package.layers import Layer

_LARGE_LAYERS: Final = 46
"""The model of 27 billion weights scales attention by hidden size over heads; its files do not say so."""
_PERIOD: Final = 2


def from_config(config: ConfigReader, name: str) -> Decoder:
    """Describe the model of a ``config.json``."""
    config.defaults(num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=8192)
    dims = config.dimensions(name, head_dim=256, is_tied=True)
    if config.flag("use_bidirectional_attention"):
        raise config.refused("use_bidirectional_attention is true")
    scale = config.number("query_pre_attn_scalar", least=1e-3, most=1e6, default=256.0) ** -0.5
    windows = config_windows(config, dims, window=4096, period=_PERIOD)
    caps = config.softcap("attn_logit_softcapping", 50.0), config.softcap("final_logit_softcapping", 30.0)
    # transformers goes by the other key; releases have both.
    config.get("hidden_act")
    activation = config.activation("hidden_activation", GEMMA_ACTIVATIONS, "gelu_pytorch_tanh")
    rope = read_rope(config, dims.head_dim, dims.context_length)
    return _decoder(dims, windows, rope, scale, activation, caps)


def from_header(reader: HeaderReader) -> Decoder:
    """Describe the model of a GGUF header."""
    dims = reader.dimensions()
    is_large = dims.num_layers == _LARGE_LAYERS
    scale = (dims.hidden_size / dims.num_heads if is_large else dims.head_dim) ** -0.5
    windows = header_windows(reader, dims, period=_PERIOD)
    caps = reader.softcap("attn_logit_softcapping", 50.0), reader.softcap("final_logit_softcapping", 30.0)
    return _decoder(dims, windows, read_header_rope(reader, dims), scale, "gelu", caps)


def _decoder(
    dims: Dimensions,
    windows: Windows,
    rope: Rope,
    scale: float,
    activation: str,
    caps: tuple[float, float],
) -> Decoder:
    attention = dims.attention(scale=scale, softcap=caps[0])
    layer = Layer(attention, dims.feed_forward(activation=activation), has_post_norms=True)
    layers = tuple(with_attention(layer, window=window) for window in windows.sizes)
    return dims.decoder("gemma2", layers, rope, logit_softcap=caps[1], embedding_scale=dims.hidden_size**0.5)


GEMMA2: Final = Family(
    "gemma2", ("gemma2",), ("gemma2",), from_config, from_header, layer_names=SANDWICH_NAMES, config_norm_offset=1.0
)
