"""What Gemma 4 computes: one plain numpy pass in float64 over the tensors of a folder.

Written from transformers' modelling file alone; nothing here knows edge-rt. Matrices are [outputs, inputs].
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

Array = np.ndarray


class Gemma4Pass:
    """A pass over one text."""

    def __init__(self, config: Mapping[str, Any], tensors: Mapping[str, Array]) -> None:
        self.config, self.tensors = config, tensors
        self.kept: dict[str, tuple[Array, Array]] = {}

    def logits(self, tokens: Array) -> Array:
        """Return logits [n, vocabulary] of token ids [n]."""
        config, hidden = self.config, self.config["hidden_size"]
        embedding = self.tensors["model.embed_tokens.weight"]
        x = embedding[tokens] * math.sqrt(hidden)
        further = self.further(x, tokens) if config["hidden_size_per_layer_input"] else None
        for layer in range(config["num_hidden_layers"]):
            x = self.layer(layer, x, None if further is None else further[:, layer])
        logits = self.normed(x, "model.norm") @ embedding.T
        cap = config["final_logit_softcapping"]
        return logits if cap is None else cap * np.tanh(logits / cap)

    def further(self, x: Array, tokens: Array) -> Array:
        """Return the embeddings of each layer, [n, layers, features]."""
        size = self.config["hidden_size_per_layer_input"]
        table = self.tensors["model.embed_tokens_per_layer.weight"][tokens].reshape(len(x), -1, size) * math.sqrt(size)
        made = self.linear(x, "model.per_layer_model_projection") / math.sqrt(self.config["hidden_size"])
        return (self.normed(made.reshape(table.shape), "model.per_layer_projection_norm") + table) / math.sqrt(2)

    def layer(self, layer: int, x: Array, further: Array | None) -> Array:
        """Return the stream behind a layer."""
        name = f"model.layers.{layer}."
        mixed = self.attention(layer, self.normed(x, name + "input_layernorm"))
        x = x + self.normed(mixed, name + "post_attention_layernorm")
        fed = self.mlp(self.normed(x, name + "pre_feedforward_layernorm"), name + "mlp.")
        if self.config["enable_moe_block"]:
            fed = self.normed(fed, name + "post_feedforward_layernorm_1")
            made = self.experts(x, self.normed(x, name + "pre_feedforward_layernorm_2"), name)
            fed = fed + self.normed(made, name + "post_feedforward_layernorm_2")
        x = x + self.normed(fed, name + "post_feedforward_layernorm")
        if further is not None:
            gated = gelu(self.linear(x, name + "per_layer_input_gate")) * further
            made = self.linear(gated, name + "per_layer_projection")
            x = x + self.normed(made, name + "post_per_layer_input_norm")
        return x * self.tensors[name + "layer_scalar"]

    def attention(self, layer: int, x: Array) -> Array:
        """Return what attention makes of rows [n, hidden]."""
        name, kind, n = f"model.layers.{layer}.self_attn.", self.config["layer_types"][layer], len(x)
        size = self.config["per_layer_config"].get(str(layer), {}).get("head_dim", self.config["head_dim"])
        q = self.rotated(self.normed(self.heads(x, name + "q_proj", size), name + "q_norm"), kind)
        if name + "k_proj.weight" in self.tensors:
            k = self.heads(x, name + "k_proj", size)
            v = self.heads(x, name + "v_proj", size) if name + "v_proj.weight" in self.tensors else k
            k = self.rotated(self.normed(k, name + "k_norm"), kind)
            self.kept[kind] = k, v / self.root(v)
        k, v = (np.repeat(rows, len(q) // len(rows), axis=0) for rows in self.kept[kind])
        back = np.arange(n)[:, None] - np.arange(n)
        seen = (back >= 0) & (back < (self.config["sliding_window"] if kind == "sliding_attention" else math.inf))
        mixed = softmax(np.where(seen, q @ k.swapaxes(1, 2), -np.inf)) @ v
        return self.linear(mixed.swapaxes(0, 1).reshape(n, -1), name + "o_proj")

    def rotated(self, x: Array, kind: str) -> Array:
        """Return heads [heads, n, size] rotated; of a share of the pairs where a layer sees all."""
        rope, size = self.config["rope_parameters"][kind], x.shape[-1]
        turning = int(size // 2 * rope.get("partial_rotary_factor", 1.0))
        rates = np.where(np.arange(size // 2) < turning, rope["rope_theta"] ** (-np.arange(0, size, 2) / size), 0.0)
        angles = np.arange(x.shape[1])[:, None] * rates
        a, b = x[..., : size // 2], x[..., size // 2 :]
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    def mlp(self, x: Array, name: str) -> Array:
        """Return what a feed-forward makes of rows."""
        gate, up = self.linear(x, name + "gate_proj"), self.linear(x, name + "up_proj")
        return self.linear(gelu(gate) * up, name + "down_proj")

    def experts(self, x: Array, normed: Array, name: str) -> Array:
        """Return the weighted sum of every row's experts, which a router chooses that norms rows by itself."""
        made, routed = np.zeros_like(x), x / self.root(x) * self.tensors[name + "router.scale"]
        likely = softmax(self.linear(routed / math.sqrt(x.shape[-1]), name + "router.proj"))
        for row, shares in enumerate(likely):
            chosen = np.argsort(-shares)[: self.config["top_k_experts"]]
            for expert in chosen:
                weight = shares[expert] / shares[chosen].sum() * self.tensors[name + "router.per_expert_scale"][expert]
                gate, up = np.split(self.tensors[name + "experts.gate_up_proj"][expert] @ normed[row], 2)
                made[row] += weight * (self.tensors[name + "experts.down_proj"][expert] @ (gelu(gate) * up))
        return made

    def heads(self, x: Array, name: str, size: int) -> Array:
        """Return products as [heads, n, size]."""
        return self.linear(x, name).reshape(len(x), -1, size).swapaxes(0, 1)

    def linear(self, x: Array, name: str) -> Array:
        """Return products with a matrix."""
        return x @ self.tensors[name + ".weight"].T

    def normed(self, x: Array, name: str) -> Array:
        """Return rows behind their norm."""
        return x / self.root(x) * self.tensors[name + ".weight"]

    def root(self, x: Array) -> Array:
        """Return the root of the mean square of rows."""
        return np.sqrt((x**2).mean(axis=-1, keepdims=True) + self.config["rms_norm_eps"])


def gelu(x: Array) -> Array:
    """Return GELU in its tanh form."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def softmax(scores: Array) -> Array:
    """Return the softmax over the last axis."""
    likely = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return likely / likely.sum(axis=-1, keepdims=True)
