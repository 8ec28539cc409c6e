"""How much a model's predictions change with the output of every matrix: gradients of a llama model in numpy.

For labels drawn from the model's own predictions, the mean square of the gradient of their log-likelihood is the Fisher
information: a small error e of an output changes the predictions, as a Kullback-Leibler divergence summed over the
tokens that follow, by about half of the mean of ``(g e)^2``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edge_rt.errors import UnsupportedModel
from edge_rt.export.families.llama_config import LlamaConfig
from edge_rt.export.families.llama_forward import LlamaForward, attention_weights, sigmoid
from edge_rt.export.sources.source import Source
from edge_rt.export.weights.matrices import Matrices, whole_matrix

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Pass:
    """One sequence, run through the model and back.

    Attributes:
        inputs: input of every matrix, ``[tokens, inputs]``; matrices with one input share it.
        gradients: gradient of the summed log-likelihood at the outputs, ``[tokens, rows]``.
        head: for every token the sum of p (1 - p) over the vocabulary, ``[tokens]``.
        embedding: gradient at the embeddings, ``[tokens, hidden_size]``.
        labels: int64 ``[tokens]``.
    """

    inputs: dict[str, Array]
    gradients: dict[str, Array]
    head: Array
    embedding: Array
    labels: Array


class LlamaGradients(LlamaForward):
    """Runs a sequence through the model and back, a layer at a time; the weights of a layer are in memory twice.

    Args:
        matrices: the weights.
        source: the checkpoint.
        config: its dimensions.
        seed: of the labels that are drawn.
        dtype: of the arithmetic.
    """

    def __init__(
        self, matrices: Matrices, source: Source, config: LlamaConfig, *, seed: int = 0, dtype: Any = np.float32
    ) -> None:
        super().__init__(
            matrices,
            config,
            has_halves=source.has_halves,
            has_factors="rope_freqs.weight" in source.tensors,
            product=self._multiply,
            dtype=dtype,
        )
        self._tensors = source.tensors
        self._rng = np.random.default_rng(seed)
        self._held: dict[str, Array] = {}

    def influences(
        self, token_ids: Sequence[int], *, on_layer: Callable[[int], None] = lambda _: None
    ) -> dict[str, Array]:
        """Return, for every matrix of the layers and for the head, what errors of its weights meet, ``[inputs]``.

        An error d of one weight, input k of any output, changes the predictions by about half of ``d^2`` times element
        k: the mean over tokens of the squared input times the mean squared gradient at the outputs. Both are taken
        token by token: a few tokens, such as the first one, can have large inputs or large gradients.

        Args:
            token_ids: the sequence.
            on_layer: called with the number of layers that were run, of two for each: there and back.

        Raises:
            UnsupportedModel: an influence is not finite.
        """
        influences: dict[str, Array] = {}

        def reduce(found: Pass) -> None:
            # Of one layer at a time: those of all layers are larger than the layers of a small model.
            for name, gradient in found.gradients.items():
                of_token = np.square(gradient).mean(axis=1, keepdims=True)
                influences[name] = (of_token * np.square(found.inputs[name])).mean(axis=0)

        with np.errstate(over="ignore", invalid="ignore"):
            found = self.run(token_ids, on_layer=on_layer, on_gradients=reduce)
            of_token = found.head[:, None] / self._config.vocab_size
            influences[self._head_name] = (of_token * np.square(found.inputs[self._head_name])).mean(axis=0)
        for name, influence in influences.items():
            if not np.isfinite(influence).all():
                raise UnsupportedModel(
                    "The model's activations on the calibration text are too large for float32.",
                    f"At the tensor '{name}'.",
                    "Export with --calibration none, or with --weights keep.",
                )
        return influences

    @property
    def _head_name(self) -> str:
        return "token_embd.weight" if self._config.tied_embedding else "output.weight"

    def run(
        self,
        token_ids: Sequence[int],
        *,
        on_layer: Callable[[int], None] = lambda _: None,
        on_gradients: Callable[[Pass], None] | None = None,
    ) -> Pass:
        """Run a sequence; the log-likelihood is that of labels drawn from the predictions.

        Args:
            token_ids: the sequence.
            on_layer: as in ``influences``.
            on_gradients: called behind every layer on the way back with its inputs and gradients alone, which are then
                not in the result; None: the result has those of all layers.
        """
        tables = self.rope(len(token_ids))
        x = self.embed(token_ids)
        streams, layers = [], self._config.num_layers
        for layer in range(layers):
            streams.append(x)
            x = self.layer(x[None], layer, tables)[0]
            self._held = {}
            on_layer(layer + 1)
        found = Pass({}, {}, *self._head(x))
        found.inputs[self._head_name] = self.norm(x, "output_norm.weight")
        gradient = found.embedding
        for layer in reversed(range(layers)):
            own = found if on_gradients is None else Pass({}, {}, found.head, found.embedding, found.labels)
            gradient = self._layer_back(streams.pop(), gradient, layer, tables, own)
            self._held = {}
            if on_gradients is not None:
                on_gradients(own)
            on_layer(2 * layers - layer)
        return Pass(found.inputs, found.gradients, found.head, gradient, found.labels)

    def _matrix(self, name: str) -> Array:
        if name not in self._held:
            self._held[name] = whole_matrix(self._matrices, self._tensors[name], self._dtype)
        return self._held[name]

    def _multiply(self, x: Array, name: str) -> Array:
        product: Array = x @ self._matrix(name).T
        return product

    def _head(self, x: Array) -> tuple[Array, Array, Array]:
        """Return the sums of p (1 - p), the gradient at ``x``, and the labels."""
        final = self.norm(x, "output_norm.weight")
        best, labels = np.full(len(x), -np.inf), np.zeros(len(x), np.int64)
        sums, most, first = np.zeros(len(x)), np.full(len(x), -np.inf), 0
        for rows in self._matrices.pieces(self._head_name):
            logits = (final @ rows.astype(self._dtype).T).astype(np.float64)
            # The largest logit plus Gumbel noise is a draw from the softmax.
            noisy = logits + self._rng.gumbel(size=logits.shape)
            at = noisy.argmax(axis=1)
            better = noisy[np.arange(len(x)), at] > best
            labels[better], best[better] = at[better] + first, noisy[np.arange(len(x)), at][better]
            peak = np.maximum(most, logits.max(axis=1))
            sums = sums * np.exp(most - peak) + np.exp(logits - peak[:, None]).sum(axis=1)
            most, first = peak, first + len(rows)
        gradient, spread, first = np.zeros_like(final), np.zeros(len(x)), 0
        for rows in self._matrices.pieces(self._head_name):
            rows = rows.astype(self._dtype)
            p = np.exp((final @ rows.T) - most[:, None]) / sums[:, None]
            spread += (p * (1 - p)).sum(axis=1)
            own = np.flatnonzero((labels >= first) & (labels < first + len(rows)))
            p[own, labels[own] - first] -= 1
            gradient -= (p @ rows).astype(self._dtype)
            first += len(rows)
        return spread, self._norm_back(x, gradient, "output_norm.weight"), labels

    def _norm_back(self, x: Array, gradient: Array, weight: str) -> Array:
        """Return the gradient at the input of an RMSNorm."""
        inverse = 1 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self._dtype.type(self._config.rms_norm_eps))
        scaled = gradient * self._vector(weight)
        back: Array = inverse * (scaled - x * inverse**2 * (scaled * x).mean(axis=-1, keepdims=True))
        return back

    def _layer_back(self, x: Array, gradient: Array, layer: int, tables: tuple[Array, Array], found: Pass) -> Array:
        """Return the gradient before a layer from that behind it; note those of its matrices."""

        def name(kind: str) -> str:
            return f"blk.{layer}.{kind}.weight"

        def back(kind: str, at_output: Array, at_input: Array) -> Array:
            found.gradients[name(kind)], found.inputs[name(kind)] = at_output, at_input
            product: Array = at_output @ self._matrix(name(kind))
            return product

        normed = self.norm(x, name("attn_norm"))
        heads = self._heads(normed, layer, tables)
        attended = self._joined(heads.weights @ heads.v)
        between = x + self._multiply(attended, name("attn_output"))
        normed_between = self.norm(between, name("ffn_norm"))
        gate, up = (self._multiply(normed_between, name(kind)) for kind in ("ffn_gate", "ffn_up"))
        share = sigmoid(gate)
        at_product = back("ffn_down", gradient, gate * share * up)
        at_normed = back("ffn_up", at_product * gate * share, normed_between)
        at_normed += back("ffn_gate", at_product * up * share * (1 + gate * (1 - share)), normed_between)
        gradient = gradient + self._norm_back(between, at_normed, name("ffn_norm"))
        at_attended = back("attn_output", gradient, attended)
        at_heads = self._attention_back(heads, at_attended, tables)
        at_normed = sum(
            (back(kind, part, normed) for kind, part in zip(("attn_q", "attn_k", "attn_v"), at_heads, strict=True)),
            start=np.zeros_like(normed),
        )
        return gradient + self._norm_back(x, at_normed, name("attn_norm"))

    def _heads(self, normed: Array, layer: int, tables: tuple[Array, Array]) -> _Heads:
        config = self._config

        def project(kind: str, heads: int) -> Array:
            product = self._multiply(normed, f"blk.{layer}.attn_{kind}.weight")
            return product.reshape(len(normed), heads, config.head_dim)

        q = self._rotate(project("q", config.num_heads), *tables).transpose(1, 0, 2)
        k = self._rotate(project("k", config.num_kv_heads), *tables).transpose(1, 0, 2)
        v = project("v", config.num_kv_heads).transpose(1, 0, 2)
        group = config.num_heads // config.num_kv_heads
        k, v = np.repeat(k, group, axis=0), np.repeat(v, group, axis=0)
        scale = self._dtype.type(config.head_dim**-0.5)
        return _Heads(q, k, v, attention_weights(q @ k.transpose(0, 2, 1) * scale, config.sliding_window), scale)

    def _attention_back(
        self, heads: _Heads, gradient: Array, tables: tuple[Array, Array]
    ) -> tuple[Array, Array, Array]:
        """Return the gradients at the products of q, k and v, ``[tokens, rows]``."""
        config, (cos, sin) = self._config, tables
        split = gradient.reshape(len(gradient), config.num_heads, config.head_dim).transpose(1, 0, 2)
        at_weights = split @ heads.v.transpose(0, 2, 1)
        at_scores = heads.weights * (at_weights - (at_weights * heads.weights).sum(axis=-1, keepdims=True))
        at_scores *= heads.scale
        groups = (config.num_kv_heads, -1, len(gradient), config.head_dim)
        q = at_scores @ heads.k
        k = (at_scores.transpose(0, 2, 1) @ heads.q).reshape(groups).sum(axis=1)
        v = (heads.weights.transpose(0, 2, 1) @ split).reshape(groups).sum(axis=1)
        # A rotation is turned back by the opposite angle.
        q, k = (self._rotate(part.transpose(1, 0, 2), cos, -sin).transpose(1, 0, 2) for part in (q, k))
        return self._joined(q), self._joined(k), self._joined(v)

    def _joined(self, heads: Array) -> Array:
        """``[heads, tokens, head_dim]`` -> ``[tokens, heads * head_dim]``."""
        return heads.transpose(1, 0, 2).reshape(heads.shape[1], -1)


class _Heads(NamedTuple):
    """Rotated queries and keys, values ``[heads, tokens, head_dim]``, and the weights ``[heads, tokens, tokens]``."""

    q: Array
    k: Array
    v: Array
    weights: Array
    scale: Any
