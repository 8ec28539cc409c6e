"""StableLM 3B and StableLM 2 1.6B: llama with LayerNorm, of whose heads a quarter is rotated.

StableLM 2 12B computes something else, and is refused: attention and feed-forward side by side, and LayerNorms of
queries and keys with a weight for each head.
"""

from __future__ import annotations

from typing import Final

from edge_rt.export.families.config_reader import ConfigReader
from edge_rt.export.families.config_rope import read_rope
from edge_rt.export.families.family import Family
from edge_rt.export.families.header_reader import HeaderReader
from edge_rt.export.families.header_rope import read_header_rope
from edge_rt.package.decoder import Decoder, Dimensions, Rope
from edge_rt.package.layers import Layer

_PARALLEL: Final = "use_parallel_residual (attention and feed-forward side by side)"
_HEAD_NORMS: Final = "qk_layernorm (LayerNorms of queries and keys with a weight for each head)"


def from_config(config: ConfigReader, name: str) -> Decoder:
    """Describe the model of a ``config.json``."""
    config.defaults(num_attention_heads=32, num_key_value_heads=32, max_position_embeddings=4096)
    dims = config.dimensions(name, epsilon="layer_norm_eps", epsilon_default=1e-5)
    variants = {_PARALLEL: config.flag("use_parallel_residual"), _HEAD_NORMS: config.flag("qk_layernorm")}
    if any(variants.values()):
        raise config.refused(*(what for what, is_asked in variants.items() if is_asked))
    rope = read_rope(config, dims.head_dim, dims.context_length, rotated_share=0.25, is_partial=True)
    return _decoder(dims, rope, has_qkv_bias=config.flag("use_qkv_bias"))


def from_header(reader: HeaderReader) -> Decoder:
    """Describe the model of a GGUF header."""
    dims = reader.dimensions(epsilon="attention.layer_norm_epsilon")
    # Converters say true for models that are not parallel, too; whether the feed-forward has a norm tells.
    reader.has("use_parallel_residual")
    variants = {
        _PARALLEL: not reader.has_tensor("blk.0.ffn_norm.weight"),
        _HEAD_NORMS: reader.has_tensor("blk.0.attn_q_norm.weight"),
    }
    if any(variants.values()):
        raise reader.refused(", ".join(what for what, is_asked in variants.items() if is_asked))
    return _decoder(dims, read_header_rope(reader, dims), has_qkv_bias=reader.has_tensor("blk.0.attn_q.bias"))


def _decoder(dims: Dimensions, rope: Rope, *, has_qkv_bias: bool) -> Decoder:
    layer = Layer(dims.attention(has_qkv_bias=has_qkv_bias), dims.feed_forward())
    return dims.decoder("stablelm", layer, rope, norm="layer", has_norm_bias=True)


STABLELM: Final = Family("stablelm", ("stablelm",), ("stablelm",), from_config, from_header)
