"""Write a llama checkpoint of a given shape with random weights, to measure speed and memory at sizes of interest.

For example::

    python benchmarks/synthetic_gguf.py 1b.gguf --hidden 2048 --layers 16 --heads 32 --kv-heads 8 --intermediate 8192 \
        --vocabulary 128256

Matrices are Q4_1, the tied embedding is Q8_0, as in the checkpoint that the other benchmarks use. The tokenizer knows
single bytes and two merges.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gguf
import numpy as np

SHAPE = {
    "hidden": 2048,
    "layers": 16,
    "heads": 32,
    "kv-heads": 8,
    "intermediate": 8192,
    "vocabulary": 128256,
    "context": 8192,
}


_LETTERS = str.maketrans("0123456789", "qrstuvwxyz")


def random_q4_1(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Return uint8 ``[rows, bytes per row]``: random codes, scales that make weights of about 0.02."""
    blocks = np.empty((rows, columns // 32, 20), np.uint8)
    blocks[..., 4:] = rng.integers(0, 256, (rows, columns // 32, 16), np.uint8)
    scale = (0.004 * (0.5 + rng.random((rows, columns // 32, 1)))).astype(np.float16)
    blocks[..., :2] = scale.view(np.uint8)
    blocks[..., 2:4] = (scale * np.float16(-7.5)).view(np.uint8)
    return blocks.reshape(rows, -1)


def random_q8_0(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Return uint8 ``[rows, bytes per row]``."""
    blocks = np.empty((rows, columns // 32, 34), np.uint8)
    blocks[..., 2:] = rng.integers(-127, 128, (rows, columns // 32, 32), np.int8).view(np.uint8)
    blocks[..., :2] = np.full((rows, columns // 32, 1), 0.0003, np.float16).view(np.uint8)
    return blocks.reshape(rows, -1)


def byte_tokens(count: int, *, words: bool = False) -> tuple[list[str], list[int]]:
    """Return a vocabulary of the 256 bytes, two special tokens and fillers, and the kinds of its tokens.

    Args:
        words: the fillers are words, with a space in front of every second one, instead of tokens that are not used.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        letters.setdefault(byte, chr(256 + len(letters) - len(printable)))
    tokens = ["<|begin|>", "<|end|>", *(letters[byte] for byte in range(256)), "ab", "cd"]
    kinds = [int(gguf.TokenType.CONTROL)] * 2 + [int(gguf.TokenType.NORMAL)] * 258
    fillers = count - len(tokens)
    if words:
        named = ("\u0120" * (i % 2) + "w" + np.base_repr(i, 26).lower().translate(_LETTERS) for i in range(fillers))
        return tokens + list(named), kinds + [int(gguf.TokenType.NORMAL)] * fillers
    return tokens + [f"<|filler_{i}|>" for i in range(fillers)], kinds + [int(gguf.TokenType.UNUSED)] * fillers


def write_tokenizer(writer: gguf.GGUFWriter, count: int, pre: str, *, words: bool = False) -> None:
    """Write the tokenizer of ``byte_tokens``; ``pre`` names how text is cut."""
    tokens, kinds = byte_tokens(count, words=words)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(["a b", "c d"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("out", type=Path)
    for name, default in SHAPE.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--head-dim", type=int, help="default: hidden size over heads")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--words", action="store_true", help="a vocabulary of words, for masks of grammars")
    shape = parser.parse_args()
    rng = np.random.default_rng(shape.seed)
    head_dim = shape.head_dim or shape.hidden // shape.heads
    queries = shape.heads * head_dim
    writer = gguf.GGUFWriter(str(shape.out), "llama")
    writer.add_name(f"synthetic-{shape.layers}x{shape.hidden}")
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.intermediate)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.vocabulary)
    write_tokenizer(writer, shape.vocabulary, "smollm", words=shape.words)

    def matrix(name: str, rows: int, columns: int) -> None:
        writer.add_tensor(name, random_q4_1(rng, rows, columns), raw_dtype=gguf.GGMLQuantizationType.Q4_1)

    def norm(name: str) -> None:
        writer.add_tensor(name, np.ones(shape.hidden, np.float32))

    embedding = random_q8_0(rng, shape.vocabulary, shape.hidden)
    writer.add_tensor("token_embd.weight", embedding, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    for i in range(shape.layers):
        matrix(f"blk.{i}.attn_q.weight", queries, shape.hidden)
        matrix(f"blk.{i}.attn_k.weight", shape.kv_heads * head_dim, shape.hidden)
        matrix(f"blk.{i}.attn_v.weight", shape.kv_heads * head_dim, shape.hidden)
        matrix(f"blk.{i}.attn_output.weight", shape.hidden, queries)
        matrix(f"blk.{i}.ffn_gate.weight", shape.intermediate, shape.hidden)
        matrix(f"blk.{i}.ffn_up.weight", shape.intermediate, shape.hidden)
        matrix(f"blk.{i}.ffn_down.weight", shape.hidden, shape.intermediate)
        norm(f"blk.{i}.attn_norm.weight")
        norm(f"blk.{i}.ffn_norm.weight")
    norm("output_norm.weight")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
