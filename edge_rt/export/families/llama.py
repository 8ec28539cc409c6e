"""Llama 1 to 3, and what has its shape: Mistral, SmolLM 2, TinyLlama and many more.

Llama 3 divides rotary frequencies; Mistral 0.1 has a sliding window in every layer, and Mistral NeMo heads that are not
hidden size over heads.
"""

from __future__ import annotations

from typing import Final

from edge_rt.errors import UnsupportedModel
from edge_rt.export.families.config_reader import ConfigReader
from edge_rt.export.families.config_rope import read_rope
from edge_rt.export.families.family import Family
from edge_rt.export.families.header_reader import HeaderReader
from edge_rt.export.families.header_rope import read_header_rope
from edge_rt.export.families.layers import window_in
from edge_rt.package.decoder import MAX_CONTEXT, Decoder, Dimensions
from edge_rt.package.layers import Layer

_MISTRAL_WINDOW: Final = 4096
_ACTIVATIONS: Final = {"silu": "silu", "swish": "silu"}


def from_config(config: ConfigReader, name: str) -> Decoder:
    """Describe the model of a ``config.json``."""
    dims = config.dimensions(name)
    has_bias = config.flag("attention_bias")
    layer = Layer(
        dims.attention(
            has_qkv_bias=has_bias,
            has_output_bias=has_bias,
            window=_window(config, dims),
        ),
        dims.feed_forward(
            has_bias=config.flag("mlp_bias"), activation=config.activation("hidden_act", _ACTIVATIONS, "silu")
        ),
    )
    return dims.decoder("llama", layer, read_rope(config, dims.head_dim, dims.context_length))


def _window(config: ConfigReader, dims: Dimensions) -> int:
    """Return the window of every layer: Mistral has one unless the configuration says null, llama has none."""
    if config.text("model_type") == "mistral":
        if "sliding_window" in config.values and not config.has("sliding_window"):
            return 0
        return window_in(dims, config.count("sliding_window", MAX_CONTEXT, default=_MISTRAL_WINDOW))
    window = config.get("sliding_window")
    if type(window) is int and 0 < window < dims.context_length:
        # transformers leaves it out of a pass, and goes by it in what it keeps for the next one.
        raise config.refused(f"sliding_window is {window}, which a llama does not have")
    return 0


def from_header(reader: HeaderReader) -> Decoder:
    """Describe the model of a GGUF header."""
    dims = reader.dimensions()
    rope = read_header_rope(reader, dims)
    if rope.dimensions != dims.head_dim:
        # Which rows the converter has reordered is not known then.
        raise UnsupportedModel(
            f"{reader.where}: these attention head sizes are not supported.",
            f"Heads have {dims.head_dim} dimensions, rotated are {rope.dimensions}; both must be equal.",
            "Choose another model.",
        )
    window = reader.count("attention.sliding_window", MAX_CONTEXT, least=0, default=0)
    layer = Layer(
        dims.attention(
            has_qkv_bias=reader.has_tensor("blk.0.attn_q.bias"),
            has_output_bias=reader.has_tensor("blk.0.attn_output.bias"),
            window=window_in(dims, window),
        ),
        dims.feed_forward(has_bias=reader.has_tensor("blk.0.ffn_down.bias")),
    )
    return dims.decoder("llama", layer, rope)


LLAMA: Final = Family("llama", ("llama", "mistral"), ("llama",), from_config, from_header, header_has_halves=False)
