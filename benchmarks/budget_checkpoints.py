"""Small checkpoints with random weights and a real vocabulary, to measure what exports of them take of the memory.

``budget_sweep.py`` makes them; by itself this writes all of them into a folder::

    python benchmarks/budget_checkpoints.py --package PACKAGE FOLDER

Tokenizer and chat template are those of an exported package. ``tokenizer.json`` is written as transformers writes it:
indented, with its merges as lists, which takes more than twice the bytes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from synthetic_folder import write_file

from edge_rt.package.reader import open_package

BROKEN = "{% for message in messages %}{{ message['content'] }"
SMALL = {"hidden": 192, "layers": 4, "heads": 6, "kv_heads": 2, "head": 32, "inner": 512, "context": 2048}
SMOLLM2 = {"hidden": 576, "layers": 30, "heads": 9, "kv_heads": 3, "head": 64, "inner": 1536, "context": 8192}


@dataclass(frozen=True)
class Sketch:
    """What a checkpoint is.

    Attributes:
        family: ``llama``, ``qwen3``, ``gemma3``, ``phi3``, or ``gguf`` for a llama in a file of floats.
        sizes: as in ``SMALL``.
        template: ``"kept"``, ``"none"`` or ``"broken"``.
        is_indented: whether ``tokenizer.json`` is as transformers writes it.
    """

    family: str = "llama"
    sizes: dict[str, int] | None = None
    template: str = "kept"
    is_indented: bool = True


SKETCHES = {
    "llama": Sketch(),
    "llama-compact": Sketch(is_indented=False),
    "llama-no-template": Sketch(template="none"),
    "llama-broken-template": Sketch(template="broken"),
    "qwen3": Sketch("qwen3"),
    "gemma3": Sketch("gemma3"),
    "phi3": Sketch("phi3"),
    "f32-gguf": Sketch("gguf"),
    "135m": Sketch(sizes=SMOLLM2),
}


def tensors(family: str, size: dict[str, int], vocabulary: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield names and shapes of a folder's tensors; embedding and head are one."""
    hidden, inner, head = size["hidden"], size["inner"], size["head"]
    queries, keys = size["heads"] * head, size["kv_heads"] * head
    yield "model.embed_tokens.weight", (vocabulary, hidden)
    for layer in range(size["layers"]):
        at = f"model.layers.{layer}"
        if family == "phi3":
            yield f"{at}.self_attn.qkv_proj.weight", (queries + 2 * keys, hidden)
            yield f"{at}.mlp.gate_up_proj.weight", (2 * inner, hidden)
        else:
            yield f"{at}.self_attn.q_proj.weight", (queries, hidden)
            yield f"{at}.self_attn.k_proj.weight", (keys, hidden)
            yield f"{at}.self_attn.v_proj.weight", (keys, hidden)
            yield f"{at}.mlp.gate_proj.weight", (inner, hidden)
            yield f"{at}.mlp.up_proj.weight", (inner, hidden)
        yield f"{at}.self_attn.o_proj.weight", (hidden, queries)
        yield f"{at}.mlp.down_proj.weight", (hidden, inner)
        yield f"{at}.input_layernorm.weight", (hidden,)
        yield f"{at}.post_attention_layernorm.weight", (hidden,)
        if family in ("qwen3", "gemma3"):
            yield f"{at}.self_attn.q_norm.weight", (head,)
            yield f"{at}.self_attn.k_norm.weight", (head,)
        if family == "gemma3":
            yield f"{at}.pre_feedforward_layernorm.weight", (hidden,)
            yield f"{at}.post_feedforward_layernorm.weight", (hidden,)
    yield "model.norm.weight", (hidden,)


def config(family: str, size: dict[str, int], vocabulary: int) -> dict[str, Any]:
    """Return ``config.json``."""
    found: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "dtype": "bfloat16",
        "vocab_size": vocabulary, "hidden_size": size["hidden"], "intermediate_size": size["inner"],
        "num_hidden_layers": size["layers"], "num_attention_heads": size["heads"],
        "num_key_value_heads": size["kv_heads"], "head_dim": size["head"], "max_position_embeddings": size["context"],
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    if family == "qwen3":
        found |= {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
    if family == "phi3":
        found |= {
            "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "rope_scaling": None,
            "original_max_position_embeddings": size["context"], "sliding_window": None,
        }  # fmt: skip
    if family == "gemma3":
        found |= {
            "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "sliding_window": 512,
            "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": size["head"],
            "rope_local_base_freq": 10000.0, "rope_scaling": None, "sliding_window_pattern": 2,
            "layer_types": ["sliding_attention", "full_attention"] * (size["layers"] // 2),
        }  # fmt: skip
    return found


def write(sketch: Sketch, package: Path, path: Path) -> Path:
    """Write a checkpoint and return its path.

    Args:
        sketch: what it is.
        package: whose tokenizer and template it gets.
        path: its folder; a GGUF file gets this name and its suffix.
    """
    opened = open_package(package)
    manifest, size = opened.manifest, sketch.sizes or SMALL
    read = json.loads(opened.file(manifest.tokenizer.file).read_text(encoding="utf-8"))
    template = BROKEN
    if sketch.template != "broken":
        assert manifest.chat_template is not None
        template = opened.file(manifest.chat_template).read_text(encoding="utf-8")
    vocabulary = manifest.model.vocab_size
    if sketch.family == "gguf":
        return _write_gguf(path.with_suffix(".gguf"), read, template, size, vocabulary)
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config(sketch.family, size, vocabulary), indent=2))
    if sketch.is_indented:
        read["model"]["merges"] = [
            merge.split(" ") if isinstance(merge, str) else merge for merge in read["model"]["merges"]
        ]
    text = json.dumps(read, indent=2 if sketch.is_indented else None, ensure_ascii=False)
    (path / "tokenizer.json").write_text(text, encoding="utf-8")
    if sketch.template != "none":
        (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "chat_template": template}))
    rng = np.random.default_rng(0)
    write_file(path / "model.safetensors", list(tensors(sketch.family, size, vocabulary)), rng)
    return path


def _write_gguf(path: Path, read: dict[str, Any], template: str, size: dict[str, int], vocabulary: int) -> Path:
    """Write a llama as floats."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(size["context"])
    writer.add_embedding_length(size["hidden"])
    writer.add_block_count(size["layers"])
    writer.add_feed_forward_length(size["inner"])
    writer.add_head_count(size["heads"])
    writer.add_head_count_kv(size["kv_heads"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(size["head"])
    writer.add_vocab_size(vocabulary)
    known = {number: token for token, number in read["model"]["vocab"].items()}
    special = {entry["id"]: entry["content"] for entry in read["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([special.get(number) or known[number] for number in range(vocabulary)])
    writer.add_token_types([3 if number in special else 1 for number in range(vocabulary)])
    merges = read["model"]["merges"]
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(template)
    names = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj"}
    names |= {"attn_output": "self_attn.o_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    names |= {f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")}
    called = {ours: theirs for theirs, ours in names.items()}
    rng = np.random.default_rng(0)
    for name, shape in tensors("llama", size, vocabulary):
        parts = name.removeprefix("model.").removesuffix(".weight").split(".", 2)
        ends = {"embed_tokens": "token_embd", "norm": "output_norm"}
        own = ends.get(parts[0]) or f"blk.{parts[1]}.{called[parts[2]]}"
        values = np.ones(shape, np.float32)
        if len(shape) == 2:
            values = np.float32(0.02) * rng.standard_normal(shape, np.float32)
        writer.add_tensor(f"{own}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--package", type=Path, required=True)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for name, sketch in SKETCHES.items():
        print(write(sketch, args.package, args.folder / name))


if __name__ == "__main__":
    main()
