"""Packages with adapters against PEFT: logits of float packages and of the models that PEFT merges."""

from __future__ import annotations

import numpy as np
import peft
import pytest
import torch
import transformers

from edge_rt.errors import UnsupportedModel
from edge_rt.export import export_model
from tests.helpers.family_cases import tokenizer_json
from tests.helpers.graphs import package_logits

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

VOCABULARY = 320
TOKENS = [3, 17, 250, 17, 99, 4, 300, 12]
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
MODELS = {
    "llama": ("Llama", {"tie_word_embeddings": False}),
    "tied": ("Llama", {"tie_word_embeddings": True}),
    "biased": ("Llama", {"tie_word_embeddings": True, "attention_bias": True}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "phi3": ("Phi3", {"tie_word_embeddings": False}),
    "gemma3": ("Gemma3Text", {"head_dim": 16, "sliding_window": 32}),
}
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
CASES = {
    "one module": ("llama", {"target_modules": ["q_proj"]}),
    "all linear, rank 16": ("llama", {"target_modules": "all-linear", "r": 16, "lora_alpha": 32}),
    "pattern, rank-stabilised": ("tied", {"target_modules": r".*self_attn\.(q|v)_proj", "use_rslora": True}),
    "patterns": (
        "llama",
        {
            "target_modules": ATTENTION,
            "rank_pattern": {"k_proj": 3},
            "alpha_pattern": {"^model.layers.1.*[qk]_proj": 5},
        },
    ),
    "one layer": ("qwen2", {"target_modules": ATTENTION, "layers_to_transform": [1]}),
    "fused": ("phi3", {"target_modules": "all-linear"}),
    "shifted norms": (
        "gemma3",
        {"target_modules": ATTENTION, "modules_to_save": ["input_layernorm", "q_norm", "norm"]},
    ),
    "all biases": ("biased", {"target_modules": ["q_proj"], "bias": "all"}),
    "own biases": ("biased", {"target_modules": ["q_proj"], "bias": "lora_only"}),
    "ends": ("llama", {"target_modules": ["embed_tokens", "lm_head"]}),
    "ends trained whole": ("llama", {"target_modules": ATTENTION, "modules_to_save": ["embed_tokens", "lm_head"]}),
    "tokens": ("llama", {"target_modules": ATTENTION, "trainable_token_indices": [300, 17]}),
    "tied, tokens": ("tied", {"target_modules": ATTENTION, "trainable_token_indices": {"embed_tokens": [300, 17]}}),
    "tied, embedding whole": ("tied", {"target_modules": ATTENTION, "modules_to_save": ["embed_tokens"]}),
    "tied, both whole": (
        "tied",
        {"target_modules": ATTENTION, "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
    ),
    "tied, head whole": ("tied", {"target_modules": ATTENTION, "modules_to_save": ["lm_head"]}),
}
TIED = {
    "embedding": {"target_modules": ["q_proj", "embed_tokens"]},
    "head": {"target_modules": ["q_proj", "lm_head"]},
    "both": {"target_modules": ["embed_tokens"], "ensure_weight_tying": True},
}


def make_model(kind):
    name, config = MODELS[kind]
    torch.manual_seed(7)
    config = getattr(transformers, f"{name}Config")(**SIZES | config)
    model = getattr(transformers, f"{name.removesuffix('Text')}ForCausalLM")(config).eval()
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    return model


def make_base(kind, folder):
    make_model(kind).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(tokenizer_json(VOCABULARY))
    return folder


def make_adapter(kind, folder, settings, seed=0):
    """Save an adapter with random numbers."""
    adapted = peft.get_peft_model(
        make_model(kind), peft.LoraConfig(**{"r": 4, "lora_alpha": 6, "task_type": "CAUSAL_LM"} | settings)
    )
    torch.manual_seed(seed)
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data += 0.1 * torch.randn_like(parameter)
    adapted.save_pretrained(folder)
    return folder


def logits_of(model):
    with torch.no_grad():
        return model(input_ids=torch.tensor([TOKENS])).logits[0].numpy()


def packaged(base, adapters, tmp_path, **options):
    options = {"profile": "portable", "activations": "float", "weights": "f32", "calibration": None} | options
    export_model(base, tmp_path / "package", **options, adapters=adapters)
    return package_logits(tmp_path / "package", TOKENS)


def assert_close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * max(1, np.abs(expected).max()))


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_the_model_that_peft_merges(case, tmp_path):
    kind, settings = CASES[case]
    adapter = make_adapter(kind, tmp_path / "lora", settings)
    merged = peft.PeftModel.from_pretrained(make_model(kind), adapter).eval().merge_and_unload()
    plain, expected = logits_of(make_model(kind)), logits_of(merged)
    assert np.abs(plain - expected).max() > 1e-2 * np.abs(expected).max()
    assert_close(packaged(make_base(kind, tmp_path / "base"), [adapter], tmp_path), expected)


@pytest.mark.parametrize("case", TIED)
def test_tied_ends_are_those_that_were_trained(case, tmp_path):
    """Merged by PEFT, a product of one end changes the other one, too: the model is not the one that was trained."""
    adapter = make_adapter("tied", tmp_path / "lora", TIED[case])
    adapted = peft.PeftModel.from_pretrained(make_model("tied"), adapter).eval()
    expected = logits_of(adapted)
    assert_close(packaged(make_base("tied", tmp_path / "base"), [adapter], tmp_path), expected)
    merged = logits_of(adapted.merge_and_unload())
    assert np.abs(merged - expected).max() > 1e-2 * np.abs(expected).max()


def test_several_adapters_with_scales(tmp_path):
    scales = {"first": 0.5, "second": -1.25}
    made = [
        make_adapter("llama", tmp_path / name, {"target_modules": modules}, seed)
        for seed, (name, modules) in enumerate(zip(scales, (ATTENTION, ["q_proj", "up_proj"]), strict=True))
    ]
    adapted = peft.PeftModel.from_pretrained(make_model("llama"), made[0], adapter_name="first").eval()
    adapted.load_adapter(made[1], adapter_name="second")
    for module in adapted.modules():
        if isinstance(module, peft.tuners.lora.LoraLayer):
            for name, scale in scales.items():
                module.set_scale(name, scale)
    adapted.base_model.set_adapter(list(scales))
    expected = logits_of(adapted.merge_and_unload())
    base = make_base("llama", tmp_path / "base")
    assert_close(packaged(base, dict(zip(made, scales.values(), strict=True)), tmp_path), expected)


@pytest.mark.parametrize("init", ["pissa", "olora"])
def test_an_initialisation_that_changes_the_model_is_refused(init, tmp_path):
    adapter = make_adapter("llama", tmp_path / "lora", {"target_modules": ATTENTION, "init_lora_weights": init})
    with pytest.raises(UnsupportedModel, match="init_lora_weights"):
        packaged(make_base("llama", tmp_path / "base"), [adapter], tmp_path)


@pytest.mark.parametrize(
    "config",
    [
        peft.LoraConfig(use_dora=True, target_modules=ATTENTION),
        peft.LoraConfig(lora_bias=True, target_modules=["q_proj"]),
        peft.IA3Config(target_modules=["k_proj"], feedforward_modules=[]),
        peft.LoHaConfig(target_modules=ATTENTION),
        peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
        peft.LoraConfig(alora_invocation_tokens=[3, 4], target_modules=ATTENTION, task_type="CAUSAL_LM"),
    ],
    ids=["DoRA", "bias of B", "IA3", "LoHa", "prompt tuning", "aLoRA"],
)
def test_other_methods_are_refused(config, tmp_path):
    peft.get_peft_model(make_model("biased"), config).save_pretrained(tmp_path / "lora")
    with pytest.raises(UnsupportedModel, match="does not merge adapters of this kind"):
        packaged(make_base("biased", tmp_path / "base"), [tmp_path / "lora"], tmp_path)
