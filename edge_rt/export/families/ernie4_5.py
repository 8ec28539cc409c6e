"""ERNIE 4.5 (dense): llama whose rotated pairs are neighbours, in files of both kinds."""

from __future__ import annotations

from typing import Final

from edge_rt.export.families.config_reader import ConfigReader
from edge_rt.export.families.config_rope import read_rope
from edge_rt.export.families.family import Family
from edge_rt.export.families.header_reader import HeaderReader
from edge_rt.export.families.header_rope import read_header_rope
from edge_rt.package.decoder import Decoder
from edge_rt.package.layers import Layer


def from_config(config: ConfigReader, name: str) -> Decoder:
    """Describe the model of a ``config.json``."""
    config.defaults(num_attention_heads=16, num_key_value_heads=2)
    dims = config.dimensions(name, head_dim=128, is_tied=True, epsilon_default=1e-5)
    has_bias = config.flag("use_bias")
    layer = Layer(dims.attention(has_qkv_bias=has_bias, has_output_bias=has_bias), dims.feed_forward(has_bias=has_bias))
    return dims.decoder("ernie4_5", layer, read_rope(config, dims.head_dim, dims.context_length, theta=500_000.0))


def from_header(reader: HeaderReader) -> Decoder:
    """Describe the model of a GGUF header."""
    dims = reader.dimensions()
    layer = Layer(
        dims.attention(
            has_qkv_bias=reader.has_tensor("blk.0.attn_q.bias"),
            has_output_bias=reader.has_tensor("blk.0.attn_output.bias"),
        ),
        dims.feed_forward(has_bias=reader.has_tensor("blk.0.ffn_down.bias")),
    )
    return dims.decoder("ernie4_5", layer, read_header_rope(reader, dims))


ERNIE4_5: Final = Family(
    "ernie4_5",
    ("ernie4_5",),
    ("ernie4_5",),
    from_config,
    from_header,
    config_has_halves=False,
    header_has_halves=False,
)
