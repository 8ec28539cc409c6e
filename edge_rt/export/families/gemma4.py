"""Gemma 4, and the text half of its multimodal checkpoints.

As Gemma 3, with plain weights of norms, heads of another size in layers that see all, values that are normed, last
layers that read the keys and values of earlier ones, and a further embedding for each layer. Experts may stand beside
the feed-forward, with norms of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from edge_rt.errors import as_json
from edge_rt.export.families.config_reader import FULL, SLIDING, ConfigReader, require_head_dim
from edge_rt.export.families.config_rope import read_rope
from edge_rt.export.families.experts import header_experts
from edge_rt.export.families.family import SANDWICH_NAMES, TOP_NAMES, Family
from edge_rt.export.families.gemma3 import GEMMA_ACTIVATIONS
from edge_rt.export.families.header_reader import HeaderReader
from edge_rt.export.families.header_rope import read_header_rope
from edge_rt.export.families.layers import Windows, config_windows, header_windows
from edge_rt.export.families.rope import MAX_ROPE_THETA, MIN_ROPE_THETA, default_rope
from edge_rt.package.decoder import MAX_LAYERS, Decoder, Dimensions, Rope
from edge_rt.package.layers import MAX_EXPERTS, MAX_HEADS, MAX_WIDTH, Attention, Experts, FeedForward, Layer

_UNIFIED: Final = "gemma4_unified_text"
_PERIOD: Final = 6
_STANDING: Final = 1e20
"""Divisors of frequencies from here on mean that a pair does not turn; files say 1e30."""
_ROPES: Final[Mapping[str, Any]] = {
    SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
}
"""What transformers assumes where a configuration has no ``rope_parameters``."""
_EXPERT_KEYS: Final = ("num_experts", "top_k_experts", "moe_intermediate_size")
_USUAL: Final[Mapping[str, Any]] = {"is_normalised": True, "has_scales": True, "has_own_norms": True}
"""What all experts are described by."""
_OVERRIDES: Final = ("head_dim", "num_key_value_heads")
_WAY_OUT: Final = "Choose another model."


@dataclass(frozen=True)
class _Facts:
    """What is read of either kind of file besides the sizes of layers with a window.

    Attributes:
        full_kv_heads, full_head_dim: of layers that see all.
        shared: how many of the last layers have no keys and values of their own.
        sizes: features of every layer's feed-forward.
        has_values: for every layer whether it has a matrix for its values; else they are its keys.
        experts: beside the feed-forwards of all layers.
    """

    windows: Windows
    full_kv_heads: int
    full_head_dim: int
    shared: int
    sizes: tuple[int, ...]
    has_values: tuple[bool, ...]
    activation: str
    softcap: float
    per_layer_embedding: int
    experts: Experts | None


def from_config(config: ConfigReader, name: str) -> Decoder:
    """Describe the model of a ``config.json``."""
    is_unified = config.text("model_type", "") == _UNIFIED
    context = 262_144 if is_unified else 131_072
    config.defaults(num_key_value_heads=4, num_attention_heads=8, max_position_embeddings=context, vocab_size=262_144)
    dims = config.dimensions(name, head_dim=256, is_tied=True)
    # That of images is another matter.
    if (seen := config.get("use_bidirectional_attention")) not in (None, False, "vision"):
        raise config.refused(f"use_bidirectional_attention is {as_json(seen)}")
    if config.flag("attention_bias"):
        raise config.refused("attention_bias is true")
    windows = config_windows(config, dims, window=1024 if is_unified else 512, period=_PERIOD)
    # transformers lets the last layer see all, whatever the list says.
    windows = Windows((*windows.kinds[:-1], False), (*windows.sizes[:-1], 0))
    keys_are_values = config.flag("attention_k_eq_v")
    kv_heads, head_dim = _full_heads(config, dims, windows, has_other_heads=keys_are_values)
    shared = config.count("num_kv_shared_layers", MAX_LAYERS, least=0, default=0)
    own, wide = dims.num_layers - shared, 2 if config.flag("use_double_wide_mlp") else 1
    features = config.count("hidden_size_per_layer_input", MAX_WIDTH, least=0, default=0 if is_unified else 256)
    vocabulary = config.get("vocab_size_per_layer_input")
    if features and vocabulary not in (None, dims.vocab_size):
        raise config.refused(
            f"vocab_size_per_layer_input is {as_json(vocabulary)} where vocab_size is {dims.vocab_size}"
        )
    config.assume("rope_parameters", _ROPES)
    _require_ropes(config)
    ropes = (
        read_rope(config, head_dim, dims.context_length, layer_type=FULL, theta_key=None),
        read_rope(config, dims.head_dim, dims.context_length, layer_type=SLIDING, theta_key=None),
    )
    activation = config.activation("hidden_activation", GEMMA_ACTIVATIONS, "gelu_pytorch_tanh")
    facts = _Facts(
        windows,
        kv_heads,
        head_dim,
        shared,
        tuple(dims.intermediate_size * (1 if layer < own else wide) for layer in range(dims.num_layers)),
        tuple(is_windowed or not keys_are_values for is_windowed in windows.kinds),
        activation,
        config.softcap("final_logit_softcapping"),
        features,
        _config_experts(config, activation),
    )
    return _decoder(dims, facts, ropes, config.wrong("num_kv_shared_layers", str(shared)))


def _require_ropes(config: ConfigReader) -> None:
    """Refuse rotations of one kind of layers alone; only where there are none at all do others assume them."""
    listed = config.get("rope_parameters")
    if isinstance(listed, dict) and (missing := [kind for kind in _ROPES if not listed.get(kind)]):
        raise config.wrong("rope_parameters", f"nothing for {' and '.join(missing)}")


def _config_experts(config: ConfigReader, activation: str) -> Experts | None:
    if not config.flag("enable_moe_block"):
        # Without experts they say nothing.
        for key in _EXPERT_KEYS:
            config.get(key)
        return None
    count, chosen, size = _EXPERT_KEYS
    experts = config.count(count, MAX_EXPERTS)
    each = FeedForward(config.count(size, 4 * MAX_WIDTH), activation)
    return Experts(experts, config.count(chosen, experts), each, **_USUAL)


def _full_heads(config: ConfigReader, dims: Dimensions, windows: Windows, *, has_other_heads: bool) -> tuple[int, int]:
    """Return the number of kv heads and the size of heads of layers that see all.

    Newer configurations list what differs by layer, older ones have keys for it.
    """
    heads, size = dims.num_kv_heads, config.count("global_head_dim", MAX_WIDTH, default=512)
    stated = config.count("num_global_key_value_heads", dims.num_heads, default=heads)
    heads = stated if has_other_heads else heads
    if config.has("per_layer_config"):
        listed = config.get("per_layer_config")
        full = [str(layer) for layer, is_windowed in enumerate(windows.kinds) if not is_windowed]
        found = [listed.get(layer) for layer in full] if isinstance(listed, dict) else []
        is_usual = bool(found) and sorted(listed) == sorted(full) and all(one == found[0] for one in found)
        if not is_usual or not isinstance(found[0], dict) or not set(found[0]) <= set(_OVERRIDES):
            raise config.refused(f"per_layer_config is {as_json(listed)[:60]}")
        other = ConfigReader(config.where, found[0])
        size = other.count("head_dim", MAX_WIDTH, default=dims.head_dim)
        heads = other.count("num_key_value_heads", dims.num_heads, default=dims.num_kv_heads)
    require_head_dim(config.where, size, _WAY_OUT)
    return heads, size


def from_header(reader: HeaderReader) -> Decoder:
    """Describe the model of a GGUF header."""
    layers = reader.count("block_count", MAX_LAYERS)
    kv_heads = reader.counts("attention.head_count_kv", MAX_HEADS, layers=layers, least=1)
    sizes = reader.counts("feed_forward_length", 4 * MAX_WIDTH, layers=layers, least=1)
    dims = reader.dimensions(kv_heads=max(kv_heads), feed_forward=max(sizes))
    windows = header_windows(reader, dims, period=_PERIOD, default=None)
    full_size = dims.head_dim
    size = reader.count("attention.key_length_swa", MAX_WIDTH, default=full_size)
    if reader.count("attention.value_length_swa", MAX_WIDTH, default=size) != size:
        raise reader.refused("keys and values of layers with a window have heads of two sizes")
    require_head_dim(reader.where, size, _WAY_OUT)
    if reader.count("rope.dimension_count_swa", MAX_WIDTH, default=size) != size:
        raise reader.refused("a part of the heads of layers with a window is rotated")
    heads = [reader.only("attention.head_count_kv", _of(kv_heads, windows, kind)) for kind in (True, False)]
    shared = reader.count("attention.shared_kv_layers", layers, least=0, default=0)
    has_values = tuple(
        is_windowed or reader.has_tensor(f"blk.{layer}.attn_v.weight")
        for layer, is_windowed in enumerate(windows.kinds)
    )
    experts = None
    if reader.count("expert_count", MAX_EXPERTS, least=0, default=0):
        experts = header_experts(reader, FeedForward(max(sizes), "gelu"), **_USUAL)
    facts = _Facts(
        windows,
        heads[1],
        full_size,
        shared,
        sizes,
        has_values,
        "gelu",
        reader.softcap("final_logit_softcapping"),
        reader.count("embedding_length_per_layer_input", MAX_WIDTH, least=0, default=0),
        experts,
    )
    base = reader.number("rope.freq_base_swa", least=MIN_ROPE_THETA, most=MAX_ROPE_THETA, default=10_000.0)
    ropes = (_full_rope(reader, dims), default_rope(base, size))
    dims = replace(dims, head_dim=size, num_kv_heads=heads[0])
    return _decoder(dims, facts, ropes, reader.refused(f"{shared} of {layers} layers read keys of earlier ones"))


def _of(values: tuple[int, ...], windows: Windows, kind: bool) -> tuple[int, ...]:
    """Return the values of the layers of one kind; those of all if there are none."""
    return tuple(value for value, one in zip(values, windows.kinds, strict=True) if one == kind) or values


def _full_rope(reader: HeaderReader, dims: Dimensions) -> Rope:
    """Return the rotation of layers that see all; pairs that stand still have a divisor that is nearly infinite."""
    rope = read_header_rope(reader, dims)
    divisors = reader.floats("rope_freqs.weight", len(rope.frequencies))
    if divisors is None or rope.dimensions != dims.head_dim:
        raise reader.refused("'rope_freqs.weight' is missing, or has not a number for each pair of a head")
    turning = tuple(
        0.0 if divisor >= _STANDING else one for one, divisor in zip(rope.frequencies, divisors, strict=True)
    )
    return replace(rope, kind="proportional", frequencies=turning)


def _decoder(dims: Dimensions, facts: _Facts, ropes: tuple[Rope, Rope], no_source: Exception) -> Decoder:
    kinds, own = facts.windows.kinds, dims.num_layers - facts.shared
    layers = []
    for number, (is_windowed, window) in enumerate(zip(kinds, facts.windows.sizes, strict=True)):
        source = None
        if number >= own:
            earlier = [layer for layer in range(max(own, 0)) if kinds[layer] == is_windowed]
            if not earlier:
                raise no_source
            source = earlier[-1]
        attention = Attention(
            dims.num_heads,
            dims.num_kv_heads if is_windowed else facts.full_kv_heads,
            dims.head_dim if is_windowed else facts.full_head_dim,
            1.0,
            rope=int(is_windowed),
            window=window,
            qk_norm="head",
            norms_values=source is None,
            values_are_keys=source is None and not facts.has_values[number],
            kv_from=source,
        )
        feed_forward = FeedForward(facts.sizes[number], facts.activation)
        layers.append(Layer(attention, feed_forward, has_post_norms=True, experts=facts.experts, has_scale=True))
    return dims.decoder(
        "gemma4",
        tuple(layers),
        *ropes,
        logit_softcap=facts.softcap,
        embedding_scale=dims.hidden_size**0.5,
        per_layer_embedding=facts.per_layer_embedding,
    )


GEMMA4: Final = Family(
    "gemma4",
    ("gemma4_text", _UNIFIED),
    ("gemma4",),
    from_config,
    from_header,
    layer_names={
        **SANDWICH_NAMES,
        "self_attn.v_norm": "attn_v_norm",
        "per_layer_input_gate": "inp_gate",
        "per_layer_projection": "proj",
        "post_per_layer_input_norm": "post_norm",
        "layer_scalar": "layer_output_scale",
        "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
        "post_feedforward_layernorm_1": "post_ffw_norm_1",
        "post_feedforward_layernorm_2": "post_ffw_norm_2",
        "router.proj": "ffn_gate_inp",
        "router.scale": "ffn_gate_inp.scale",
        "router.per_expert_scale": "ffn_down_exps.scale",
        "experts.gate_up_proj": "ffn_gate_up_exps",
        "experts.down_proj": "ffn_down_exps",
    },
    top_names={
        **TOP_NAMES,
        "embed_tokens_per_layer": "per_layer_token_embd",
        "per_layer_model_projection": "per_layer_model_proj",
        "per_layer_projection_norm": "per_layer_proj_norm",
    },
    skipped_keys=("vision.", "audio.", "mm."),
    skipped_tensors=("v.", "a.", "mm."),
)
