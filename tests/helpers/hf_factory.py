"""Folders as transformers writes them, with the weights of a small GGUF model."""

from __future__ import annotations

import json
import struct

import numpy as np

from edge_rt.export.families.family import LAYER_NAMES
from edge_rt.export.sources.gguf_header import read_header
from edge_rt.export.sources.gguf_tokenizer import build_tokenizer
from edge_rt.export.weights.blocks import unpermuted_rows
from tests.helpers.gguf_factory import CHATML

TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
NUMPY = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}


def stored(values, dtype):
    """Return values as a file of safetensors holds them."""
    if dtype == "BF16":
        return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(NUMPY[dtype])


def write_safetensors(path, tensors, dtype="F32"):
    """Write arrays by name."""
    header, parts, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name, values in tensors.items():
        data = stored(values, dtype).tobytes()
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [at, at + len(data)]}
        parts.append(data)
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


def hf_tensors(model):
    """Return the tensors of a model that ``write_llama_gguf`` wrote, named and ordered as transformers does."""
    config = model.config
    orders = {
        "attn_q": unpermuted_rows(config["heads"], config["head_dim"]),
        "attn_k": unpermuted_rows(config["kv_heads"], config["head_dim"]),
    }
    found = {hf: model.weights[ours] for hf, ours in TOP.items() if ours in model.weights}
    for layer in range(config["layers"]):
        for hf, ours in LAYER_NAMES.items():
            if ours in ("attn_q_norm", "attn_k_norm"):
                continue
            values = model.weights[f"blk.{layer}.{ours}.weight"]
            found[f"model.layers.{layer}.{hf}.weight"] = values[orders[ours]] if ours in orders else values
    return found


def write_hf_folder(folder, model, *, dtype="F32", files=1, config=None, tensors=None):
    """Write a folder with the weights of a GGUF model.

    Args:
        folder: to make.
        model: what ``write_llama_gguf`` returned.
        dtype: of all tensors.
        files: more than one makes shards and an index.
        config: keys of ``config.json`` to add, or to leave out where they are None.
        tensors: those to add, or to leave out where they are None.
    """
    folder.mkdir(parents=True)
    ours = model.config
    document = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": ours["hidden"],
        "num_hidden_layers": ours["layers"], "num_attention_heads": ours["heads"],
        "num_key_value_heads": ours["kv_heads"], "head_dim": ours["head_dim"], "intermediate_size": ours["ffn"],
        "vocab_size": ours["vocab"], "max_position_embeddings": ours["context"], "rms_norm_eps": ours["rms_norm_eps"],
        "rope_theta": ours["rope_theta"], "hidden_act": "silu", "tie_word_embeddings": ours["tied"],
        "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16",
    }  # fmt: skip
    document |= config or {}
    (folder / "config.json").write_text(json.dumps({k: v for k, v in document.items() if v is not None}))
    build = build_tokenizer(read_header(model.path).metadata, ours["vocab"])
    (folder / "tokenizer.json").write_text(build.json_text)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "chat_template": CHATML}))
    named = {k: v for k, v in (hf_tensors(model) | (tensors or {})).items() if v is not None}
    if files == 1:
        write_safetensors(folder / "model.safetensors", named, dtype)
        return folder
    names, mapped = list(named), {}
    for number in range(files):
        file = f"model-{number + 1:05}-of-{files:05}.safetensors"
        part = {name: named[name] for name in names[number::files]}
        write_safetensors(folder / file, part, dtype)
        mapped |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": mapped}))
    return folder
