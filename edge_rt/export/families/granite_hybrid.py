"""Granite 4 H: in most layers a state space has the place of attention; experts may be added to the feed-forwards."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final

from edge_rt.errors import InvalidModelFile, as_json
from edge_rt.export.families.config_reader import FULL, ConfigReader
from edge_rt.export.families.experts import GRANITEMOE, config_experts, header_experts
from edge_rt.export.families.family import Family
from edge_rt.export.families.granite import GRANITE, describe_header
from edge_rt.export.families.header_reader import HeaderReader
from edge_rt.export.families.qwen35 import LINEAR
from edge_rt.export.sources.gguf_types import FETCH_AGAIN
from edge_rt.package.decoder import MAX_LAYERS, Decoder
from edge_rt.package.layers import (
    MAX_EXPERTS,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_TAPS,
    MAX_WIDTH,
    Experts,
    FeedForward,
    Layer,
    StateSpace,
)

_OLD_KINDS: Final = {"mamba": LINEAR, "attention": FULL}
"""Words of releases -> those of transformers 5."""

SPACE_NAMES: Final = {
    "in_proj": "ssm_in",
    "conv1d": "ssm_conv1d",
    "dt_bias": "ssm_dt.bias",
    "A_log": "ssm_a",
    "D": "ssm_d",
    "norm": "ssm_norm",
    "out_proj": "ssm_out",
}
"""transformers' names within a state space -> GGUF's."""
SPACE_HEADER_NAMES: Final = {"ssm_a": "ssm_a.weight", "ssm_d": "ssm_d.weight"}
"""What GGUF files name without an end."""


def from_config(config: ConfigReader, name: str) -> Decoder:
    """Describe the model of a ``config.json``."""
    decoder = GRANITE.from_config(config, name)
    space = config_space(config, config.count("mamba_expand", MAX_WIDTH, default=2) * decoder.hidden_size)
    kinds = config.kinds("layer_types", decoder.num_layers, (FULL, LINEAR, *_OLD_KINDS))
    recurrent = tuple(_OLD_KINDS.get(kind, kind) == LINEAR for kind in kinds or (LINEAR,) * decoder.num_layers)
    shared = FeedForward(config.count("shared_intermediate_size", 4 * MAX_WIDTH, default=1024))
    experts = None
    if config.count("num_local_experts", MAX_EXPERTS, least=0, default=8):
        each = FeedForward(decoder.intermediate_size)
        experts = config_experts(
            config, each, count="num_local_experts", count_default=8, chosen_default=2, gating="chosen"
        )
    kind = config.get("position_embedding_type")
    if kind not in (None, "nope", "rope"):
        raise config.refused(f"position_embedding_type is {as_json(kind)}")
    return _with_spaces(decoder, recurrent, space, shared, experts, is_rotated=kind == "rope")


def require_no_step_limit(config: ConfigReader) -> None:
    """Refuse limits of a state space's steps."""
    limit = config.get("time_step_limit")
    if limit is not None and limit != [0.0, math.inf] and limit != [0.0, {"__float__": "Infinity"}]:
        raise config.refused(f"time_step_limit is {as_json(limit)}")


def config_space(config: ConfigReader, size: int, **more: Any) -> StateSpace:
    """Return the state space of a ``config.json``; ``size``: features of all heads."""
    require_no_step_limit(config)
    heads = config.count("mamba_n_heads", MAX_HEADS, default=128)
    head = size // heads
    if config.get("mamba_d_head") not in (None, "auto"):
        head = config.count("mamba_d_head", MAX_HEAD_DIM)
    if heads * head != size:
        raise config.wrong("mamba_n_heads", f"{heads} of {head}, and {size} features")
    return StateSpace(
        heads,
        head,
        config.count("mamba_n_groups", heads, default=1),
        config.count("mamba_d_state", MAX_HEAD_DIM, default=256),
        config.count("mamba_d_conv", MAX_TAPS, default=4),
        has_conv_bias=config.flag("mamba_conv_bias", default=True),
        has_bias=config.flag("mamba_proj_bias"),
        **more,
    )


def from_header(reader: HeaderReader) -> Decoder:
    """Describe the model of a GGUF header; layers without KV heads have a state space."""
    layers = reader.count("block_count", MAX_LAYERS)
    heads = reader.counts("attention.head_count_kv", MAX_HEADS, layers=layers)
    decoder = describe_header(reader, kv_heads=reader.only("attention.head_count_kv", heads))
    shared = reader.count("expert_shared_feed_forward_length", 4 * MAX_WIDTH, default=decoder.intermediate_size)
    experts = None
    if reader.count("expert_count", MAX_EXPERTS, least=0, default=0):
        experts = header_experts(reader, FeedForward(decoder.intermediate_size), gating="chosen")
    first = next(number for number, count in enumerate((*heads, 0)) if not count)
    return _with_spaces(
        decoder,
        tuple(count == 0 for count in heads),
        header_space(reader, f"blk.{first}."),
        FeedForward(shared),
        experts,
        is_rotated=decoder.attention_of(0).rope is not None,
    )


def header_space(reader: HeaderReader, layer: str, **more: Any) -> StateSpace:
    """Return the state space of a GGUF header; ``layer``: what the names of the tensors of one begin with."""
    heads, size = reader.count("ssm.time_step_rank", MAX_HEADS), reader.count("ssm.inner_size", MAX_WIDTH)
    if size % heads:
        raise InvalidModelFile(
            f"{reader.where}: '{reader.key('ssm.inner_size')}' cannot be used.",
            f"It is {size}, no multiple of {heads} heads.",
            FETCH_AGAIN,
        )
    return StateSpace(
        heads,
        size // heads,
        reader.count("ssm.group_count", heads),
        reader.count("ssm.state_size", MAX_HEAD_DIM),
        reader.count("ssm.conv_kernel", MAX_TAPS),
        has_conv_bias=reader.has_tensor(f"{layer}ssm_conv1d.bias"),
        has_bias=reader.has_tensor(f"{layer}ssm_in.bias"),
        **more,
    )


def _with_spaces(
    decoder: Decoder,
    recurrent: tuple[bool, ...],
    space: StateSpace,
    shared: FeedForward,
    experts: Experts | None,
    *,
    is_rotated: bool,
) -> Decoder:
    attention = replace(decoder.attention_of(0), rope=0 if is_rotated else None)
    full = Layer(attention, shared, experts=experts)
    kinds = (full, Layer(None, shared, state_space=space, experts=experts))
    used = sorted(set(map(int, recurrent)))
    pattern = tuple(used.index(int(is_recurrent)) for is_recurrent in recurrent)
    return replace(decoder, family="granitehybrid", kinds=tuple(kinds[number] for number in used), pattern=pattern)


GRANITE_HYBRID: Final = Family(
    "granitehybrid",
    ("granitemoehybrid",),
    ("granitehybrid",),
    from_config,
    from_header,
    {
        **GRANITEMOE.layer_names,
        "shared_mlp.input_linear": "ffn_gate_up",
        "shared_mlp.output_linear": "ffn_down",
        **{f"mamba.{name}": ours for name, ours in SPACE_NAMES.items()},
    },
    header_has_halves=False,
    header_names={
        **SPACE_HEADER_NAMES,
        **{f"ffn_{part}_shexp": f"ffn_{part}" for part in ("gate", "up", "down")},
    },
)
