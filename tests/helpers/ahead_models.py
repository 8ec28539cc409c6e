"""Tiny models of Qwen 3.5 and Qwen3-Next with a block that predicts ahead, and what it computes, in float64."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np

from edge_rt.export.opening import open_checkpoint
from edge_rt.export.reference.forward import DecoderForward
from edge_rt.export.sources.model_file import TensorReader
from edge_rt.export.weights.matrices import CheckpointMatrices
from edge_rt.ort.binding import StopSwitch
from edge_rt.ort.mapped_weights import MappedWeights
from edge_rt.ort.session import Session, pool_size
from edge_rt.package.ahead import KV_FORMAT_NAME
from edge_rt.package.reader import open_package
from edge_rt.runtime.decode.draft import Accepted
from edge_rt.runtime.forward.io_binding import open_io_binding
from edge_rt.runtime.forward.runner import ModelRunner
from edge_rt.runtime.speculation.ahead_model import open_ahead_model
from edge_rt.system.machine import usable_cpus
from tests.helpers.family_cases import load_case, write_folder, write_gguf
from tests.helpers.family_data import tensor_values
from tests.helpers.family_gguf import ARCHITECTURES
from tests.helpers.hf_factory import write_safetensors

CASE = "qwen3_5_attention"
CTX = 200
BLOCK = "mtp.layers.0."


def attention_layer(case):
    """Return the number of the model's first layer with attention, whose tensors a block's are alike."""
    return case.text_config["layer_types"].index("full_attention")


def ahead_tensors(case):
    """Return random tensors of a block, by transformers' names."""
    width, beyond = case.text_config["hidden_size"], f"model.layers.{case.text_config['num_hidden_layers']}."
    like = f"model.layers.{attention_layer(case)}."
    shapes = {
        f"{BLOCK}{name.removeprefix(like)}": shape for name, shape in case.shapes.items() if name.startswith(like)
    }
    shapes |= {"mtp.fc.weight": (width, 2 * width)}
    shapes |= {f"mtp.{norm}.weight": (width,) for norm in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")}
    return {
        name: tensor_values(case.name, name.replace(BLOCK, beyond), shape, case.text_config)
        for name, shape in shapes.items()
    }


def with_stacked_experts(tensors, count):
    """Return the tensors with a block's experts as releases of transformers 5 have them: two of all of them."""
    each = f"{BLOCK}mlp.experts."
    found = {name: values for name, values in tensors.items() if not name.startswith(each)}
    kinds = {kind: [tensors[f"{each}{number}.{kind}_proj.weight"] for number in range(count)]
             for kind in ("gate", "up", "down")}  # fmt: skip
    gate_up = [np.concatenate(pair) for pair in zip(kinds["gate"], kinds["up"], strict=True)]
    return found | {f"{each}gate_up_proj": np.stack(gate_up), f"{each}down_proj": np.stack(kinds["down"])}


def write_ahead_folder(path, name=CASE, *, changed=None, left_out=(), is_stacked=False):
    """Write such a model as a folder, with ``changed`` tensors and without some; return it and its tensors."""
    case = load_case(name)
    write_folder(path, case)
    tensors = {**case.tensors(), **ahead_tensors(case), **(changed or {})}
    tensors = {name: values for name, values in tensors.items() if name not in left_out}
    stored = with_stacked_experts(tensors, case.text_config["num_experts"]) if is_stacked else tensors
    write_safetensors(path / "model.safetensors", stored)
    return path, tensors


NEXTN_NAMES = {
    "mtp.fc": "eh_proj", "mtp.pre_fc_norm_embedding": "enorm", "mtp.pre_fc_norm_hidden": "hnorm",
    "mtp.norm": "shared_head_norm",
}  # fmt: skip
"""Names of what a block has besides its layer in folders -> in GGUF files, whose norms have 1 added."""


def write_ahead_gguf(path, case=CASE, *, left_out=(), **more):
    """Write the same model, or one of another case, as a GGUF file, without some tensors; ``more``: of the block."""
    case = load_case(case) if isinstance(case, str) else case
    config, layers, tensors = case.text_config, case.text_config["num_hidden_layers"], ahead_tensors(case)
    # The converter, too, takes the block for one more layer.
    beyond = {name.replace(BLOCK, f"model.layers.{layers}."): values for name, values in tensors.items()
              if name.startswith(BLOCK)}  # fmt: skip
    changes = {"num_hidden_layers": layers + 1, "layer_types": [*config["layer_types"], "full_attention"]}
    shapes = {name: values.shape for name, values in beyond.items()}
    whole = replace(case, config={**case.config, **changes}, shapes={**case.shapes, **shapes})
    extra = {
        f"blk.{layers}.nextn.{ours}.weight": tensors[f"{theirs}.weight"] + np.float32("norm" in theirs)
        for theirs, ours in NEXTN_NAMES.items()
    }
    extra |= {f"blk.{layers}.{name}": values for name, values in more.items()}
    architecture = ARCHITECTURES[config["model_type"]]
    metadata = {f"{architecture}.nextn_predict_layers": 1}
    return write_gguf(path, whole, extra_metadata=metadata, extra_tensors=extra, drop_tensors=left_out)


class Trunk:
    """The model alone by the exporter's reference, in float64."""

    def __init__(self, folder):
        source, self.decoder = open_checkpoint(folder)
        values = {}
        with TensorReader(source.files) as stream:
            matrices = CheckpointMatrices(stream, source.tensors)
            for name in source.tensors:
                values[name] = np.concatenate(list(matrices.pieces(name))).astype(np.float64)
        kept = KeptMatrices(values)
        self.forward = DecoderForward(
            kept, source, self.decoder, product=lambda x, name: x @ values[name].T, dtype=np.float64
        )

    def states(self, token_ids):
        """Return what lies behind the final norm."""
        x, tables = self.forward.embed(token_ids)[None], self.forward.rope(len(token_ids))
        for layer in range(self.decoder.num_layers):
            x = self.forward.layer(x, layer, tables)
        return self.forward.norm(x, "output_norm.weight")[0]


class KeptMatrices:
    """Matrices in memory; see ``Matrices``."""

    def __init__(self, values):
        self.values = values

    def pieces(self, name):
        """Yield the rows of a matrix."""
        yield np.atleast_2d(self.values[name])

    def rows(self, name, numbers):
        """Return some rows."""
        return self.values[name][list(numbers)]


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
        self.layers, self.chosen = config["num_hidden_layers"], config.get("num_experts_per_tok")
        self.linear = "linear_attention" in config["layer_types"]
        self.trunk = Trunk(folder) if self.linear else None

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
        return x + self.fed(self.norm(x, f"{prefix}post_attention_layernorm"), f"{prefix}mlp.")

    def fed(self, x, prefix):
        """Return what a feed-forward makes, or experts and the one that all rows have."""
        if f"{prefix}gate.weight" not in self.tensors:
            return self.gated(x, prefix)
        scores = self.times(x, f"{prefix}gate")
        likely = np.exp(scores - scores.max(-1, keepdims=True))
        likely /= likely.sum(-1, keepdims=True)
        found = self.gated(x, f"{prefix}shared_expert.") / (1 + np.exp(-self.times(x, f"{prefix}shared_expert_gate")))
        for row, shares in enumerate(likely):
            best = np.argsort(-shares)[: self.chosen]
            for expert in best:
                made = self.gated(x[row], f"{prefix}experts.{expert}.")
                found[row] += shares[expert] / shares[best].sum() * made
        return found

    def gated(self, x, prefix):
        gate = self.times(x, f"{prefix}gate_proj")
        return self.times(gate / (1 + np.exp(-gate)) * self.times(x, f"{prefix}up_proj"), f"{prefix}down_proj")

    def states(self, token_ids):
        """Return what lies behind the model's final norm; of layers with a state by the exporter's reference."""
        if self.linear:
            return self.trunk.states(token_ids)
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
        is_tied = "lm_head.weight" not in self.tensors
        return self.times(states, "model.embed_tokens" if is_tied else "lm_head")

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

    def __init__(self, path, kv_format=KV_FORMAT_NAME):
        package, threads = open_package(path), pool_size() or usable_cpus()
        weights, switch, manifest = MappedWeights(package), StopSwitch(), package.manifest
        binding = open_io_binding(manifest, CTX, "f32", stream=True)
        binding.outputs.plan(1, None)
        graph = manifest.segments[0].graph
        self.runner = ModelRunner(
            Session(
                package.file(graph), threads=threads, profile="native", more_outputs=binding.more_outputs,
                initializers=weights.constants(graph),
            ), binding, switch,
        )  # fmt: skip
        graph = manifest.ahead.graph
        session = Session(package.file(graph), threads=threads, profile="native", initializers=weights.constants(graph))
        opened = open_ahead_model(package, weights, session, CTX, switch, kv_format=kv_format)
        self.ahead, self.io = opened.model, opened.io_binding
        self.runner.listener = self.ahead.passed
        self.cache = binding.open_cache()

    def read(self, token_ids, start):
        """Compute tokens behind the known ones and keep them; return the outputs of the last one."""
        self.cache.truncate(start)
        with self.cache.reserve(len(token_ids)) as rows:
            outputs = self.runner.forward(token_ids, start, 1)
            rows.commit(token_ids)
        return outputs

    def know(self, token_ids, *, pieces=()):
        """Let model and block read a text, in such pieces and the rest in one pass, but the last token but one alone.

        The last token is what the model has chosen.
        """
        start, last = 0, len(token_ids) - 2
        self.ahead.begin(token_ids[:-1])
        for count in (*pieces, last - sum(pieces)):
            if count:
                self.read(token_ids[start : start + count], start)
                start += count
        self.ahead.observe(Accepted(tuple(token_ids[-1:]), (), 0, (0,)), self.read(token_ids[last:-1], last))
        self.ahead.extend(token_ids[-1:])

    def logits(self, drafted=()):
        """Return the logits of a step as a row of the whole vocabulary; what cannot be guessed is NaN."""
        top = self.ahead.follow(list(drafted))
        row = self.io.outputs.first(1).logits[0]
        found = np.full(self.ahead.known_tokens, np.nan)
        known = row > -1e29
        found[self.io.token_ids[known]] = row[known]
        assert top.ids[0, 0] == np.nanargmax(found)
        return found
