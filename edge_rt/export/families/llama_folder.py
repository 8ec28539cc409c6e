"""Llama as transformers writes it: the dimensions in ``config.json``, and the names of its tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from edge_rt.errors import InvalidModelFile, UnsupportedModel
from edge_rt.export.families.llama import (
    MAX_CONTEXT,
    MAX_EPSILON,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_WIDTH,
    MIN_EPSILON,
    MIN_ROPE_THETA,
)
from edge_rt.export.families.llama_config import LlamaConfig, RopeScaling
from edge_rt.export.families.llama_tensors import check_shapes, listed
from edge_rt.export.sources.gguf_types import TensorInfo
from edge_rt.export.sources.hf_folder import HFFolder, float_tensor
from edge_rt.export.sources.packed_config import read_packed_settings
from edge_rt.system.checkpoint_names import CONFIG_FILE

MODEL_TYPES: Final = ("llama", "mistral")
"""``model_type`` of configurations that this architecture computes."""

_TOP: Final = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER: Final = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_IGNORED: Final = ("rotary_emb.inv_freq",)
"""Ends of names of tensors that older versions of transformers wrote and that hold nothing new."""


def read_folder_config(folder: HFFolder) -> tuple[LlamaConfig, dict[str, TensorInfo], tuple[str, ...]]:
    """Return the dimensions, the tensors under the names that GGUF files have, and remarks as in ``Source``.

    Raises:
        UnsupportedModel: another architecture, or a variant that edge-rt cannot run.
        InvalidModelFile: a number is missing, out of range or contradicts another; tensors are missing or misshapen.
        StorageError: a tensor that says how others are packed cannot be read.
    """
    check_architecture(folder)
    width, heads = _count(folder, "hidden_size", MAX_WIDTH), _count(folder, "num_attention_heads", MAX_HEADS)
    kv_heads = _count(folder, "num_key_value_heads", heads, default=heads)
    if heads % kv_heads or ("head_dim" not in folder.config and width % heads):
        raise InvalidModelFile(
            f"{folder.path.name}: the numbers of heads in {CONFIG_FILE} do not fit.",
            f"{heads} heads, {kv_heads} of them for keys, {width} wide.",
            "Fetch the model again.",
        )
    head_dim = _count(folder, "head_dim", 1024, default=width // heads)
    if head_dim % 16:
        raise UnsupportedModel(
            f"{folder.path.name}: this attention head size is not supported.",
            f"It is {head_dim}, it must be a multiple of 16.",
            "Choose another model.",
        )
    context = _count(folder, "max_position_embeddings", MAX_CONTEXT)
    tied = folder.get("tie_word_embeddings", bool, False)
    theta, scaling, divisors = _rope(folder, head_dim, context)
    window = folder.config.get("sliding_window")
    config = LlamaConfig(
        name=folder.path.resolve().name[:200],
        hidden_size=width,
        num_layers=_count(folder, "num_hidden_layers", MAX_LAYERS),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=_count(folder, "intermediate_size", 4 * MAX_WIDTH),
        vocab_size=_count(folder, "vocab_size", 1 << 24),
        context_length=context,
        rms_norm_eps=_epsilon(folder),
        rope_theta=theta,
        rope_scaling=scaling,
        tied_embedding=tied,
        sliding_window=window if type(window) is int and 0 < window < context else 0,
        rope_divisors=divisors,
    )
    tensors, remarks = _renamed(folder, config)
    check_shapes(folder.path.name, tensors, config)
    return config, tensors, remarks


def check_architecture(folder: HFFolder) -> None:
    """Refuse what ``config.json`` alone shows that edge-rt cannot run; the weights may still be missing.

    Raises:
        UnsupportedModel: another architecture, or a variant that edge-rt cannot run.
        InvalidModelFile: the configuration names no architecture.
    """
    kind = folder.get("model_type", str)
    if kind not in MODEL_TYPES:
        raise UnsupportedModel(
            f"{folder.path.name}: the architecture {kind[:60]!r} is not supported.",
            f"Supported: {', '.join(MODEL_TYPES)}.",
            "Choose a model of a supported architecture.",
        )
    _refuse_variants(folder)


def _count(folder: HFFolder, key: str, most: int, *, default: int | None = None) -> int:
    value = folder.get(key, int, default)
    if not 1 <= value <= most:
        raise InvalidModelFile(
            f"{folder.path.name}: '{key}' in {CONFIG_FILE} is out of range.",
            f"It is {value}, limit 1 to {most}.",
            "Fetch the model again.",
        )
    return int(value)


def _epsilon(folder: HFFolder) -> float:
    value = folder.get("rms_norm_eps", (int, float), 1e-6)
    if not MIN_EPSILON <= value <= MAX_EPSILON:
        raise InvalidModelFile(
            f"{folder.path.name}: 'rms_norm_eps' in {CONFIG_FILE} is out of range.",
            f"It is {value!r:.60}, limit {MIN_EPSILON} to {MAX_EPSILON}.",
            "Fetch the model again.",
        )
    return float(value)


def _refuse_variants(folder: HFFolder) -> None:
    wanted: dict[str, tuple[Any, ...]] = {
        "hidden_act": ("silu", "swish"),
        "attention_bias": (False,),
        "mlp_bias": (False,),
        "partial_rotary_factor": (1, 1.0),
        "num_local_experts": (0, 1),
    }
    strange = [
        f"{key} is {value!r:.60}"
        for key, allowed in wanted.items()
        if (value := folder.config.get(key)) is not None and value not in allowed
    ]
    if strange:
        raise UnsupportedModel(
            f"{folder.path.name}: {CONFIG_FILE} asks for something that edge-rt does not compute.",
            f"{listed(strange)}.",
            "It is a variant that edge-rt cannot run yet; choose another model.",
        )
    read_packed_settings(folder.path.name, folder.config)


def _rope(folder: HFFolder, head_dim: int, context: int) -> tuple[float, RopeScaling, tuple[float, ...]]:
    """Return base, scaling, and divisors of frequencies; newer configurations hold all of it in one object."""
    parameters = folder.config.get("rope_parameters")
    parameters = parameters if isinstance(parameters, dict) else {}
    legacy = folder.config.get("rope_scaling")
    scaling = legacy if isinstance(legacy, dict) else parameters
    theta = parameters.get("rope_theta", folder.config.get("rope_theta", 10_000.0))
    if isinstance(theta, bool) or not isinstance(theta, int | float) or not MIN_ROPE_THETA <= theta <= 1e12:
        raise _wrong_rope(folder, "rope_theta", theta)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return float(theta), RopeScaling(original_context=context), ()
    factor = _number(folder, scaling, "factor")
    if kind == "linear":
        return float(theta), RopeScaling(kind="linear", factor=factor, original_context=context), ()
    if kind == "llama3":
        return float(theta), RopeScaling(original_context=context), _llama3(folder, scaling, factor, theta, head_dim)
    if kind == "yarn":
        if scaling.get("mscale") is not None or scaling.get("truncate") is False:
            raise _unsupported_rope(folder, f"{scaling!r:.200}")
        original = int(_number(folder, scaling, "original_max_position_embeddings", context / factor))
        temperature = (0.1 * math.log(factor) + 1.0) if factor > 1.0 else 1.0
        return (
            float(theta),
            RopeScaling(
                kind="yarn",
                factor=factor,
                original_context=original,
                # transformers gives the whole factor, GGUF what comes on top of the usual one.
                attention_factor=_number(folder, scaling, "attention_factor", temperature) / temperature,
                beta_fast=_number(folder, scaling, "beta_fast", 32.0),
                beta_slow=_number(folder, scaling, "beta_slow", 1.0),
            ),
            (),
        )
    raise _unsupported_rope(folder, f"{kind!r:.40}")


def _llama3(folder: HFFolder, scaling: dict[str, Any], factor: float, theta: float, head_dim: int) -> tuple[float, ...]:
    """Return the divisor of every frequency, as Llama 3.1 scales them: long waves by the factor, short ones not."""
    low, high = _number(folder, scaling, "low_freq_factor"), _number(folder, scaling, "high_freq_factor")
    original = _number(folder, scaling, "original_max_position_embeddings")
    if high <= low:
        raise _wrong_rope(folder, "high_freq_factor", high)
    divisors = []
    for pair in range(head_dim // 2):
        wave = 2 * math.pi * theta ** (2 * pair / head_dim)
        share = min(max((original / wave - low) / (high - low), 0.0), 1.0)
        divisors.append(1 / ((1 - share) / factor + share))
    return tuple(divisors)


def _number(folder: HFFolder, scaling: dict[str, Any], key: str, default: float | None = None) -> float:
    value = scaling.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1e-3 <= value <= MAX_CONTEXT:
        raise _wrong_rope(folder, key, value)
    return float(value)


def _wrong_rope(folder: HFFolder, key: str, value: object) -> InvalidModelFile:
    return InvalidModelFile(
        f"{folder.path.name}: the rope settings in {CONFIG_FILE} cannot be used.",
        f"'{key}' is {value!r:.60}.",
        "Fetch the model again.",
    )


def _unsupported_rope(folder: HFFolder, what: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"{folder.path.name}: the rope scaling {what} is not supported.",
        "Supported: default, linear, llama3, yarn.",
        "Choose another model.",
    )


def _renamed(folder: HFFolder, config: LlamaConfig) -> tuple[dict[str, TensorInfo], tuple[str, ...]]:
    names = dict(_TOP)
    if config.tied_embedding:
        # Some files hold the tied head a second time.
        names.pop("lm_head.weight")
    for layer in range(config.num_layers):
        names |= {f"model.layers.{layer}.{hf}.weight": f"blk.{layer}.{ours}.weight" for hf, ours in _LAYER.items()}
    stored = folder.weights.tensors
    ignored = {name for name in stored if name.endswith(_IGNORED)}
    packed: Mapping[str, TensorInfo] = {}
    remarks: tuple[str, ...] = ()
    if (settings := read_packed_settings(folder.path.name, folder.config)) is not None:
        from edge_rt.export.families.llama_packed import packed_tensors
        from edge_rt.export.sources.converted import conversion_remarks

        matrices = {hf: ours for hf, ours in names.items() if not ours.endswith("_norm.weight")}
        packed, parts = packed_tensors(folder, matrices, settings)
        ignored |= parts
        remarks = conversion_remarks(packed.values())
    if config.tied_embedding:
        ignored.add("lm_head.weight")
    surplus = [name for name in stored if name not in names and name not in ignored]
    if surplus:
        raise UnsupportedModel(
            f"{folder.path.name}: the model has {len(surplus)} tensors that this architecture does not use.",
            f"{listed(surplus)}.",
            "It is a variant that edge-rt cannot run yet; choose another model.",
        )
    tensors = {
        ours: packed.get(ours) or float_tensor(folder, ours, stored[hf])
        for hf, ours in names.items()
        if ours in packed or hf in stored
    }
    return tensors, remarks
