"""A plain numpy forward pass of a llama checkpoint: the reference for every package.

It shares the code that reads the file (header, ``LlamaConfig``, raw rows) and the rope frequencies
(``scaled_frequencies``) with the exporter, so it cannot find faults in those; tests check them against independent
formulas. The arithmetic is independent: weights are dequantised by the ``gguf`` library, those of packed matrices
(``sources.packed``) by a formula that the exporter does not use, rows of q and k keep the
file's order and are rotated as adjacent pairs, and attention is one softmax over all positions that a token sees.

For graphs that round activations it also computes every step separately, from the graph's own input of that step, with
the rounding rule of the native kernels. Over a whole deep model the smallest difference in float arithmetic grows as
large as the effect of rounding; over one step it stays small, and faults stand out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from edge_rt.export.families.llama_config import LlamaConfig, scaled_frequencies
from edge_rt.export.sources.gguf_types import TensorInfo
from edge_rt.export.sources.packed import PackedTensor
from edge_rt.export.sources.source import Source
from edge_rt.export.sources.tensor_reader import TensorReader
from edge_rt.export.weights.blocks import FLOAT_TYPES, iter_rows, piece_rows
from edge_rt.export.weights.tile_formats import BLOCK

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Step:
    """Result of one step: without rounding, and with every product's input rounded to int8 as in the kernels."""

    exact: Array
    rounded: Array


class LlamaReference:
    """Forward pass over a whole sequence, one matrix in memory at a time.

    Args:
        source: the open checkpoint.
        checkpoint: its tensors.
        config: its dimensions.
        dtype: ``np.float64`` to check float32 arithmetic, ``np.float32`` for speed.
        cache: keep dequantised matrices between calls (tests of small models).
    """

    def __init__(
        self,
        source: TensorReader,
        checkpoint: Source,
        config: LlamaConfig,
        *,
        dtype: Any = np.float32,
        cache: bool = False,
    ) -> None:
        self._source = source
        self._checkpoint = checkpoint
        self._config = config
        self._dtype = np.dtype(dtype)
        self._kept: dict[str, Array] | None = {} if cache else None

    def logits(self, token_ids: Sequence[int]) -> Array:
        """Return logits of every position, ``[len(token_ids), vocabulary]`` in the chosen dtype."""
        return self._forward(token_ids, None)[0]

    def logits_and_steps(self, token_ids: Sequence[int], streams: Sequence[Array]) -> tuple[Array, list[Step]]:
        """Compute the whole model, and every step separately from a graph's input of that step.

        Args:
            token_ids: the sequence.
            streams: the graph's residual stream ``[rows, hidden_size]`` after the embedding and after every layer.

        Returns:
            The logits as ``logits`` returns them, and the results of the embedding, every layer and the head.
        """
        return self._forward(token_ids, streams)

    def _forward(self, token_ids: Sequence[int], streams: Sequence[Array] | None) -> tuple[Array, list[Step]]:
        """``x`` is [forwards, rows, features] here and below.

        The forwards are the whole model, a step without rounding, and a step with rounding.
        """
        config = self._config
        cos, sin = self._rope(len(token_ids))
        x = self._embed(token_ids)[None]
        steps = [Step(x[0], x[0])]

        def beside(x: Array, index: int) -> Array:
            if streams is None:
                return x
            stream = streams[index].astype(self._dtype)
            return np.stack([x[0], stream, stream])

        for layer in range(config.num_layers):
            x = beside(x, layer)
            x = x + self._attention(self._norm(x, f"blk.{layer}.attn_norm.weight"), layer, cos, sin)
            x = x + self._mlp(self._norm(x, f"blk.{layer}.ffn_norm.weight"), layer)
            steps.extend(_step_of(x))
        head = self._checkpoint.tensors["token_embd.weight" if config.tied_embedding else "output.weight"]
        x = _rounded(self._norm(beside(x, config.num_layers), "output_norm.weight"), head)
        logits = np.concatenate([_times(x, rows) for rows in self._pieces(head)], axis=-1)
        steps.extend(_step_of(logits))
        return logits[0], steps

    def _product(self, x: Array, name: str) -> Array:
        """Multiply rows by a matrix of the checkpoint."""
        return _times(_rounded(x, self._checkpoint.tensors[name]), self._matrix(name))

    def _pieces(self, tensor: TensorInfo) -> Iterator[Array]:
        if isinstance(tensor, PackedTensor):
            packed, rows = tensor.open(self._source), np.arange(tensor.shape[1])
            # Taking words apart needs more memory than blocks do: pieces are smaller.
            for some in np.split(rows, rows[:: max(1, piece_rows(tensor) // 4)][1:]):
                yield packed.values(some).astype(self._dtype)
            return
        for raw in iter_rows(self._source, tensor):
            yield dequantize(raw, GGMLQuantizationType(tensor.type_id)).reshape(raw.shape[0], -1).astype(self._dtype)

    def _matrix(self, name: str) -> Array:
        if self._kept is not None and name in self._kept:
            return self._kept[name]
        matrix = np.concatenate(list(self._pieces(self._checkpoint.tensors[name])))
        if self._kept is not None:
            self._kept[name] = matrix
        return matrix

    def _embed(self, token_ids: Sequence[int]) -> Array:
        tensor = self._checkpoint.tensors["token_embd.weight"]
        if isinstance(tensor, PackedTensor):
            return tensor.open(self._source).values(np.asarray(token_ids)).astype(self._dtype)
        row_bytes = tensor.nbytes // tensor.shape[1]
        raws = (self._source.read(tensor, token * row_bytes, row_bytes) for token in token_ids)
        rows = [np.frombuffer(raw, np.uint8) for raw in raws]
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
        if "rope_freqs.weight" in self._checkpoint.tensors:
            rates = rates / self._matrix("rope_freqs.weight")[0].astype(np.float64)
        elif self._config.rope_divisors:
            rates = rates / np.asarray(self._config.rope_divisors)
        angles = np.arange(length)[:, None] * rates[None, :]
        return (np.cos(angles) * magnitude).astype(self._dtype), (np.sin(angles) * magnitude).astype(self._dtype)

    def _rotate(self, x: Array, cos: Array, sin: Array) -> Array:
        """Rotate the pairs of ``x [..., rows, heads, head_dim]``: neighbours, or elements half a head apart."""
        half = x.shape[-1] // 2
        apart = self._checkpoint.has_halves
        first, second = (slice(half), slice(half, None)) if apart else (slice(0, None, 2), slice(1, None, 2))
        rotated = np.empty_like(x)
        rotated[..., first] = x[..., first] * cos[:, None] - x[..., second] * sin[:, None]
        rotated[..., second] = x[..., first] * sin[:, None] + x[..., second] * cos[:, None]
        return rotated

    def _attention(self, x: Array, layer: int, cos: Array, sin: Array) -> Array:
        config, rows = self._config, x.shape[1]
        q, k, v = (
            self._product(x, f"blk.{layer}.attn_{kind}.weight").reshape(*x.shape[:2], heads, config.head_dim)
            for kind, heads in (("q", config.num_heads), ("k", config.num_kv_heads), ("v", config.num_kv_heads))
        )
        q, k = self._rotate(q, cos, sin), self._rotate(k, cos, sin)
        group = config.num_heads // config.num_kv_heads
        k, v = np.repeat(k, group, axis=2), np.repeat(v, group, axis=2)
        # [forward, row, head, element] -> [forward, head, row, element]
        q, k, v = (part.transpose(0, 2, 1, 3) for part in (q, k, v))
        scores = np.matmul(q, k.transpose(0, 1, 3, 2)) * self._dtype.type(config.head_dim**-0.5)
        seen = np.tri(rows, dtype=bool)
        if config.sliding_window:
            seen &= ~np.tri(rows, k=-config.sliding_window, dtype=bool)
        scores = np.where(seen, scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        attended = np.matmul(weights, v).transpose(0, 2, 1, 3).reshape(*x.shape[:2], -1)
        return self._product(attended, f"blk.{layer}.attn_output.weight")

    def _mlp(self, x: Array, layer: int) -> Array:
        gate = self._product(x, f"blk.{layer}.ffn_gate.weight")
        up = self._product(x, f"blk.{layer}.ffn_up.weight")
        return self._product(gate / (1 + np.exp(-gate)) * up, f"blk.{layer}.ffn_down.weight")


def _step_of(x: Array) -> list[Step]:
    """Return the second and third forward, if there are any."""
    return [Step(x[1], x[2])] if len(x) > 1 else []


def _times(x: Array, matrix: Array) -> Array:
    """Return ``x @ matrix.T`` for ``x [forwards, rows, inputs]``, as one product that reads the matrix once."""
    product: Array = (x.reshape(-1, x.shape[-1]) @ matrix.T).reshape(*x.shape[:-1], -1)
    return product


def _rounded(x: Array, tensor: TensorInfo) -> Array:
    """Return ``x`` with the third forward rounded, if there is one and the kernels round the input of this matrix."""
    if tensor.type_name in FLOAT_TYPES or len(x) == 1:
        return x
    return np.concatenate([x[:2], _round_rows(x[2:])])


def _round_rows(x: Array) -> Array:
    """Round every block of 32 to multiples of its largest magnitude over 127; ties go to even."""
    blocks = x.reshape(*x.shape[:-1], -1, BLOCK)
    peak = np.abs(blocks).max(axis=-1, keepdims=True)
    step = peak / 127
    step = np.where(step > 0, step, 1)
    rounded: Array = (np.rint(blocks / step) * step).reshape(x.shape)
    return rounded
