"""The configurations behind ``tests/data/families``: tiny sizes, and all that differs between families bites.

Windows and original contexts are shorter than the sequence, heads are not hidden / heads where the family allows it,
and no multiplier, soft-cap or scale has a value that would hide it.
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
        model: the class of transformers, without "Config" or "ForCausalLM".
        config: arguments of the configuration.
        old: changes of ``config.json`` in the older keys, beyond those that are general; None removes a key.
        gguf: None, or why llama.cpp computes no GGUF file of this case alike.
        suffix: of the model's class.
    """

    model: str
    config: dict[str, Any]
    old: dict[str, Any] = field(default_factory=dict)
    gguf: str | None = None
    suffix: str = "ForCausalLM"


def _base(**changes: Any) -> dict[str, Any]:
    return {
        "vocab_size": 264, "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
        "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    } | changes  # fmt: skip


def _theta(theta: float, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta} | more}


QWEN = {
    "qwen3": CaseConfig("Qwen3", _base(head_dim=32, tie_word_embeddings=True, rms_norm_eps=1e-6, **_theta(1e6))),
    "qwen3_window": CaseConfig(
        "Qwen3",
        _base(head_dim=32, attention_bias=True, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=2,
              **_theta(1e5)),
        old={"layer_types": None},
        gguf="llama.cpp's qwen3 has no sliding window",
    ),
    "qwen2": CaseConfig("Qwen2", _base(num_attention_heads=6, tie_word_embeddings=True, **_theta(1e6)),
                        old={"layer_types": None}),
    "qwen2_window": CaseConfig(
        "Qwen2",
        _base(num_attention_heads=6, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=2,
              **_theta(1e6)),
        old={"layer_types": None},
        gguf="llama.cpp's qwen2 has no sliding window",
    ),
}  # fmt: skip

LLAMA = {
    "llama": CaseConfig("Llama", _base(num_attention_heads=6, rms_norm_eps=1e-5, **_theta(10000.0))),
    "llama_bias": CaseConfig(
        "Llama", _base(head_dim=32, attention_bias=True, mlp_bias=True, tie_word_embeddings=True, **_theta(5e5))
    ),
    "llama_llama3": CaseConfig("Llama", _base(head_dim=32, rope_parameters=dict(LLAMA3))),
    "llama_linear": CaseConfig(
        "Llama",
        _base(head_dim=32, rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}),
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
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "attention_factor": 1.25, "beta_fast": 2.0,
            "beta_slow": 0.25, "original_max_position_embeddings": ORIGINAL_CONTEXT}),
        gguf="llama.cpp's llama reads neither yarn_beta_fast and yarn_beta_slow nor yarn_attn_factor",
    ),
    "mistral": CaseConfig("Mistral", _base(head_dim=32, sliding_window=None, rms_norm_eps=1e-5, **_theta(1e6))),
    "mistral_window": CaseConfig(
        "Mistral", _base(head_dim=32, sliding_window=WINDOW, rms_norm_eps=1e-5, **_theta(10000.0)),
        gguf="llama.cpp's llama has no sliding window",
    ),
}  # fmt: skip

CONFIGS: dict[str, CaseConfig] = QWEN | LLAMA
