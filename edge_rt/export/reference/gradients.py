"""How much a model's predictions change with the output of every matrix: gradients of a described decoder in numpy.

For labels drawn from the model's own predictions, the mean square of the gradient of their log-likelihood is the Fisher
information: a small error e of an output changes the predictions, as a Kullback-Leibler divergence summed over the
tokens that follow, by about half of the mean of ``(g e)^2``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from edge_rt.errors import UnsupportedModel
from edge_rt.export.decoder.tensors import INPUT_OF
from edge_rt.export.reference.forward import (
    ACTIVATIONS,
    GELU_CUBE,
    GELU_SLOPE,
    DecoderForward,
    Tables,
    attention_weights,
    sigmoid,
)
from edge_rt.export.sources.source import Source
from edge_rt.export.weights.matrices import Matrices, row_groups, whole_matrix
from edge_rt.package.decoder import Decoder


def _silu(x: Array) -> Array:
    share = sigmoid(x)
    slope: Array = share * (1 + x * (1 - share))
    return slope


def _gelu(x: Array) -> Array:
    bent = np.tanh(GELU_SLOPE * (x + GELU_CUBE * x**3))
    slope: Array = 0.5 * (1 + bent) + 0.5 * x * (1 - bent * bent) * GELU_SLOPE * (1 + 3 * GELU_CUBE * x * x)
    return slope.astype(x.dtype)


def _relu2(x: Array) -> Array:
    slope: Array = 2 * np.maximum(x, 0)
    return slope


SLOPES: Final[Mapping[str, Callable[[Array], Array]]] = {"silu": _silu, "gelu": _gelu, "relu2": _relu2}
"""Name in a description -> derivative."""


HEAD_ROWS: Final = 4096
"""Rows of the head whose logits are computed at a time."""

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
        at_inputs: name of an input of matrices, such as ``"layer3.down"`` or ``"head"`` -> the gradient there.
    """

    inputs: dict[str, Array]
    gradients: dict[str, Array]
    head: Array
    embedding: Array
    labels: Array
    at_inputs: dict[str, Array] = field(default_factory=dict)


class DecoderGradients(DecoderForward):
    """Runs a sequence through the model and back, a layer at a time; the weights of a layer are in memory twice."""

    def __init__(
        self, matrices: Matrices, source: Source, decoder: Decoder, *, seed: int = 0, dtype: Any = np.float32
    ) -> None:
        super().__init__(matrices, source, decoder, product=self._multiply, dtype=dtype)
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
            on_layer: called with the number of layers that were run, of two for each: there and back.
        """
        influences: dict[str, Array] = {}

        def reduce(found: Pass) -> None:
            # Of one layer at a time: those of all layers are larger than the layers of a small model.
            for name, gradient in found.gradients.items():
                of_token = np.square(gradient).mean(axis=1, keepdims=True)
                influences[name] = (of_token * np.square(found.inputs[name])).mean(axis=0)

        with np.errstate(over="ignore", invalid="ignore"):
            found = self.run(token_ids, on_layer=on_layer, on_gradients=reduce)
            of_token = found.head[:, None] / self._decoder.vocab_size
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
        return "token_embd.weight" if self._decoder.is_tied else "output.weight"

    def run(
        self,
        token_ids: Sequence[int],
        *,
        on_layer: Callable[[int], None] = lambda _: None,
        on_gradients: Callable[[Pass], None] | None = None,
    ) -> Pass:
        """Run a sequence; the log-likelihood is that of labels drawn from the predictions.

        Args:
            on_gradients: called behind every layer on the way back with its inputs and gradients alone, which are then
                not in the result; None: the result has those of all layers.
        """
        tables = self.rope(len(token_ids))
        x = self.embed(token_ids)
        streams, layers = [], self._decoder.num_layers
        for layer in range(layers):
            streams.append(x)
            x = self.layer(x[None], layer, tables)[0]
            self._held = {}
            on_layer(layer + 1)
        spread, at_final, labels = self._head(x)
        found = Pass({}, {}, spread, self._norm_back(x, at_final, "output_norm.weight"), labels)
        found.inputs[self._head_name], found.at_inputs["head"] = self.norm(x, "output_norm.weight"), at_final
        gradient = found.embedding
        for layer in reversed(range(layers)):
            own = found if on_gradients is None else Pass({}, {}, found.head, found.embedding, found.labels)
            gradient = self._layer_back(streams.pop(), gradient, layer, tables, own)
            self._held = {}
            if on_gradients is not None:
                on_gradients(own)
            on_layer(2 * layers - layer)
        return Pass(found.inputs, found.gradients, found.head, gradient, found.labels, found.at_inputs)

    def final(self, token_ids: Sequence[int]) -> Array:
        """Run a sequence forward alone and return the head's input, ``[tokens, hidden_size]``."""
        tables, x = self.rope(len(token_ids)), self.embed(token_ids)[None]
        for layer in range(self._decoder.num_layers):
            x = self.layer(x, layer, tables)
            self._held = {}
        final: Array = self.norm(x, "output_norm.weight")[0]
        return final

    def _matrix(self, name: str) -> Array:
        if name not in self._held:
            self._held[name] = whole_matrix(self._matrices, self._tensors[name], self._dtype)
        return self._held[name]

    def _multiply(self, x: Array, name: str) -> Array:
        product: Array = x @ self._matrix(name).T
        return product

    def _head(self, x: Array) -> tuple[Array, Array, Array]:
        """Return the sums of p (1 - p), the gradient at the head's input, and the labels."""
        final = self.norm(x, "output_norm.weight")
        best, labels = np.full(len(x), -np.inf), np.zeros(len(x), np.int64)
        sums, most, first = np.zeros(len(x)), np.full(len(x), -np.inf), 0
        for rows in row_groups(self._matrices.pieces(self._head_name), HEAD_ROWS):
            logits = self.logits_of((final @ rows.astype(self._dtype).T).astype(np.float64))
            # The largest logit plus Gumbel noise is a draw from the softmax.
            noisy = logits + self._rng.gumbel(size=logits.shape)
            at = noisy.argmax(axis=1)
            better = noisy[np.arange(len(x)), at] > best
            labels[better], best[better] = at[better] + first, noisy[np.arange(len(x)), at][better]
            peak = np.maximum(most, logits.max(axis=1))
            sums = sums * np.exp(most - peak) + np.exp(logits - peak[:, None]).sum(axis=1)
            most, first = peak, first + len(rows)
        gradient, spread, first = np.zeros_like(final), np.zeros(len(x)), 0
        for rows in row_groups(self._matrices.pieces(self._head_name), HEAD_ROWS):
            rows = rows.astype(self._dtype)
            products = final @ rows.T
            p = np.exp(self.logits_of(products) - most[:, None]) / sums[:, None]
            slope = self._logit_slope(products)
            spread += (p * (1 - p) * slope * slope).sum(axis=1)
            own = np.flatnonzero((labels >= first) & (labels < first + len(rows)))
            p[own, labels[own] - first] -= 1
            gradient -= ((p * slope) @ rows).astype(self._dtype)
            first += len(rows)
        return spread, gradient, labels

    def _logit_slope(self, products: Array) -> Array:
        """Return the derivative of logits by the products of the head."""
        scale, cap = self._decoder.logit_scale, self._decoder.logit_softcap
        slope: Array = np.full((1, 1), scale) if not cap else scale * (1 - np.tanh(products * (scale / cap)) ** 2)
        return slope

    def _norm_back(self, x: Array, gradient: Array, weight: str) -> Array:
        """Return the gradient at the input of a norm; of one that is not there the gradient itself."""
        if weight not in self._tensors:
            return gradient
        is_centred = self._decoder.norm == "layer"
        back = self._rms_back(x - x.mean(axis=-1, keepdims=True) if is_centred else x, gradient, weight)
        return back - back.mean(axis=-1, keepdims=True) if is_centred else back

    def _rms_back(self, x: Array, gradient: Array, weight: str) -> Array:
        """Return the gradient at the input of an RMSNorm."""
        inverse = 1 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self._dtype.type(self._decoder.norm_epsilon))
        scaled = gradient * self._vector(weight)
        back: Array = inverse * (scaled - x * inverse**2 * (scaled * x).mean(axis=-1, keepdims=True))
        return back

    def _layer_back(self, x: Array, gradient: Array, layer: int, tables: Tables, found: Pass) -> Array:
        """Return the gradient before a layer from that behind it; note those of its matrices."""

        def name(kind: str) -> str:
            return f"blk.{layer}.{kind}.weight"

        def back(kind: str, at_output: Array, at_input: Array) -> Array:
            found.gradients[name(kind)], found.inputs[name(kind)] = at_output, at_input
            product: Array = at_output @ self._matrix(name(kind))
            return product

        feed_forward, scale = self._decoder.feed_forward_of(layer), self._decoder.residual_scale
        activation, slope = ACTIVATIONS[feed_forward.activation], SLOPES[feed_forward.activation]
        normed = self.norm(x, name("attn_norm"))
        mixer = self._mixer(normed, layer, tables)
        output = self._times(mixer.rows, f"blk.{layer}.{mixer.out}")
        between = x + self._scaled(self.norm(output, name("post_attention_norm")), scale)
        normed_between = self.norm(between, name("ffn_norm"))
        up = self._times(normed_between, f"blk.{layer}.ffn_up")
        gate = self._times(normed_between, f"blk.{layer}.ffn_gate") if feed_forward.is_gated else up
        hidden = activation(gate.copy())
        if feed_forward.is_gated:
            hidden = hidden * up
        fed = self._times(hidden, f"blk.{layer}.ffn_down")
        at_fed = self._norm_back(fed, self._scaled(gradient, scale), name("post_ffw_norm"))
        at_hidden = back("ffn_down", at_fed, hidden)
        if feed_forward.is_gated:
            at_normed = back("ffn_up", at_hidden * activation(gate.copy()), normed_between)
            at_normed += back("ffn_gate", at_hidden * up * slope(gate), normed_between)
        else:
            at_normed = back("ffn_up", at_hidden * slope(up), normed_between)
        found.at_inputs.update({f"layer{layer}.down": at_hidden, f"layer{layer}.gate_up": at_normed})
        gradient = gradient + self._norm_back(between, at_normed, name("ffn_norm"))
        at_output = self._norm_back(output, self._scaled(gradient, scale), name("post_attention_norm"))
        at_rows = back(mixer.out, at_output, mixer.rows)
        at_normed = np.zeros_like(normed)
        for kind, at_product in mixer.back(at_rows).items():
            at_normed += back(kind, at_product, normed)
            found.at_inputs[f"layer{layer}.{INPUT_OF[kind]}"] = at_normed
        found.at_inputs[f"layer{layer}.{INPUT_OF[mixer.out]}"] = at_rows
        return gradient + self._norm_back(x, at_normed, name("attn_norm"))

    def _mixer(self, normed: Array, layer: int, tables: Tables) -> _Mixer:
        """Run a layer's attention, or its short convolution, for its way back."""
        if self._decoder.layers[layer].short_conv is None:
            heads = self._heads(normed, layer, tables)
            attended = self._joined(heads.weights @ heads.v)
            if not self._decoder.attention_of(layer).has_gate:
                return _Mixer(attended, "attn_output", lambda found: self._attention_back(heads, found, layer, tables))
            gates = self._gates(normed, layer)
            share = self._flat(gates)

            def gated_back(gradient: Array) -> dict[str, Array]:
                found = self._attention_back(heads, gradient * share, layer, tables)
                at_gates = gradient * attended * share * (1 - share)
                both = [part.reshape(gates.shape) for part in (found["attn_q"], at_gates)]
                return {**found, "attn_q": self._flat(np.concatenate(both, axis=-1))}

            return _Mixer(attended * share, "attn_output", gated_back)
        name = f"blk.{layer}.shortconv"
        before, behind, x = np.split(self._times(normed, f"{name}.in_proj"), 3, axis=-1)
        convolved = self._convolved(before * x, f"{name}.conv")

        def back(gradient: Array) -> dict[str, Array]:
            # A row gets from those behind it what it gave them.
            at_rows = self._tapped((gradient * behind)[::-1], f"{name}.conv")[::-1]
            return {"shortconv.in_proj": np.concatenate([at_rows * x, gradient * convolved, at_rows * before], axis=-1)}

        return _Mixer(behind * convolved, "shortconv.out_proj", back)

    def _heads(self, normed: Array, layer: int, tables: Tables) -> _Heads:
        attention = self._decoder.attention_of(layer)
        q, k, v = (part.transpose(1, 0, 2) for part in self._heads_of(normed, layer, tables))
        group = attention.num_heads // attention.num_kv_heads
        k, v = np.repeat(k, group, axis=0), np.repeat(v, group, axis=0)
        products = q @ k.transpose(0, 2, 1) * self._dtype.type(attention.scale)
        scores = self._capped(products, attention.softcap)
        slope = self._dtype.type(attention.scale)
        if attention.softcap:
            slope = slope * (1 - np.square(scores / self._dtype.type(attention.softcap)))
        return _Heads(normed, q, k, v, attention_weights(scores, attention.window, self._sinks(layer)), slope)

    def _attention_back(self, heads: _Heads, gradient: Array, layer: int, tables: Tables) -> dict[str, Array]:
        """Return the gradients at the products of q, k and v, ``[tokens, rows]``."""
        attention = self._decoder.attention_of(layer)
        split = gradient.reshape(len(gradient), attention.num_heads, attention.head_dim).transpose(1, 0, 2)
        at_weights = split @ heads.v.transpose(0, 2, 1)
        at_scores = heads.weights * (at_weights - (at_weights * heads.weights).sum(axis=-1, keepdims=True))
        at_scores *= heads.slope
        groups = (attention.num_kv_heads, -1, len(gradient), attention.head_dim)
        q = at_scores @ heads.k
        k = (at_scores.transpose(0, 2, 1) @ heads.q).reshape(groups).sum(axis=1)
        v = (heads.weights.transpose(0, 2, 1) @ split).reshape(groups).sum(axis=1)
        rows = (part.transpose(1, 0, 2) for part in (q, k))
        at_q, at_k = (
            self._prepared_back(part, heads.normed, layer, kind, tables)
            for part, kind in zip(rows, ("q", "k"), strict=True)
        )
        at_v = v.transpose(1, 0, 2)
        if attention.clip:
            at_v = self._clip_back(self._raw(heads.normed, layer, "v"), at_v, layer)
        return {"attn_q": self._flat(at_q), "attn_k": self._flat(at_k), "attn_v": self._flat(at_v)}

    def _prepared_back(self, gradient: Array, normed: Array, layer: int, kind: str, tables: Tables) -> Array:
        """Return the gradient at the products of queries or keys from that behind norm, rotation and scaling."""
        attention = self._decoder.attention_of(layer)
        raw = self._raw(normed, layer, kind)
        if kind == "q":
            gradient = self._grown(gradient, attention)

        def turned(x: Array, sign: int) -> Array:
            # A rotation is turned back by the opposite angle.
            if attention.rope is None:
                return x
            cos, sin = tables[attention.rope]
            return self._rotate(x, cos, sign * sin)

        if attention.norm_after_rope:
            return turned(self._qk_back(turned(raw, 1), gradient, layer, kind), -1)
        gradient = turned(gradient, -1)
        if attention.clip:
            gradient = self._clip_back(self._qk_normed(raw, layer, kind), gradient, layer)
        return self._qk_back(raw, gradient, layer, kind)

    def _raw(self, normed: Array, layer: int, kind: str) -> Array:
        """Return the products of queries, keys or values, ``[rows, heads, head_dim]``, without gates."""
        attention = self._decoder.attention_of(layer)
        heads = attention.num_heads if kind == "q" else attention.num_kv_heads
        found = self._times(normed, f"blk.{layer}.attn_{kind}").reshape(len(normed), heads, -1)
        return found[..., : attention.head_dim]

    def _clip_back(self, x: Array, gradient: Array, layer: int) -> Array:
        """Return the gradient before the limits of what was ``x`` there."""
        passes: Array = np.abs(x) <= self._decoder.attention_of(layer).clip
        return gradient * passes

    def _qk_back(self, x: Array, gradient: Array, layer: int, kind: str) -> Array:
        """Return the gradient at the input of the norm of queries or keys, ``[rows, heads, head_dim]``."""
        how, weight = self._decoder.attention_of(layer).qk_norm, f"blk.{layer}.attn_{kind}_norm.weight"
        if how == "none":
            return gradient
        if how == "head":
            return self._rms_back(x, gradient, weight)
        return self._rms_back(self._flat(x), self._flat(gradient), weight).reshape(x.shape)

    def _joined(self, heads: Array) -> Array:
        """``[heads, tokens, head_dim]`` -> ``[tokens, heads * head_dim]``."""
        return self._flat(heads.transpose(1, 0, 2))

    def _flat(self, rows: Array) -> Array:
        """``[tokens, heads, head_dim]`` -> ``[tokens, heads * head_dim]``."""
        return rows.reshape(len(rows), -1)


class _Mixer(NamedTuple):
    """What a layer's attention, or its short convolution, gives.

    Attributes:
        out: kind of the matrix behind it.
        back: returns the gradient at the products of the matrices before it, by their kind, from that at ``rows``.
    """

    rows: Array
    out: str
    back: Callable[[Array], dict[str, Array]]


class _Heads(NamedTuple):
    """What attention computed.

    ``normed``: its input; ``q``, ``k``, ``v``: as attention uses them ``[heads, tokens, head_dim]``; ``weights``:
    ``[heads, tokens, tokens]``; ``slope``: derivative of scores by the products of queries and keys.
    """

    normed: Array
    q: Array
    k: Array
    v: Array
    weights: Array
    slope: Any
