"""Qwen 3.5 and 3.6 (dense): in most layers a gated delta rule has the place of attention, whose output has a gate."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from edge_rt.errors import InvalidModelFile
from edge_rt.export.families.config_reader import FULL, ConfigReader
from edge_rt.export.families.config_rope import read_rope
from edge_rt.export.families.family import LAYER_NAMES, Family
from edge_rt.export.families.header_reader import HeaderReader
from edge_rt.export.families.header_rope import read_header_rope
from edge_rt.export.families.layers import every
from edge_rt.export.sources.gguf_types import FETCH_AGAIN
from edge_rt.package.decoder import MAX_LAYERS, Decoder, Dimensions, Rope
from edge_rt.package.layers import MAX_HEAD_DIM, MAX_HEADS, MAX_TAPS, MAX_WIDTH, GatedDelta, Layer

LINEAR: Final = "linear_attention"
_INTERVAL: Final = 4
_ROTATED_SHARE: Final = 0.25
_SECTIONS: Final = ("mrope_section", "mrope_interleaved")
"""Of rotations by several positions, which are all the same for text."""


def from_config(config: ConfigReader, name: str) -> Decoder:
    """Describe the model of a ``config.json``."""
    config.defaults(num_key_value_heads=4)
    dims = config.dimensions(name, head_dim=256)
    mixers = config_mixers(config, dims)
    layers = tuple(replace(layer, feed_forward=dims.feed_forward()) for layer in mixers)
    return dims.decoder("qwen35", layers, config_rope(config, dims))


def config_mixers(config: ConfigReader, dims: Dimensions) -> tuple[Layer, ...]:
    """Return the layers of a ``config.json``, without feed-forwards."""
    config.activation("hidden_act", {"silu": "silu", "swish": "silu"}, "silu")
    if not config.flag("attn_output_gate", default=True):
        raise config.refused("attn_output_gate is false")
    has_bias = config.flag("attention_bias")
    if has_bias:
        raise config.refused("attention_bias is true")
    delta = GatedDelta(
        config.count("linear_num_key_heads", MAX_HEADS, default=16),
        config.count("linear_num_value_heads", MAX_HEADS, default=32),
        config.count("linear_key_head_dim", MAX_HEAD_DIM, default=128),
        config.count("linear_value_head_dim", MAX_HEAD_DIM, default=128),
        config.count("linear_conv_kernel_dim", MAX_TAPS, default=4),
    )
    kinds = config.kinds("layer_types", dims.num_layers, (FULL, LINEAR))
    interval = config.count("full_attention_interval", MAX_LAYERS, default=_INTERVAL)
    linear = every(dims.num_layers, interval) if kinds is None else tuple(kind == LINEAR for kind in kinds)
    return _mixers(dims, delta, linear)


def config_rope(config: ConfigReader, dims: Dimensions) -> Rope:
    """Return the rotation of a ``config.json``."""
    return read_rope(
        config, dims.head_dim, dims.context_length, rotated_share=_ROTATED_SHARE, is_partial=True, known=_SECTIONS
    )


def from_header(reader: HeaderReader) -> Decoder:
    """Describe the model of a GGUF header, without the blocks behind the others that predict further ahead."""
    dims = header_dimensions(reader)
    mixers = header_mixers(reader, dims, is_tiled=True)
    layers = tuple(replace(layer, feed_forward=dims.feed_forward()) for layer in mixers)
    return dims.decoder("qwen35", layers, read_header_rope(reader, dims))


def header_dimensions(reader: HeaderReader, feed_forward: int | None = None) -> Dimensions:
    """Return the sizes of a GGUF header; ``feed_forward`` as in ``HeaderReader.dimensions``."""
    layers = reader.count("block_count", MAX_LAYERS) - reader.blocks_ahead()
    heads = reader.counts("attention.head_count_kv", MAX_HEADS, layers=layers + reader.num_blocks_ahead)
    kv_heads = reader.only("attention.head_count_kv", heads)
    return reader.dimensions(kv_heads=kv_heads, layers=layers, feed_forward=feed_forward)


def header_mixers(reader: HeaderReader, dims: Dimensions, *, is_tiled: bool) -> tuple[Layer, ...]:
    """Return the layers of a GGUF header, without feed-forwards; ``is_tiled`` as in ``GatedDelta``.

    Keys and queries have the epsilon of transformers. llama.cpp takes that of norms, which is the same in all releases.
    """
    values, wide = reader.count("ssm.time_step_rank", MAX_HEADS), reader.count("ssm.inner_size", MAX_WIDTH)
    if wide % values:
        raise InvalidModelFile(
            f"{reader.where}: '{reader.key('ssm.inner_size')}' cannot be used.",
            f"It is {wide}, no multiple of {values} heads.",
            FETCH_AGAIN,
        )
    delta = GatedDelta(
        reader.count("ssm.group_count", MAX_HEADS),
        values,
        reader.count("ssm.state_size", MAX_HEAD_DIM),
        wide // values,
        reader.count("ssm.conv_kernel", MAX_TAPS),
        is_tiled=is_tiled,
    )
    # Sections of rotations by several positions.
    reader.key("rope.dimension_sections")
    return _mixers(dims, delta, _header_linear(reader, dims.num_layers))


def _header_linear(reader: HeaderReader, layers: int) -> tuple[bool, ...]:
    """Return whether each layer has a delta rule: a list has the last word, and the tensors where nothing is said."""
    interval = reader.count("full_attention_interval", MAX_LAYERS, default=_INTERVAL)
    ahead = reader.num_blocks_ahead
    if reader.has("attention.recurrent_layers"):
        return reader.flags("attention.recurrent_layers", layers, ahead=ahead)
    heads = reader.counts("attention.head_count_kv", MAX_HEADS, layers=layers + ahead)
    if 0 in heads:
        return tuple(count == 0 for count in heads[:layers])
    if reader.has("full_attention_interval"):
        return every(layers, interval)
    return tuple(not reader.has_tensor(f"blk.{number}.attn_q.weight") for number in range(layers))


def _mixers(dims: Dimensions, delta: GatedDelta, linear: tuple[bool, ...]) -> tuple[Layer, ...]:
    full, recurrent = Layer(dims.attention(qk_norm="head", has_gate=True), None), Layer(None, None, gated_delta=delta)
    return tuple(recurrent if is_linear else full for is_linear in linear)


def ahead(decoder: Decoder) -> Layer:
    """Return the layer of the block that predicts further ahead: attention, and experts where the model has some."""
    layer = decoder.layers[decoder.attention_layers[0]]
    if not decoder.expert_layers:
        return layer
    fed = decoder.layers[decoder.expert_layers[0]]
    return replace(layer, feed_forward=fed.feed_forward, experts=fed.experts)


AHEAD_NAMES: Final = {
    "fc": "nextn.eh_proj",
    "pre_fc_norm_embedding": "nextn.enorm",
    "pre_fc_norm_hidden": "nextn.hnorm",
    "norm": "nextn.shared_head_norm",
}


QWEN35: Final = Family(
    "qwen35",
    ("qwen3_5_text",),
    ("qwen35",),
    from_config,
    from_header,
    {
        **LAYER_NAMES,
        "linear_attn.in_proj_qkv": "attn_qkv",
        "linear_attn.in_proj_z": "attn_gate",
        "linear_attn.in_proj_b": "ssm_beta",
        "linear_attn.in_proj_a": "ssm_alpha",
        "linear_attn.conv1d": "ssm_conv1d",
        "linear_attn.A_log": "ssm_a",
        "linear_attn.dt_bias": "ssm_dt.bias",
        "linear_attn.norm": "ssm_norm",
        "linear_attn.out_proj": "ssm_out",
    },
    header_names={"post_attention_norm": "ffn_norm", "ssm_a": "ssm_a.weight"},
    config_norm_offset=1.0,
    ignored_tensors=("mtp.",),
    ahead=ahead,
    ahead_names=AHEAD_NAMES,
)
