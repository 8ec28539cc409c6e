"""Phi 3, 3.5 and 4-mini: fused matrices; longrope, which has frequencies of its own for long contexts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from edge_rt.export.families.config_reader import ConfigReader
from edge_rt.export.families.config_rope import read_rope, rope_part, rotated_dimensions
from edge_rt.export.families.family import FUSED_NAMES, Family
from edge_rt.export.families.header_reader import HeaderReader
from edge_rt.export.families.header_rope import read_header_rope
from edge_rt.export.families.layers import window_in
from edge_rt.export.families.rope import MAX_ROPE_THETA, MIN_ROPE_THETA, default_rope, divided_rope
from edge_rt.package.decoder import MAX_CONTEXT, Decoder, Rope
from edge_rt.package.layers import Layer

_ORIGINAL_CONTEXT: Final = 4096
_LEAST_FACTOR, _MOST_FACTOR = 1e-3, 1e6


def from_config(config: ConfigReader, name: str) -> Decoder:
    """Describe the model of a ``config.json``."""
    dims = config.dimensions(name, epsilon_default=1e-5)
    window = config.count("sliding_window", MAX_CONTEXT, least=0, default=0)
    layer = Layer(dims.attention(window=window_in(dims, window)), dims.feed_forward())
    part = rope_part(config)
    kind = part.get("rope_type") or part.get("type")
    # The first releases called it so.
    if kind not in ("longrope", "su", "yarn") or not part.has("long_factor"):
        rope = read_rope(config, dims.head_dim, dims.context_length, is_partial=True)
    else:
        rope = _longrope(config, part, rotated_dimensions(config, dims.head_dim), dims.context_length)
    return dims.decoder("phi3", layer, rope)


def _longrope(config: ConfigReader, part: ConfigReader, rotated: int, context: int) -> Rope:
    stated = part if part.has("rope_theta") else config
    theta = stated.number("rope_theta", least=MIN_ROPE_THETA, most=MAX_ROPE_THETA, default=10_000.0)
    # transformers has a value of its own for the outer key, which comes before that of the object.
    original = config.count("original_max_position_embeddings", MAX_CONTEXT, default=_ORIGINAL_CONTEXT)
    inner = part.count("original_max_position_embeddings", MAX_CONTEXT, default=original)
    if inner != original and not config.has("original_max_position_embeddings"):
        raise config.refused(f"original_max_position_embeddings is {inner} within the rope settings only")
    short, long = (
        part.numbers(f"{length}_factor", rotated // 2, least=_LEAST_FACTOR, most=_MOST_FACTOR)
        for length in ("short", "long")
    )
    factor = part.number("factor", least=_LEAST_FACTOR, most=_MOST_FACTOR, default=context / original)
    usual = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    magnitude = part.number("attention_factor", least=_LEAST_FACTOR, most=_MOST_FACTOR, default=usual)
    return long_rope(default_rope(theta, rotated, magnitude=magnitude), short, long, original)


def long_rope(plain: Rope, short: tuple[float, ...], long: tuple[float, ...], original: int) -> Rope:
    """Return a rotation with frequencies for contexts up to the original one, and for longer ones."""
    found = divided_rope(plain, "longrope", short)
    return replace(found, long_frequencies=divided_rope(plain, "longrope", long).frequencies, short_context=original)


def from_header(reader: HeaderReader) -> Decoder:
    """Describe the model of a GGUF header."""
    dims = reader.dimensions()
    window = window_in(dims, reader.count("attention.sliding_window", MAX_CONTEXT, least=0, default=0))
    rope = read_header_rope(reader, dims)
    short = reader.floats("rope_factors_short.weight", rope.dimensions // 2)
    long = reader.floats("rope_factors_long.weight", rope.dimensions // 2)
    if (short is None) != (long is None):
        raise reader.refused("there are rope_factors_short.weight or rope_factors_long.weight, not both")
    if short is not None and long is not None:
        original = reader.count("rope.scaling.original_context_length", MAX_CONTEXT, default=dims.context_length)
        rope = long_rope(rope, tuple(short), tuple(long), original)
    return dims.decoder("phi3", Layer(dims.attention(window=window), dims.feed_forward()), rope)


PHI3: Final = Family("phi3", ("phi3",), ("phi3",), from_config, from_header, layer_names=FUSED_NAMES)
