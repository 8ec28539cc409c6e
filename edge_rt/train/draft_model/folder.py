"""A draft model as a folder of transformers, which the exporter reads as any other."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy.typing as npt
from safetensors.numpy import save
from torch import Tensor

from edge_rt.package.manifest import Manifest
from edge_rt.package.reader import Package
from edge_rt.system import checkpoint_names as files
from edge_rt.system.files import write_atomically
from edge_rt.train.draft_model.learn import DraftNet
from edge_rt.train.draft_model.net import DraftLayer

_MODULES: Final = {
    "attention_norm": "input_layernorm",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "output": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
"""Weight of a layer -> transformers' name of the module that has it."""


def folder_name(name: str, layers: int) -> str:
    """Return the name of a draft model's folder, which becomes its name and that of its source in the manifest."""
    return f"{re.sub(r'[^A-Za-z0-9.]+', '-', name).strip('-.')[:80] or 'model'}-draft-{layers}-layers"


def write_folder(folder: Path, package: Package, guesses: DraftNet, rope: Mapping[str, Any]) -> None:
    """Write a draft model with the tokenizer and the chat template of its target."""
    manifest = package.manifest
    layers = [layer for layer in guesses.net.layers if isinstance(layer, DraftLayer)]
    tensors = _tensors(guesses, layers, is_tied=manifest.model.is_tied)
    content = save(tensors, {"format": "pt"})
    write_atomically(folder / files.SINGLE_FILE, [content], durable=False, parents=True)
    _write_json(folder / files.CONFIG_FILE, _config(manifest, len(layers), rope))
    _write_json(folder / files.TOKENIZER_CONFIG_FILE, {"add_bos_token": manifest.tokenizer.add_bos})
    copies = {
        files.TOKENIZER_FILE: manifest.tokenizer.file,
        files.TEMPLATE_FILE: manifest.chat_template,
        files.TOOL_TEMPLATE_FILE: manifest.tool_template,
    }
    for theirs, ours in copies.items():
        if ours is not None:
            write_atomically(folder / theirs, [package.file(ours).read_bytes()], durable=False, parents=True)
    if manifest.license is not None:
        card = f"---\nlicense: {manifest.license}\n---\n"
        write_atomically(folder / files.CARD_FILE, [card.encode()], durable=False, parents=True)


def _tensors(guesses: DraftNet, layers: list[DraftLayer], *, is_tied: bool) -> dict[str, npt.NDArray[Any]]:
    """Return matrices in half precision and vectors in full."""
    target = guesses.target
    found: dict[str, npt.NDArray[Any]] = {"model.embed_tokens.weight": _half(target.embedding)}
    for number, layer in enumerate(layers):
        for ours, theirs in _MODULES.items():
            weight = getattr(layer, ours).detach()
            found[f"model.layers.{number}.{theirs}.weight"] = weight.numpy() if weight.ndim == 1 else _half(weight)
    found["model.norm.weight"] = target.norm.numpy()
    if not is_tied:
        found["lm_head.weight"] = _half(target.head)
    return found


def _half(weight: Tensor) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = weight.half().numpy()
    return found


def _config(manifest: Manifest, layers: int, rope: Mapping[str, Any]) -> dict[str, Any]:
    model = manifest.model
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": model.hidden_size,
        "num_hidden_layers": layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "intermediate_size": model.intermediate_size,
        "vocab_size": model.vocab_size,
        "max_position_embeddings": model.context_length,
        "rms_norm_eps": model.norm_epsilon,
        **rope,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": model.is_tied,
        "bos_token_id": manifest.tokenizer.bos_token_id,
        "eos_token_id": list(manifest.tokenizer.eos_token_ids),
        "torch_dtype": "float16",
    }


def _write_json(path: Path, document: Mapping[str, Any]) -> None:
    write_atomically(path, [json.dumps(document, indent=2).encode()], durable=False, parents=True)


def remove_folder(folder: Path) -> None:
    """Remove a folder that this or an interrupted run wrote."""
    shutil.rmtree(folder, ignore_errors=True)
