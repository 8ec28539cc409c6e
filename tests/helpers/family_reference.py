"""What each family computes: one plain numpy pass in float64 over the tensors of a folder, driven by a few facts.

Written from transformers' modelling files alone, and compared with its logits; nothing here knows edge-rt. Matrices are
[outputs, inputs]; a pass takes token ids [n] and returns logits [n, vocabulary].
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tests.helpers.gemma4_reference import Gemma4Pass

Array = np.ndarray


@dataclass(frozen=True)
class Facts:
    """What differs between families beyond the numbers of a configuration.

    Attributes:
        input_norms: norms before the sub-layers ("pre"), behind them ("post"), "both", or one before both ("parallel").
        layer_norm: LayerNorm (with a bias where the folder has one) instead of RMSNorm.
        norm_offset: what is added to the weights of norms.
        qk_norm: norm of q and k, "head", "row" (over all heads) or "each" (a weight for every head); None: none.
        qk_norm_after_rope: whether it follows the rotation.
        adjacent: rope turns adjacent dimensions instead of those half a head apart.
        gelu: GELU (tanh) instead of SiLU.
        router: what makes weights of the scores of experts, "softmax" or "sigmoid".
        rope_on: which layers rotate: "all", "sliding" layers only, or those of "no_rope_layers" that are not 0.
    """

    input_norms: str = "pre"
    layer_norm: bool = False
    norm_offset: float = 0.0
    qk_norm: str | None = None
    qk_norm_after_rope: bool = False
    adjacent: bool = False
    gelu: bool = False
    router: str = "softmax"
    rope_on: str = "all"


LLAMA = Facts()
GEMMA = Facts(input_norms="both", norm_offset=1.0, gelu=True)
FACTS = {
    "llama": LLAMA, "mistral": LLAMA, "ministral3": LLAMA, "qwen2": LLAMA, "phi3": LLAMA, "granite": LLAMA,
    "qwen3": Facts(qk_norm="head"),
    "gemma2": GEMMA,
    "gemma3_text": replace(GEMMA, qk_norm="head"),
    "smollm3": Facts(rope_on="no_rope_layers"),
    "olmo2": Facts(input_norms="post", qk_norm="row"),
    "olmo3": Facts(input_norms="post", qk_norm="row"),
    "exaone4": Facts(input_norms="post", qk_norm="head"),
    "ernie4_5": Facts(adjacent=True),
    "hunyuan_v1_dense": Facts(qk_norm="head", qk_norm_after_rope=True),
    "stablelm": Facts(layer_norm=True),
    "lfm2": Facts(qk_norm="head"),
    "lfm2_moe": Facts(qk_norm="head", router="sigmoid"),
    "qwen3_moe": Facts(qk_norm="head"),
    "olmoe": Facts(qk_norm="row"),
    "granitemoe": LLAMA, "granitemoehybrid": LLAMA, "gpt_oss": LLAMA,
    "falcon_h1": LLAMA, "nemotron_h": Facts(router="sigmoid"),
    "qwen3_5_text": Facts(qk_norm="head", norm_offset=1.0),
    "qwen3_5_moe_text": Facts(qk_norm="head", norm_offset=1.0),
    "qwen3_next": Facts(qk_norm="head", norm_offset=1.0),
    "cohere2": Facts(input_norms="parallel", layer_norm=True, adjacent=True, rope_on="sliding"),
}  # fmt: skip


def family_logits(config: Mapping[str, Any], tensors: Mapping[str, Array], tokens: Array) -> Array:
    """Return the logits of all positions, float64.

    Args:
        config: ``config.json`` in the keys of transformers 5; of a model of text and images, its ``text_config``.
        tensors: float arrays by the names of a model of text alone.
        tokens: int ids.
    """
    if config["model_type"] == "gemma4_text":
        return Gemma4Pass(config, {name: one.astype(np.float64) for name, one in tensors.items()}).logits(tokens)
    return _Pass(config, tensors).logits(tokens)


class _Pass:
    def __init__(self, config: Mapping[str, Any], tensors: Mapping[str, Array]) -> None:
        self.config = config
        self.tensors = {name: values.astype(np.float64) for name, values in tensors.items()}
        facts = FACTS[config["model_type"]]
        if config["model_type"] == "exaone4" and config.get("sliding_window") is not None:
            facts = replace(facts, rope_on="sliding")
        if config["model_type"] == "stablelm":
            facts = replace(
                facts,
                qk_norm="each" if config["qk_layernorm"] else None,
                input_norms="parallel" if config["use_parallel_residual"] else "pre",
            )
        self.facts = facts
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.size = config.get("head_dim") or config["hidden_size"] // self.heads

    def logits(self, tokens: Array) -> Array:
        config = self.config
        embedding = self.first_of("model.embed_tokens.weight", "backbone.embeddings.weight")
        x = embedding[tokens] * config.get("embedding_multiplier", 1.0)
        if config["model_type"].startswith("gemma"):
            x = x * np.sqrt(config["hidden_size"])
        for layer in range(len(config.get("layers_block_type") or range(config["num_hidden_layers"]))):
            x = self.layer(layer, x)
        names = ("model.embedding_norm", "model.final_layernorm", "backbone.norm_f", "model.norm")
        x = self.norm(next(name for name in names if name + ".weight" in self.tensors), x)
        logits = x @ self.tensors.get("lm_head.weight", embedding).T
        logits = logits / config.get("logits_scaling", 1.0) * config.get("logit_scale", 1.0)
        logits = logits * config.get("lm_head_multiplier", 1.0)
        cap = config.get("final_logit_softcapping")
        return logits if cap is None else cap * np.tanh(logits / cap)

    def first_of(self, *names: str) -> Array:
        return next(self.tensors[name] for name in names if name in self.tensors)

    def layer(self, layer: int, x: Array) -> Array:
        name, kind = f"model.layers.{layer}.", self.facts.input_norms
        if self.config["model_type"] == "falcon_h1":
            return self.falcon_layer(layer, name, x)
        if self.config["model_type"] == "nemotron_h":
            return x + self.nemotron_block(layer, self.norm(f"backbone.layers.{layer}.norm", x))
        if name + "operator_norm.weight" in self.tensors:
            return self.lfm2_layer(layer, name, x)
        scale = self.config.get("residual_multiplier", 1.0)
        if kind == "parallel":
            h = self.norm(name + "input_layernorm", x)
            return x + self.attention(layer, h) + self.mlp(name, h)
        linear = self.state_space if name + "mamba.D" in self.tensors else self.delta
        mixer = linear if self.kind_of(layer) == "linear_attention" else self.attention
        a = mixer(layer, x if kind == "post" else self.norm(name + "input_layernorm", x))
        x = x + scale * (a if kind == "pre" else self.norm(name + "post_attention_layernorm", a))
        before = {"pre": "post_attention_layernorm", "both": "pre_feedforward_layernorm"}
        m = self.mlp(name, x if kind == "post" else self.norm(name + before[kind], x))
        return x + scale * (m if kind == "pre" else self.norm(name + "post_feedforward_layernorm", m))

    def falcon_layer(self, layer: int, name: str, x: Array) -> Array:
        config = self.config
        h = self.norm(name + "input_layernorm", x)
        a = self.attention(layer, h * config["attention_in_multiplier"]) * config["attention_out_multiplier"]
        x = x + a + self.state_space(layer, h * config["ssm_in_multiplier"]) * config["ssm_out_multiplier"]
        h, (gated, made) = self.norm(name + "pre_ff_layernorm", x), config["mlp_multipliers"]
        gate, up = (self.linear(f"{name}feed_forward.{part}_proj", h) for part in ("gate", "up"))
        gate = gate * gated
        return x + made * self.linear(name + "feed_forward.down_proj", gate / (1 + np.exp(-gate)) * up)

    def nemotron_block(self, layer: int, h: Array) -> Array:
        name, kind = f"backbone.layers.{layer}.mixer.", self.config["layers_block_type"][layer]
        if kind == "linear_attention":
            return self.mamba(name, h, *(self.config[key] for key in
                              ("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size")))  # fmt: skip
        if kind == "full_attention":
            return self.attention(layer, h)
        if kind == "mlp":
            return self.relu2(name, h)
        return self.grouped_experts(name, h) + self.relu2(name + "shared_experts.", h)

    def relu2(self, name: str, x: Array) -> Array:
        return self.linear(name + "down_proj", np.maximum(self.linear(name + "up_proj", x), 0) ** 2)

    def grouped_experts(self, name: str, x: Array) -> Array:
        """Return the weighted sum of experts, of the best groups alone, one row after the other."""
        config = self.config
        latent = self.linear(name + "fc1_latent_proj", x) if config["moe_latent_size"] else x
        y, size = np.zeros_like(latent), config["n_routed_experts"] // config["n_group"]
        for row, values in enumerate(1 / (1 + np.exp(-self.linear(name + "gate", x)))):
            ranks = values + self.tensors[name + "gate.e_score_correction_bias"]
            best = [np.sort(ranks[first : first + size])[-2:].sum() for first in range(0, len(ranks), size)]
            groups = np.argsort(best)[-config["topk_group"] :]
            allowed = [expert for group in groups for expert in range(group * size, group * size + size)]
            chosen = sorted(allowed, key=lambda expert: -ranks[expert])[: config["num_experts_per_tok"]]
            total = values[chosen].sum() if config["norm_topk_prob"] else 1.0
            for expert in chosen:
                made = self.relu2(f"{name}experts.{expert}.", latent[row : row + 1])[0]
                y[row] += values[expert] / total * config["routed_scaling_factor"] * made
        return self.linear(name + "fc2_latent_proj", y) if config["moe_latent_size"] else y

    def delta(self, layer: int, x: Array) -> Array:
        """Return what a gated delta rule makes of rows ``[n, hidden]``, head by head and row by row."""
        name, config = f"model.layers.{layer}.linear_attn.", self.config
        groups, heads, dk, dv = (
            config[f"linear_{key}"] for key in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")
        )
        if name + "in_proj_qkvz.weight" in self.tensors:
            wide = heads // groups * dv
            of_heads = self.linear(name + "in_proj_qkvz", x).reshape(len(x), groups, -1)
            q, k, v, gates = (part.reshape(len(x), -1)
                              for part in np.split(of_heads, [dk, 2 * dk, 2 * dk + wide], axis=2))  # fmt: skip
            mixed = np.concatenate([q, k, v], axis=1)
            pairs = np.split(self.linear(name + "in_proj_ba", x).reshape(len(x), groups, -1), 2, axis=2)
            b, a = (part.reshape(len(x), heads) for part in pairs)
        else:
            mixed = self.linear(name + "in_proj_qkv", x)
            gates, a, b = (self.linear(f"{name}in_proj_{part}", x) for part in "zab")
        mixed = self.conv(name + "conv1d", mixed)
        mixed = mixed / (1 + np.exp(-mixed))
        y = np.zeros((len(x), heads, dv))
        for head in range(heads):
            of = head // (heads // groups) * dk
            q, k = (mixed[:, at + of : at + of + dk] for at in (0, groups * dk))
            v = mixed[:, 2 * groups * dk + head * dv :][:, :dv]
            rate = -np.exp(self.tensors[name + "A_log"][head])
            state = np.zeros((dk, dv))
            for row in range(len(x)):
                key = k[row] / np.sqrt((k[row] ** 2).sum() + 1e-6)
                query = q[row] / np.sqrt((q[row] ** 2).sum() + 1e-6) / math.sqrt(dk)
                state = state * np.exp(rate * np.log1p(np.exp(a[row, head] + self.tensors[name + "dt_bias"][head])))
                state = state + np.outer(key, (v[row] - key @ state) / (1 + np.exp(-b[row, head])))
                y[row, head] = query @ state
        y = y / np.sqrt((y**2).mean(axis=-1, keepdims=True) + config["rms_norm_eps"])
        y = (y * self.tensors[name + "norm.weight"]).reshape(gates.shape) * gates / (1 + np.exp(-gates))
        return self.linear(name + "out_proj", y)

    def state_space(self, layer: int, x: Array) -> Array:
        """Return what Mamba-2 makes of rows ``[n, hidden]``, head by head and row by row."""
        sizes = (self.config[f"mamba_{key}"] for key in ("n_heads", "d_head", "n_groups", "d_state"))
        return self.mamba(f"model.layers.{layer}.mamba.", x, *sizes)

    def mamba(self, name: str, x: Array, heads: int, size: int, groups: int, states: int) -> Array:
        config, wide = self.config, heads * size
        parts = self.linear(name + "in_proj", x)
        if "ssm_multipliers" in config:
            counts = [wide, wide, groups * states, groups * states, heads]
            parts = parts * np.repeat(config["ssm_multipliers"], counts)
        z, mixed, times = np.split(parts, [wide, 2 * wide + 2 * groups * states], axis=1)
        mixed = self.conv(name + "conv1d", mixed)
        mixed = mixed / (1 + np.exp(-mixed))
        y = np.zeros((len(x), wide))
        for head in range(heads):
            own, at = slice(head * size, (head + 1) * size), wide + head // (heads // groups) * states
            rate, state = -np.exp(self.tensors[name + "A_log"][head]), np.zeros((size, states))
            for row in range(len(x)):
                step = np.log1p(np.exp(times[row, head] + self.tensors[name + "dt_bias"][head]))
                b, c = mixed[row, at : at + states], mixed[row, at + groups * states :][:states]
                state = state * np.exp(rate * step) + np.outer(step * mixed[row, own], b)
                y[row, own] = state @ c + self.tensors[name + "D"][head] * mixed[row, own]
        gate, norm = z / (1 + np.exp(-z)), self.tensors.get(name + "norm.weight")
        is_before = config.get("mamba_norm_before_gate", False)
        y = y if is_before else y * gate
        if norm is not None:
            y = y.reshape(len(x), groups, -1)
            epsilon = config.get("rms_norm_eps", config.get("layer_norm_epsilon"))
            y = y / np.sqrt((y**2).mean(axis=-1, keepdims=True) + epsilon)
            y = y.reshape(len(x), -1) * norm
        return self.linear(name + "out_proj", y * gate if is_before else y)

    def lfm2_layer(self, layer: int, name: str, x: Array) -> Array:
        h = self.norm(name + "operator_norm", x)
        x = x + (self.short_conv(name + "conv.", h) if self.kind_of(layer) == "conv" else self.attention(layer, h))
        h = self.norm(name + "ffn_norm", x)
        if name + "feed_forward.gate.weight" in self.tensors:
            return x + self.experts(name + "feed_forward.", h, ("w1", "w3", "w2"))
        return x + self.swiglu(name + "feed_forward.", h, ("w1", "w3", "w2"))

    def swiglu(self, name: str, x: Array, parts: tuple[str, str, str]) -> Array:
        gate, up = self.linear(name + parts[0], x), self.linear(name + parts[1], x)
        return self.linear(name + parts[2], gate / (1 + np.exp(-gate)) * up)

    def experts(self, name: str, x: Array, parts: tuple[str, str, str]) -> Array:
        """Return the weighted sum of the experts of every row, one row after the other."""
        config, y = self.config, np.zeros_like(x)
        scores = self.linear(name + "gate", x)
        likely = 1 / (1 + np.exp(-scores)) if self.facts.router == "sigmoid" else softmax(scores)
        ranked = likely + self.tensors.get(name + "expert_bias", 0.0)
        for row, (values, ranks) in enumerate(zip(likely, ranked, strict=True)):
            chosen = np.argsort(-ranks)[: config["num_experts_per_tok"]]
            total = values[chosen].sum() + (1e-6 if self.facts.router == "sigmoid" else 0.0)
            if not config.get("norm_topk_prob", config["model_type"] == "qwen3_5_moe_text"):
                total = 1.0
            for expert in chosen:
                weight = values[expert] / total * config.get("routed_scaling_factor", 1.0)
                y[row] += weight * self.swiglu(f"{name}experts.{expert}.", x[row : row + 1], parts)[0]
        return y

    def granite_experts(self, name: str, x: Array) -> Array:
        y = np.zeros_like(x)
        for row, scores in enumerate(self.linear(name + "router.layer", x)):
            chosen = np.argsort(-scores)[: self.config["num_experts_per_tok"]]
            for expert, weight in zip(chosen, softmax(scores[chosen]), strict=True):
                gate, up = np.split(self.tensors[name + "input_linear.weight"][expert] @ x[row], 2)
                hidden = gate / (1 + np.exp(-gate)) * up
                y[row] += weight * (self.tensors[name + "output_linear.weight"][expert] @ hidden)
        return y

    def short_conv(self, name: str, x: Array) -> Array:
        b, c, u = np.split(self.linear(name + "in_proj", x), 3, axis=1)
        return self.linear(name + "out_proj", c * self.conv(name + "conv", b * u))

    def conv(self, name: str, u: Array) -> Array:
        """Return ``u [n, features]`` convolved: the last of a feature's weights is that of a row itself."""
        weights = self.tensors[name + ".weight"][:, 0]
        y = np.zeros_like(u)
        for back, weight in enumerate(weights.T[::-1]):
            y[back:] += u[: len(u) - back] * weight
        return y + self.tensors.get(name + ".bias", 0.0)

    def kind_of(self, layer: int) -> str | None:
        kinds = self.config.get("layer_types")
        return None if kinds is None else kinds[layer]

    def attention(self, layer: int, x: Array) -> Array:
        name, config, n = f"model.layers.{layer}.self_attn.", self.config, len(x)
        if config["model_type"] == "nemotron_h":
            name = f"backbone.layers.{layer}.mixer."
        if name + "qkv_proj.weight" in self.tensors:
            rows = [self.heads * self.size, (self.heads + self.kv_heads) * self.size]
            q, k, v = np.split(self.linear(name + "qkv_proj", x), rows, axis=1)
        else:
            q, k, v = (self.linear(f"{name}{part}_proj", x) for part in "qkv")
        if self.facts.qk_norm == "row":
            q, k = self.norm(name + "q_norm", q), self.norm(name + "k_norm", k)
        if (clip := config.get("clip_qkv")) is not None:
            q, k, v = (np.clip(rows, -clip, clip) for rows in (q, k, v))
        gates = None
        if q.shape[1] == 2 * self.heads * self.size:
            q, gates = (rows.reshape(n, -1) for rows in np.split(q.reshape(n, self.heads, -1), 2, axis=-1))
        q, k, v = (rows.reshape(n, -1, self.size).swapaxes(0, 1) for rows in (q, k, v))  # [heads, n, size]
        for after in (False, True):
            if after == self.facts.qk_norm_after_rope and self.facts.qk_norm in ("head", "each"):
                q, k = self.head_norm(name, "q", q), self.head_norm(name, "k", k)
            if not after and self.rotates(layer):
                q, k = self.rope(layer, q), self.rope(layer, k)
        k = k * config.get("key_multiplier", 1.0)
        rope = config.get("rope_parameters", {})
        positions = np.arange(n)
        if rope.get("llama_4_scaling_beta"):
            steps = np.floor(positions / rope["original_max_position_embeddings"])
            q = q * (1 + rope["llama_4_scaling_beta"] * np.log(1 + steps))[:, None]
        k, v = (np.repeat(rows, self.heads // self.kv_heads, axis=0) for rows in (k, v))
        scores = q @ k.swapaxes(1, 2) * self.attention_scale()
        cap = config.get("attn_logit_softcapping") if config["model_type"] == "gemma2" else None
        if cap is not None:
            scores = cap * np.tanh(scores / cap)
        back = positions[:, None] - positions[None, :]
        seen = (back >= 0) & (back < self.window(layer))
        scores = np.where(seen, scores, -np.inf)
        if (sinks := self.tensors.get(name + "sinks")) is not None:
            scores = np.concatenate([scores, np.broadcast_to(sinks[:, None, None], (len(sinks), n, 1))], axis=-1)
        mixed = softmax(scores)[..., :n] @ v
        output = "o_proj" if name + "o_proj.weight" in self.tensors else "out_proj"
        mixed = mixed.swapaxes(0, 1).reshape(n, -1)
        return self.linear(name + output, mixed if gates is None else mixed / (1 + np.exp(-gates)))

    def gpt_oss_experts(self, name: str, x: Array) -> Array:
        limit, slope, y = self.config["swiglu_limit"], self.config["swiglu_alpha"], np.zeros_like(x)
        weights = {key: self.tensors[f"{name}experts.{key}"] for key in ("gate_up_proj", "down_proj")}
        biases = {key: self.tensors[f"{name}experts.{key}_bias"] for key in weights}
        for row, scores in enumerate(self.linear(name + "router", x)):
            chosen = np.argsort(-scores)[: self.config["num_experts_per_tok"]]
            for expert, weight in zip(chosen, softmax(scores[chosen]), strict=True):
                both = x[row] @ weights["gate_up_proj"][expert] + biases["gate_up_proj"][expert]
                gate, up = np.minimum(both[::2], limit), np.clip(both[1::2], -limit, limit)
                hidden = (up + 1) * gate / (1 + np.exp(-slope * gate))
                y[row] += weight * (hidden @ weights["down_proj"][expert] + biases["down_proj"][expert])
        return y

    def mlp(self, name: str, x: Array) -> Array:
        if name + "mlp.router.weight" in self.tensors:
            return self.gpt_oss_experts(name + "mlp.", x)
        if name + "mlp.gate.weight" in self.tensors:
            parts = ("gate_proj", "up_proj", "down_proj")
            y = self.experts(name + "mlp.", x, parts)
            if name + "mlp.shared_expert_gate.weight" in self.tensors:
                shared = self.swiglu(name + "mlp.shared_expert.", x, parts)
                y = y + shared / (1 + np.exp(-self.linear(name + "mlp.shared_expert_gate", x)))
            return y
        y = np.zeros_like(x)
        if name + "block_sparse_moe.router.layer.weight" in self.tensors:
            y = self.granite_experts(name + "block_sparse_moe.", x)
        if name + "shared_mlp.input_linear.weight" in self.tensors:
            gate, up = np.split(self.linear(name + "shared_mlp.input_linear", x), 2, axis=1)
            y = y + self.linear(name + "shared_mlp.output_linear", gate / (1 + np.exp(-gate)) * up)
        if self.config["model_type"] in ("granitemoe", "granitemoehybrid"):
            return y
        if name + "mlp.gate_up_proj.weight" in self.tensors:
            gate, up = np.split(self.linear(name + "mlp.gate_up_proj", x), 2, axis=1)
        else:
            gate, up = self.linear(name + "mlp.gate_proj", x), self.linear(name + "mlp.up_proj", x)
        if self.facts.gelu:
            gate = 0.5 * gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
        else:
            gate = gate / (1 + np.exp(-gate))
        return self.linear(name + "mlp.down_proj", gate * up)

    def linear(self, name: str, x: Array) -> Array:
        return x @ self.tensors[name + ".weight"].T + self.tensors.get(name + ".bias", 0.0)

    def norm(self, name: str, x: Array) -> Array:
        return self.normed(x, self.tensors[name + ".weight"]) + self.tensors.get(name + ".bias", 0.0)

    def normed(self, x: Array, weight: Array) -> Array:
        if self.facts.layer_norm:
            x = x - x.mean(axis=-1, keepdims=True)
        config = self.config
        epsilon = (
            config["layer_norm_eps"]
            if self.facts.layer_norm
            else config.get("rms_norm_eps", config.get("norm_eps", config.get("layer_norm_epsilon")))
        )
        return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + epsilon) * (weight + self.facts.norm_offset)

    def head_norm(self, name: str, which: str, x: Array) -> Array:
        if self.facts.qk_norm == "each":
            weights = [self.tensors[f"{name}{which}_layernorm.norms.{head}.weight"] for head in range(len(x))]
            return self.normed(x, np.stack(weights)[:, None])
        names = ({"q": "query", "k": "key"}[which] + "_layernorm", f"{which}_layernorm", f"{which}_norm")
        return self.normed(
            x, next(self.tensors[found] for one in names if (found := f"{name}{one}.weight") in self.tensors)
        )

    # --- what depends on the layer ----------------------------------------------------------------

    def is_sliding(self, layer: int) -> bool:
        if (kind := self.kind_of(layer)) is not None:
            return kind == "sliding_attention"
        return self.config.get("sliding_window") is not None

    def window(self, layer: int) -> float:
        return self.config["sliding_window"] if self.is_sliding(layer) else math.inf

    def rotates(self, layer: int) -> bool:
        if self.config["model_type"] == "nemotron_h":
            return False
        if self.config["model_type"] == "granitemoehybrid":
            return self.config["position_embedding_type"] == "rope"
        if self.facts.rope_on == "no_rope_layers":
            return bool(self.config["no_rope_layers"][layer])
        return self.facts.rope_on == "all" or self.is_sliding(layer)

    def attention_scale(self) -> float:
        if "attention_multiplier" in self.config:
            return self.config["attention_multiplier"]
        return self.config.get("query_pre_attn_scalar", self.size) ** -0.5

    def rope(self, layer: int, x: Array) -> Array:
        rope = self.config["rope_parameters"]
        if "full_attention" in rope:
            rope = rope["sliding_attention" if self.is_sliding(layer) else "full_attention"]
        frequencies, factor = rope_frequencies(rope, self.size, x.shape[1], self.config["max_position_embeddings"])
        angles = np.arange(x.shape[1])[:, None] * frequencies
        cos, sin = np.cos(angles) * factor, np.sin(angles) * factor
        rotated = 2 * len(frequencies)
        a, b = (slice(0, rotated, 2), slice(1, rotated, 2)) if self.facts.adjacent else (
            slice(0, rotated // 2), slice(rotated // 2, rotated))  # fmt: skip
        y = x.copy()
        y[..., a], y[..., b] = x[..., a] * cos - x[..., b] * sin, x[..., b] * cos + x[..., a] * sin
        return y


def softmax(scores: Array) -> Array:
    likely = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return likely / likely.sum(axis=-1, keepdims=True)


def rope_frequencies(rope: Mapping[str, Any], size: int, length: int, context: int) -> tuple[Array, float]:
    """Return radians per position of every rotated pair, float64, and the factor on cos and sin.

    Args:
        rope: the rope parameters of a layer.
        size: of a head.
        length: of the whole sequence: longrope has another set of factors beyond the original context.
        context: ``max_position_embeddings``.
    """
    kind, theta, factor = rope["rope_type"], rope["rope_theta"], rope.get("factor")
    size = int(size * rope.get("partial_rotary_factor", 1.0))
    original = rope.get("original_max_position_embeddings", context)
    if kind == "dynamic":  # with a fixed alpha: another base
        theta = theta * rope["alpha"] ** (size / (size - 2))
    plain = theta ** (-np.arange(0, size, 2) / size)
    if kind == "linear":
        return plain / factor, 1.0
    if kind == "llama3":
        rotations = original * plain / (2 * math.pi)
        slow, fast = rope["low_freq_factor"], rope["high_freq_factor"]
        kept = np.clip((rotations - slow) / (fast - slow), 0, 1)
        return plain * ((1 - kept) / factor + kept), 1.0
    if kind == "longrope":
        factors = np.array(rope["long_factor" if length > original else "short_factor"], np.float64)
        ratio = factor or context / original
        scale = math.sqrt(1 + math.log(ratio) / math.log(original)) if ratio > 1 else 1.0
        return plain / factors, rope.get("attention_factor") or scale
    if kind == "yarn":
        return _yarn(rope, plain, size, original)
    return plain, 1.0


def _yarn(rope: Mapping[str, Any], plain: Array, size: int, original: int) -> tuple[Array, float]:
    factor = rope["factor"]

    def pair(rotations: float) -> float:
        return size * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(rope["rope_theta"]))

    low, high = pair(rope.get("beta_fast") or 32), pair(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    divided = np.clip((np.arange(len(plain)) - low) / (high - low if high != low else 1e-3), 0, 1)

    def sharpness(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0

    scale = rope.get("attention_factor")
    if scale is None and rope.get("mscale") and rope.get("mscale_all_dim"):
        scale = sharpness(rope["mscale"]) / sharpness(rope["mscale_all_dim"])
    return plain / factor * divided + plain * (1 - divided), sharpness(1.0) if scale is None else scale
