"""LFM2 and 2.5: most layers have a short convolution in the place of attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from edge_rt.export.families.config_reader import FULL, ConfigReader
from edge_rt.export.families.config_rope import read_rope
from edge_rt.export.families.family import LAYER_NAMES, Family
from edge_rt.export.families.header_reader import HeaderReader
from edge_rt.export.families.header_rope import read_header_rope
from edge_rt.package.decoder import MAX_LAYERS, Decoder, Dimensions
from edge_rt.package.layers import MAX_HEADS, MAX_TAPS, MAX_WIDTH, Layer, ShortConv

CONV: Final = "conv"
_NAMES: Final = {
    "operator_norm": "attn_norm",
    "ffn_norm": "ffn_norm",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "self_attn.out_proj": "attn_output",
    "conv.in_proj": "shortconv.in_proj",
    "conv.conv": "shortconv.conv",
    "conv.out_proj": "shortconv.out_proj",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w2": "ffn_down",
    "feed_forward.w3": "ffn_up",
    **{name: LAYER_NAMES[name] for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")},
}


def from_config(config: ConfigReader, name: str) -> Decoder:
    """Describe the model of a ``config.json``."""
    config.alias("intermediate_size", "block_ff_dim")
    dims = config_dimensions(config, name)
    dims = replace(dims, intermediate_size=_adjusted(config, dims.intermediate_size))
    found = mixers(dims, _config_attention(config, dims.num_layers), config_conv(config))
    layers = tuple(replace(layer, feed_forward=dims.feed_forward()) for layer in found)
    rope = read_rope(config, dims.head_dim, dims.context_length, theta=1e6)
    return dims.decoder("lfm2", layers, rope)


def config_dimensions(config: ConfigReader, name: str) -> Dimensions:
    """Return the sizes, without a change of the feed-forward's."""
    config.alias("tie_word_embeddings", "tie_embedding")
    config.defaults(num_key_value_heads=8)
    return config.dimensions(name, is_tied=True, epsilon="norm_eps", epsilon_default=1e-5)


def config_conv(config: ConfigReader) -> ShortConv:
    """Return the convolution of layers without attention."""
    return ShortConv(config.count("conv_L_cache", MAX_TAPS, default=3), config.flag("conv_bias"))


def _adjusted(config: ConfigReader, size: int) -> int:
    """Return the features of a feed-forward, which most configurations do not state as they are."""
    if not config.flag("block_auto_adjust_ff_dim", default=True):
        return size
    size = int(2 * size / 3)
    multiple = config.count("block_multiple_of", MAX_WIDTH, default=256)
    if config.is_null("block_ffn_dim_multiplier"):
        return size
    size = int(config.number("block_ffn_dim_multiplier", least=1e-3, most=1e3, default=1.0) * size)
    return -(-size // multiple) * multiple


def _config_attention(config: ConfigReader, layers: int) -> tuple[bool, ...]:
    """Return whether each layer has attention; a list of kinds comes before one of numbers."""
    kinds = config.kinds("layer_types", layers, (FULL, CONV))
    numbers = config.indices("full_attn_idxs", layers)
    if kinds is not None:
        return tuple(kind == FULL for kind in kinds)
    return tuple(numbers is None or layer in numbers for layer in range(layers))


def from_header(reader: HeaderReader) -> Decoder:
    """Describe the model of a GGUF header."""
    dims, mixers = header_mixers(reader)
    layers = tuple(replace(layer, feed_forward=dims.feed_forward()) for layer in mixers)
    return dims.decoder("lfm2", layers, read_header_rope(reader, dims))


def header_mixers(reader: HeaderReader) -> tuple[Dimensions, tuple[Layer, ...]]:
    """Return the sizes and the layers, without feed-forwards, of a GGUF header; KV heads mean attention."""
    heads = reader.counts("attention.head_count_kv", MAX_HEADS, layers=reader.count("block_count", MAX_LAYERS))
    dims = reader.dimensions(kv_heads=reader.only("attention.head_count_kv", heads))
    return dims, mixers(dims, tuple(map(bool, heads)), ShortConv(reader.count("shortconv.l_cache", MAX_TAPS)))


def mixers(dims: Dimensions, attention: tuple[bool, ...], conv: ShortConv) -> tuple[Layer, ...]:
    """Return layers without feed-forwards, with attention or a convolution."""
    full, short = Layer(dims.attention(qk_norm="head"), None), Layer(None, None, short_conv=conv)
    return tuple(full if is_full else short for is_full in attention)


LFM2: Final = Family(
    "lfm2",
    ("lfm2",),
    ("lfm2",),
    from_config,
    from_header,
    layer_names=_NAMES,
    top_names={"embed_tokens": "token_embd", "embedding_norm": "output_norm"},
    header_names={"token_embd_norm": "output_norm"},
)
