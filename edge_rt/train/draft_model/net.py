"""The layers of a small llama in torch: what a draft model adds to the embedding and the LM head of its target.

For a stream x, rms(x) being x / sqrt(mean(x^2) + epsilon)::

    x += W_o attention(rotated W_q n, rotated W_k n, W_v n),  n = rms(x) * g_a
    x += W_down (silu(W_gate n) * (W_up n)),                  n = rms(x) * g_m
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from edge_rt.package.decoder import Decoder

NAMES: Final = ("attention_norm", "query", "key", "value", "output", "mlp_norm", "gate", "up", "down")
"""Weights of a layer."""


class DraftLayer(nn.Module):
    """One layer, float32.

    Args:
        weights: by ``NAMES``, matrices ``[outputs, inputs]``; they are copied.
    """

    def __init__(self, decoder: Decoder, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.decoder = decoder
        for name in NAMES:
            self.register_parameter(name, nn.Parameter(weights[name].clone()))

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], wanted: Tensor | None = None) -> Tensor:
        """Return the stream behind the layer; the arguments are those of ``attend``."""
        x = self.attend(x, rotation, wanted)
        return x + functional.linear(self.inner(x), self.down)

    def attend(self, x: Tensor, rotation: tuple[Tensor, Tensor], wanted: Tensor | None = None) -> Tensor:
        """Return the stream behind the attention.

        Args:
            x: float32 ``[sequences, tokens, hidden_size]``.
            rotation: cosines and sines, float32 ``[tokens, head_dim / 2]``.
            wanted: int64, rows among ``sequences * tokens`` that are returned, ``[wanted, hidden_size]``; None: all,
                in the shape of ``x``.
        """
        decoder = self.decoder
        count, tokens, size = x.shape
        normed = functional.rms_norm(x, (size,), self.attention_norm, decoder.norm_epsilon)

        def heads(weight: Tensor, number: int) -> Tensor:
            return functional.linear(normed, weight).view(count, tokens, number, decoder.head_dim).transpose(1, 2)

        query = rotated(heads(self.query, decoder.num_heads), rotation)
        key = rotated(heads(self.key, decoder.num_kv_heads), rotation)
        value = heads(self.value, decoder.num_kv_heads)
        group = decoder.num_heads // decoder.num_kv_heads
        attended = functional.scaled_dot_product_attention(
            query, key.repeat_interleave(group, 1), value.repeat_interleave(group, 1), is_causal=True
        )
        attended = attended.transpose(1, 2).reshape(count, tokens, -1)
        if wanted is not None:
            attended, x = attended.flatten(0, 1)[wanted], x.flatten(0, 1)[wanted]
        return x + functional.linear(attended, self.output)

    def inner(self, x: Tensor) -> Tensor:
        """Return what ``down`` is multiplied with, float32 ``[..., intermediate_size]``."""
        normed = functional.rms_norm(x, (x.shape[-1],), self.mlp_norm, self.decoder.norm_epsilon)
        return functional.silu(functional.linear(normed, self.gate)) * functional.linear(normed, self.up)


class DraftLayers(nn.Module):
    """The layers of a draft model."""

    def __init__(self, decoder: Decoder, layers: Sequence[Mapping[str, Tensor]]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DraftLayer(decoder, weights) for weights in layers)

    def forward(self, embedded: Tensor, rotation: tuple[Tensor, Tensor], wanted: Tensor) -> Tensor:
        """Return the stream behind the last layer for some rows; the arguments are those of ``DraftLayer.attend``."""
        x = self.before_last(embedded, rotation, wanted)
        last = self.last
        return x + functional.linear(last.inner(x), last.down)

    def before_last(self, embedded: Tensor, rotation: tuple[Tensor, Tensor], wanted: Tensor) -> Tensor:
        """Return the stream before the feed-forward of the last layer, in the same way."""
        x = embedded
        for layer in list(self.layers)[:-1]:
            x = layer(x, rotation)
        return self.last.attend(x, rotation, wanted)

    @property
    def last(self) -> DraftLayer:
        """The last layer."""
        layer = self.layers[-1]
        assert isinstance(layer, DraftLayer)
        return layer


def rotated(heads: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Return heads turned by their positions, ``[sequences, heads, tokens, head_dim]``: halves of a head are pairs."""
    cosines, sines = rotation
    first, second = heads.chunk(2, -1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], -1)
