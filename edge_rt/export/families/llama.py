"""Llama architecture: reads and checks the dimensions in a GGUF header; refuses variants that are not supported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from edge_rt.errors import InvalidModelFile, UnsupportedModel
from edge_rt.export.families.llama_config import LlamaConfig, RopeScaling
from edge_rt.export.families.llama_tensors import check_tensors, listed, required_tensor
from edge_rt.export.sources.gguf_types import (
    FETCH_AGAIN,
    GGUFHeader,
    MetadataArray,
    Value,
    shown,
)

ARCHITECTURES: Final = ("llama",)

MAX_LAYERS: Final = 1024
MAX_WIDTH: Final = 1 << 18
MAX_HEADS: Final = 1 << 12
MAX_CONTEXT: Final = 1 << 24
MIN_EPSILON, MAX_EPSILON = 1e-12, 1.0
MIN_ROPE_THETA: Final = 2.0
"""At 1 all pairs rotate at the same speed, and YaRN divides by its logarithm."""

USED_KEYS: Final = frozenset(
    {
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.layer_norm_rms_epsilon",
        "attention.sliding_window",
        "attention.value_length",
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scale_linear",
        "rope.scaling.attn_factor",
        "rope.scaling.factor",
        "rope.scaling.original_context_length",
        "rope.scaling.type",
        "rope.scaling.yarn_beta_fast",
        "rope.scaling.yarn_beta_slow",
        "rope.scaling.yarn_ext_factor",
        "vocab_size",
    }
)
"""Keys below ``llama.`` that ``read_config`` reads."""
HARMLESS_KEYS: Final = frozenset({"attention.layer_norm_epsilon", "rope.scaling.finetuned", "tensor_data_layout"})
"""Keys below ``llama.`` that do not change the computation of this architecture."""
NEUTRAL_VALUES: Final[Mapping[str, tuple[float, ...]]] = {
    # Factors: GGUF readers take 0 for "not given".
    "embedding_scale": (0, 1),
    "logit_scale": (0, 1),
    "residual_scale": (0, 1),
    "attention.output_scale": (0, 1),
    "rope.scaling.yarn_attn_factor": (1,),
    # How it is applied depends on the architecture, and llama has no rule for it.
    "rope.scaling.yarn_log_multiplier": (0,),
    # Limits, windows and counts: 0 means none.
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.scale": (0,),
    "attn_logit_softcapping": (0,),
    "expert_count": (0,),
    "expert_shared_count": (0,),
    "expert_used_count": (0,),
    "final_logit_softcapping": (0,),
    "leading_dense_block_count": (0,),
    "nextn_predict_layers": (0,),
    "pooling_type": (0,),
    "attention.causal": (True,),
    "use_parallel_residual": (False,),
}
"""Keys below ``llama.`` that would change the computation -> values for which they do not."""


def read_config(header: GGUFHeader) -> LlamaConfig:
    """Read and check the architecture's dimensions, and check that every tensor is present in the right shape.

    Raises:
        UnsupportedModel: another architecture, or a variant of this one that edge-rt cannot run.
        InvalidModelFile: a number is missing, out of range or contradicts another; tensors are missing or misshapen.
    """
    architecture = header.get_str("general.architecture")
    if architecture not in ARCHITECTURES:
        raise UnsupportedModel(
            f"{header.path.name}: the architecture {architecture[:60]!r} is not supported.",
            f"Supported: {', '.join(ARCHITECTURES)}.",
            "Choose a model of a supported architecture.",
        )
    _refuse_variants(header)
    width = header.get_int("llama.embedding_length", minimum=1, maximum=MAX_WIDTH)
    heads = header.get_int("llama.attention.head_count", minimum=1, maximum=MAX_HEADS)
    kv_heads = header.get_int("llama.attention.head_count_kv", default=heads, minimum=1, maximum=heads)
    _check_divides(header, "attention.head_count_kv", kv_heads, "attention.head_count", heads)
    head_dim = _head_dim(header, width, heads)
    config = LlamaConfig(
        name=header.get_str("general.name", default=header.path.stem)[:200],
        hidden_size=width,
        num_layers=header.get_int("llama.block_count", minimum=1, maximum=MAX_LAYERS),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=header.get_int("llama.feed_forward_length", minimum=1, maximum=4 * MAX_WIDTH),
        vocab_size=_vocab_size(header),
        context_length=header.get_int("llama.context_length", minimum=1, maximum=MAX_CONTEXT),
        rms_norm_eps=header.get_float(
            "llama.attention.layer_norm_rms_epsilon", minimum=MIN_EPSILON, maximum=MAX_EPSILON
        ),
        rope_theta=header.get_float("llama.rope.freq_base", default=10_000.0, minimum=MIN_ROPE_THETA, maximum=1e12),
        rope_scaling=_rope_scaling(header),
        tied_embedding="output.weight" not in header.tensors,
        sliding_window=_sliding_window(header),
    )
    check_tensors(header, config)
    return config


def _refuse_variants(header: GGUFHeader) -> None:
    if header.get_int("llama.expert_count", default=0) > 0:
        raise UnsupportedModel(
            f"{header.path.name}: mixture-of-experts models are not supported.",
            f"The file has {header.get_int('llama.expert_count')} experts.",
            "Choose a dense model.",
        )
    strange = [
        f"{shown(key)} is {_shown_value(value)}"
        for key, value in header.values.items()
        if key.startswith("llama.") and not _is_neutral(key.removeprefix("llama."), value)
    ]
    if strange:
        raise UnsupportedModel(
            f"{header.path.name}: {len(strange)} metadata keys ask for something that edge-rt does not compute.",
            f"{listed(strange)}.",
            "It is a variant that edge-rt cannot run yet; choose another model.",
        )


def _is_neutral(key: str, value: Value) -> bool:
    if key in USED_KEYS or key in HARMLESS_KEYS:
        return True
    return not isinstance(value, MetadataArray) and value in NEUTRAL_VALUES.get(key, ())


def _shown_value(value: Value) -> str:
    if isinstance(value, MetadataArray):
        return f"an array of {value.length}"
    return shown(value) if isinstance(value, str) else str(value)


def _check_divides(header: GGUFHeader, small_key: str, small: int, large_key: str, large: int) -> None:
    if large % small:
        raise InvalidModelFile(
            f"{header.path.name}: 'llama.{small_key}' does not divide 'llama.{large_key}'.",
            f"{large} is not a multiple of {small}.",
            FETCH_AGAIN,
        )


def _head_dim(header: GGUFHeader, width: int, heads: int) -> int:
    if "llama.attention.key_length" not in header.values:
        _check_divides(header, "attention.head_count", heads, "embedding_length", width)
    head_dim = header.get_int("llama.attention.key_length", default=width // heads, minimum=2, maximum=1024)
    value_dim = header.get_int("llama.attention.value_length", default=head_dim)
    rotary_dim = header.get_int("llama.rope.dimension_count", default=head_dim)
    if head_dim % 16 or value_dim != head_dim or rotary_dim != head_dim:
        raise UnsupportedModel(
            f"{header.path.name}: these attention head sizes are not supported.",
            f"Keys have {head_dim} dimensions, values {value_dim}, rotated {rotary_dim}; "
            "all three must be equal and a multiple of 16.",
            "Choose another model.",
        )
    return head_dim


def _sliding_window(header: GGUFHeader) -> int:
    """Return how many tokens attention sees in every layer; 0 for all, also if the window covers the context."""
    window = header.get_int("llama.attention.sliding_window", default=0, minimum=0, maximum=MAX_CONTEXT)
    return window if window < header.get_int("llama.context_length") else 0


def _vocab_size(header: GGUFHeader) -> int:
    rows = required_tensor(header, "token_embd.weight").shape[-1]
    stated = header.get_int("llama.vocab_size", default=rows)
    if stated != rows:
        raise InvalidModelFile(
            f"{header.path.name}: 'llama.vocab_size' contradicts the tensor 'token_embd.weight'.",
            f"The key says {stated}, the tensor has {rows} rows.",
            FETCH_AGAIN,
        )
    return rows


def _rope_scaling(header: GGUFHeader) -> RopeScaling:
    legacy = header.get_float("llama.rope.scale_linear", default=1.0, minimum=1e-3, maximum=1e6)
    factor = header.get_float("llama.rope.scaling.factor", default=legacy, minimum=1e-3, maximum=1e6)
    kind = header.get_str("llama.rope.scaling.type", default="linear" if factor != 1.0 else "none")
    if kind not in ("none", "linear", "yarn"):
        raise UnsupportedModel(
            f"{header.path.name}: the rope scaling {kind[:40]!r} is not supported.",
            "Supported: none, linear, yarn, and per-frequency factors ('rope_freqs.weight').",
            "Choose another model.",
        )
    return RopeScaling(
        kind=kind,
        factor=factor,
        original_context=header.get_int(
            "llama.rope.scaling.original_context_length",
            default=header.get_int("llama.context_length"),
            minimum=1,
            maximum=MAX_CONTEXT,
        ),
        attention_factor=header.get_float("llama.rope.scaling.attn_factor", default=1.0, minimum=1e-3, maximum=1e3),
        beta_fast=header.get_float("llama.rope.scaling.yarn_beta_fast", default=32.0, minimum=1e-3, maximum=1e6),
        beta_slow=header.get_float("llama.rope.scaling.yarn_beta_slow", default=1.0, minimum=1e-3, maximum=1e6),
        extrapolation=_extrapolation(header, kind),
    )


def _extrapolation(header: GGUFHeader, kind: str) -> float:
    """Return YaRN's ``ext_factor``; below 0 means the default of the kind of scaling."""
    stated = header.get_float("llama.rope.scaling.yarn_ext_factor", default=-1.0, minimum=-1.0, maximum=1.0)
    if kind != "yarn" and stated > 0:
        raise UnsupportedModel(
            f"{header.path.name}: 'llama.rope.scaling.yarn_ext_factor' is supported for YaRN only.",
            f"It is {stated}, and the rope scaling is {kind}.",
            "Choose another model.",
        )
    return stated if stated >= 0 else 1.0
