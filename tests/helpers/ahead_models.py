"""Tiny models of Qwen 3.5's attention with a block that predicts ahead, and what it computes, in float64."""

from __future__ import annotations

import json

import numpy as np

from edge_rt.ort.binding import StopSwitch
from edge_rt.ort.mapped_weights import MappedWeights
from edge_rt.ort.session import Session, pool_size
from edge_rt.package.reader import open_package
from edge_rt.runtime.forward.io_binding import open_io_binding
from edge_rt.runtime.forward.runner import ModelRunner
from edge_rt.runtime.speculation.ahead_model import open_ahead_model
from edge_rt.system.machine import usable_cpus
from tests.helpers.family_cases import load_case, write_folder, write_gguf
from tests.helpers.family_data import tensor_values
from tests.helpers.hf_factory import write_safetensors

CASE = "qwen3_5_attention"
CTX = 200
BLOCK = "mtp.layers.0."


def ahead_tensors(case):
    """Return random tensors of a block, by transformers' names: those of its layer are as of the model's first one."""
    width = case.text_config["hidden_size"]
    first = "model.layers.0."
    shapes = {
        f"{BLOCK}{name.removeprefix(first)}": shape for name, shape in case.shapes.items() if name.startswith(first)
    }
    shapes |= {"mtp.fc.weight": (width, 2 * width)}
    shapes |= {f"mtp.{norm}.weight": (width,) for norm in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")}
    return {name: tensor_values(case.name, name, shape, case.text_config) for name, shape in shapes.items()}


def write_ahead_folder(path, *, changed=None, left_out=()):
    """Write such a model as a folder, with ``changed`` tensors and without some; return it and its tensors."""
    case = load_case(CASE)
    write_folder(path, case)
    tensors = {**case.tensors(), **ahead_tensors(case), **(changed or {})}
    tensors = {name: values for name, values in tensors.items() if name not in left_out}
    write_safetensors(path / "model.safetensors", tensors)
    return path, tensors


GGUF_NAMES = {
    "mtp.fc": "nextn.eh_proj",
    "mtp.pre_fc_norm_embedding": "nextn.enorm",
    "mtp.pre_fc_norm_hidden": "nextn.hnorm",
    "mtp.norm": "nextn.shared_head_norm",
    f"{BLOCK}input_layernorm": "attn_norm",
    f"{BLOCK}post_attention_layernorm": "post_attention_norm",
    **{f"{BLOCK}self_attn.{kind}_proj": f"attn_{kind}" for kind in "qkv"},
    f"{BLOCK}self_attn.o_proj": "attn_output",
    **{f"{BLOCK}self_attn.{kind}_norm": f"attn_{kind}_norm" for kind in "qk"},
    **{f"{BLOCK}mlp.{kind}_proj": f"ffn_{kind}" for kind in ("gate", "up", "down")},
}
"""Names of a block's tensors in folders -> in GGUF files, whose norms have 1 added."""


def write_ahead_gguf(path, **more):
    """Write the same model as a GGUF file; ``more`` tensors of the block by their names there."""
    case = load_case(CASE)
    layers = case.text_config["num_hidden_layers"]
    tensors = {
        f"blk.{layers}.{GGUF_NAMES[name.removesuffix('.weight')]}.weight": values + np.float32("norm" in name)
        for name, values in ahead_tensors(case).items()
    }
    tensors |= {f"blk.{layers}.{name}": values for name, values in more.items()}
    metadata = {"qwen35.nextn_predict_layers": 1, "qwen35.block_count": layers + 1}
    return write_gguf(path, case, extra_metadata=metadata, extra_tensors=tensors)


class Reference:
    """The model and its block from their tensors, one row after the other."""

    def __init__(self, folder, tensors):
        config = json.loads((folder / "config.json").read_text())
        self.tensors = {name: values.astype(np.float64) for name, values in tensors.items()}
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.size, self.epsilon = config["head_dim"], config["rms_norm_eps"]
        rope = config["rope_parameters"]
        rotated = int(self.size * rope["partial_rotary_factor"])
        self.rates = rope["rope_theta"] ** (-np.arange(0, rotated, 2) / rotated)
        self.layers = config["num_hidden_layers"]

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.epsilon) * (1 + self.tensors[f"{name}.weight"])

    def times(self, x, name):
        return x @ self.tensors[f"{name}.weight"].T

    def rotated(self, x):
        """Rotate heads ``[rows, heads, size]`` at positions 0, 1, ..."""
        half = len(self.rates)
        angles = np.arange(len(x))[:, None, None] * self.rates
        a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        return np.concatenate(
            [a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles), rest], -1
        )

    def block(self, x, prefix):
        normed, rows = self.norm(x, f"{prefix}input_layernorm"), len(x)
        both = self.times(normed, f"{prefix}self_attn.q_proj").reshape(rows, self.heads, 2, self.size)
        q, gate = both[:, :, 0], both[:, :, 1]
        k, v = (self.times(normed, f"{prefix}self_attn.{kind}_proj").reshape(rows, -1, self.size) for kind in "kv")
        q = self.rotated(self.norm(q, f"{prefix}self_attn.q_norm"))
        k = self.rotated(self.norm(k, f"{prefix}self_attn.k_norm"))
        k, v = (np.repeat(part, self.heads // self.kv_heads, axis=1) for part in (k, v))
        scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(self.size)
        scores[:, np.triu(np.ones((rows, rows), bool), 1)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        attended = np.einsum("hij,jhd->ihd", weights, v) / (1 + np.exp(-gate))
        x = x + self.times(attended.reshape(rows, -1), f"{prefix}self_attn.o_proj")
        normed = self.norm(x, f"{prefix}post_attention_layernorm")
        gate = self.times(normed, f"{prefix}mlp.gate_proj")
        hidden = gate / (1 + np.exp(-gate)) * self.times(normed, f"{prefix}mlp.up_proj")
        return x + self.times(hidden, f"{prefix}mlp.down_proj")

    def states(self, token_ids):
        """Return what lies behind the model's final norm."""
        x = self.tensors["model.embed_tokens.weight"][token_ids]
        for layer in range(self.layers):
            x = self.block(x, f"model.layers.{layer}.")
        return self.norm(x, "model.norm")

    def ahead(self, states, token_ids):
        """Return the block's states behind its norm, for states and the tokens behind them."""
        embedded = self.norm(self.tensors["model.embed_tokens.weight"][token_ids], "mtp.pre_fc_norm_embedding")
        both = np.concatenate([embedded, self.norm(states, "mtp.pre_fc_norm_hidden")], -1)
        return self.norm(self.block(self.times(both, "mtp.fc"), BLOCK), "mtp.norm")

    def logits(self, states):
        return self.times(states, "lm_head")

    def steps(self, token_ids, drafted, missing=()):
        """Return the logits of the first step behind tokens, and of one more for each drafted token.

        Rows at positions that are ``missing`` the block has not seen.
        """
        rows = list(zip(self.states(token_ids[:-1]), token_ids[1:], strict=True))
        states, tokens = map(list, zip(*(row for place, row in enumerate(rows) if place not in missing), strict=True))
        found = [self.ahead(np.array(states), tokens)[-1]]
        for token in drafted:
            states.append(found[-1])
            tokens.append(token)
            found.append(self.ahead(np.array(states), tokens)[-1])
        return self.logits(np.array(found))


class OpenedPair:
    """A model whose passes its block follows."""

    def __init__(self, path):
        package, threads = open_package(path), pool_size() or usable_cpus()
        weights, switch, manifest = MappedWeights(package), StopSwitch(), package.manifest
        binding = open_io_binding(manifest, CTX, "f32", stream=True)
        binding.outputs.plan(1, None)
        graph = manifest.segments[0].graph
        self.runner = ModelRunner(
            Session(
                package.file(graph), threads=threads, profile="native", more_outputs=binding.more_outputs,
                initializers=weights.initializers(graph),
            ), binding, switch,
        )  # fmt: skip
        graph = manifest.ahead.graph
        session = Session(
            package.file(graph), threads=threads, profile="native", initializers=weights.initializers(graph)
        )
        opened = open_ahead_model(package, weights, session, CTX, switch)
        self.ahead, self.io = opened.model, opened.io_binding
        self.runner.listener = self.ahead.passed

    def logits(self, drafted=()):
        """Return the logits of a step as a row of the whole vocabulary; what cannot be guessed is NaN."""
        top = self.ahead.follow(list(drafted))
        row = self.io.outputs.first(1).logits[0]
        found = np.full(self.ahead.known_tokens, np.nan)
        known = row > -1e29
        found[self.io.token_ids[known]] = row[known]
        assert top.ids[0, 0] == np.nanargmax(found)
        return found
