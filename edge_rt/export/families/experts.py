"""Families with experts: Qwen 3, OLMoE, Granite 3 and LFM2, as their dense members but for the feed-forwards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from edge_rt.export.families.config_reader import FULL, ConfigReader
from edge_rt.export.families.config_rope import read_rope
from edge_rt.export.families.family import EXPERT_NAMES, LAYER_NAMES, Family
from edge_rt.export.families.granite import GRANITE
from edge_rt.export.families.header_reader import HeaderReader
from edge_rt.export.families.header_rope import read_header_rope
from edge_rt.export.families.lfm2 import CONV, LFM2, config_conv, config_dimensions, header_mixers, mixers
from edge_rt.package.decoder import MAX_LAYERS, Decoder, Dimensions
from edge_rt.package.layers import MAX_EXPERTS, MAX_WIDTH, Experts, FeedForward, Layer

_LFM2_EPSILON: Final = 1e-6
SIGMOID: Final = 2
"""``expert_gating_func`` of GGUF files."""


def config_experts(
    config: ConfigReader,
    each: FeedForward,
    *,
    count: str = "num_experts",
    count_default: int | None = None,
    chosen_default: int | None = None,
    **more: Any,
) -> Experts:
    """Return the experts of a ``config.json``; what differs from a plain softmax is given."""
    # Newer configurations have one name for all families.
    config.alias(count, "num_local_experts")
    experts = config.count(count, MAX_EXPERTS, default=count_default)
    return Experts(experts, config.count("num_experts_per_tok", experts, default=chosen_default), each, **more)


def config_expert(config: ConfigReader, size: int | None = None) -> FeedForward:
    """Return one of the experts of a ``config.json``; ``size``: where the configuration does not state it."""
    return FeedForward(config.count("moe_intermediate_size", 4 * MAX_WIDTH, default=size))


def header_experts(reader: HeaderReader, each: FeedForward, **more: Any) -> Experts:
    """Return the experts of a GGUF header; ``each``: one of them, of the size that it has where none is stated."""
    size = reader.count("expert_feed_forward_length", 4 * MAX_WIDTH, default=each.size)
    count = reader.count("expert_count", MAX_EXPERTS)
    return Experts(count, reader.count("expert_used_count", count), replace(each, size=size), **more)


# --- Qwen 3 ---


def qwen3_from_config(config: ConfigReader, name: str) -> Decoder:
    """Describe the model of Qwen 3's ``config.json``: some layers may have a plain feed-forward."""
    config.defaults(num_key_value_heads=4)
    dims, has_bias = config.dimensions(name), config.flag("attention_bias")
    _require_silu(config)
    experts = config_experts(
        config,
        config_expert(config, 768),
        count_default=128,
        chosen_default=8,
        is_normalised=config.flag("norm_topk_prob"),
    )
    step = config.count("decoder_sparse_step", MAX_LAYERS, default=1)
    dense = config.indices("mlp_only_layers", dims.num_layers) or frozenset()
    attention = dims.attention(qk_norm="head", has_qkv_bias=has_bias, has_output_bias=has_bias)
    plain, sparse = Layer(attention, dims.feed_forward()), Layer(attention, None, experts=experts)
    layers = tuple(
        sparse if number not in dense and (number + 1) % step == 0 else plain for number in range(dims.num_layers)
    )
    return dims.decoder("qwen3moe", layers, read_rope(config, dims.head_dim, dims.context_length))


def qwen3_from_header(reader: HeaderReader) -> Decoder:
    """Describe the model of Qwen 3's GGUF header: readers divide weights by their sum, whatever the model did."""
    dims = reader.dimensions()
    experts = header_experts(reader, dims.feed_forward(), is_normalised=True)
    layer = Layer(dims.attention(qk_norm="head"), None, experts=experts)
    return dims.decoder("qwen3moe", layer, read_header_rope(reader, dims))


def _require_silu(config: ConfigReader) -> None:
    config.activation("hidden_act", {"silu": "silu", "swish": "silu"}, "silu")


# --- OLMoE ---


def olmoe_from_config(config: ConfigReader, name: str) -> Decoder:
    """Describe the model of OLMoE's ``config.json``."""
    dims, has_bias = config.dimensions(name, epsilon_default=1e-5), config.flag("attention_bias")
    _require_silu(config)
    experts = config_experts(
        config,
        dims.feed_forward(),
        count_default=64,
        chosen_default=8,
        is_normalised=config.flag("norm_topk_prob"),
    )
    clip = 0.0
    if config.has("clip_qkv"):
        clip = config.number("clip_qkv", least=1e-6, most=1e6)
    attention = dims.attention(qk_norm="row", has_qkv_bias=has_bias, has_output_bias=has_bias, clip=clip)
    rope = read_rope(config, dims.head_dim, dims.context_length)
    return dims.decoder("olmoe", Layer(attention, None, experts=experts), rope)


def olmoe_from_header(reader: HeaderReader) -> Decoder:
    """Describe the model of OLMoE's GGUF header: readers do not divide weights."""
    dims = reader.dimensions()
    layer = Layer(dims.attention(qk_norm="row"), None, experts=header_experts(reader, dims.feed_forward()))
    return dims.decoder("olmoe", layer, read_header_rope(reader, dims))


# --- Granite 3 ---


def granite_from_config(config: ConfigReader, name: str) -> Decoder:
    """Describe the model of Granite's ``config.json``."""
    decoder = GRANITE.from_config(config, name)
    each = FeedForward(decoder.intermediate_size)
    experts = config_experts(
        config, each, count="num_local_experts", count_default=8, chosen_default=2, gating="chosen"
    )
    return _with_experts(decoder, "granitemoe", experts)


def granite_from_header(reader: HeaderReader) -> Decoder:
    """Describe the model of Granite's GGUF header."""
    decoder = GRANITE.from_header(reader)
    experts = header_experts(reader, FeedForward(decoder.intermediate_size), gating="chosen")
    return _with_experts(decoder, "granitemoe", experts)


def _with_experts(decoder: Decoder, family: str, experts: Experts) -> Decoder:
    kinds = tuple(replace(kind, feed_forward=None, experts=experts) for kind in decoder.kinds)
    return replace(decoder, family=family, kinds=kinds)


# --- LFM2 ---


def lfm2_from_config(config: ConfigReader, name: str) -> Decoder:
    """Describe the model of LFM2's ``config.json``: the first layers have a plain feed-forward, of the size stated."""
    dims, conv = config_dimensions(config, name), config_conv(config)
    kinds = config.kinds("layer_types", dims.num_layers, (FULL, CONV))
    if kinds is None:
        raise config.refused("there are no layer_types")
    experts = config_experts(
        config,
        config_expert(config, 1792),
        count_default=32,
        chosen_default=4,
        gating="sigmoid",
        is_normalised=config.flag("norm_topk_prob", default=True),
        epsilon=_LFM2_EPSILON,
        scale=config.number("routed_scaling_factor", least=1e-3, most=1e3, default=1.0),
        has_choice_bias=config.flag("use_expert_bias", default=True),
    )
    dense = config.count("num_dense_layers", MAX_LAYERS, least=0, default=2)
    layers = mixers(dims, tuple(kind == FULL for kind in kinds), conv)
    rope = read_rope(config, dims.head_dim, dims.context_length, theta=1e6)
    return dims.decoder("lfm2moe", _fed(dims, layers, dense, experts), rope)


def lfm2_from_header(reader: HeaderReader) -> Decoder:
    """Describe the model of LFM2's GGUF header."""
    dims, layers = header_mixers(reader)
    if (gating := reader.count("expert_gating_func", 8, default=SIGMOID)) != SIGMOID:
        raise reader.refused(f"{reader.key('expert_gating_func')!r} is {gating}")
    dense = reader.count("leading_dense_block_count", MAX_LAYERS, least=0, default=0)
    has_bias = reader.has_tensor(f"blk.{dense}.exp_probs_b.bias")
    experts = header_experts(
        reader,
        dims.feed_forward(),
        gating="sigmoid",
        is_normalised=True,
        epsilon=_LFM2_EPSILON,
        has_choice_bias=has_bias,
    )
    return dims.decoder("lfm2moe", _fed(dims, layers, dense, experts), read_header_rope(reader, dims))


def _fed(dims: Dimensions, layers: tuple[Layer, ...], dense: int, experts: Experts) -> tuple[Layer, ...]:
    plain = dims.feed_forward()
    return tuple(
        replace(layer, feed_forward=plain) if number < dense else replace(layer, experts=experts)
        for number, layer in enumerate(layers)
    )


QWEN3MOE: Final = Family(
    "qwen3moe", ("qwen3_moe",), ("qwen3moe",), qwen3_from_config, qwen3_from_header, {**LAYER_NAMES, **EXPERT_NAMES}
)
OLMOE: Final = Family(
    "olmoe", ("olmoe",), ("olmoe",), olmoe_from_config, olmoe_from_header, {**LAYER_NAMES, **EXPERT_NAMES}
)
GRANITEMOE: Final = Family(
    "granitemoe",
    ("granitemoe",),
    ("granitemoe",),
    granite_from_config,
    granite_from_header,
    {
        **LAYER_NAMES,
        "block_sparse_moe.router.layer": "ffn_gate_inp",
        "block_sparse_moe.input_linear": "ffn_gate_up_exps",
        "block_sparse_moe.output_linear": "ffn_down_exps",
    },
    header_has_halves=False,
)
LFM2MOE: Final = replace(
    LFM2,
    name="lfm2moe",
    model_types=("lfm2_moe",),
    architectures=("lfm2moe",),
    from_config=lfm2_from_config,
    from_header=lfm2_from_header,
    layer_names={
        **LFM2.layer_names,
        "feed_forward.gate": "ffn_gate_inp",
        "feed_forward.expert_bias": "exp_probs_b.bias",
        "feed_forward.experts.*.w1": "ffn_gate.*",
        "feed_forward.experts.*.w2": "ffn_down.*",
        "feed_forward.experts.*.w3": "ffn_up.*",
    },
)
