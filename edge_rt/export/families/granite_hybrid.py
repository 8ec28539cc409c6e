"""Granite 4 H: in most layers a state space has the place of attention; experts may be added to the feed-forwards."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from edge_rt.errors import as_json
from edge_rt.export.families.config_reader import FULL, ConfigReader
from edge_rt.export.families.experts import GRANITEMOE, config_experts, header_experts
from edge_rt.export.families.family import Family
from edge_rt.export.families.granite import GRANITE, describe_header
from edge_rt.export.families.header_reader import HeaderReader
from edge_rt.export.families.qwen35 import LINEAR
from edge_rt.export.families.state_spaces import SPACE_HEADER_NAMES, SPACE_NAMES, config_space, header_space
from edge_rt.package.decoder import MAX_LAYERS, Decoder
from edge_rt.package.layers import (
    MAX_EXPERTS,
    MAX_HEADS,
    MAX_WIDTH,
    Experts,
    FeedForward,
    Layer,
    StateSpace,
)

_OLD_KINDS: Final = {"mamba": LINEAR, "attention": FULL}
"""Words of releases -> those of transformers 5."""


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
