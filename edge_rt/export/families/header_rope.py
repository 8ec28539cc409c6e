"""Rotary embeddings as GGUF files state them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from edge_rt.errors import InvalidModelFile, UnsupportedModel
from edge_rt.export.families.header_reader import HeaderReader
from edge_rt.export.families.rope import (
    MAX_ROPE_THETA,
    MIN_ROPE_THETA,
    Yarn,
    default_rope,
    divided_rope,
    linear_rope,
    yarn_rope,
    yarn_temperature,
)
from edge_rt.export.sources.gguf_types import FETCH_AGAIN
from edge_rt.package.decoder import MAX_CONTEXT, Dimensions, Rope

_TEMPERATURE_ERROR: Final = 1e-5


def read_header_rope(reader: HeaderReader, dims: Dimensions) -> Rope:
    """Return the rotation; files that state no base mean 10,000."""
    base = reader.number("rope.freq_base", least=MIN_ROPE_THETA, most=MAX_ROPE_THETA, default=10_000.0)
    rotated = reader.count("rope.dimension_count", dims.head_dim, default=dims.head_dim)
    if rotated % 2:
        raise InvalidModelFile(
            f"{reader.where}: '{reader.key('rope.dimension_count')}' cannot be used.",
            f"It is {rotated}, which is odd.",
            FETCH_AGAIN,
        )
    rope = _scaled(reader, base, rotated, dims.context_length)
    if (divisors := reader.floats("rope_freqs.weight", rotated // 2)) is not None:
        rope = divided_rope(rope, "llama3" if rope.kind == "default" else rope.kind, divisors)
    return rope


def _scaled(reader: HeaderReader, base: float, rotated: int, context: int) -> Rope:
    legacy = reader.number("rope.scale_linear", least=1e-3, most=1e6, default=1.0)
    factor = reader.number("rope.scaling.factor", least=1e-3, most=1e6, default=legacy)
    kind = reader.text("rope.scaling.type", "linear" if factor != 1.0 else "none")
    if kind not in ("none", "linear", "yarn"):
        raise UnsupportedModel(
            f"{reader.where}: the rope scaling {kind[:40]!r} is not supported.",
            "Supported: none, linear, yarn, and per-frequency factors ('rope_freqs.weight').",
            "Choose another model.",
        )
    original = reader.count("rope.scaling.original_context_length", MAX_CONTEXT, default=context)
    # Factors on cosines and sines, whatever the kind.
    magnitude = reader.number("rope.scaling.attn_factor", least=1e-3, most=1e3, default=1.0)
    fast = reader.number("rope.scaling.yarn_beta_fast", least=1e-3, most=1e6, default=32.0)
    slow = reader.number("rope.scaling.yarn_beta_slow", least=1e-3, most=1e6, default=1.0)
    extrapolation = _extrapolation(reader, kind)
    _require_usual_temperature(reader, kind, factor)
    if kind == "none":
        return default_rope(base, rotated, magnitude=magnitude)
    if kind == "linear" or extrapolation == 0.0:
        return replace(linear_rope(base, rotated, factor, magnitude=magnitude), kind=kind)
    magnitude *= yarn_temperature(factor)
    return yarn_rope(base, rotated, Yarn(factor, original, magnitude, fast, slow, extrapolation))


def _require_usual_temperature(reader: HeaderReader, kind: str, factor: float) -> None:
    """Refuse a factor on attention that is not YaRN's usual one: readers differ in what they do with it."""
    usual = yarn_temperature(factor) if kind == "yarn" else 1.0
    stated = reader.number("rope.scaling.yarn_attn_factor", least=1e-3, most=1e3, default=usual)
    if stated != 1.0 and abs(stated - usual) > _TEMPERATURE_ERROR:
        key = reader.key("rope.scaling.yarn_attn_factor")
        raise reader.refused(f"'{key}' is {stated}, YaRN's usual value is {usual:.6g}")


def _extrapolation(reader: HeaderReader, kind: str) -> float:
    """Return YaRN's ``ext_factor``; below 0 means the default of the kind of scaling."""
    stated = reader.number("rope.scaling.yarn_ext_factor", least=-1.0, most=1.0, default=-1.0)
    if kind != "yarn" and stated > 0:
        raise UnsupportedModel(
            f"{reader.where}: '{reader.key('rope.scaling.yarn_ext_factor')}' is supported for YaRN only.",
            f"It is {stated}, and the rope scaling is {kind}.",
            "Choose another model.",
        )
    return stated if stated >= 0 else 1.0
