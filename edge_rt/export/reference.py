"""A plain numpy forward of a llama checkpoint: the judge of every package.

It shares with the exporter what reads the file (header, ``LlamaConfig``, raw rows) and the rope frequencies
(``scaled_frequencies``), so it cannot find a fault in those; tests hold them against formulas of their own. The
arithmetic is its own: weights are dequantised by the ``gguf`` library, rows of q and k stay in the file's order and
are rotated as adjacent pairs, and attention is one softmax over all positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from edge_rt.export.blocks import iter_rows
from edge_rt.export.gguf_types import GGUFHeader, TensorInfo
from edge_rt.export.llama import LlamaConfig, scaled_frequencies

Array = npt.NDArray[Any]


class LlamaReference:
    """Forward pass over a whole sequence, one matrix in memory at a time.

    Args:
        source: the open checkpoint.
        header: its header.
        config: its numbers.
        dtype: ``np.float64`` to judge float32 arithmetic, ``np.float32`` to be quick.
        cache: keep dequantised matrices between calls (tests of small models).
    """

    def __init__(
        self, source: BinaryIO, header: GGUFHeader, config: LlamaConfig, *, dtype: Any = np.float32, cache: bool = False
    ) -> None:
        self._source = source
        self._header = header
        self._config = config
        self._dtype = np.dtype(dtype)
        self._kept: dict[str, Array] | None = {} if cache else None

    def logits(self, token_ids: Sequence[int]) -> Array:
        """Return logits of every position, ``[len(token_ids), vocabulary]`` in the chosen dtype."""
        config = self._config
        x = self._embed(token_ids)
        cos, sin = self._rope(len(token_ids))
        for layer in range(config.num_layers):
            x = x + self._attention(self._norm(x, f"blk.{layer}.attn_norm.weight"), layer, cos, sin)
            x = x + self._mlp(self._norm(x, f"blk.{layer}.ffn_norm.weight"), layer)
        x = self._norm(x, "output_norm.weight")
        head = self._header.tensors["token_embd.weight" if config.tied_embedding else "output.weight"]
        return np.concatenate([x @ rows.T for rows in self._pieces(head)], axis=1)

    def _pieces(self, tensor: TensorInfo) -> Iterator[Array]:
        for raw in iter_rows(self._source, tensor):
            yield dequantize(raw, GGMLQuantizationType(tensor.type_id)).reshape(raw.shape[0], -1).astype(self._dtype)

    def _matrix(self, name: str) -> Array:
        if self._kept is not None and name in self._kept:
            return self._kept[name]
        matrix = np.concatenate(list(self._pieces(self._header.tensors[name])))
        if self._kept is not None:
            self._kept[name] = matrix
        return matrix

    def _embed(self, token_ids: Sequence[int]) -> Array:
        tensor = self._header.tensors["token_embd.weight"]
        row_bytes = tensor.nbytes // tensor.shape[1]
        rows = []
        for token in token_ids:
            self._source.seek(tensor.offset + token * row_bytes)
            rows.append(np.frombuffer(self._source.read(row_bytes), np.uint8))
        return (
            dequantize(np.stack(rows), GGMLQuantizationType(tensor.type_id)).reshape(len(rows), -1).astype(self._dtype)
        )

    def _norm(self, x: Array, weight: str) -> Array:
        scale = np.sqrt((x * x).mean(axis=-1, keepdims=True) + self._dtype.type(self._config.rms_norm_eps))
        normed: Array = x / scale * self._matrix(weight)[0]
        return normed

    def _rope(self, length: int) -> tuple[Array, Array]:
        frequencies, magnitude = scaled_frequencies(self._config)
        rates = np.asarray(frequencies, np.float64)
        if "rope_freqs.weight" in self._header.tensors:
            rates = rates / self._matrix("rope_freqs.weight")[0].astype(np.float64)
        angles = np.arange(length)[:, None] * rates[None, :]
        return (np.cos(angles) * magnitude).astype(self._dtype), (np.sin(angles) * magnitude).astype(self._dtype)

    def _rotate(self, x: Array, cos: Array, sin: Array) -> Array:
        """Rotate adjacent pairs of ``x [rows, heads, head_dim]``."""
        even, odd = x[..., 0::2], x[..., 1::2]
        rotated = np.empty_like(x)
        rotated[..., 0::2] = even * cos[:, None] - odd * sin[:, None]
        rotated[..., 1::2] = even * sin[:, None] + odd * cos[:, None]
        return rotated

    def _attention(self, x: Array, layer: int, cos: Array, sin: Array) -> Array:
        config, rows = self._config, len(x)
        q, k, v = (
            (x @ self._matrix(f"blk.{layer}.attn_{kind}.weight").T).reshape(rows, heads, config.head_dim)
            for kind, heads in (("q", config.num_heads), ("k", config.num_kv_heads), ("v", config.num_kv_heads))
        )
        q, k = self._rotate(q, cos, sin), self._rotate(k, cos, sin)
        group = config.num_heads // config.num_kv_heads
        k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
        scores = np.matmul(q.transpose(1, 0, 2), k.transpose(1, 2, 0)) * self._dtype.type(config.head_dim**-0.5)
        scores = np.where(np.tri(rows, dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        attended: Array = np.matmul(weights, v.transpose(1, 0, 2)).transpose(1, 0, 2).reshape(rows, -1)
        output: Array = attended @ self._matrix(f"blk.{layer}.attn_output.weight").T
        return output

    def _mlp(self, x: Array, layer: int) -> Array:
        gate = x @ self._matrix(f"blk.{layer}.ffn_gate.weight").T
        up = x @ self._matrix(f"blk.{layer}.ffn_up.weight").T
        down: Array = (gate / (1 + np.exp(-gate)) * up) @ self._matrix(f"blk.{layer}.ffn_down.weight").T
        return down
