"""The configurations behind ``tests/data/families``: tiny sizes, and all that differs between families bites.

Windows and original contexts are shorter than the sequence, heads are not hidden / heads where the family allows it,
and no multiplier, soft-cap or scale has a value that would hide it. Some heads are of 24, 40, 72 and 100: with norms of
rows and of heads, biases, windows, a soft-cap, and so few that their rows end within a tile of 16.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

TOKENS = 44
WINDOW = 8
ORIGINAL_CONTEXT = 16
LONG_ORIGINAL_CONTEXT = 256

LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": ORIGINAL_CONTEXT,
}  # fmt: skip


@dataclass(frozen=True)
class CaseConfig:
    """What makes a case.

    Attributes:
        model: the class of transformers' configuration, without "Config".
        config: arguments of the configuration.
        old: changes of ``config.json`` in the older keys, beyond those that are general; None removes a key.
        gguf: None, or why llama.cpp computes no GGUF file of this case alike.
        model_class: the class of the model; default: ``model`` and "ForCausalLM".
    """

    model: str
    config: dict[str, Any]
    old: dict[str, Any] = field(default_factory=dict)
    gguf: str | None = None
    model_class: str | None = None


def _base(**changes: Any) -> dict[str, Any]:
    return {
        "vocab_size": 264, "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
        "rms_norm_eps": 2e-3, "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    } | changes  # fmt: skip


def _layer_norm(**changes: Any) -> dict[str, Any]:
    """Return a base with LayerNorm's key and heads of hidden / heads, which these families demand."""
    base = {key: value for key, value in _base(hidden_size=128).items() if key != "rms_norm_eps"}
    return base | {"layer_norm_eps": 2e-3} | changes


def _theta(theta: float, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta} | more}


# Releases state a window and do not use it.
_UNUSED_WINDOW = {
    "layer_types": None, "sliding_window": WINDOW, "max_window_layers": 2, "use_sliding_window": False,
}  # fmt: skip

QWEN = {
    "qwen3": CaseConfig("Qwen3", _base(head_dim=32, tie_word_embeddings=True, **_theta(1e6)), old=_UNUSED_WINDOW),
    "qwen3_window": CaseConfig(
        "Qwen3",
        _base(head_dim=40, attention_bias=True, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=2,
              **_theta(1e5)),
        old={"layer_types": None},
        gguf="llama.cpp's qwen3 has no sliding window",
    ),
    "qwen2": CaseConfig(
        "Qwen2", _base(num_attention_heads=6, tie_word_embeddings=True, **_theta(1e6)), old=_UNUSED_WINDOW
    ),
    "qwen2_window": CaseConfig(
        "Qwen2",
        _base(num_attention_heads=6, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=2,
              **_theta(1e6)),
        old={"layer_types": None},
        gguf="llama.cpp's qwen2 has no sliding window",
    ),
}  # fmt: skip

LLAMA = {
    "llama": CaseConfig("Llama", _base(num_attention_heads=6, **_theta(10000.0))),
    "llama_bias": CaseConfig(
        "Llama", _base(head_dim=40, attention_bias=True, mlp_bias=True, tie_word_embeddings=True, **_theta(5e5))
    ),
    "llama_llama3": CaseConfig("Llama", _base(head_dim=32, rope_parameters=dict(LLAMA3))),
    "llama_linear": CaseConfig(
        "Llama",
        _base(head_dim=100, num_attention_heads=8, num_key_value_heads=4,
              rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}),
    ),
    "llama_yarn": CaseConfig(
        "Llama",
        _base(head_dim=32, rope_parameters={
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0,
            "original_max_position_embeddings": LONG_ORIGINAL_CONTEXT}),
    ),
    "llama_yarn_given": CaseConfig(
        "Llama",
        _base(head_dim=32, rope_parameters={
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "attention_factor": 1.25, "beta_fast": 0.5,
            "beta_slow": 0.0625, "original_max_position_embeddings": ORIGINAL_CONTEXT}),
        gguf="llama.cpp's llama reads neither yarn_beta_fast and yarn_beta_slow nor yarn_attn_factor",
    ),
    "mistral": CaseConfig("Mistral", _base(head_dim=32, sliding_window=None, **_theta(1e6))),
    "mistral_window": CaseConfig(
        "Mistral", _base(head_dim=32, sliding_window=WINDOW, **_theta(10000.0)),
        gguf="llama.cpp's llama has no sliding window",
    ),
}  # fmt: skip

_LINEAR = {"rope_type": "linear", "factor": 8.0}
_GEMMA3 = _base(
    num_hidden_layers=6, intermediate_size=128, head_dim=32, query_pre_attn_scalar=32, sliding_window=WINDOW,
    tie_word_embeddings=True,
    rope_parameters={
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_theta": 1e6} | _LINEAR,
    },
)  # fmt: skip
_GEMMA3_OLD = {
    "rope_theta": 1e6, "rope_local_base_freq": 10000.0, "rope_scaling": _LINEAR, "sliding_window_pattern": 6,
    "layer_types": None,
}  # fmt: skip

GEMMA = {
    "gemma3_text": CaseConfig("Gemma3Text", _GEMMA3, old=_GEMMA3_OLD, model_class="Gemma3ForCausalLM"),
    "gemma3_text_other": CaseConfig(
        "Gemma3Text",
        _base(num_key_value_heads=1, head_dim=24, query_pre_attn_scalar=32, sliding_window=WINDOW,
              tie_word_embeddings=True, final_logit_softcapping=5.0, rope_parameters={
                  "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
                  "full_attention": {"rope_type": "default", "rope_theta": 50000.0}},
              layer_types=["full_attention", "sliding_attention", "full_attention", "sliding_attention"]),
        old={"rope_theta": 50000.0, "rope_local_base_freq": 5000.0},
        model_class="Gemma3ForCausalLM",
        gguf="llama.cpp's gemma3 scales attention by the size of a head",
    ),
    "gemma3_text_defaults": CaseConfig(  # what config.json of the 4B model says, and nothing else
        "Gemma3Text",
        {"vocab_size": 264, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6,
         "sliding_window": WINDOW, "rope_parameters": {
             "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
             "full_attention": {"rope_theta": 1e6} | _LINEAR}},
        old={"rope_theta": 1e6, "rope_local_base_freq": 10000.0, "rope_scaling": _LINEAR, "sliding_window_pattern": 6,
             "layer_types": None},
        model_class="Gemma3ForCausalLM",
    ),
    "gemma3": CaseConfig(
        "Gemma3",
        {"text_config": _GEMMA3, "image_token_index": 4, "boi_token_index": 5, "eoi_token_index": 6,
         "mm_tokens_per_image": 4,
         "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 32, "intermediate_size": 32,
                           "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14,
                           "vision_use_head": False}},
        old=_GEMMA3_OLD,
        model_class="Gemma3ForConditionalGeneration",
    ),
    "gemma2": CaseConfig(
        "Gemma2",
        _base(head_dim=72, query_pre_attn_scalar=72, sliding_window=WINDOW, attn_logit_softcapping=2.0,
              final_logit_softcapping=5.0, tie_word_embeddings=True, **_theta(10000.0)),
        old={"layer_types": None},
    ),
}  # fmt: skip


def _phi3(original: int, size: int, **changes: Any) -> dict[str, Any]:
    factors = [1.0 + 0.25 * pair for pair in range(size // 2)]
    longrope = {
        "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": factors,
        "long_factor": [1.5 + 2 * factor for factor in factors],
    }  # fmt: skip
    longrope |= {key: changes.pop(key) for key in ("partial_rotary_factor",) if key in changes}
    return _base(
        num_attention_heads=3, num_key_value_heads=1, original_max_position_embeddings=original,
        rope_parameters=longrope, **changes,
    )  # fmt: skip


_GEMMA4 = _base(
    num_hidden_layers=6, head_dim=32, global_head_dim=64, sliding_window=WINDOW, tie_word_embeddings=True,
    hidden_size_per_layer_input=16, vocab_size_per_layer_input=264, final_logit_softcapping=5.0,
    layer_types=["sliding_attention", "full_attention"] * 3,
)  # fmt: skip
_GEMMA4_ROPES = {  # what transformers assumes
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
}
_GEMMA4_OTHER_ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 50000.0},
}

GEMMA4 = {
    "gemma4_text": CaseConfig(
        "Gemma4Text",
        _GEMMA4 | {"num_kv_shared_layers": 2, "use_double_wide_mlp": True},
        old={"per_layer_config": None, "global_head_dim": 64, "rope_parameters": _GEMMA4_ROPES},
        model_class="Gemma4ForCausalLM",
    ),
    "gemma4_text_keys": CaseConfig(
        "Gemma4Text",
        _base(head_dim=40, global_head_dim=64, sliding_window=WINDOW, tie_word_embeddings=True,
              hidden_size_per_layer_input=0, attention_k_eq_v=True, num_global_key_value_heads=1,
              layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
              rope_parameters=_GEMMA4_OTHER_ROPES),
        old={"per_layer_config": None, "global_head_dim": 64, "num_global_key_value_heads": 1,
             "rope_parameters": _GEMMA4_OTHER_ROPES},
        model_class="Gemma4ForCausalLM",
    ),
    "gemma4_text_experts": CaseConfig(
        "Gemma4Text",
        _base(head_dim=32, global_head_dim=64, sliding_window=WINDOW, tie_word_embeddings=True,
              hidden_size_per_layer_input=0, attention_k_eq_v=True, num_global_key_value_heads=1,
              layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
              enable_moe_block=True, num_experts=8, top_k_experts=3, moe_intermediate_size=48,
              rope_parameters=_GEMMA4_OTHER_ROPES),
        old={"per_layer_config": None, "global_head_dim": 64, "num_global_key_value_heads": 1,
             "rope_parameters": _GEMMA4_OTHER_ROPES},
        model_class="Gemma4ForCausalLM",
    ),
}  # fmt: skip

PHI3 = {
    "phi3_long": CaseConfig("Phi3", _phi3(ORIGINAL_CONTEXT, 32)),
    "phi3_short": CaseConfig("Phi3", _phi3(LONG_ORIGINAL_CONTEXT, 32, max_position_embeddings=1024)),
    "phi3_partial": CaseConfig(
        "Phi3", _phi3(ORIGINAL_CONTEXT, 24, partial_rotary_factor=0.75, tie_word_embeddings=True)
    ),
    "phi3_window": CaseConfig(
        "Phi3",
        _base(num_attention_heads=3, num_key_value_heads=3, sliding_window=WINDOW,
              original_max_position_embeddings=512, **_theta(10000.0)),
        gguf="llama.cpp's phi3 has no sliding window",
    ),
}  # fmt: skip

_MINISTRAL = _base(
    head_dim=32, sliding_window=None, rope_parameters={
        "rope_type": "yarn", "type": "yarn", "rope_theta": 10000.0, "factor": 16.0, "beta_fast": 0.5,
        "beta_slow": 0.125, "mscale": 1.0, "mscale_all_dim": 0.5, "llama_4_scaling_beta": 0.5,
        "original_max_position_embeddings": ORIGINAL_CONTEXT},
)  # fmt: skip

SCALED = {
    "ministral3": CaseConfig("Ministral3", _MINISTRAL),
    "mistral3": CaseConfig(
        "Mistral3",
        {"text_config": {"model_type": "ministral3"} | _MINISTRAL | {"tie_word_embeddings": True},
         "tie_word_embeddings": True, "image_token_index": 4,
         "vision_config": {"model_type": "pixtral", "hidden_size": 32, "intermediate_size": 32, "head_dim": 16,
                           "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14}},
        model_class="Mistral3ForConditionalGeneration",
    ),
    "smollm3": CaseConfig(
        "SmolLM3", _base(num_hidden_layers=5, num_attention_heads=6, tie_word_embeddings=True, **_theta(5e6))
    ),
    "smollm3_other": CaseConfig(
        "SmolLM3",
        _base(num_attention_heads=6, no_rope_layers=[0, 1, 0, 1], attention_bias=True, mlp_bias=True, **_theta(5e5)),
        gguf="llama.cpp's smollm3 has no rope in every fourth layer, whatever the file says",
    ),
    "smollm3_window": CaseConfig(  # the layers without rotation have it
        "SmolLM3",
        _base(num_hidden_layers=5, num_attention_heads=6, use_sliding_window=True, sliding_window=WINDOW,
              **_theta(5e5)),
        old={"layer_types": None, "max_window_layers": 2},
        gguf="llama.cpp's smollm3 has no sliding window",
    ),
    "granite": CaseConfig(
        "Granite",
        _base(num_attention_heads=6, embedding_multiplier=12.0, logits_scaling=3.0, residual_multiplier=0.375,
              attention_multiplier=0.5, tie_word_embeddings=True, **_theta(5e6)),
    ),
}  # fmt: skip

_OLMO3_YARN = {
    "rope_type": "yarn", "factor": 8.0, "attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0,
    "original_max_position_embeddings": LONG_ORIGINAL_CONTEXT,
}  # fmt: skip

POST_NORM = {
    "olmo2": CaseConfig("Olmo2", _base(**_theta(5e5))),
    "olmo3": CaseConfig(
        "Olmo3",
        _base(hidden_size=128, sliding_window=WINDOW, rope_parameters={
            "full_attention": {"rope_theta": 5e5} | _OLMO3_YARN,
            "sliding_attention": {"rope_type": "default", "rope_theta": 5e5}}),
        # With older keys transformers gives layers with a window its default base, which is that of the releases.
        old={"rope_theta": 5e5, "rope_scaling": _OLMO3_YARN},
    ),
    "exaone4": CaseConfig(
        "Exaone4",
        _base(hidden_size=128, head_dim=32, sliding_window=None, layer_types=["full_attention"] * 4,
              tie_word_embeddings=True,
              rope_parameters=LLAMA3 | {"factor": 16.0}),  # llama.cpp wants heads of hidden / heads
    ),
    "exaone4_window": CaseConfig(
        "Exaone4",
        _base(head_dim=32, num_hidden_layers=5, sliding_window=WINDOW, sliding_window_pattern=4,
              rope_parameters=LLAMA3 | {"factor": 16.0}),
        gguf="llama.cpp's exaone4 has a sliding window in models of 64 layers only",
    ),
    "exaone4_long_window": CaseConfig(  # as long as the context: layers are of two kinds all the same
        "Exaone4",
        _base(head_dim=32, num_hidden_layers=5, sliding_window=512, sliding_window_pattern=4, **_theta(1e5)),
        gguf="llama.cpp's exaone4 has a sliding window in models of 64 layers only",
    ),
}  # fmt: skip


def _moe(**changes: Any) -> dict[str, Any]:
    return _base(num_experts=8, num_experts_per_tok=3, **changes)


_SECTIONS = {"partial_rotary_factor": 0.25, "mrope_section": [3, 3, 2], "mrope_interleaved": True}
_DELTA = {
    "head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_num_value_heads": 6,
    "linear_value_head_dim": 48,
}

DELTAS = {
    "qwen3_5": CaseConfig(
        "Qwen3_5Text",
        _base(num_hidden_layers=5, tie_word_embeddings=True, **_DELTA, **_theta(1e4, **_SECTIONS),
              layer_types=["linear_attention", "linear_attention", "full_attention", "linear_attention",
                           "full_attention"]),
        old={"rope_theta": None, "rope_scaling": None, "partial_rotary_factor": None, **_theta(1e4, **_SECTIONS)},
        model_class="Qwen3_5ForCausalLM",
        gguf="llama.cpp makes keys and queries of length 1 with the epsilon of norms",
    ),
    "qwen3_5_epsilon": CaseConfig(  # an epsilon of norms that is that of keys and queries, too
        "Qwen3_5Text",
        _base(num_hidden_layers=6, rms_norm_eps=1e-6, linear_conv_kernel_dim=3, **_DELTA | {"linear_num_key_heads": 3},
              **_theta(1e6, **_SECTIONS), layer_types=["linear_attention", "linear_attention", "full_attention"] * 2),
        old={"rope_theta": None, "rope_scaling": None, "partial_rotary_factor": None, **_theta(1e6, **_SECTIONS),
             "layer_types": None, "full_attention_interval": 3},
        model_class="Qwen3_5ForCausalLM",
    ),
    "qwen3_5_attention": CaseConfig(  # gates of attention, and no delta rule
        "Qwen3_5Text",
        _base(num_hidden_layers=3, **_DELTA, **_theta(1e5, **_SECTIONS), layer_types=["full_attention"] * 3),
        old={"rope_theta": None, "rope_scaling": None, "partial_rotary_factor": None, **_theta(1e5, **_SECTIONS)},
        model_class="Qwen3_5ForCausalLM",
    ),
}  # fmt: skip

_GRANITE_H = {
    "num_attention_heads": 6,
    "mamba_n_heads": 12,
    "mamba_d_head": 16,
    "mamba_d_state": 32,
    "mamba_chunk_size": 16,
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.4,
    "residual_multiplier": 0.375,
    "logits_scaling": 2.0,
}

SPACES = {
    "granite_h": CaseConfig(
        "GraniteMoeHybrid",
        _base(num_hidden_layers=5, tie_word_embeddings=True, intermediate_size=64, num_local_experts=6,
              num_experts_per_tok=2, shared_intermediate_size=96, mamba_n_groups=3, **_GRANITE_H,
              layer_types=["linear_attention", "full_attention", "linear_attention", "linear_attention",
                           "full_attention"], **_theta(1e4)),
        old={"layer_types": ["mamba", "attention", "mamba", "mamba", "attention"], "position_embedding_type": "nope"},
    ),
    "granite_h_attention": CaseConfig(
        "GraniteMoeHybrid",
        _base(num_hidden_layers=3, intermediate_size=64, num_local_experts=6, num_experts_per_tok=2,
              shared_intermediate_size=96, position_embedding_type="rope", **_GRANITE_H,
              layer_types=["full_attention"] * 3, **_theta(1e4)),
        old={"layer_types": ["attention"] * 3},
        gguf="members without Mamba have another architecture in GGUF files",
    ),
    "granite_h_dense": CaseConfig(
        "GraniteMoeHybrid",
        _base(num_local_experts=0, num_experts_per_tok=0, shared_intermediate_size=96, mamba_d_conv=3,
              mamba_conv_bias=False, mamba_proj_bias=True, position_embedding_type="rope", **_GRANITE_H,
              layer_types=["full_attention", "linear_attention", "full_attention", "linear_attention"], **_theta(5e4)),
    ),
}  # fmt: skip

_FALCON = {
    "num_hidden_layers": 3,
    "head_dim": 32,
    "mamba_d_ssm": 128,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 32,
    "mamba_chunk_size": 16,
    "mamba_norm_before_gate": False,
    "ssm_multipliers": [0.7, 1.3, 0.6, 1.7, 0.9],
    "mlp_multipliers": [0.8, 1.4],
    "embedding_multiplier": 2.5,
    "lm_head_multiplier": 0.3,
    "key_multiplier": 0.6,
    "attention_in_multiplier": 0.9,
    "attention_out_multiplier": 0.7,
    "ssm_in_multiplier": 1.2,
    "ssm_out_multiplier": 0.5,
}
_NEMOTRON = {key: value for key, value in _base(intermediate_size=160).items() if key != "rms_norm_eps"} | {
    "layer_norm_epsilon": 2e-3, "head_dim": 32, "mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2,
    "ssm_state_size": 32, "chunk_size": 16, "n_routed_experts": 8, "num_experts_per_tok": 3,
    "moe_intermediate_size": 64, "moe_shared_expert_intermediate_size": 96, "n_group": 4, "topk_group": 2,
    "routed_scaling_factor": 2.5,
}  # fmt: skip
del _NEMOTRON["num_hidden_layers"]

SPACES |= {
    "falcon_h1": CaseConfig("FalconH1", _base(**_FALCON, **_theta(1e5))),
    "falcon_h1_norm": CaseConfig("FalconH1", _base(**_FALCON | {"mamba_rms_norm": True}, **_theta(1e5))),
    "falcon_h1_before": CaseConfig(
        "FalconH1",
        _base(**_FALCON | {"mamba_rms_norm": True, "mamba_norm_before_gate": True}, mamba_conv_bias=False,
              tie_word_embeddings=True, **_theta(1e5)),
        gguf="llama.cpp has the norm behind the gate, and a tied head with the factor of embeddings",
    ),
    "nemotron_h": CaseConfig(
        "NemotronH",
        _NEMOTRON | {"layers_block_type": ["linear_attention", "moe", "full_attention", "linear_attention", "mlp"]},
        old={"layers_block_type": None, "hybrid_override_pattern": "ME*M-"},
    ),
    "nemotron_h_dense": CaseConfig(
        "NemotronH",
        _NEMOTRON | {"layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"], "use_bias": True,
                     "use_conv_bias": False},
    ),
    "nemotron_h_latent": CaseConfig(
        "NemotronH",
        _NEMOTRON | {"layers_block_type": ["linear_attention", "moe", "full_attention", "moe"], "moe_latent_size": 64},
    ),
}  # fmt: skip

_HUB_EXPERTS = {"num_local_experts": None, "num_experts": 8}

DELTAS |= {
    "qwen3_5_moe": CaseConfig(
        "Qwen3_5MoeText",
        {key: value for key, value in _base(tie_word_embeddings=True).items() if key != "intermediate_size"} | {
            "num_hidden_layers": 3, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 64,
            "shared_expert_intermediate_size": 96, "rms_norm_eps": 1e-6, **_DELTA, **_theta(1e4, **_SECTIONS),
            "layer_types": ["linear_attention", "linear_attention", "full_attention"]},
        old={"rope_theta": None, "rope_scaling": None, "partial_rotary_factor": None, **_theta(1e4, **_SECTIONS),
             **_HUB_EXPERTS},
        model_class="Qwen3_5MoeForCausalLM",
    ),
    "qwen3_next": CaseConfig(
        "Qwen3Next",
        _moe(num_hidden_layers=3, moe_intermediate_size=64, shared_expert_intermediate_size=96, mlp_only_layers=[1],
             rms_norm_eps=1e-6, layer_types=["linear_attention", "linear_attention", "full_attention"], **_DELTA,
             **_theta(1e4, partial_rotary_factor=0.25)),
        old={"layer_types": None, "full_attention_interval": 3, **_HUB_EXPERTS},
    ),
}  # fmt: skip

EXPERTS = {
    "qwen3_moe": CaseConfig(
        "Qwen3Moe",
        _moe(head_dim=32, moe_intermediate_size=64, norm_topk_prob=True, **_theta(1e6)),
        old=_HUB_EXPERTS,
    ),
    "qwen3_moe_mixed": CaseConfig(
        "Qwen3Moe",
        _moe(num_hidden_layers=6, moe_intermediate_size=64, decoder_sparse_step=2, mlp_only_layers=[3],
             attention_bias=True, tie_word_embeddings=True, **_theta(5e4)),
        old=_HUB_EXPERTS,
        gguf="llama.cpp's qwen3moe has experts in every layer, and divides their weights",
    ),
    "olmoe": CaseConfig(
        "Olmoe", _moe(hidden_size=128, intermediate_size=64, **_theta(10000.0)), old=_HUB_EXPERTS
    ),
    "olmoe_clip": CaseConfig(
        "Olmoe", _moe(hidden_size=128, intermediate_size=64, clip_qkv=0.5, norm_topk_prob=True, **_theta(5e4)),
        gguf="llama.cpp's olmoe has no clip_qkv, and does not divide the weights of experts",
    ),
    "granitemoe": CaseConfig(
        "GraniteMoe",
        _base(num_attention_heads=6, intermediate_size=64, num_local_experts=6, num_experts_per_tok=2,
              embedding_multiplier=12.0, logits_scaling=3.0, residual_multiplier=0.375, attention_multiplier=0.5,
              tie_word_embeddings=True, **_theta(5e6)),
    ),
    "gpt_oss": CaseConfig(
        "GptOss",
        _base(head_dim=32, sliding_window=WINDOW, num_local_experts=8, num_experts_per_tok=3, intermediate_size=64,
              swiglu_limit=0.75, swiglu_alpha=1.3, rope_parameters={
                  "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0,
                  "truncate": False, "original_max_position_embeddings": 64}),
        old={"layer_types": None},
        gguf="llama.cpp has other limits of feed-forwards only as constants, and rounds the ends of yarn's ramp",
    ),
    "gpt_oss_plain": CaseConfig(
        "GptOss",
        _base(head_dim=24, sliding_window=WINDOW, num_local_experts=6, num_experts_per_tok=2, intermediate_size=64,
              **_theta(150000.0)),
        # Without them transformers assumes the yarn of the releases.
        old={"rope_scaling": None, "rope_theta": None, **_theta(150000.0)},
    ),
    "lfm2_moe": CaseConfig(
        "Lfm2Moe",
        {key: value for key, value in _moe(num_attention_heads=6).items() if key != "rms_norm_eps"} | {
            "norm_eps": 2e-3, "num_hidden_layers": 5, "num_dense_layers": 2, "moe_intermediate_size": 64,
            "tie_word_embeddings": True,
            "layer_types": ["conv", "conv", "full_attention", "conv", "full_attention"], **_theta(1e6)},
    ),
    "lfm2_moe_other": CaseConfig(
        "Lfm2Moe",
        {key: value for key, value in _moe(num_attention_heads=6).items() if key != "rms_norm_eps"} | {
            "norm_eps": 2e-3, "num_dense_layers": 1, "moe_intermediate_size": 64, "routed_scaling_factor": 1.5,
            "use_expert_bias": False, "norm_topk_prob": False, "conv_bias": True,
            "layer_types": ["full_attention", "conv", "conv", "full_attention"], **_theta(5e4)},
        gguf="llama.cpp's lfm2moe divides the weights of experts, and has no biases of convolutions",
    ),
}  # fmt: skip

_LFM2 = {key: value for key, value in _base(num_attention_heads=6).items() if key != "rms_norm_eps"} | {
    "norm_eps": 2e-3, "num_hidden_layers": 5,
}  # fmt: skip

CONVOLUTIONS = {
    "lfm2": CaseConfig(
        "Lfm2",
        _LFM2 | {
            "intermediate_size": 200, "block_multiple_of": 32, "block_ffn_dim_multiplier": 1.5,
            "tie_word_embeddings": True, "layer_types": ["conv", "conv", "full_attention", "conv", "full_attention"],
            **_theta(1e6)},
        old={"layer_types": None, "full_attn_idxs": [2, 4], "intermediate_size": 999, "block_ff_dim": 200,
             "tie_word_embeddings": False, "tie_embedding": True},
    ),
    "lfm2_bias": CaseConfig(
        "Lfm2",
        _LFM2 | {
            "block_auto_adjust_ff_dim": False, "conv_bias": True, "conv_L_cache": 4,
            "layer_types": ["full_attention", "conv", "conv", "full_attention", "conv"], **_theta(5e4)},
        gguf="llama.cpp's lfm2 has no biases of convolutions",
    ),
}  # fmt: skip

OTHERS = {
    "ernie4_5": CaseConfig("Ernie4_5", _base(head_dim=32, tie_word_embeddings=True, **_theta(5e5))),
    "ernie4_5_bias": CaseConfig(
        "Ernie4_5", _base(head_dim=32, use_bias=True, **_theta(5e5)),
        gguf="llama.cpp's ernie4_5 has no biases in the MLP",
    ),
    "hunyuan_v1_dense": CaseConfig(
        "HunYuanDenseV1",
        _base(head_dim=32, max_position_embeddings=32768, tie_word_embeddings=True, rope_parameters={
            "rope_type": "dynamic", "type": "dynamic", "rope_theta": 10000.0, "alpha": 1000.0, "factor": 1.0,
            "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}),
    ),
    "stablelm": CaseConfig(
        "StableLm", _layer_norm(use_qkv_bias=True, **_theta(10000.0, partial_rotary_factor=0.25))
    ),
    "stablelm_3b": CaseConfig(  # ten rotated pairs in heads of 80, as in the releases of this size
        "StableLm",
        _layer_norm(hidden_size=160, num_attention_heads=2, **_theta(10000.0, partial_rotary_factor=0.25)),
    ),
    "stablelm_parallel": CaseConfig(
        "StableLm",
        _layer_norm(qk_layernorm=True, use_parallel_residual=True, **_theta(10000.0, partial_rotary_factor=0.5)),
    ),
    "cohere2": CaseConfig(
        "Cohere2",
        _layer_norm(num_hidden_layers=5, sliding_window=WINDOW, logit_scale=0.25, tie_word_embeddings=True,
                    **_theta(50000.0)),
        old={"layer_types": None, "sliding_window_pattern": 4},
    ),
}  # fmt: skip

CONFIGS: dict[str, CaseConfig] = (
    QWEN | LLAMA | GEMMA | GEMMA4 | PHI3 | SCALED | POST_NORM | CONVOLUTIONS | DELTAS | SPACES | EXPERTS | OTHERS
)
