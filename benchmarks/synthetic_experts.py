"""Write a Qwen3-MoE checkpoint of a given shape with random weights, which may be larger than the memory.

For example, 5.7 GB in the shape of Qwen3-30B-A3B with 16 of its layers::

    python benchmarks/synthetic_experts.py even.gguf
    python benchmarks/synthetic_experts.py skewed.gguf --zipf 1.0

Matrices are Q4_0, the embedding is Q8_0, routers are float32. The head is a matrix of its own, so that the next token
is any. Every embedding is a constant vector of ones plus noise, and a router's row is noise plus ``b(e) / hidden`` of
that vector: a score is noise, other for every token and layer, plus ``b(e)``. Without ``--zipf`` b is 0 and routing is
even. With it, ``b(e) = -zipf * log(rank(e))``, ranks being drawn for every layer, and the noise has the standard
deviation of Gumbel's: about the law by which experts are drawn without being put back, with chances in proportion to
``rank ** -zipf``. What layers add to the stream is small, so that this holds in all of them. The tokenizer knows single
bytes, two merges and words.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
from synthetic_gguf import write_tokenizer

SHAPE = {
    "hidden": 2048, "layers": 16, "heads": 32, "kv-heads": 4, "head-dim": 128, "intermediate": 768, "experts": 128,
    "chosen": 8, "vocabulary": 32768, "context": 8192,
}  # fmt: skip
Q4_0, Q8_0, F32 = gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.F32
SMALL = 1 / 32
"""Factor on matrices whose output is added to the stream."""
GUMBEL = math.pi / math.sqrt(6)
"""Standard deviation of the noise in a router's scores."""


class Blocks:
    """Blocks of Q4_0 with random codes, and scales that make weights of about 0.02; matrices are stretches of them."""

    def __init__(self, rng: np.random.Generator, count: int = 1 << 20) -> None:
        self._rng = rng
        self._all = np.frombuffer(rng.bytes(18 * count), np.uint8).reshape(count, 18).copy()
        # Code 8 is 0, and the others lie around it evenly: no direction of the stream grows in every layer.
        low, high = self._all[:, 2:] & 15, self._all[:, 2:] >> 4
        self._all[:, 2:] = np.where(low == 0, 8, low) | np.where(high == 0, 8, high) << 4
        self._scales = 0.004 * (0.5 + rng.random((count, 1)))

    def scaled(self, factor: float) -> None:
        """Let the blocks from now on have other scales."""
        self._all[:, :2] = (factor * self._scales).astype(np.float16).view(np.uint8)

    def matrix(self, rows: int, columns: int, factor: float = 1.0) -> np.ndarray:
        """Return uint8 ``[rows, bytes per row]``."""
        self.scaled(factor)
        wanted = rows * columns // 32
        found = np.empty((wanted, 18), np.uint8)
        at = 0
        while at < wanted:
            begin = int(self._rng.integers(len(self._all)))
            part = self._all[begin : begin + wanted - at]
            found[at : at + len(part)] = part
            at += len(part)
        return found.reshape(rows, -1)


def embedding(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Return uint8 ``[rows, bytes per row]``: 1 plus noise of standard deviation 1, as codes of 1/32."""
    blocks = np.empty((rows, columns // 32, 34), np.uint8)
    values = 32 + 32 * rng.standard_normal((rows, columns // 32, 32), np.float32)
    blocks[..., 2:] = np.clip(np.rint(values), -127, 127).astype(np.int8).view(np.uint8)
    blocks[..., :2] = np.full((rows, columns // 32, 1), 1 / 32, np.float16).view(np.uint8)
    return blocks.reshape(rows, -1)


def router(rng: np.random.Generator, experts: int, hidden: int, zipf: float) -> np.ndarray:
    """Return float32 ``[experts, hidden]``. Behind a norm the constant vector and the noise are ``sqrt(1/2)`` each."""
    noise = rng.standard_normal((experts, hidden), np.float32)
    # The constant vector must add nothing but what is wanted.
    noise -= noise.mean(axis=1, keepdims=True)
    bias = -zipf * np.log(1.0 + rng.permutation(experts)) if zipf else np.zeros(experts)
    rows = GUMBEL / math.sqrt(hidden) * noise + (bias / hidden)[:, None]
    return (math.sqrt(2) * rows).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("out", type=Path)
    for name, default in SHAPE.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--zipf", type=float, default=0.0, help="exponent of the chances of experts; 0: even")
    parser.add_argument("--seed", type=int, default=0)
    shape = parser.parse_args()
    rng = np.random.default_rng(shape.seed)
    hidden, inner, experts = shape.hidden, shape.intermediate, shape.experts
    writer = gguf.GGUFWriter(str(shape.out), "qwen3moe")
    writer.add_name(f"synthetic-{shape.layers}x{hidden}-{experts}-experts")
    writer.add_context_length(shape.context)
    writer.add_embedding_length(hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(inner)
    writer.add_expert_feed_forward_length(inner)
    writer.add_expert_count(experts)
    writer.add_expert_used_count(shape.chosen)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(shape.vocabulary)
    write_tokenizer(writer, shape.vocabulary, "qwen2", words=True)
    blocks = Blocks(rng)
    tensors: list[Callable[[], np.ndarray]] = []

    def add(name: str, dims: tuple[int, ...], kind: gguf.GGMLQuantizationType, make: Callable[[], np.ndarray]) -> None:
        block, size = gguf.GGML_QUANT_SIZES[kind]
        stored = (*dims[:-1], dims[-1] // block * size) if kind is not F32 else dims
        is_float = kind is F32
        dtype = np.dtype(np.float32 if is_float else np.uint8)
        nbytes = math.prod(stored) * dtype.itemsize
        writer.add_tensor_info(name, stored, dtype, nbytes, raw_dtype=None if is_float else kind)
        tensors.append(make)

    def matrix(name: str, rows: int, columns: int, factor: float = 1.0) -> None:
        add(name, (rows, columns), Q4_0, lambda: blocks.matrix(rows, columns, factor))

    def stacked(name: str, rows: int, columns: int, factor: float = 1.0) -> None:
        add(name, (experts, rows, columns), Q4_0,
            lambda: blocks.matrix(experts * rows, columns, factor).reshape(experts, rows, -1))  # fmt: skip

    def ones(name: str, count: int) -> None:
        add(name, (count,), F32, lambda: np.ones(count, np.float32))

    add("token_embd.weight", (shape.vocabulary, hidden), Q8_0, lambda: embedding(rng, shape.vocabulary, hidden))
    for i in range(shape.layers):
        matrix(f"blk.{i}.attn_q.weight", shape.heads * shape.head_dim, hidden)
        matrix(f"blk.{i}.attn_k.weight", shape.kv_heads * shape.head_dim, hidden)
        matrix(f"blk.{i}.attn_v.weight", shape.kv_heads * shape.head_dim, hidden)
        matrix(f"blk.{i}.attn_output.weight", hidden, shape.heads * shape.head_dim, SMALL)
        ones(f"blk.{i}.attn_q_norm.weight", shape.head_dim)
        ones(f"blk.{i}.attn_k_norm.weight", shape.head_dim)
        ones(f"blk.{i}.attn_norm.weight", hidden)
        ones(f"blk.{i}.ffn_norm.weight", hidden)
        add(f"blk.{i}.ffn_gate_inp.weight", (experts, hidden), F32,
            lambda: router(rng, experts, hidden, shape.zipf))  # fmt: skip
        stacked(f"blk.{i}.ffn_gate_exps.weight", inner, hidden)
        stacked(f"blk.{i}.ffn_up_exps.weight", inner, hidden)
        stacked(f"blk.{i}.ffn_down_exps.weight", hidden, inner, SMALL)
    ones("output_norm.weight", hidden)
    matrix("output.weight", shape.vocabulary, hidden)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for make in tensors:
        writer.write_tensor_data(make())
    writer.close()


if __name__ == "__main__":
    main()
