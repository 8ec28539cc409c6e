"""``config.json`` of released models, with the keys that they have and no others: all of them are described."""

from __future__ import annotations

import pytest

from tests.helpers.configs import described

LLAMA3 = {
    "factor": 16.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}  # fmt: skip
S, F = "sliding_attention", "full_attention"

GEMMA2_2B = {
    "architectures": ["Gemma2ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "attn_logit_softcapping": 50.0, "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": 1,
    "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304, "initializer_range": 0.02,
    "intermediate_size": 9216, "max_position_embeddings": 8192, "model_type": "gemma2", "num_attention_heads": 8,
    "num_hidden_layers": 26, "num_key_value_heads": 4, "pad_token_id": 0, "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "sliding_window": 4096, "torch_dtype": "float32",
    "use_cache": True, "vocab_size": 256000,
}  # fmt: skip
GEMMA3_4B = {
    "architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255999, "eoi_token_index": 256000,
    "eos_token_id": [1, 106], "image_token_index": 262144, "initializer_range": 0.02, "mm_tokens_per_image": 256,
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
    },
    "torch_dtype": "bfloat16",
    "vision_config": {"hidden_size": 1152, "image_size": 896, "model_type": "siglip_vision_model", "patch_size": 14},
}  # fmt: skip
HUNYUAN = {
    "architectures": ["HunYuanDenseV1ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 32768,
    "mlp_bias": False, "model_type": "hunyuan_v1_dense", "num_attention_heads": 16, "num_hidden_layers": 32,
    "num_key_value_heads": 4, "rms_norm_eps": 1e-05, "rope_scaling": {
        "alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
        "type": "dynamic"},
    "rope_theta": 10000.0, "tie_word_embeddings": True, "use_cache": True, "use_qk_norm": True, "vocab_size": 120818,
}  # fmt: skip
EXAONE_32B = {
    "architectures": ["Exaone4ForCausalLM"], "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120,
    "intermediate_size": 27392, "layer_types": [S, S, S, F] * 16, "max_position_embeddings": 131072,
    "model_type": "exaone4", "num_attention_heads": 40, "num_hidden_layers": 64, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05, "rope_scaling": LLAMA3, "rope_theta": 1000000, "sliding_window": 4096,
    "sliding_window_pattern": "LLLG", "tie_word_embeddings": False, "vocab_size": 102400,
}  # fmt: skip
EXAONE_1B = {
    "architectures": ["Exaone4ForCausalLM"], "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048,
    "intermediate_size": 4096, "layer_types": [F] * 30, "max_position_embeddings": 65536, "model_type": "exaone4",
    "num_attention_heads": 32, "num_hidden_layers": 30, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
    "rope_scaling": LLAMA3, "rope_theta": 1000000, "sliding_window": None, "sliding_window_pattern": None,
    "tie_word_embeddings": True, "vocab_size": 102400,
}  # fmt: skip
PHI4_MINI = {
    "architectures": ["Phi3ForCausalLM"], "attention_bias": False, "embd_pdrop": 0.0, "full_attn_mod": 1,
    "hidden_act": "silu", "hidden_size": 3072, "interpolate_factor": 1, "intermediate_size": 8192,
    "lm_head_bias": False, "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "phi3",
    "num_attention_heads": 24, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "original_max_position_embeddings": 4096, "partial_rotary_factor": 0.75, "rms_norm_eps": 1e-05,
    "rope_scaling": {"long_factor": [2.0] * 48, "short_factor": [1.0] * 48, "type": "longrope"},
    "rope_theta": 10000.0, "sliding_window": 262144, "tie_word_embeddings": True, "vocab_size": 200064,
}  # fmt: skip
SMOLLM3 = {
    "architectures": ["SmolLM3ForCausalLM"], "attention_bias": False, "hidden_act": "silu", "hidden_size": 2048,
    "intermediate_size": 11008, "layer_types": [F] * 36, "max_position_embeddings": 65536, "max_window_layers": 28,
    "mlp_bias": False, "model_type": "smollm3", "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0] * 9,
    "num_attention_heads": 16, "num_hidden_layers": 36, "num_key_value_heads": 4, "pretraining_tp": 2,
    "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 5000000.0, "sliding_window": None,
    "use_sliding_window": False, "vocab_size": 128256,
}  # fmt: skip
MISTRAL_SMALL = {
    "architectures": ["Mistral3ForConditionalGeneration"], "image_token_index": 10, "model_type": "mistral3",
    "multimodal_projector_bias": False, "projector_hidden_act": "gelu", "spatial_merge_size": 2,
    "text_config": {
        "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120,
        "intermediate_size": 32768, "max_position_embeddings": 131072, "model_type": "mistral",
        "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
        "rope_theta": 1000000000.0, "sliding_window": None, "vocab_size": 131072,
    },
    "vision_config": {"model_type": "pixtral"}, "vision_feature_layer": -1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("document", "family", "rows", "windows", "kinds"),
    [
        (GEMMA2_2B, "gemma2", 256000, {0, 4096}, ["default"]),
        (GEMMA3_4B, "gemma3", 262208, {0, 1024}, ["linear", "default"]),
        (HUNYUAN, "hunyuan_v1_dense", 120818, {0}, ["dynamic"]),
        (EXAONE_32B, "exaone4", 102400, {0, 4096}, ["llama3"]),
        (EXAONE_1B, "exaone4", 102400, {0}, ["llama3"]),
        (PHI4_MINI, "phi3", 200064, {0}, ["longrope"]),
        (SMOLLM3, "smollm3", 128256, {0}, ["default"]),
        (MISTRAL_SMALL, "llama", 131072, {0}, ["default"]),
    ],
)
def test_released_models_are_described(document, family, rows, windows, kinds):
    decoder = described(document)
    assert (decoder.family, decoder.vocab_size, set(decoder.layer_windows)) == (family, rows, windows)
    assert [rope.kind for rope in decoder.ropes] == kinds
