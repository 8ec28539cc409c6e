"""Ministral 3: llama with YaRN and queries that grow with their position; also inside models that see."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from edge_rt.export.families.config_reader import ConfigReader
from edge_rt.export.families.config_rope import read_rope, rope_part
from edge_rt.export.families.family import Family
from edge_rt.export.families.header_reader import HeaderReader
from edge_rt.export.families.header_rope import read_header_rope
from edge_rt.export.families.layers import window_in
from edge_rt.export.families.rope import yarn_temperature
from edge_rt.package.decoder import MAX_CONTEXT, Decoder
from edge_rt.package.layers import Layer, QueryScaling

_BETA: Final = "llama_4_scaling_beta"
_MOST_BETA: Final = 100.0


def from_config(config: ConfigReader, name: str) -> Decoder:
    """Describe the model of a ``config.json``."""
    config.defaults(num_key_value_heads=8)
    # Null stands for hidden size over heads, and a key that is not there for the family's size.
    dims = config.dimensions(name, head_dim=None if "head_dim" in config.values else 128, epsilon_default=1e-5)
    part = rope_part(config)
    if not part.values:
        raise config.refused("rope_parameters is missing, for which transformers assumes those of one model")
    # transformers writes the context into the object, too, and reads the outer one.
    known = (_BETA, "max_position_embeddings")
    rope = read_rope(config, dims.head_dim, dims.context_length, known=known)
    scaling = None
    if part.has(_BETA):
        holder = config if config.has("original_max_position_embeddings") else part
        original = holder.count("original_max_position_embeddings", MAX_CONTEXT, default=dims.context_length)
        scaling = QueryScaling(part.number(_BETA, least=0.0, most=_MOST_BETA), original)
    window = config.count("sliding_window", MAX_CONTEXT, least=0, default=0)
    layer = Layer(dims.attention(query_scaling=scaling, window=window_in(dims, window)), dims.feed_forward())
    return dims.decoder("ministral3", layer, rope)


def from_header(reader: HeaderReader) -> Decoder:
    """Describe the model of a GGUF header."""
    dims = reader.dimensions()
    rope = read_header_rope(reader, dims)
    share = reader.number("rope.scaling.yarn_log_multiplier", least=0.0, most=_MOST_BETA, default=0.0)
    if share and rope.kind == "yarn":
        factor = reader.number("rope.scaling.factor", least=1e-3, most=1e6, default=1.0)
        rope = replace(rope, magnitude=rope.magnitude / yarn_temperature(factor, share))
    scaling = None
    if beta := reader.number("attention.temperature_scale", least=0.0, most=_MOST_BETA, default=0.0):
        original = reader.count("rope.scaling.original_context_length", MAX_CONTEXT, default=dims.context_length)
        scaling = QueryScaling(beta, original)
    return dims.decoder("ministral3", Layer(dims.attention(query_scaling=scaling), dims.feed_forward()), rope)


MINISTRAL3: Final = Family(
    "ministral3", ("ministral3",), ("mistral3",), from_config, from_header, header_has_halves=False
)
