"""Models whose matrices are arrays in memory, in any precision."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from edge_rt.export.families.llama_config import LlamaConfig, RopeScaling
from edge_rt.export.sources.gguf_types import TensorInfo


class Arrays:
    """Matrices by name, as ``edge_rt.export.weights.matrices.Matrices``; a matrix comes in several pieces."""

    def __init__(self, arrays, piece_rows=5):
        self.arrays = arrays
        self._piece_rows = piece_rows

    def pieces(self, name):
        rows = np.atleast_2d(self.arrays[name])
        for first in range(0, len(rows), self._piece_rows):
            yield rows[first : first + self._piece_rows]

    def rows(self, name, numbers):
        return self.arrays[name][list(numbers)]

    def changed(self, name, by):
        """Return the same with something added to one of them."""
        return Arrays(self.arrays | {name: self.arrays[name] + by}, self._piece_rows)


def tiny_config(**changes):
    """Return the dimensions of a model of two layers with a head for every two of the queries."""
    numbers = {
        "name": "tiny", "hidden_size": 12, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "head_dim": 4,
        "intermediate_size": 10, "vocab_size": 13, "context_length": 64, "rms_norm_eps": 1e-5, "rope_theta": 100.0,
        "rope_scaling": RopeScaling(), "tied_embedding": False,
    }  # fmt: skip
    return LlamaConfig(**(numbers | changes))


def random_arrays(config, seed=0, scale=0.4):
    """Return float64 weights of a model."""
    rng = np.random.default_rng(seed)
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    hidden, wide = config.hidden_size, config.intermediate_size
    shapes = {
        "attn_q": (q, hidden), "attn_k": (kv, hidden), "attn_v": (kv, hidden), "attn_output": (hidden, q),
        "ffn_gate": (wide, hidden), "ffn_up": (wide, hidden), "ffn_down": (hidden, wide),
    }  # fmt: skip
    found = {"token_embd.weight": rng.standard_normal((config.vocab_size, hidden))}
    for layer in range(config.num_layers):
        found |= {f"blk.{layer}.{kind}.weight": rng.standard_normal(shape) * scale for kind, shape in shapes.items()}
        found |= {f"blk.{layer}.{kind}_norm.weight": 1 + 0.2 * rng.standard_normal(hidden) for kind in ("attn", "ffn")}
    found["output_norm.weight"] = 1 + 0.2 * rng.standard_normal(hidden)
    if not config.tied_embedding:
        found["output.weight"] = rng.standard_normal((config.vocab_size, hidden))
    return found


def source_of(arrays, *, has_halves=False):
    """Return what of a checkpoint the forward passes ask for."""
    tensors = {name: TensorInfo(name, array.shape[::-1], 0, "F32", 0, 4 * array.size) for name, array in arrays.items()}
    return SimpleNamespace(has_halves=has_halves, tensors=tensors)
