"""Granite 3 and 4 (dense): llama with factors on embeddings, on what sub-layers add, on scores and on logits."""

from __future__ import annotations

from typing import Final

from edge_rt.export.families.config_reader import ConfigReader
from edge_rt.export.families.config_rope import read_rope
from edge_rt.export.families.family import Family
from edge_rt.export.families.header_reader import HeaderReader
from edge_rt.export.families.header_rope import read_header_rope
from edge_rt.package.decoder import Decoder
from edge_rt.package.layers import Layer

_LEAST, _MOST = 1e-6, 1e6


def from_config(config: ConfigReader, name: str) -> Decoder:
    """Describe the model of a ``config.json``."""
    dims = config.dimensions(name)
    has_bias = config.flag("attention_bias")
    factors = {
        key: config.number(key, least=_LEAST, most=_MOST, default=1.0)
        for key in ("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling")
    }
    layer = Layer(
        dims.attention(scale=factors["attention_multiplier"], has_qkv_bias=has_bias, has_output_bias=has_bias),
        dims.feed_forward(has_bias=config.flag("mlp_bias")),
    )
    return dims.decoder(
        "granite",
        layer,
        read_rope(config, dims.head_dim, dims.context_length),
        embedding_scale=factors["embedding_multiplier"],
        residual_scale=factors["residual_multiplier"],
        logit_scale=1 / factors["logits_scaling"],
    )


def from_header(reader: HeaderReader) -> Decoder:
    """Describe the model of a GGUF header."""
    return describe_header(reader)


def describe_header(reader: HeaderReader, kv_heads: int | None = None) -> Decoder:
    """Describe the model of a GGUF header; ``kv_heads`` as in ``HeaderReader.dimensions``."""
    dims = reader.dimensions(kv_heads=kv_heads)
    attention, embedding, residual, logit = (
        reader.factor(key) for key in ("attention.scale", "embedding_scale", "residual_scale", "logit_scale")
    )
    # llama.cpp takes this key for whether there are rotations at all.
    is_rotated = reader.flag("rope.scaling.finetuned", default=True)
    layer = Layer(
        dims.attention(
            rope=0 if is_rotated else None,
            scale=attention or dims.head_dim**-0.5,
            has_qkv_bias=reader.has_tensor("blk.0.attn_q.bias"),
            has_output_bias=reader.has_tensor("blk.0.attn_output.bias"),
        ),
        dims.feed_forward(has_bias=reader.has_tensor("blk.0.ffn_down.bias")),
    )
    return dims.decoder(
        "granite",
        layer,
        read_header_rope(reader, dims),
        embedding_scale=embedding or 1.0,
        residual_scale=residual or 1.0,
        logit_scale=1 / (logit or 1.0),
    )


GRANITE: Final = Family("granite", ("granite",), ("granite",), from_config, from_header, header_has_halves=False)
