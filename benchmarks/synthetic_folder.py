"""Write a llama checkpoint of transformers with random BF16 weights, to measure exports at sizes of interest.

For example, 6.4 GB in four files, of the shape of a model with 3 billion weights::

    python benchmarks/synthetic_folder.py 3b --hidden 3072 --layers 28 --heads 24 --kv-heads 8 --intermediate 8192 \
        --vocabulary 128256 --files 4

The embedding is tied. The tokenizer knows single bytes and two merges.
"""

from __future__ import annotations

import argparse
import json
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from synthetic_gguf import SHAPE, byte_tokens
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

INDEX = "model.safetensors.index.json"


def shapes(shape: argparse.Namespace) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the tensors, by name."""
    heads = shape.hidden // shape.heads * shape.kv_heads
    yield "model.embed_tokens.weight", (shape.vocabulary, shape.hidden)
    for layer in range(shape.layers):
        at = f"model.layers.{layer}"
        for name, rows, inputs in (
            ("self_attn.q_proj", shape.hidden, shape.hidden),
            ("self_attn.k_proj", heads, shape.hidden),
            ("self_attn.v_proj", heads, shape.hidden),
            ("self_attn.o_proj", shape.hidden, shape.hidden),
            ("mlp.gate_proj", shape.intermediate, shape.hidden),
            ("mlp.up_proj", shape.intermediate, shape.hidden),
            ("mlp.down_proj", shape.hidden, shape.intermediate),
        ):
            yield f"{at}.{name}.weight", (rows, inputs)
        yield f"{at}.input_layernorm.weight", (shape.hidden,)
        yield f"{at}.post_attention_layernorm.weight", (shape.hidden,)
    yield "model.norm.weight", (shape.hidden,)


def values(rng: np.random.Generator, rows: tuple[int, ...]) -> np.ndarray:
    """Return BF16 numbers as uint16: of norms 1, of matrices a normal distribution of width 0.02."""
    found = np.float32(0.02) * rng.standard_normal(rows, np.float32) if len(rows) == 2 else np.ones(rows, np.float32)
    return (found.view(np.uint32) >> 16).astype(np.uint16)


def write_file(path: Path, tensors: list[tuple[str, tuple[int, ...]]], rng: np.random.Generator) -> None:
    """Write one file of safetensors, tensor by tensor."""
    header, at = {}, 0
    for name, rows in tensors:
        end = at + 2 * int(np.prod(rows))
        header[name] = {"dtype": "BF16", "shape": list(rows), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for _, rows in tensors:
            for first in range(0, rows[0], 4096):
                stream.write(values(rng, (min(4096, rows[0] - first), *rows[1:])).tobytes())


def write_texts(folder: Path, shape: argparse.Namespace) -> None:
    """Write configuration and tokenizer."""
    document = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads,
        "intermediate_size": shape.intermediate, "vocab_size": shape.vocabulary,
        "max_position_embeddings": shape.context, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 1, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(document))
    names, _ = byte_tokens(shape.vocabulary)
    tokenizer = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, [("a", "b"), ("c", "d")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(names[:2])
    tokenizer.save(str(folder / "tokenizer.json"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("out", type=Path)
    for name, default in SHAPE.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--files", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    shape = parser.parse_args()
    shape.out.mkdir(parents=True)
    write_texts(shape.out, shape)
    rng = np.random.default_rng(shape.seed)
    tensors = list(shapes(shape))
    per_file, mapped = -(-len(tensors) // shape.files), {}
    for number in range(shape.files):
        file = f"model-{number + 1:05}-of-{shape.files:05}.safetensors" if shape.files > 1 else "model.safetensors"
        part = tensors[number * per_file : (number + 1) * per_file]
        write_file(shape.out / file, part, rng)
        mapped |= {name: file for name, _ in part}
    if shape.files > 1:
        (shape.out / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": mapped}))


if __name__ == "__main__":
    main()
