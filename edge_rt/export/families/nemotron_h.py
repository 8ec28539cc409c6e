"""Nemotron-H and Nemotron 3: every layer is one step, a mixer or a feed-forward, and nothing is rotated."""

from __future__ import annotations

from typing import Final

from edge_rt.errors import as_json
from edge_rt.export.families.config_reader import FULL, ConfigReader
from edge_rt.export.families.experts import SIGMOID, config_expert, config_experts, header_experts
from edge_rt.export.families.family import Family
from edge_rt.export.families.header_reader import HeaderReader
from edge_rt.export.families.qwen35 import LINEAR
from edge_rt.export.families.state_spaces import SPACE_HEADER_NAMES, SPACE_NAMES, header_space, require_no_step_limit
from edge_rt.package.decoder import MAX_LAYERS, Decoder, Dimensions
from edge_rt.package.layers import (
    MAX_EXPERTS,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_TAPS,
    MAX_WIDTH,
    Experts,
    FeedForward,
    Layer,
    StateSpace,
)

_DENSE, _SPARSE = "mlp", "moe"
_MARKS: Final = {"M": LINEAR, "*": FULL, "-": _DENSE, "E": _SPARSE}
"""Marks of a pattern -> words of transformers 5."""
_OLD_WORDS: Final = {"mamba": LINEAR, "attention": FULL}
_USUAL: Final = (LINEAR, _SPARSE, FULL, _DENSE)
_OLD_KEYS: Final = {
    "n_groups": "mamba_n_groups",
    "conv_kernel": "mamba_d_conv",
    "use_conv_bias": "mamba_conv_bias",
    "time_step_limit": "mamba_dt_limit",
}
_SPARSE_KEYS: Final = (
    *("n_routed_experts", "num_local_experts", "moe_intermediate_size", "moe_shared_expert_intermediate_size"),
    *("moe_latent_size", "n_group", "routed_scaling_factor"),
)
_EPSILON: Final = 1e-20


def from_config(config: ConfigReader, name: str) -> Decoder:
    """Describe the model of a ``config.json``."""
    for key, old in _OLD_KEYS.items():
        config.alias(key, old)
    if not config.has("head_dim"):
        config.alias("head_dim", "attention_head_dim")
    kinds = _kinds(config)
    config.state("num_hidden_layers", len(kinds))
    config.defaults(num_key_value_heads=8, intermediate_size=21504)
    dims = config.dimensions(name, head_dim=128, epsilon="layer_norm_epsilon", epsilon_default=1e-5)
    # Nothing is rotated, whatever is said of it.
    config.get("partial_rotary_factor")
    config.activation("mlp_hidden_act", {"relu2": "relu2"}, "relu2")
    config.activation("mamba_hidden_act", {"silu": "silu", "swish": "silu"}, "silu")
    has_bias = config.flag("mlp_bias")
    layers = {
        LINEAR: Layer(None, None, state_space=_config_space(config)),
        FULL: Layer(dims.attention(rope=None), None),
        _DENSE: Layer(None, _fed(dims.intermediate_size, has_bias=has_bias)),
    }
    if _SPARSE in kinds:
        layers[_SPARSE] = _config_sparse(config, has_bias=has_bias)
    for key in _SPARSE_KEYS:
        # Configurations say it of models without experts, too.
        config.get(key)
    return dims.decoder("nemotron_h", tuple(layers[kind] for kind in kinds))


def _fed(size: int, *, has_bias: bool = False) -> FeedForward:
    return FeedForward(size, "relu2", is_gated=False, has_bias=has_bias)


def _kinds(config: ConfigReader) -> tuple[str, ...]:
    """Return the word of every layer."""
    for key in ("layers_block_type", "layer_types"):
        if config.has(key):
            words = config.kinds(key, None, (*_MARKS.values(), *_OLD_WORDS))
            config.get("hybrid_override_pattern")
            return tuple(_OLD_WORDS.get(word, word) for word in words or ())
    if not config.has("hybrid_override_pattern"):
        return _USUAL
    pattern = config.text("hybrid_override_pattern")
    if strange := sorted(set(pattern) - set(_MARKS)):
        raise config.refused(f"hybrid_override_pattern has {', '.join(map(as_json, strange[:5]))}")
    return tuple(_MARKS[mark] for mark in pattern)


def _config_space(config: ConfigReader) -> StateSpace:
    require_no_step_limit(config)
    heads = config.count("mamba_num_heads", MAX_HEADS, default=128)
    return StateSpace(
        heads,
        config.count("mamba_head_dim", MAX_HEAD_DIM, default=64),
        config.count("n_groups", heads, default=8),
        config.count("ssm_state_size", MAX_HEAD_DIM, default=128),
        config.count("conv_kernel", MAX_TAPS, default=4),
        has_conv_bias=config.flag("use_conv_bias", default=True),
        has_bias=config.flag("use_bias"),
    )


def _config_sparse(config: ConfigReader, *, has_bias: bool) -> Layer:
    if config.count("n_shared_experts", MAX_EXPERTS, least=0, default=1) != 1:
        raise config.refused(f"n_shared_experts is {as_json(config.get('n_shared_experts'))}")
    latent = 0
    if config.has("moe_latent_size"):
        latent = config.count("moe_latent_size", MAX_WIDTH)
    if latent and has_bias:
        raise config.refused("mlp_bias is true beside moe_latent_size")
    groups = config.count("n_group", MAX_EXPERTS, default=1)
    experts = config_experts(
        config,
        _fed(config_expert(config, 7688).size),
        count="n_routed_experts",
        count_default=8,
        chosen_default=2,
        gating="sigmoid",
        is_normalised=config.flag("norm_topk_prob", default=True),
        epsilon=_EPSILON,
        scale=config.number("routed_scaling_factor", least=1e-3, most=1e3, default=1.0),
        has_choice_bias=True,
        groups=groups,
        chosen_groups=config.count("topk_group", groups, default=1),
        latent=latent,
    )
    shared = config.count("moe_shared_expert_intermediate_size", 4 * MAX_WIDTH, default=7688)
    return Layer(None, _fed(shared, has_bias=has_bias), experts=experts)


def from_header(reader: HeaderReader) -> Decoder:
    """Describe the model of a GGUF header: KV heads mean attention, a size a feed-forward, neither a state space."""
    layers = reader.count("block_count", MAX_LAYERS) - reader.blocks_ahead()
    total = layers + reader.num_blocks_ahead
    heads = reader.counts("attention.head_count_kv", MAX_HEADS, layers=total)
    sizes = reader.counts("feed_forward_length", 4 * MAX_WIDTH, layers=total)
    dims = reader.dimensions(
        kv_heads=reader.only("attention.head_count_kv", heads), layers=layers, feed_forward=max(1, *sizes)
    )
    for key in ("rope.freq_base", "rope.dimension_count"):
        # Nothing is rotated, whatever is said of it.
        reader.key(key)
    return dims.decoder(
        "nemotron_h",
        tuple(_header_layer(reader, dims, number, heads[number], sizes[number]) for number in range(layers)),
    )


def _header_layer(reader: HeaderReader, dims: Dimensions, number: int, heads: int, size: int) -> Layer:
    name = f"blk.{number}."
    if heads:
        return Layer(dims.attention(rope=None, has_output_bias=reader.has_tensor(f"{name}attn_output.bias")), None)
    if not size:
        return Layer(None, None, state_space=header_space(reader, name))
    if not reader.has_tensor(f"{name}ffn_gate_inp.weight"):
        return Layer(None, _fed(size, has_bias=reader.has_tensor(f"{name}ffn_up.bias")))
    shared = reader.count("expert_shared_feed_forward_length", 4 * MAX_WIDTH)
    return Layer(None, _fed(shared), experts=_header_experts(reader, size, f"{name}exp_probs_b.bias"))


def _header_experts(reader: HeaderReader, size: int, choice_bias: str) -> Experts:
    if (gating := reader.count("expert_gating_func", 8, default=SIGMOID)) != SIGMOID:
        raise reader.refused(f"{reader.key('expert_gating_func')!r} is {gating}")
    if reader.count("expert_shared_count", MAX_EXPERTS, least=0, default=1) != 1:
        raise reader.refused(f"{reader.key('expert_shared_count')!r} is not 1")
    groups = max(1, reader.count("expert_group_count", MAX_EXPERTS, least=0, default=1))
    # Files of one group need not say how many are chosen.
    chosen = reader.count("expert_group_used_count", groups, default=1 if groups == 1 else None)
    return header_experts(
        reader,
        _fed(size),
        gating="sigmoid",
        is_normalised=reader.flag("expert_weights_norm", default=False),
        epsilon=_EPSILON,
        scale=reader.factor("expert_weights_scale") or 1.0,
        has_choice_bias=reader.has_tensor(choice_bias),
        groups=groups,
        chosen_groups=chosen,
        latent=reader.count("moe_latent_size", MAX_WIDTH, least=0, default=0),
    )


NEMOTRON_H: Final = Family(
    "nemotron_h",
    ("nemotron_h",),
    ("nemotron_h", "nemotron_h_moe"),
    from_config,
    from_header,
    {
        "norm": "attn_norm",
        "mixer.q_proj": "attn_q",
        "mixer.k_proj": "attn_k",
        "mixer.v_proj": "attn_v",
        "mixer.o_proj": "attn_output",
        **{f"mixer.{name}": ours for name, ours in SPACE_NAMES.items()},
        "mixer.up_proj": "ffn_up",
        "mixer.down_proj": "ffn_down",
        "mixer.gate": "ffn_gate_inp",
        "mixer.gate.e_score_correction_bias": "exp_probs_b.bias",
        "mixer.experts.*.up_proj": "ffn_up.*",
        "mixer.experts.*.down_proj": "ffn_down.*",
        "mixer.shared_experts.up_proj": "ffn_up",
        "mixer.shared_experts.down_proj": "ffn_down",
        "mixer.fc1_latent_proj": "ffn_latent_down",
        "mixer.fc2_latent_proj": "ffn_latent_up",
    },
    top_names={"embeddings": "token_embd", "norm_f": "output_norm"},
    header_names={**SPACE_HEADER_NAMES, "ffn_up_shexp": "ffn_up", "ffn_down_shexp": "ffn_down"},
    ignored_tensors=("mtp.",),
)
