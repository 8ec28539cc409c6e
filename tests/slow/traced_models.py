"""Small random models of transformers of families that edge-rt does not describe, as folders with a tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from tests.helpers.traced_factory import VOCAB, write_tokenizer

SMALL: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 256,
}  # fmt: skip
GROUPED: dict[str, Any] = {**SMALL, "intermediate_size": 96, "num_key_value_heads": 2}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt_neox": ("GPTNeoX", {**SMALL, "intermediate_size": 128}),
    "opt": ("OPT", {**SMALL, "ffn_dim": 128, "word_embed_proj_dim": 64}),
    "gpt2": ("GPT2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256}),
    "stablelm": ("StableLm", {**GROUPED, "use_parallel_residual": True}),
    "bloom": ("Bloom", {"hidden_size": 64, "n_layer": 2, "n_head": 4}),
    "falcon": ("Falcon", {**SMALL, "multi_query": True, "new_decoder_architecture": False}),
    "cohere2": ("Cohere2", {**GROUPED, "num_hidden_layers": 4, "sliding_window": 16}),
    "mixtral": ("Mixtral", {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "gemma": ("Gemma", {**GROUPED, "head_dim": 16}),
    "mamba": ("Mamba", {"hidden_size": 64, "num_hidden_layers": 2, "state_size": 8}),
}  # fmt: skip
"""Name of a family -> what its classes' names begin with, and its configuration."""


def make_folder(family: str, folder: Path, *, seed: int = 0, **changes: Any) -> Path:
    """Write a random model of a family, with a tokenizer over bytes; weights are larger than those of training's start.

    Args:
        family: a key of ``FAMILIES``.
        folder: to write to.
        seed: of the weights.
        changes: keys of the configuration.
    """
    prefix, config = FAMILIES[family]
    torch.manual_seed(seed)
    settings = {"vocab_size": len(VOCAB), "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, **config, **changes}
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, f"{prefix}Config")(**settings))
    with torch.no_grad():
        for parameter in model.parameters():
            # Norms that are exactly 1 and biases that are 0 hide faults.
            parameter.add_(torch.randn_like(parameter) * (0.1 if parameter.dim() < 2 else 0.06))
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def greedy(folder: Path, token_ids: list[int], count: int) -> list[int]:
    """Return the tokens that transformers generates greedily, ends of answers included."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    settings = transformers.GenerationConfig(
        do_sample=False, max_new_tokens=count, min_new_tokens=count, pad_token_id=0, eos_token_id=None
    )
    ids = torch.tensor([token_ids])
    with torch.no_grad():
        found = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)
    return found[0, len(token_ids) :].tolist()
