"""gpt-oss: experts with biases and limits, sinks of attention, every second layer with a window."""

from __future__ import annotations

from typing import Final

from edge_rt.export.families.config_reader import ConfigReader
from edge_rt.export.families.config_rope import read_rope
from edge_rt.export.families.experts import config_experts, header_experts
from edge_rt.export.families.family import LAYER_NAMES, Family
from edge_rt.export.families.header_reader import HeaderReader
from edge_rt.export.families.header_rope import read_header_rope
from edge_rt.export.families.layers import config_windows, header_windows
from edge_rt.package.decoder import Decoder, Dimensions, Rope
from edge_rt.package.layers import Experts, FeedForward, Layer

_SLOPE, _LIMIT = 1.702, 7.0
_PERIOD: Final = 2
_THETA: Final = 150_000.0


def from_config(config: ConfigReader, name: str) -> Decoder:
    """Describe the model of a ``config.json``."""
    config.alias("num_experts_per_tok", "experts_per_token")
    config.defaults(num_key_value_heads=8, intermediate_size=2880)
    dims = config.dimensions(name, head_dim=64, epsilon_default=1e-5)
    config.activation("hidden_act", {"silu": "silu"}, "silu")
    each = FeedForward(
        dims.intermediate_size,
        has_bias=True,
        limit=config.number("swiglu_limit", least=1e-3, most=1e6, default=_LIMIT),
        slope=config.number("swiglu_alpha", least=1e-3, most=1e3, default=_SLOPE),
        up_offset=1.0,
    )
    experts = config_experts(config, each, count="num_local_experts", count_default=128, chosen_default=4, **_ROUTER)
    windows = config_windows(config, dims, window=128, period=_PERIOD)
    if not (config.has("rope_parameters") or config.has("rope_scaling")):
        raise config.refused("there are no rope_parameters")
    rope = read_rope(config, dims.head_dim, dims.context_length, theta=_THETA)
    return _decoder(dims, experts, windows.sizes, rope, has_bias=config.flag("attention_bias", default=True))


_ROUTER: Final = {"gating": "chosen", "has_router_bias": True}


def from_header(reader: HeaderReader) -> Decoder:
    """Describe the model of a GGUF header; its limits are those of the releases."""
    dims = reader.dimensions()
    each = FeedForward(dims.intermediate_size, has_bias=True, limit=_LIMIT, slope=_SLOPE, up_offset=1.0)
    experts = header_experts(reader, each, **_ROUTER)
    windows = header_windows(reader, dims, period=_PERIOD, default=None)
    return _decoder(dims, experts, windows.sizes, read_header_rope(reader, dims), has_bias=True)


def _decoder(dims: Dimensions, experts: Experts, windows: tuple[int, ...], rope: Rope, *, has_bias: bool) -> Decoder:
    layers = tuple(
        Layer(
            dims.attention(window=window, has_qkv_bias=has_bias, has_output_bias=has_bias, has_sinks=True),
            None,
            experts=experts,
        )
        for window in windows
    )
    return dims.decoder("gpt-oss", layers, rope)


GPT_OSS: Final = Family(
    "gpt-oss",
    ("gpt_oss",),
    ("gpt-oss",),
    from_config,
    from_header,
    {**LAYER_NAMES, "self_attn.sinks": "attn_sinks", "mlp.router": "ffn_gate_inp"},
    stacked_experts="mlp.experts",
    header_names={"post_attention_norm": "ffn_norm"},
)
