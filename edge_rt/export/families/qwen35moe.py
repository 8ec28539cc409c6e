"""Qwen 3.5 and 3.6 with experts, and Qwen3-Next: as the dense ones, with experts beside feed-forwards."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from edge_rt.export.families.config_reader import ConfigReader
from edge_rt.export.families.experts import config_expert, config_experts, header_experts
from edge_rt.export.families.family import EXPERT_NAMES, Family
from edge_rt.export.families.header_reader import HeaderReader
from edge_rt.export.families.header_rope import read_header_rope
from edge_rt.export.families.qwen35 import QWEN35, config_mixers, config_rope, header_dimensions, header_mixers
from edge_rt.package.decoder import MAX_LAYERS, Decoder
from edge_rt.package.layers import MAX_WIDTH, Experts, FeedForward, Layer

_SHARED: Final = "shared_expert_intermediate_size"


def from_config(config: ConfigReader, name: str) -> Decoder:
    """Describe the model of the ``config.json`` of a Qwen 3.5 with experts: weights are always divided by their sum."""
    each = config_expert(config, 512)
    # No layer has a feed-forward by itself.
    config.defaults(num_key_value_heads=2, intermediate_size=each.size)
    dims = config.dimensions(name, head_dim=256)
    experts = _experts(config, each, count=256, chosen=8, is_normalised=True)
    shared = FeedForward(config.count(_SHARED, 4 * MAX_WIDTH, default=512))
    layers = tuple(_with_experts(layer, shared, experts) for layer in config_mixers(config, dims))
    return dims.decoder("qwen35moe", layers, config_rope(config, dims))


def next_from_config(config: ConfigReader, name: str) -> Decoder:
    """Describe the model of Qwen3-Next's ``config.json``: some layers may have a plain feed-forward."""
    config.defaults(num_key_value_heads=2, intermediate_size=5632)
    dims = config.dimensions(name, head_dim=256)
    is_normalised = config.flag("norm_topk_prob", default=True)
    experts = _experts(config, config_expert(config, 512), count=512, chosen=10, is_normalised=is_normalised)
    shared = FeedForward(config.count(_SHARED, 4 * MAX_WIDTH, default=512))
    step = config.count("decoder_sparse_step", MAX_LAYERS, default=1)
    dense = config.indices("mlp_only_layers", dims.num_layers) or frozenset()
    layers = tuple(
        _with_experts(layer, shared, experts)
        if number not in dense and (number + 1) % step == 0
        else replace(layer, feed_forward=dims.feed_forward())
        for number, layer in enumerate(config_mixers(config, dims))
    )
    return dims.decoder("qwen3next", layers, config_rope(config, dims))


def _experts(config: ConfigReader, each: FeedForward, *, count: int, chosen: int, is_normalised: bool) -> Experts:
    return config_experts(
        config, each, count_default=count, chosen_default=chosen, is_normalised=is_normalised, has_shared_gate=True
    )


def _with_experts(layer: Layer, shared: FeedForward, experts: Experts) -> Layer:
    return replace(layer, feed_forward=shared, experts=experts)


def from_header(reader: HeaderReader) -> Decoder:
    """Describe the model of a GGUF header of a Qwen 3.5 with experts."""
    return _described(reader, "qwen35moe", is_tiled=True)


def next_from_header(reader: HeaderReader) -> Decoder:
    """Describe the model of Qwen3-Next's GGUF header: heads are where folders have them."""
    if reader.has_tensor("blk.0.ssm_in.weight"):
        raise reader.refused("'blk.0.ssm_in.weight' is a matrix of an older converter")
    return _described(reader, "qwen3next", is_tiled=False)


def _described(reader: HeaderReader, family: str, *, is_tiled: bool) -> Decoder:
    """Describe a model; readers divide weights by their sum. Layers without a router have a plain feed-forward."""
    each = FeedForward(reader.count("expert_feed_forward_length", 4 * MAX_WIDTH))
    plain = reader.count("feed_forward_length", 4 * MAX_WIDTH, default=each.size)
    dims = header_dimensions(reader, plain)
    experts = header_experts(reader, each, is_normalised=True, has_shared_gate=True)
    shared = FeedForward(reader.count("expert_shared_feed_forward_length", 4 * MAX_WIDTH, default=each.size))
    layers = tuple(
        _with_experts(layer, shared, experts)
        if reader.has_tensor(f"blk.{number}.ffn_gate_inp.weight")
        else replace(layer, feed_forward=dims.feed_forward())
        for number, layer in enumerate(header_mixers(reader, dims, is_tiled=is_tiled))
    )
    return dims.decoder(family, layers, read_header_rope(reader, dims))


_NAMES: Final = {
    **QWEN35.layer_names,
    **EXPERT_NAMES,
    "mlp.experts.gate_up_proj": "ffn_gate_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
    "mlp.shared_expert.gate_proj": "ffn_gate",
    "mlp.shared_expert.up_proj": "ffn_up",
    "mlp.shared_expert.down_proj": "ffn_down",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
}
QWEN35MOE: Final = replace(
    QWEN35,
    name="qwen35moe",
    model_types=("qwen3_5_moe_text",),
    architectures=("qwen35moe",),
    from_config=from_config,
    from_header=from_header,
    layer_names=_NAMES,
    header_names={**QWEN35.header_names, **{f"ffn_{part}_shexp": f"ffn_{part}" for part in ("gate", "up", "down")}},
)
QWEN3NEXT: Final[Family] = replace(
    QWEN35MOE,
    name="qwen3next",
    model_types=("qwen3_next",),
    architectures=("qwen3next",),
    from_config=next_from_config,
    from_header=next_from_header,
    layer_names={**_NAMES, "linear_attn.in_proj_qkvz": "ssm_qkvz", "linear_attn.in_proj_ba": "ssm_ba"},
)
