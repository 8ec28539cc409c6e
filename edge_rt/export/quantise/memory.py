"""Predicts the memory that quantising a model's weights takes, in addition to that of any export."""

from __future__ import annotations

from typing import Final

from edge_rt.export.families.llama_graph import LayerWeights, LlamaWeights
from edge_rt.export.quantise.decision import MEASURED_TOKENS, QUALITY_TOKENS
from edge_rt.export.quantise.moments import SEQUENCE, WIDTH
from edge_rt.export.quantise.rows import CHUNK_VALUES
from edge_rt.export.sources.packed import PackedTensor
from edge_rt.export.weights.blocks import PIECE_BYTES
from edge_rt.export.weights.linear import Linear, Part
from edge_rt.package.manifest import ModelConfig
from edge_rt.system.machine import usable_cpus

_CHUNK_COPIES: Final = 6
"""float32 arrays alive while a thread quantises its chunk."""
_PIECE_COPIES: Final = 3
"""float32 arrays alive while a piece of a matrix is read."""
_FACTOR_COPIES: Final = 4
"""float32 arrays alive while the factor of one block of moments is computed."""
_FORWARD_COPIES: Final = 4
"""float32 arrays of the width of the feed-forward, and of attention weights, alive in a layer's forward pass."""
_BACKWARD_COPIES: Final = 6
"""The same on the way back, where attention weights are those of all heads."""
_HEAD_COPIES: Final = 6
"""float64 arrays alive for the logits of a piece of the head."""


def quantising_bytes(weights: LlamaWeights, config: ModelConfig, tokens: int, *, measures: bool) -> int:
    """Predict the memory of measuring and quantising.

    Args:
        weights: matrices of the model.
        config: its dimensions.
        tokens: of the calibration text; 0 without one.
        measures: whether some types are chosen by measuring.
    """
    parts = [part for linear in weights.linears() for part in linear.parts]
    layer = 4 * max(sum(map(_values, _parts(layer))) for layer in weights.layers)
    group = config.num_heads // config.num_kv_heads
    read = max(map(_read_bytes, parts))
    chunks = 4 * CHUNK_VALUES * _CHUNK_COPIES * usable_cpus()
    if not tokens:
        return read + chunks
    widths = [_widths(group[0].in_features) for group in _inputs(weights)]
    squares = [4 * sum(width * width for width in group) for group in widths]
    moments, streams = 2 * sum(squares), 4 * tokens * config.hidden_size
    factors = max(squares) + 4 * _FACTOR_COPIES * max(max(group) for group in widths) ** 2
    rows = min(SEQUENCE, tokens)
    forward = _FORWARD_COPIES * _activations(config, rows, group)
    walking = moments + max(layer + read + forward, factors + read + chunks)
    if not measures:
        return streams + walking
    rows = min(MEASURED_TOKENS, tokens)
    kept = 4 * rows * config.hidden_size * config.num_layers
    head = 8 * _HEAD_COPIES * rows * _head_rows(weights.head)
    measuring = kept + max(layer + read + _BACKWARD_COPIES * _activations(config, rows, config.num_heads), head + read)
    return max(streams + walking, measuring)


def quality_bytes(config: ModelConfig) -> int:
    """Predict the memory of comparing a package's predictions, in addition to its opened weights."""
    cache = 8 * QUALITY_TOKENS * config.num_layers * config.num_kv_heads * config.head_dim
    logits = 4 * QUALITY_TOKENS * config.vocab_size
    return (
        cache
        + logits
        + _FORWARD_COPIES * _activations(config, QUALITY_TOKENS, config.num_heads)
        + _PIECE_COPIES * PIECE_BYTES
    )


def _activations(config: ModelConfig, rows: int, heads: int) -> int:
    """Return the bytes of one array of the feed-forward's width, and of the attention weights of some heads."""
    return 4 * rows * (config.intermediate_size + config.hidden_size + heads * rows)


def _inputs(weights: LlamaWeights) -> list[tuple[Linear, ...]]:
    """Return the matrices of one layer, those with one input together."""
    layer = weights.layers[0]
    return [layer.qkv, layer.output, layer.gate_up, layer.down]


def _widths(inputs: int) -> list[int]:
    return [min(WIDTH, inputs - begin) for begin in range(0, inputs, WIDTH)]


def _parts(layer: LayerWeights) -> list[Part]:
    return [part for linear in layer.linears() for part in linear.parts]


def _values(part: Part) -> int:
    return part.tensor.elements


def _read_bytes(part: Part) -> int:
    """Return the bytes while the rows of a matrix are read as floats: all at once if they are reordered."""
    is_whole = part.row_order is not None
    share = 1.0 if is_whole else min(1.0, PIECE_BYTES / part.tensor.nbytes)
    raw = part.tensor.nbytes if is_whole or isinstance(part.tensor, PackedTensor) else PIECE_BYTES
    return int(4 * _PIECE_COPIES * share * part.tensor.elements) + min(raw, part.tensor.nbytes)


def _head_rows(head: Linear) -> int:
    (tensor,) = (part.tensor for part in head.parts)
    return min(tensor.shape[1], max(1, PIECE_BYTES * tensor.shape[1] // tensor.nbytes))
