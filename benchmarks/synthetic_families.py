"""Write a GGUF file in the shape and the types of a well-known model, with random weights, to measure speed and memory.

For example::

    python benchmarks/synthetic_families.py qwen3-0.6b Q4_K_M qwen3-0.6b.gguf

Types are those that llama.cpp's quantisation gives these shapes. The tokenizer knows single bytes and two merges. Sizes
are from the models' ``config.json``.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from synthetic_gguf import random_q8_0, write_tokenizer

SPREAD = 0.02
"""About the standard deviation of weights."""


@dataclass(frozen=True)
class Delta:
    """Sizes of a gated delta rule behind a convolution of four rows: heads of keys and of values, and their size."""

    key_heads: int
    value_heads: int
    size: int

    @property
    def values(self) -> int:
        """Numbers of all values."""
        return self.value_heads * self.size

    @property
    def rows(self) -> int:
        """Rows of queries, keys and values, which the convolution reads."""
        return 2 * self.key_heads * self.size + self.values


@dataclass(frozen=True)
class Shape:
    """Sizes of a model, and the keys of its header that are its family's own.

    Attributes:
        convs: numbers of the layers that have a short convolution over three rows.
        deltas: numbers of those that have a gated delta rule, of the sizes ``delta``; attention has gates then.
        experts: of every layer, as wide as ``intermediate``; 0 for one feed-forward.
        has_ahead: whether a block that predicts further ahead follows, with attention.
    """

    architecture: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    context: int
    rope_base: float
    rotated: int
    is_fused: bool = False
    has_head_norms: bool = False
    has_post_norms: bool = False
    keys: dict[str, Any] = field(default_factory=dict)
    rope_tensors: tuple[str, ...] = ()
    convs: frozenset[int] = frozenset()
    deltas: frozenset[int] = frozenset()
    delta: Delta | None = None
    experts: int = 0
    has_ahead: bool = False

    def has_attention(self, layer: int) -> bool:
        """Return whether a layer attends to others."""
        return layer not in self.convs | self.deltas


SHAPES = {
    "qwen3-0.6b": Shape("qwen3", 1024, 28, 16, 8, 128, 3072, 151936, 40960, 1e6, 128, has_head_norms=True),
    "qwen3-4b": Shape("qwen3", 2560, 36, 32, 8, 128, 9728, 151936, 40960, 1e6, 128, has_head_norms=True),
    "llama-3.2-1b": Shape(
        "llama", 2048, 16, 32, 8, 64, 8192, 128256, 131072, 5e5, 64, rope_tensors=("rope_freqs.weight",)
    ),
    # With a head of its own the real one has 525 million weights more.
    "llama-3.1-8b": Shape(
        "llama", 4096, 32, 32, 8, 128, 14336, 128256, 131072, 5e5, 128, rope_tensors=("rope_freqs.weight",)
    ),
    "tiny": Shape("llama", 256, 2, 4, 2, 64, 512, 512, 4096, 1e4, 64),
    "lfm2-350m": Shape(
        *("lfm2", 1024, 16, 16, 8, 64, 4608, 65536, 128000, 1e6, 64),
        has_head_norms=True,
        keys={"shortconv.l_cache": 3},
        convs=frozenset(range(16)) - {2, 5, 8, 10, 12, 14},
    ),
    "qwen3.5-0.8b": Shape(
        *("qwen35", 1024, 24, 8, 2, 256, 3584, 248320, 262144, 1e7, 64),
        has_head_norms=True,
        keys={
            "ssm.conv_kernel": 4,
            "ssm.state_size": 128,
            "ssm.group_count": 16,
            "ssm.time_step_rank": 16,
            "ssm.inner_size": 2048,
            "full_attention_interval": 4,
            "rope.dimension_sections": [11, 11, 10, 0],
        },
        deltas=frozenset(layer for layer in range(24) if layer % 4 != 3),
        delta=Delta(16, 16, 128),
        has_ahead=True,
    ),
    "granite-3.1-1b-a400m": Shape(
        *("granitemoe", 1024, 24, 16, 8, 64, 512, 49155, 131072, 1.5e6, 64),
        keys={
            "expert_count": 32,
            "expert_used_count": 8,
            "attention.scale": 0.015625,
            "embedding_scale": 12.0,
            "residual_scale": 0.22,
            "logit_scale": 6.0,
        },
        experts=32,
    ),
    "gemma-3-1b": Shape(
        "gemma3",
        *(1152, 26, 4, 1, 256, 6912, 262144, 32768, 1e6, 256),
        has_head_norms=True,
        has_post_norms=True,
        keys={"attention.sliding_window": 512},
    ),
    "phi-4-mini": Shape(
        "phi3",
        *(3072, 32, 24, 8, 128, 8192, 200064, 131072, 1e4, 96),
        is_fused=True,
        keys={"rope.scaling.original_context_length": 4096, "rope.scaling.attn_factor": 1.1902380714238083},
        rope_tensors=("rope_factors_long.weight", "rope_factors_short.weight"),
    ),
}


def centre(blocks: np.ndarray) -> None:
    """Make the minimum of every 32 weights as large as their scale, in blocks of Q4_K or Q5_K: weights lie around 0."""
    blocks[..., 8:12] = blocks[..., 4:8]
    blocks[..., 12:16] = (blocks[..., 12:16] & 15) * 17


def random_q4_k(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Return uint8 ``[rows, bytes per row]``: random codes and scales."""
    blocks = rng.integers(0, 256, (rows, columns // 256, 144), np.uint8)
    centre(blocks)
    blocks[..., :4] = np.array([SPREAD / 150, 7.5 * SPREAD / 150], np.float16).view(np.uint8)
    return blocks.reshape(rows, -1)


def random_q5_k(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Return uint8 ``[rows, bytes per row]``: as ``random_q4_k``, with codes of 5 bits."""
    blocks = rng.integers(0, 256, (rows, columns // 256, 176), np.uint8)
    centre(blocks)
    blocks[..., :4] = np.array([SPREAD / 300, 15.5 * SPREAD / 300], np.float16).view(np.uint8)
    return blocks.reshape(rows, -1)


def random_q6_k(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Return uint8 ``[rows, bytes per row]``: random codes and scales."""
    blocks = rng.integers(0, 256, (rows, columns // 256, 210), np.uint8)
    blocks[..., 208:] = np.array([SPREAD / 1300], np.float16).view(np.uint8)
    return blocks.reshape(rows, -1)


def random_q5_0(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Return uint8 ``[rows, bytes per row]``: random codes, one scale."""
    blocks = rng.integers(0, 256, (rows, columns // 32, 22), np.uint8)
    blocks[..., :2] = np.array([SPREAD / 9], np.float16).view(np.uint8)
    return blocks.reshape(rows, -1)


def random_q4_0(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Return uint8 ``[rows, bytes per row]``: random codes, one scale."""
    blocks = rng.integers(0, 256, (rows, columns // 32, 18), np.uint8)
    blocks[..., :2] = np.array([SPREAD / 5], np.float16).view(np.uint8)
    return blocks.reshape(rows, -1)


BLOCKS = {
    "Q4_0": random_q4_0,
    "Q4_K": random_q4_k,
    "Q5_K": random_q5_k,
    "Q6_K": random_q6_k,
    "Q5_0": random_q5_0,
    "Q8_0": random_q8_0,
}
MIXES = ("Q4_K_M", "Q4_0", "Q8_0")
FALLBACKS = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}
"""Types of matrices whose rows are not whole blocks of 256."""


def type_of(name: str, layer: int, layers: int, columns: int, mix: str) -> str:
    """Return the type that llama.cpp gives a matrix in a mix."""
    if mix == "Q8_0" or (mix == "Q4_0" and name != "token_embd"):
        return mix
    more = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
    if name == "attn_qkv":
        chosen = "Q5_K"
    elif name == "token_embd" or (more and name in ("attn_v", "ffn_down")):
        chosen = "Q6_K"
    else:
        chosen = "Q4_K"
    return chosen if columns % 256 == 0 else FALLBACKS[chosen]


def matrices_of(shape: Shape, layer: int) -> dict[str, tuple[int, int]]:
    """Return rows and columns of a layer's matrices; that behind the last one is the block that predicts ahead."""
    if layer == shape.layers:
        like = next(one for one in range(layer) if shape.has_attention(one))
        return {"nextn.eh_proj": (shape.hidden, 2 * shape.hidden), **matrices_of(shape, like)}
    hidden, wide = shape.hidden, shape.intermediate
    fed = {"ffn_down": (hidden, wide), "ffn_gate": (wide, hidden), "ffn_up": (wide, hidden)}
    if shape.experts:
        fed = {f"{name}_exps": sizes for name, sizes in fed.items()}
    if layer in shape.convs:
        return {"shortconv.in_proj": (3 * hidden, hidden), "shortconv.out_proj": (hidden, hidden), **fed}
    if layer in shape.deltas:
        delta = shape.delta
        assert delta is not None
        found = {"attn_qkv": (delta.rows, hidden), "attn_gate": (delta.values, hidden)}
        found |= {"ssm_alpha": (delta.value_heads, hidden), "ssm_beta": (delta.value_heads, hidden)}
        return {**found, "ssm_out": (hidden, delta.values), **fed}
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    found = {"attn_output": (hidden, query), "ffn_down": (hidden, wide)}
    if shape.is_fused:
        return {"attn_qkv": (query + 2 * key, hidden), **found, "ffn_up": (2 * wide, hidden)}
    return {
        # Gates of attention lie between the rows of queries.
        "attn_q": (2 * query if shape.deltas else query, hidden),
        "attn_k": (key, hidden),
        "attn_v": (key, hidden),
        "attn_output": (hidden, query),
        **fed,
    }


def vectors_of(shape: Shape, layer: int) -> dict[str, int]:
    """Return the sizes of a layer's norms."""
    found = {"attn_norm": shape.hidden, "post_attention_norm" if shape.deltas else "ffn_norm": shape.hidden}
    if layer in shape.deltas:
        assert shape.delta is not None
        found["ssm_norm"] = shape.delta.size
    if shape.has_head_norms and shape.has_attention(layer):
        found |= {"attn_q_norm": shape.head_dim, "attn_k_norm": shape.head_dim}
    if shape.has_post_norms:
        found |= {"post_attention_norm": shape.hidden, "post_ffw_norm": shape.hidden}
    if layer == shape.layers:
        found |= {f"nextn.{name}": shape.hidden for name in ("enorm", "hnorm", "shared_head_norm")}
    return found


def write_header(writer: gguf.GGUFWriter, name: str, shape: Shape) -> None:
    """Write sizes and tokenizer."""
    writer.add_name(f"synthetic-{name}")
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers + shape.has_ahead)
    if shape.has_ahead:
        writer.add_uint32(f"{shape.architecture}.nextn_predict_layers", 1)
    writer.add_feed_forward_length(shape.intermediate)
    writer.add_head_count(shape.heads)
    by_layer = [0 if layer in shape.convs else shape.kv_heads for layer in range(shape.layers)]
    writer.add_head_count_kv(by_layer if shape.convs else shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.rotated)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(shape.vocabulary)
    for key, value in shape.keys.items():
        add = writer.add_uint32 if isinstance(value, int) else writer.add_float32
        add = writer.add_array if isinstance(value, list) else add
        add(f"{shape.architecture}.{key}", value)
    write_tokenizer(writer, shape.vocabulary, "lfm2" if shape.architecture == "lfm2" else "qwen2")


def write_model(out: Path, name: str, mix: str, seed: int = 0) -> None:
    """Write a GGUF file.

    Args:
        out: the file.
        name: one of ``SHAPES``.
        mix: one of ``MIXES``.
        seed: of the weights.
    """
    shape = SHAPES[name]
    rng = np.random.default_rng(seed)
    # Tensors are written as they are made: a whole model need not fit into memory.
    writer = gguf.GGUFWriter(str(out), shape.architecture, use_temp_file=True)
    write_header(writer, name, shape)

    def matrix(name: str, layer: int, rows: int, columns: int) -> None:
        chosen = type_of(name, layer, shape.layers, columns, mix)
        whole = f"{name}.weight" if name == "token_embd" else f"blk.{layer}.{name}.weight"
        count = shape.experts if name.endswith("_exps") else 1
        blocks = BLOCKS[chosen](rng, count * rows, columns)
        blocks = blocks.reshape(count, rows, -1) if name.endswith("_exps") else blocks
        writer.add_tensor(whole, blocks, raw_dtype=gguf.GGMLQuantizationType[chosen])

    def floats(name: str, values: np.ndarray) -> None:
        writer.add_tensor(name, values.astype(np.float32))

    def norm(name: str, size: int) -> None:
        writer.add_tensor(f"{name}.weight", (1 + 0.1 * rng.standard_normal(size)).astype(np.float32))

    matrix("token_embd", 0, shape.vocabulary, shape.hidden)
    for layer in range(shape.layers + shape.has_ahead):
        for name, (rows, columns) in matrices_of(shape, layer).items():
            matrix(name, layer, rows, columns)
        for name, size in vectors_of(shape, layer).items():
            norm(f"blk.{layer}.{name}", size)
        if layer in shape.convs:
            floats(f"blk.{layer}.shortconv.conv.weight", 0.6 * rng.standard_normal((shape.hidden, 3)))
        if shape.experts:
            floats(f"blk.{layer}.ffn_gate_inp.weight", SPREAD * rng.standard_normal((shape.experts, shape.hidden)))
        if layer in shape.deltas and shape.delta is not None:
            heads = shape.delta.value_heads
            floats(f"blk.{layer}.ssm_conv1d.weight", 0.5 * rng.standard_normal((shape.delta.rows, 4)))
            floats(f"blk.{layer}.ssm_dt.bias", rng.standard_normal(heads))
            floats(f"blk.{layer}.ssm_a", -np.exp(0.7 * rng.standard_normal(heads)))
    norm("token_embd_norm" if shape.architecture == "lfm2" else "output_norm", shape.hidden)
    for name in shape.rope_tensors:
        divisors = np.geomspace(1, 32, shape.rotated // 2)
        writer.add_tensor(name, divisors.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("model", choices=SHAPES)
    parser.add_argument("mix", choices=MIXES)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    write_model(given.out, given.model, given.mix, given.seed)


if __name__ == "__main__":
    main()
