"""A plain numpy forward pass of a llama model, a layer at a time.

It shares the rope frequencies (``scaled_frequencies``) with the exporter, so it cannot find faults in those; tests
check them against independent formulas. The arithmetic is independent: rows of q and k keep the checkpoint's order and
are rotated as it says, and attention is one softmax over all positions that a token sees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_rt.export.families.llama_config import LlamaConfig, scaled_frequencies
from edge_rt.export.weights.matrices import Matrices

Array = npt.NDArray[Any]
Product = Callable[[Array, str], Array]
"""Multiplies ``[..., rows, inputs]`` by the matrix of a name."""


class LlamaForward:
    """Steps of the model on ``x [batch, rows, features]``; sequences of a batch do not see each other.

    Args:
        matrices: the weights.
        config: the model's dimensions.
        has_halves: whether rows of queries and keys are in split-half order; else in adjacent pairs.
        has_factors: whether there is a tensor of rope divisors.
        product: multiplies rows by a matrix.
        dtype: of the arithmetic.
    """

    def __init__(
        self,
        matrices: Matrices,
        config: LlamaConfig,
        *,
        has_halves: bool,
        has_factors: bool,
        product: Product,
        dtype: Any = np.float32,
    ) -> None:
        self._matrices = matrices
        self._config = config
        self._has_halves = has_halves
        self._has_factors = has_factors
        self._product = product
        self._dtype = np.dtype(dtype)

    def embed(self, token_ids: Sequence[int]) -> Array:
        """Return the embeddings of tokens, ``[tokens, hidden_size]``."""
        return self._matrices.rows("token_embd.weight", token_ids).astype(self._dtype)

    def layer(self, x: Array, layer: int, tables: tuple[Array, Array]) -> Array:
        """Return the stream after a layer; ``tables`` as from ``rope``, for the rows of ``x``."""
        x = x + self._attention(self.norm(x, f"blk.{layer}.attn_norm.weight"), layer, *tables)
        return x + self._mlp(self.norm(x, f"blk.{layer}.ffn_norm.weight"), layer)

    def norm(self, x: Array, weight: str) -> Array:
        """Return RMSNorm of ``x``."""
        scale = np.sqrt((x * x).mean(axis=-1, keepdims=True) + self._dtype.type(self._config.rms_norm_eps))
        normed: Array = x / scale * self._vector(weight)
        return normed

    def rope(self, length: int) -> tuple[Array, Array]:
        """Return cosines and sines, ``[length, head_dim / 2]``."""
        frequencies, magnitude = scaled_frequencies(self._config)
        rates = np.asarray(frequencies, np.float64)
        if self._has_factors:
            rates = rates / self._vector("rope_freqs.weight").astype(np.float64)
        elif self._config.rope_divisors:
            rates = rates / np.asarray(self._config.rope_divisors)
        angles = np.arange(length)[:, None] * rates[None, :]
        return (np.cos(angles) * magnitude).astype(self._dtype), (np.sin(angles) * magnitude).astype(self._dtype)

    def _vector(self, name: str) -> Array:
        (piece,) = self._matrices.pieces(name)
        vector: Array = piece[0].astype(self._dtype)
        return vector

    def _rotate(self, x: Array, cos: Array, sin: Array) -> Array:
        """Rotate the pairs of ``x [..., rows, heads, head_dim]``: neighbours, or elements half a head apart."""
        half = x.shape[-1] // 2
        apart = self._has_halves
        first, second = (slice(half), slice(half, None)) if apart else (slice(0, None, 2), slice(1, None, 2))
        rotated = np.empty_like(x)
        rotated[..., first] = x[..., first] * cos[:, None] - x[..., second] * sin[:, None]
        rotated[..., second] = x[..., first] * sin[:, None] + x[..., second] * cos[:, None]
        return rotated

    def _attention(self, x: Array, layer: int, cos: Array, sin: Array) -> Array:
        config = self._config
        q, k, v = (
            self._product(x, f"blk.{layer}.attn_{kind}.weight").reshape(*x.shape[:2], heads, config.head_dim)
            for kind, heads in (("q", config.num_heads), ("k", config.num_kv_heads), ("v", config.num_kv_heads))
        )
        q, k = self._rotate(q, cos, sin), self._rotate(k, cos, sin)
        group = config.num_heads // config.num_kv_heads
        attended = np.empty_like(q)
        # The heads of one kv head at a time: weights of all of them would be the largest array of the pass.
        for head in range(config.num_kv_heads):
            own = slice(head * group, (head + 1) * group)
            # [forward, row, head, element] -> [forward, head, row, element]
            queries, keys, values = (
                part.transpose(0, 2, 1, 3) for part in (q[:, :, own], k[:, :, head, None], v[:, :, head, None])
            )
            scores = np.matmul(queries, keys.transpose(0, 1, 3, 2)) * self._dtype.type(config.head_dim**-0.5)
            found = np.matmul(attention_weights(scores, config.sliding_window), values)
            attended[:, :, own] = found.transpose(0, 2, 1, 3)
        attended = attended.reshape(*x.shape[:2], -1)
        return self._product(attended, f"blk.{layer}.attn_output.weight")

    def _mlp(self, x: Array, layer: int) -> Array:
        gate = self._product(x, f"blk.{layer}.ffn_gate.weight")
        gate *= sigmoid(gate)
        gate *= self._product(x, f"blk.{layer}.ffn_up.weight")
        return self._product(gate, f"blk.{layer}.ffn_down.weight")


def sigmoid(x: Array) -> Array:
    """Return ``1 / (1 + exp(-x))``, without a warning where the exponential is infinite."""
    found = -x
    with np.errstate(over="ignore"):
        np.exp(found, out=found)
    found += 1
    return np.reciprocal(found, out=found)


def attention_weights(scores: Array, window: int) -> Array:
    """Return the softmax of scores ``[..., rows, rows]`` over what a row sees; ``window``: as in ``LlamaConfig``."""
    rows = scores.shape[-1]
    seen = np.tri(rows, dtype=bool)
    if window:
        seen &= ~np.tri(rows, k=-window, dtype=bool)
    scores = np.where(seen, scores, -np.inf)
    weights: Array = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights
