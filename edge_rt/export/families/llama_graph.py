"""Llama as a package: its matrices, and its graph, built from the steps of either op profile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from edge_rt.export.families.llama_config import LlamaConfig, scaled_frequencies
from edge_rt.export.graph.builder import GraphBuilder, Stream
from edge_rt.export.op_profile import OpProfile
from edge_rt.export.sources.gguf_types import TensorInfo
from edge_rt.export.sources.source import Source
from edge_rt.export.weights.blocks import unpermuted_rows
from edge_rt.export.weights.linear import Linear, Part
from edge_rt.export.weights.native import place_key_constants
from edge_rt.export.weights.weights_file import Slot, WeightsFile, WeightsLayout
from edge_rt.package.manifest import ModelConfig

ROPE_PIECE_ROWS = 4096


@dataclass(frozen=True)
class LayerWeights:
    """Matrices of one layer; q, k, v are stacked, gate and up joined as the op profile wants them."""

    qkv: tuple[Linear, ...]
    output: tuple[Linear, ...]
    gate_up: tuple[Linear, ...]
    down: tuple[Linear, ...]

    def linears(self) -> tuple[Linear, ...]:
        """Every matrix, in the order of the file."""
        return (*self.qkv, *self.output, *self.gate_up, *self.down)


@dataclass(frozen=True)
class LlamaWeights:
    """Everything that goes into ``weights.bin``.

    Attributes:
        embedding: the token embedding; also the head if ``head`` is the same object (stored once).
        head: matrix that gives the logits.
        layers: matrices per layer.
        vectors: name in the package -> float tensor of the checkpoint.
    """

    embedding: Linear
    head: Linear
    layers: tuple[LayerWeights, ...]
    vectors: dict[str, TensorInfo]

    def linears(self) -> Iterator[Linear]:
        """Every matrix once, in the order of the file."""
        yield self.embedding
        for layer in self.layers:
            yield from layer.linears()
        if self.head is not self.embedding:
            yield self.head


def collect_weights(
    source: Source, config: LlamaConfig, profile: OpProfile, types: Mapping[str, str] | None = None
) -> LlamaWeights:
    """List every matrix and vector of the package with the tensors that it comes from.

    Args:
        source: the checkpoint.
        config: its dimensions.
        profile: decides what is stacked.
        types: name of a tensor -> type that it gets in the package; others keep theirs.
    """
    types = types or {}
    tensors = source.tensors
    q_order = None if source.has_halves else unpermuted_rows(config.num_heads, config.head_dim)
    k_order = None if source.has_halves else unpermuted_rows(config.num_kv_heads, config.head_dim)

    def layer(i: int) -> LayerWeights:
        def part(kind: str, order: npt.NDArray[Any] | None = None) -> Part:
            name = f"blk.{i}.{kind}.weight"
            return Part(tensors[name], order, types.get(name))

        qkv = (part("attn_q", q_order), part("attn_k", k_order), part("attn_v"))
        return LayerWeights(
            qkv=profile.stack(f"layer{i}.qkv", qkv),
            output=profile.stack(f"layer{i}.output", [part("attn_output")]),
            gate_up=profile.gate_up(f"layer{i}.gate_up", part("ffn_gate"), part("ffn_up")),
            down=profile.stack(f"layer{i}.down", [part("ffn_down")]),
        )

    def end(name: str) -> tuple[Part, ...]:
        return (Part(tensors[name], None, types.get(name)),)

    embedding = Linear("embedding", end("token_embd.weight"))
    vectors = {"final_norm": tensors["output_norm.weight"]}
    for i in range(config.num_layers):
        vectors[f"layer{i}.attention_norm"] = tensors[f"blk.{i}.attn_norm.weight"]
        vectors[f"layer{i}.mlp_norm"] = tensors[f"blk.{i}.ffn_norm.weight"]
    return LlamaWeights(
        embedding=embedding,
        head=embedding if config.tied_embedding else Linear("head", end("output.weight")),
        layers=tuple(layer(i) for i in range(config.num_layers)),
        vectors=vectors,
    )


def place_weights(
    weights: LlamaWeights, config: LlamaConfig, profile: OpProfile, *, is_calibrated: bool = False
) -> WeightsLayout:
    """Return the layout of ``weights.bin``.

    Args:
        weights: matrices and vectors.
        config: dimensions of the model.
        profile: decides the layout of matrices.
        is_calibrated: reserve room for constants of 4-bit keys; only for a profile that has such keys.
    """
    layout = WeightsLayout()
    for linear in weights.linears():
        profile.place(linear, layout)
    for name, tensor in weights.vectors.items():
        layout.add(name, np.float32, (tensor.shape[0],))
    for table in ("rope.cos", "rope.sin"):
        layout.add(table, np.float32, (config.context_length, config.head_dim // 2))
    if is_calibrated:
        place_key_constants(layout, config.num_layers, config.num_kv_heads, config.head_dim)
    return layout


def write_rope_tables(
    out: WeightsFile, cos: Slot, sin: Slot, config: LlamaConfig, factors: npt.NDArray[Any] | None
) -> None:
    """Write cosines and sines of every position, computed in float64 and rounded once.

    Args:
        out: the open ``weights.bin``.
        cos: slot float32 ``[context, head_dim / 2]``.
        sin: slot float32 ``[context, head_dim / 2]``.
        config: frequencies and scaling.
        factors: per-frequency divisors ``[head_dim / 2]`` (``rope_freqs.weight``), or None for those of ``config``.
    """
    frequencies, magnitude = scaled_frequencies(config)
    if factors is None and config.rope_divisors:
        factors = np.asarray(config.rope_divisors)
    rates = np.asarray(frequencies, np.float64) / (1.0 if factors is None else factors.astype(np.float64))
    for first in range(0, config.context_length, ROPE_PIECE_ROWS):
        positions = np.arange(first, min(first + ROPE_PIECE_ROWS, config.context_length), dtype=np.float64)
        angles = positions[:, None] * rates[None, :]
        out.write(cos, first, (np.cos(angles) * magnitude).astype(np.float32))
        out.write(sin, first, (np.sin(angles) * magnitude).astype(np.float32))


def build_graph(
    weights: LlamaWeights,
    layout: WeightsLayout,
    config: ModelConfig,
    *,
    profile: OpProfile,
    activations: str,
    producer: str,
) -> ir.Model:
    """Build the whole model as one segment.

    Args:
        weights: its matrices.
        layout: their positions in ``weights.bin``.
        config: dimensions of the model.
        profile: operators of the graph.
        activations: ``"int8"`` or ``"float"``.
        producer: program name written into the graph.
    """
    return assemble(profile.builder(layout, config, activations), weights, config, producer)


def assemble(build: GraphBuilder, weights: LlamaWeights, config: ModelConfig, producer: str) -> ir.Model:
    """Build the whole model with an empty builder; see ``build_graph`` for the other arguments."""
    x = build.embed(weights.embedding, "embedding")
    last = config.num_layers - 1
    for i, layer in enumerate(weights.layers[:last]):
        x = build.layer(x, layer, i)
    qkv = build.linear(x, weights.layers[last].qkv, f"layer{last}.qkv", norm=f"layer{last}.attention_norm")
    # After the last attention rows are independent of each other: only those that need logits continue.
    attended = build.wanted(build.attention(qkv, last), "attention.wanted")
    x = build.finish_layer(Stream(build.wanted(x.settled, "residual.wanted")), attended, weights.layers[last], last)
    return build.model(build.linear(x, [weights.head], "logits", norm="final_norm"), producer)
