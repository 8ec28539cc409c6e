"""Qwen 3: norms of every head of queries and keys; heads that are not hidden size over heads."""

from __future__ import annotations

from typing import Final

from edge_rt.export.families.config_reader import ConfigReader
from edge_rt.export.families.config_rope import read_rope
from edge_rt.export.families.family import Family
from edge_rt.export.families.header_reader import HeaderReader
from edge_rt.export.families.header_rope import read_header_rope
from edge_rt.export.families.qwen2 import qwen_layers
from edge_rt.package.decoder import Decoder
from edge_rt.package.layers import Layer


def from_config(config: ConfigReader, name: str) -> Decoder:
    """Describe the model of a ``config.json``."""
    dims = config.dimensions(name, head_dim=128)
    has_bias = config.flag("attention_bias")
    layer = Layer(dims.attention(qk_norm="head", has_qkv_bias=has_bias, has_output_bias=has_bias), dims.feed_forward())
    return dims.decoder(
        "qwen3", qwen_layers(config, dims, layer), read_rope(config, dims.head_dim, dims.context_length)
    )


def from_header(reader: HeaderReader) -> Decoder:
    """Describe the model of a GGUF header."""
    dims = reader.dimensions()
    layer = Layer(
        dims.attention(
            qk_norm="head",
            has_qkv_bias=reader.has_tensor("blk.0.attn_q.bias"),
            has_output_bias=reader.has_tensor("blk.0.attn_output.bias"),
        ),
        dims.feed_forward(),
    )
    return dims.decoder("qwen3", layer, read_header_rope(reader, dims))


QWEN3: Final = Family("qwen3", ("qwen3",), ("qwen3",), from_config, from_header)
