"""A plain numpy forward pass of a described decoder, a layer at a time.

It shares the rope frequencies of the description with the exporter, so it cannot find faults in those; tests check them
against independent formulas. The arithmetic is independent: rows of q and k keep the checkpoint's order and are rotated
as it says, and attention is one softmax over all positions that a token sees.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.export.decoder.weights import query_growth
from edge_rt.export.sources.source import Source
from edge_rt.export.weights.matrices import Matrices
from edge_rt.package.decoder import Decoder, Rope
from edge_rt.package.layers import Attention, Experts, FeedForward, GatedDelta, Layer, StateSpace

Array = npt.NDArray[Any]
Product = Callable[[Array, str], Array]
"""Multiplies ``[..., rows, inputs]`` by the matrix of a name."""
Tables = Sequence[tuple[Array, Array]]
"""Cosines and sines ``[rows, pairs]`` of every rotation."""

GELU_SLOPE: Final = (2 / math.pi) ** 0.5
GELU_CUBE: Final = 0.044715


class DecoderForward:
    """Steps of the model on ``x [batch, rows, features]``; sequences of a batch do not see each other."""

    def __init__(
        self,
        matrices: Matrices,
        source: Source,
        decoder: Decoder,
        *,
        product: Product,
        dtype: Any = np.float32,
        on_routing: Callable[[int, Array], None] | None = None,
    ) -> None:
        self._on_routing = on_routing
        self._matrices = matrices
        self._tensors = source.tensors
        self._decoder = decoder
        self._has_halves = source.has_halves
        self._norm_offset = source.norm_offset
        self._source = source
        self._product = product
        self._dtype = np.dtype(dtype)
        # Of the layers whose keys and values later ones read.
        self._kv: dict[int, tuple[Array, Array]] = {}
        self._kept = frozenset(
            decoder.kv_layer_of(one) for one in decoder.attention_layers if one not in decoder.kv_layers
        )

    def embed(self, token_ids: Sequence[int]) -> Array:
        """Return the embeddings of tokens, ``[tokens, hidden_size]``."""
        rows = self._matrices.rows("token_embd.weight", token_ids).astype(self._dtype)
        return self._scaled(rows, self._decoder.embedding_scale)

    def per_layer(self, x: Array, token_ids: Sequence[int]) -> Array | None:
        """Return the further embeddings of tokens, given their embeddings; None if the model has none.

        Args:
            x: ``[forwards, tokens, hidden_size]``.

        Returns:
            ``[forwards, tokens, layers, features]``.
        """
        decoder, features = self._decoder, self._decoder.per_layer_embedding
        if not features:
            return None
        product = self._scaled(self._times(x, "per_layer_model_proj"), decoder.hidden_size**-0.5)
        normed = self._rms_normed(product.reshape(*x.shape[:-1], -1, features), "per_layer_proj_norm.weight")
        rows = self._matrices.rows("per_layer_token_embd.weight", token_ids).astype(self._dtype)
        table = self._scaled(rows, features**0.5).reshape(len(token_ids), -1, features)
        return self._scaled(normed + table, 0.5**0.5)

    def layer(self, x: Array, layer: int, tables: Tables, per_layer: Array | None = None) -> Array:
        """Return the stream after a layer.

        Args:
            tables: as from ``rope``, for the rows of ``x``.
            per_layer: as from ``per_layer``, for the rows of ``x``.
        """
        name, scale = f"blk.{layer}", self._decoder.residual_scale
        kind = self._decoder.layers[layer]
        if kind.has_mixer:
            mixed = self._mixed(self.norm(x, f"{name}.attn_norm.weight"), layer, tables)
            x = x + self._scaled(self.norm(mixed, f"{name}.post_attention_norm.weight"), scale)
        if kind.feed_forwards:
            fed = self._mlp(x, layer)
            x = x + self._scaled(self.norm(fed, f"{name}.post_ffw_norm.weight"), scale)
        if per_layer is not None:
            gated = gelu(self._times(x, f"{name}.inp_gate")) * per_layer[..., layer, :]
            x = x + self.norm(self._times(gated, f"{name}.proj"), f"{name}.post_norm.weight")
        if kind.has_scale:
            x = x * self._vector(f"{name}.layer_output_scale.weight")
        return x

    def joined(self, embedded: Array, states: Array, block: int) -> Array:
        """Return what the first matrix of a block that predicts further ahead reads (``edge_rt.package.ahead``).

        Args:
            embedded: of the tokens behind, ``[batch, rows, hidden_size]``.
            states: behind the final norm, of the same shape.
        """
        parts = ((embedded, "enorm"), (states, "hnorm"))
        return np.concatenate([self.norm(x, f"blk.{block}.nextn.{name}.weight") for x, name in parts], axis=-1)

    def norm(self, x: Array, weight: str) -> Array:
        """Return the norm of ``x``; ``x`` itself if the checkpoint has no such weight."""
        if weight not in self._tensors:
            return x
        if self._decoder.norm == "layer":
            x = x - x.mean(axis=-1, keepdims=True)
        normed = self._rms_normed(x, weight)
        bias = f"{weight.removesuffix('weight')}bias"
        return normed + self._vector(bias) if bias in self._tensors else normed

    def logits_of(self, products: Array) -> Array:
        """Return logits, given the products of the head."""
        logits = self._scaled(products, self._decoder.logit_scale)
        return self._capped(logits, self._decoder.logit_softcap)

    def rope(self, length: int) -> list[tuple[Array, Array]]:
        """Return cosines and sines of every rotation, ``[length, pairs]``."""
        return [self._table(rope, length) for rope in self._decoder.ropes]

    def _table(self, rope: Rope, length: int) -> tuple[Array, Array]:
        angles = np.arange(length)[:, None] * np.asarray(rope.frequencies_for(length), np.float64)[None, :]
        magnitude = rope.magnitude
        return (np.cos(angles) * magnitude).astype(self._dtype), (np.sin(angles) * magnitude).astype(self._dtype)

    def _scaled(self, x: Array, factor: float) -> Array:
        return x if factor == 1.0 else x * self._dtype.type(factor)

    def _capped(self, x: Array, cap: float) -> Array:
        if not cap:
            return x
        capped: Array = np.tanh(x / self._dtype.type(cap)) * self._dtype.type(cap)
        return capped

    def _rms_normed(self, x: Array, weight: str) -> Array:
        normed: Array = x / self._root(x) * self._vector(weight)
        return normed

    def _root(self, x: Array) -> Array:
        """Return the root of the mean square of rows, ``[..., 1]``."""
        root: Array = np.sqrt((x * x).mean(axis=-1, keepdims=True) + self._dtype.type(self._decoder.norm_epsilon))
        return root

    def _vector(self, name: str) -> Array:
        (piece,) = self._matrices.pieces(name)
        vector: Array = piece[0].astype(self._dtype)
        if self._norm_offset and name.endswith("norm.weight") and not name.endswith("ssm_norm.weight"):
            vector = vector + self._dtype.type(self._norm_offset)
        return vector

    def _times(self, x: Array, name: str) -> Array:
        """Return the product with a matrix, and its bias if it has one."""
        product = self._product(x, f"{name}.weight")
        return product + self._vector(f"{name}.bias") if f"{name}.bias" in self._tensors else product

    def _rotate(self, x: Array, cos: Array, sin: Array) -> Array:
        """Rotate the first elements of ``x [..., rows, heads, head_dim]``, pairs of neighbours or of halves."""
        half = cos.shape[-1]
        if self._has_halves:
            first, second = slice(half), slice(half, 2 * half)
        else:
            first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
        rotated = x.copy()
        rotated[..., first] = x[..., first] * cos[:, None] - x[..., second] * sin[:, None]
        rotated[..., second] = x[..., first] * sin[:, None] + x[..., second] * cos[:, None]
        return rotated

    def _qk_normed(self, x: Array, layer: int, kind: str) -> Array:
        """Return the norm of queries or keys ``[..., rows, heads, head_dim]``, of heads or of the rows of all heads."""
        how, weight = self._decoder.attention_of(layer).qk_norm, f"blk.{layer}.attn_{kind}_norm.weight"
        if how == "none":
            return x
        if how == "head":
            return self._rms_normed(x, weight)
        return self._rms_normed(x.reshape(*x.shape[:-2], -1), weight).reshape(x.shape)

    def _heads_of(self, x: Array, layer: int, tables: Tables) -> tuple[Array, Array, Array]:
        """Return queries and keys, normed and rotated, and values, ``[..., rows, heads, head_dim]``."""
        attention = self._decoder.attention_of(layer)

        def heads_of(kind: str, heads: int) -> Array:
            rows: Array = self._times(x, f"blk.{layer}.attn_{kind}").reshape(*x.shape[:-1], heads, -1)
            return rows

        q = heads_of("q", attention.num_heads)[..., : attention.head_dim]
        if attention.kv_from is not None:
            k, v = self._kv[attention.kv_from]
        else:
            k = heads_of("k", attention.num_kv_heads)
            v = k if attention.values_are_keys else heads_of("v", attention.num_kv_heads)
        steps: list[Callable[[Array, str], Array]] = [lambda rows, kind: self._qk_normed(rows, layer, kind)]
        if attention.clip:
            steps.append(lambda rows, _: np.clip(rows, -attention.clip, attention.clip))
            v = np.clip(v, -attention.clip, attention.clip)
        if attention.norms_values:
            v = v / self._root(v)
        if attention.rope is not None:
            cos, sin = tables[attention.rope]
            steps.append(lambda rows, _: self._rotate(rows, cos, sin))
        if attention.norm_after_rope:
            steps.reverse()
        for step in steps:
            q = step(q, "q")
            k = k if attention.kv_from is not None else step(k, "k")
        if layer in self._kept:
            self._kv[layer] = k, v
        return self._grown(q, attention), k, v

    def _grown(self, q: Array, attention: Attention) -> Array:
        """Return queries ``[..., rows, heads, head_dim]`` times what grows with their positions, if anything does."""
        if attention.query_scaling is None:
            return q
        growth = query_growth(attention.query_scaling, range(q.shape[-3])).astype(self._dtype)
        grown: Array = q * growth[:, None, None]
        return grown

    def _weights(self, scores: Array, attention: Attention, sinks: Array | None) -> Array:
        """Return the softmax of products of queries and keys ``[..., heads, rows, rows]`` over what a row sees."""
        scores = self._capped(scores * self._dtype.type(attention.scale), attention.softcap)
        return attention_weights(scores, attention.window, sinks)

    def _sinks(self, layer: int) -> Array | None:
        name = f"blk.{layer}.attn_sinks.weight"
        return self._vector(name) if name in self._tensors else None

    def _mixed(self, x: Array, layer: int, tables: Tables) -> Array:
        kind = self._decoder.layers[layer]
        if kind.short_conv is not None:
            return self._short_conv(x, layer)
        if kind.gated_delta is not None:
            return self._gated_delta(x, layer, kind.gated_delta)
        made = [] if kind.attention is None else [self._attention(x, layer, tables)]
        if kind.state_space is not None:
            made.append(self._state_space(x, layer, kind.state_space))
        return sum(made[1:], made[0])

    def _short_conv(self, x: Array, layer: int) -> Array:
        name = f"blk.{layer}.shortconv"
        before, behind, rows = np.split(self._times(x, f"{name}.in_proj"), 3, axis=-1)
        return self._times(behind * self._convolved(before * rows, f"{name}.conv"), f"{name}.out_proj")

    def _gated_delta(self, x: Array, layer: int, delta: GatedDelta) -> Array:
        """Compute row after row; see ``GatedDelta``."""
        name, keys = f"blk.{layer}", delta.key_heads * delta.key_dim
        mixed = silu(self._convolved(self._times(x, f"{name}.attn_qkv"), f"{name}.ssm_conv1d"))
        q, k, v = (part.reshape(*x.shape[:2], -1, size) for part, size in zip(
            np.split(mixed, [keys, 2 * keys], axis=-1), (delta.key_dim, delta.key_dim, delta.value_dim), strict=True
        ))  # fmt: skip
        heads = np.arange(delta.value_heads)
        of = heads % delta.key_heads if delta.is_tiled else heads // (delta.value_heads // delta.key_heads)
        q, k = (self._unit(part, delta.epsilon)[:, :, of] for part in (q, k))
        rates = self._decays(f"{name}.ssm_a.weight") * softplus(
            self._times(x, f"{name}.ssm_alpha") + self._vector(f"{name}.ssm_dt.bias")
        )
        decays, shares = np.exp(rates), sigmoid(self._times(x, f"{name}.ssm_beta"))
        state = np.zeros((len(x), delta.value_heads, delta.key_dim, delta.value_dim), self._dtype)
        found = np.empty((*x.shape[:2], delta.value_heads, delta.value_dim), self._dtype)
        for row in range(x.shape[1]):
            state *= decays[:, row, :, None, None]
            told = np.einsum("fhkv,fhk->fhv", state, k[:, row])
            change = shares[:, row, :, None] * (v[:, row] - told)
            state += k[:, row, :, :, None] * change[:, :, None]
            found[:, row] = np.einsum("fhkv,fhk->fhv", state, q[:, row])
        found = self._rms_normed(found * self._dtype.type(delta.key_dim**-0.5), f"{name}.ssm_norm.weight")
        gates = silu(self._times(x, f"{name}.attn_gate"))
        return self._times(found.reshape(gates.shape) * gates, f"{name}.ssm_out")

    def _state_space(self, x: Array, layer: int, space: StateSpace) -> Array:
        """Compute row after row; see ``StateSpace``."""
        name, states = f"blk.{layer}", space.groups * space.state_size
        parts = self._times(x, f"{name}.ssm_in")
        gates, mixed, times = np.split(parts, [space.size, space.size + space.conv_size], axis=-1)
        mixed = silu(self._convolved(mixed, f"{name}.ssm_conv1d"))
        u, b, c = np.split(mixed, [space.size, space.size + states], axis=-1)
        u = u.reshape(*x.shape[:2], space.heads, space.head_dim)
        of = np.arange(space.heads) // (space.heads // space.groups)
        b, c = (part.reshape(*x.shape[:2], space.groups, space.state_size)[:, :, of] for part in (b, c))
        steps = softplus(times + self._vector(f"{name}.ssm_dt.bias"))
        decays = np.exp(self._decays(f"{name}.ssm_a.weight") * steps)
        state = np.zeros((len(x), space.heads, space.head_dim, space.state_size), self._dtype)
        found = np.empty_like(u)
        for row in range(x.shape[1]):
            state *= decays[:, row, :, None, None]
            state += (steps[:, row, :, None] * u[:, row])[..., None] * b[:, row, :, None]
            found[:, row] = np.einsum("fhps,fhs->fhp", state, c[:, row])
        found += self._vector(f"{name}.ssm_d.weight")[:, None] * u
        steps_of_output: list[Callable[[Array], Array]] = [
            lambda rows: rows * silu(gates), lambda rows: self._group_normed(rows, space, f"{name}.ssm_norm.weight")
        ]  # fmt: skip
        if space.norm == "before":
            steps_of_output.reverse()
        made = found.reshape(gates.shape)
        for step in steps_of_output:
            made = step(made)
        return self._times(made, f"{name}.ssm_out")

    def _group_normed(self, x: Array, space: StateSpace, weight: str) -> Array:
        """Return the norm of ``x [..., features]`` over each group of heads, if the state space has one."""
        if space.norm == "none":
            return x
        groups = x.reshape(*x.shape[:-1], space.groups, -1)
        scale = np.sqrt(np.square(groups).mean(axis=-1, keepdims=True) + self._dtype.type(self._decoder.norm_epsilon))
        normed: Array = (groups / scale).reshape(x.shape) * self._vector(weight)
        return normed

    def _unit(self, x: Array, epsilon: float) -> Array:
        """Return rows of length 1."""
        unit: Array = x / np.sqrt(np.square(x).sum(axis=-1, keepdims=True) + self._dtype.type(epsilon))
        return unit

    def _decays(self, name: str) -> Array:
        """Return the rates of decay, below 0, one for every head."""
        stored = self._vector(name)
        return -np.exp(stored) if self._source.has_log_decays else stored

    def _convolved(self, x: Array, name: str) -> Array:
        """Return ``x [..., rows, features]`` with every feature convolved over the rows up to each, and the bias."""
        found = self._tapped(x, name)
        return found + self._vector(f"{name}.bias") if f"{name}.bias" in self._tensors else found

    def _tapped(self, x: Array, name: str) -> Array:
        """Return the same without the bias."""
        weights = np.concatenate([rows.astype(self._dtype) for rows in self._matrices.pieces(f"{name}.weight")])
        taps, rows = weights.shape[1], x.shape[-2]
        padded = np.concatenate([np.zeros_like(x[..., :1, :]).repeat(taps - 1, axis=-2), x], axis=-2)
        found: Array = sum(padded[..., tap : tap + rows, :] * weights[:, tap] for tap in range(taps))
        return found

    def _attention(self, x: Array, layer: int, tables: Tables) -> Array:
        attention = self._decoder.attention_of(layer)
        q, k, v = self._heads_of(x, layer, tables)
        sinks = self._sinks(layer)
        group = attention.num_heads // attention.num_kv_heads
        attended = np.empty_like(q)
        # The heads of one kv head at a time: weights of all of them would be the largest array of the pass.
        for head in range(attention.num_kv_heads):
            own = slice(head * group, (head + 1) * group)
            # [forward, row, head, element] -> [forward, head, row, element]
            queries, keys, values = (
                part.transpose(0, 2, 1, 3) for part in (q[:, :, own], k[:, :, head, None], v[:, :, head, None])
            )
            scores = np.matmul(queries, keys.transpose(0, 1, 3, 2))
            of_group = None if sinks is None else sinks[own]
            found = np.matmul(self._weights(scores, attention, of_group), values)
            attended[:, :, own] = found.transpose(0, 2, 1, 3)
        if attention.has_gate:
            attended *= self._gates(x, layer)
        return self._times(attended.reshape(*x.shape[:2], -1), f"blk.{layer}.attn_output")

    def _gates(self, x: Array, layer: int) -> Array:
        """Return what attention is multiplied by, ``[..., rows, heads, head_dim]``."""
        attention = self._decoder.attention_of(layer)
        # They lie behind the queries of each head.
        both = self._times(x, f"blk.{layer}.attn_q").reshape(*x.shape[:-1], attention.num_heads, -1)
        return sigmoid(both[..., attention.head_dim :])

    def _mlp(self, x: Array, layer: int) -> Array:
        kind, name = self._decoder.layers[layer], f"blk.{layer}"
        if kind.experts is not None and kind.experts.has_own_norms:
            return self._beside(x, layer, kind)
        x = self.norm(x, f"{name}.ffn_norm.weight")
        made = [] if kind.experts is None else [self._experts(x, x, layer, kind.experts)]
        if kind.feed_forward is not None:
            made.append(self._fed(x, kind.feed_forward, name, ""))
        if kind.experts is not None and kind.experts.has_shared_gate:
            gates = (x * self._vector(f"{name}.ffn_gate_inp_shexp.weight")).sum(axis=-1, keepdims=True)
            made[1] = made[1] * sigmoid(gates)
        return sum(made[1:], made[0])

    def _beside(self, x: Array, layer: int, kind: Layer) -> Array:
        """Return the sum of a feed-forward and of experts that have norms of their own."""
        name, inner, experts = f"blk.{layer}", kind.feed_forward, kind.experts
        assert inner is not None, layer
        assert experts is not None, layer
        fed = self._fed(self.norm(x, f"{name}.ffn_norm.weight"), inner, name, "")
        routed = self._scaled(self._rms_normed(x, f"{name}.ffn_gate_inp.scale"), self._decoder.hidden_size**-0.5)
        made = self._experts(self.norm(x, f"{name}.pre_ffw_norm_2.weight"), routed, layer, experts)
        return self.norm(fed, f"{name}.post_ffw_norm_1.weight") + self.norm(made, f"{name}.post_ffw_norm_2.weight")

    def _fed(self, x: Array, inner: FeedForward, layer: str, suffix: str) -> Array:
        """Return what a feed-forward makes of rows; ``suffix``: of its matrices' names."""
        activation = ACTIVATIONS[inner.activation]
        up = self._times(x, f"{layer}.ffn_up{suffix}")
        if inner.is_gated:
            gate = self._times(x, f"{layer}.ffn_gate{suffix}")
            if inner.limit:
                gate, up = np.minimum(gate, inner.limit), np.clip(up, -inner.limit, inner.limit)
            hidden = activation(gate) if inner.slope == 1.0 else gate * sigmoid(gate * inner.slope)
            hidden *= up + inner.up_offset if inner.up_offset else up
        else:
            hidden = activation(up)
        return self._times(hidden, f"{layer}.ffn_down{suffix}")

    def _experts(self, x: Array, routed: Array, layer: int, experts: Experts) -> Array:
        """Return the weighted sum of the experts of ``x``, in the order of their numbers, chosen by ``routed``."""
        name = f"blk.{layer}"
        weights = expert_weights(
            self._routed(routed, f"{name}.ffn_gate_inp"),
            experts,
            self._vector(f"{name}.exp_probs_b.bias") if experts.has_choice_bias else None,
        )
        if self._on_routing is not None:
            self._on_routing(layer, weights[0] != 0)
        if experts.has_scales:
            weights = weights * self._vector(f"{name}.ffn_down_exps.scale")
        x = self._times(x, f"{name}.ffn_latent_down") if experts.latent else x
        found = np.zeros_like(x)
        for number in range(experts.count):
            # Rows that one of the forwards has chosen: all forwards stay side by side.
            rows = np.flatnonzero((weights[..., number] != 0).any(axis=0))
            if len(rows):
                made = self._fed(x[:, rows], experts.each, name, f".{number}")
                found[:, rows] += weights[:, rows, number, None] * made
        return self._times(found, f"{name}.ffn_latent_up") if experts.latent else found

    def _routed(self, x: Array, name: str) -> Array:
        """Return the scores of a router, whose input is never rounded."""
        router = np.concatenate([rows.astype(self._dtype) for rows in self._matrices.pieces(f"{name}.weight")])
        scores: Array = x @ router.T
        return scores + self._vector(f"{name}.bias") if f"{name}.bias" in self._tensors else scores


def sigmoid(x: Array) -> Array:
    """Return ``1 / (1 + exp(-x))``, without a warning where the exponential is infinite."""
    found = -x
    with np.errstate(over="ignore"):
        np.exp(found, out=found)
    found += 1
    return np.reciprocal(found, out=found)


def softplus(x: Array) -> Array:
    """Return ``log(1 + exp(x))``."""
    found: Array = np.logaddexp(x, x.dtype.type(0))
    return found


def silu(x: Array) -> Array:
    """Return ``x sigmoid(x)``; ``x`` is overwritten."""
    x *= sigmoid(x)
    return x


def gelu(x: Array) -> Array:
    """Return GELU in its tanh form."""
    found: Array = 0.5 * x * (1 + np.tanh(x.dtype.type(GELU_SLOPE) * (x + x.dtype.type(GELU_CUBE) * x * x * x)))
    return found.astype(x.dtype)


def relu2(x: Array) -> Array:
    """Return the square of what is above 0."""
    found: Array = np.square(np.maximum(x, 0))
    return found


ACTIVATIONS: Final[Mapping[str, Callable[[Array], Array]]] = {"silu": silu, "gelu": gelu, "relu2": relu2}
"""Name in a description -> function."""


def expert_weights(scores: Array, experts: Experts, choice_bias: Array | None = None) -> Array:
    """Return the weights of all experts ``[..., experts]``, 0 of those that a row has not chosen."""
    likely = scores
    if experts.gating == "softmax":
        likely = np.exp(scores - scores.max(axis=-1, keepdims=True))
        likely /= likely.sum(axis=-1, keepdims=True)
    elif experts.gating == "sigmoid":
        likely = sigmoid(scores)
    ranked = likely if choice_bias is None else likely + choice_bias
    if experts.groups > 1:
        ranked = np.where(_in_chosen_groups(ranked, experts), ranked, -np.inf)
    # Of equal ones the first.
    order = np.argsort(-ranked, axis=-1, kind="stable")[..., : experts.chosen]
    chosen = np.take_along_axis(likely, order, axis=-1)
    if experts.gating == "chosen":
        chosen = np.exp(chosen - chosen.max(axis=-1, keepdims=True))
        chosen /= chosen.sum(axis=-1, keepdims=True)
    if experts.is_normalised:
        chosen = chosen / (chosen.sum(axis=-1, keepdims=True) + chosen.dtype.type(experts.epsilon))
    weights = np.zeros_like(likely)
    np.put_along_axis(weights, order, chosen * chosen.dtype.type(experts.scale), axis=-1)
    return weights


def _in_chosen_groups(ranked: Array, experts: Experts) -> Array:
    """Return whether experts ``[..., experts]`` are in the groups whose two best scores sum highest."""
    groups = ranked.reshape(*ranked.shape[:-1], experts.groups, -1)
    best = np.sort(groups, axis=-1)[..., -2:].sum(axis=-1)
    order = np.argsort(-best, axis=-1, kind="stable")[..., : experts.chosen_groups]
    chosen = np.zeros(best.shape, bool)
    np.put_along_axis(chosen, order, values=True, axis=-1)
    return chosen.repeat(groups.shape[-1], axis=-1)


def attention_weights(scores: Array, window: int, sinks: Array | None = None) -> Array:
    """Return the softmax of scores ``[..., heads, rows, rows]`` over a window (0: all); a head's sink takes a share."""
    rows = scores.shape[-1]
    seen = np.tri(rows, dtype=bool)
    if window:
        seen &= ~np.tri(rows, k=-window, dtype=bool)
    scores = np.where(seen, scores, -np.inf)
    most = scores.max(axis=-1, keepdims=True)
    if sinks is not None:
        most = np.maximum(most, sinks[:, None, None])
    weights: Array = np.exp(scores - most)
    total = weights.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks[:, None, None] - most)
    weights /= total
    return weights
