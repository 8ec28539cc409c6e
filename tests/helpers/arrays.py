"""Models whose matrices are arrays in memory, in any precision."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from edge_rt.export.decoder.tensors import ahead_shapes, expected_shapes
from edge_rt.export.families.rope import default_rope
from edge_rt.export.sources.gguf_types import TensorInfo
from edge_rt.package.decoder import Dimensions
from edge_rt.package.layers import Layer


class Arrays:
    """Matrices by name, as ``edge_rt.export.weights.matrices.Matrices``; a matrix comes in several pieces."""

    def __init__(self, arrays, piece_rows=5):
        self.arrays = arrays
        self._piece_rows = piece_rows

    def pieces(self, name):
        rows = np.atleast_2d(self.arrays[name])
        for first in range(0, len(rows), self._piece_rows):
            yield rows[first : first + self._piece_rows]

    def rows(self, name, numbers):
        return self.arrays[name][list(numbers)]

    def changed(self, name, by):
        """Return the same with something added to one of them."""
        return Arrays(self.arrays | {name: self.arrays[name] + by}, self._piece_rows)


def tiny_decoder(attention=None, feed_forward=None, layer=None, sizes=None, conv=None, **more):
    """Return the description of a model of two layers with a head for every two of the queries.

    Args:
        attention: what differs in attention.
        feed_forward: what differs in the feed-forward.
        layer: what else differs in layers.
        sizes: dimensions that differ.
        conv: a short convolution, which the first layer has instead of attention.
        more: what else differs.
    """
    numbers = {
        "name": "tiny", "family": "llama", "hidden_size": 12, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2,
        "head_dim": 4, "intermediate_size": 10, "vocab_size": 13, "context_length": 64, "norm_epsilon": 1e-5,
        "is_tied": False,
    }  # fmt: skip
    dims = Dimensions(**(numbers | (sizes or {})))
    ropes = more.pop("ropes", (default_rope(100.0, dims.head_dim),))
    one = Layer(dims.attention(**(attention or {})), dims.feed_forward(**(feed_forward or {})), **(layer or {}))
    first = one if conv is None else replace(one, attention=None, short_conv=conv)
    return dims.decoder("llama", (first, *(one,) * (dims.num_layers - 1)), *ropes, **more)


def random_arrays(decoder, seed=0, scale=0.4, *, ahead=None):
    """Return float64 weights of a model; ``ahead``: the layer of a block that predicts ahead, if it has one."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, shape in (expected_shapes(decoder) | ({} if ahead is None else ahead_shapes(decoder, ahead))).items():
        values = rng.standard_normal(shape[::-1])
        is_norm = "_norm" in name or name.endswith("norm.weight")
        if is_norm:
            values = 0.2 * values + name.endswith("weight")
        found[name] = values if name in ("token_embd.weight", "output.weight") or is_norm else scale * values
    return found


def source_of(arrays, *, has_halves=False, norm_offset=0.0, ahead=None):
    """Return what of a checkpoint the forward passes ask for."""
    tensors = {name: TensorInfo(name, array.shape[::-1], 0, "F32", 0, 4 * array.size) for name, array in arrays.items()}
    return SimpleNamespace(has_halves=has_halves, norm_offset=norm_offset, tensors=tensors, ahead=ahead)
