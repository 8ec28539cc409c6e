"""Gemma 3, and the text half of its multimodal checkpoints.

Norms before and behind both sub-layers, with weights from which transformers' files leave out 1; norms of heads; five
layers of six have a window and a rotation of their own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from edge_rt.export.families.config_reader import ConfigReader
from edge_rt.export.families.config_rope import read_rope
from edge_rt.export.families.family import SANDWICH_NAMES, Family
from edge_rt.export.families.header_reader import HeaderReader
from edge_rt.export.families.header_rope import read_header_rope
from edge_rt.export.families.layers import Windows, config_windows, header_windows, with_attention
from edge_rt.export.families.rope import MAX_ROPE_THETA, MIN_ROPE_THETA, default_rope
from edge_rt.package.decoder import Decoder, Dimensions, Rope
from edge_rt.package.layers import Layer

GEMMA_ACTIVATIONS: Final = {"gelu_pytorch_tanh": "gelu"}
_PERIOD: Final = 6
_LARGE_LAYERS: Final = 62
"""The model of 27 billion weights scales attention by hidden size over heads; its files do not say so."""


def from_config(config: ConfigReader, name: str) -> Decoder:
    """Describe the model of a ``config.json``."""
    config.defaults(num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=131_072, vocab_size=262_208)
    dims = config.dimensions(name, head_dim=256, is_tied=True)
    if config.flag("use_bidirectional_attention"):
        raise config.refused("use_bidirectional_attention is true")
    # transformers never applies it in this family.
    config.get("attn_logit_softcapping")
    scale = config.number("query_pre_attn_scalar", least=1e-3, most=1e6, default=256.0) ** -0.5
    windows = config_windows(config, dims, window=4096, period=_PERIOD, period_key="sliding_window_pattern")
    _require_same_period(config)
    # transformers goes by the other key.
    config.get("hidden_act")
    activation = config.activation("hidden_activation", GEMMA_ACTIVATIONS, "gelu_pytorch_tanh")
    size, context = dims.head_dim, dims.context_length
    ropes = (
        read_rope(config, size, context, layer_type="full_attention", theta=1e6),
        read_rope(
            config, size, context, layer_type="sliding_attention", theta_key="rope_local_base_freq", is_scaled=False
        ),
    )
    return _decoder(dims, windows, ropes, scale, activation, config.softcap("final_logit_softcapping"))


def _require_same_period(config: ConfigReader) -> None:
    """Refuse a second period that differs from what transformers reads; where layers are listed, neither counts."""
    private = config.get("_sliding_window_pattern")
    used = config.get("sliding_window_pattern")
    used = _PERIOD if used is None else used
    if private not in (None, used) and not config.has("layer_types"):
        raise config.refused(f"_sliding_window_pattern is {private!r:.60} where sliding_window_pattern is {used}")


def from_header(reader: HeaderReader) -> Decoder:
    """Describe the model of a GGUF header."""
    dims = reader.dimensions()
    is_large = dims.num_layers == _LARGE_LAYERS
    scale = (dims.hidden_size / dims.num_heads if is_large else dims.head_dim) ** -0.5
    base = reader.number("rope.freq_base_swa", least=MIN_ROPE_THETA, most=MAX_ROPE_THETA, default=10_000.0)
    ropes = (read_header_rope(reader, dims), default_rope(base, dims.head_dim))
    windows = header_windows(reader, dims, period=_PERIOD)
    reader.softcap("attn_logit_softcapping")
    return _decoder(dims, windows, ropes, scale, "gelu", reader.softcap("final_logit_softcapping"))


def _decoder(
    dims: Dimensions, windows: Windows, ropes: tuple[Rope, ...], scale: float, activation: str, softcap: float
) -> Decoder:
    attention = dims.attention(scale=scale, qk_norm="head")
    layer = Layer(attention, dims.feed_forward(activation=activation), has_post_norms=True)
    layers = tuple(
        with_attention(layer, window=size, rope=int(kind))
        for kind, size in zip(windows.kinds, windows.sizes, strict=True)
    )
    decoder = dims.decoder("gemma3", layers, *ropes, logit_softcap=softcap)
    return replace(decoder, embedding_scale=dims.hidden_size**0.5)


GEMMA3: Final = Family(
    "gemma3",
    ("gemma3_text",),
    ("gemma3",),
    from_config,
    from_header,
    layer_names=SANDWICH_NAMES,
    config_norm_offset=1.0,
    skipped_keys=("vision.", "mm."),
    skipped_tensors=("v.", "mm."),
)
