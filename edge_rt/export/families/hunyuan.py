"""Hunyuan (dense): norms of heads behind the rotation, whose base an alpha changes."""

from __future__ import annotations

from typing import Final

from edge_rt.export.families.config_reader import ConfigReader
from edge_rt.export.families.config_rope import read_rope
from edge_rt.export.families.family import LAYER_NAMES, Family
from edge_rt.export.families.header_reader import HeaderReader
from edge_rt.export.families.header_rope import read_header_rope
from edge_rt.package.decoder import Decoder
from edge_rt.package.layers import Layer


def from_config(config: ConfigReader, name: str) -> Decoder:
    """Describe the model of a ``config.json``."""
    dims = config.dimensions(name, epsilon_default=1e-5)
    if not config.flag("use_qk_norm", default=True):
        raise config.refused("use_qk_norm is false")
    has_bias = config.flag("attention_bias")
    layer = Layer(
        dims.attention(qk_norm="head", norm_after_rope=True, has_qkv_bias=has_bias, has_output_bias=has_bias),
        dims.feed_forward(),
    )
    return dims.decoder("hunyuan_v1_dense", layer, read_rope(config, dims.head_dim, dims.context_length))


def from_header(reader: HeaderReader) -> Decoder:
    """Describe the model of a GGUF header."""
    dims = reader.dimensions()
    layer = Layer(dims.attention(qk_norm="head", norm_after_rope=True), dims.feed_forward())
    return dims.decoder("hunyuan_v1_dense", layer, read_header_rope(reader, dims))


HUNYUAN: Final = Family(
    "hunyuan_v1_dense",
    ("hunyuan_v1_dense",),
    ("hunyuan-dense",),
    from_config,
    from_header,
    layer_names={
        **LAYER_NAMES,
        "self_attn.query_layernorm": "attn_q_norm",
        "self_attn.key_layernorm": "attn_k_norm",
    },
)
