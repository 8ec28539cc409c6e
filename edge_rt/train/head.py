"""The draft head that is trained: a recurrent step on the model's last hidden state, and guesses by its own LM head.

A step, for the state s (at first the hidden state of the last accepted token's row) and the embedding e of the token
behind it, rms(x) being x / sqrt(mean(x^2) + epsilon)::

    y  = W_fc [rms(s) * g_s, rms(e) * g_e]
    y += W_down (silu(W_gate n) * (W_up n)),  n = rms(y) * g_m      once per block
    logits = W_head (rms(y) * g_o),  s' = y

This is EAGLE's feature extrapolation (Li et al. 2024) without attention, as in Hydra (Ankner et al. 2024), and a step
of it is that of a recurrent drafter (ReDrafter, Cheng et al. 2024). ``W_head`` are rows of the model's own head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

BLOCK: int = 32
"""Weights of a row that share a scale and a minimum."""


@dataclass(frozen=True)
class HeadNetShape:
    """The numbers of a head."""

    hidden_size: int
    intermediate_size: int
    blocks: int = 1
    epsilon: float = 1e-5


class DraftHead(nn.Module):
    """A head, float32.

    Attributes:
        rounds_weights: whether matrices have the values that their 4-bit codes hold.
        dropout: share of the inputs of all matrices but the LM head that is left out, where gradients are computed.

    Args:
        output_norm: float32 ``[hidden_size]``, the model's final norm, from which ``g_o`` starts.
    """

    def __init__(self, shape: HeadNetShape, output_norm: Tensor) -> None:
        super().__init__()
        size, inner = shape.hidden_size, shape.intermediate_size
        self.shape = shape
        self.rounds_weights = False
        self.dropout = 0.0
        self.fc = nn.Parameter(torch.empty(size, 2 * size).normal_(std=0.02))
        self.gate_up = nn.ParameterList(torch.empty(2 * inner, size).normal_(std=0.03) for _ in range(shape.blocks))
        self.down = nn.ParameterList(torch.empty(size, inner).normal_(std=0.01) for _ in range(shape.blocks))
        self.state_norm = nn.Parameter(torch.ones(size))
        self.token_norm = nn.Parameter(torch.ones(size))
        self.block_norms = nn.ParameterList(torch.ones(size) for _ in range(shape.blocks))
        self.output_norm = nn.Parameter(output_norm.clone())

    def rms(self, x: Tensor) -> Tensor:
        """Return ``x`` with a mean square of 1 in its last dimension."""
        return functional.rms_norm(x, (x.shape[-1],), None, self.shape.epsilon)

    def step(self, state: Tensor, embedding: Tensor) -> Tensor:
        """Return the next state, float32 ``[rows, hidden_size]`` like both arguments."""
        joined = torch.cat([self.rms(state) * self.state_norm, self.rms(embedding) * self.token_norm], -1)
        y = functional.linear(self._thinned(joined), self._weight(self.fc))
        for norm, gate_up, down in zip(self.block_norms, self.gate_up, self.down, strict=True):
            gate, up = functional.linear(self.rms(y) * norm, self._weight(gate_up)).chunk(2, -1)
            y = y + functional.linear(self._thinned(functional.silu(gate) * up), self._weight(down))
        return y

    def output(self, state: Tensor) -> Tensor:
        """Return what the LM head's rows are multiplied with."""
        return self.rms(state) * self.output_norm

    def _thinned(self, x: Tensor) -> Tensor:
        return functional.dropout(x, self.dropout) if self.dropout and torch.is_grad_enabled() else x

    def _weight(self, weight: Tensor) -> Tensor:
        """Return a matrix as it is, or rounded to 4 bits; gradients pass either way."""
        return weight + (rounded(weight.detach()) - weight.detach()) if self.rounds_weights else weight


def codes_of(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return 4-bit codes, scales and minimums of a matrix: Q4_1, blocks of 32, both numbers rounded to half precision.

    Args:
        weight: float32 ``[rows, columns]``, columns a multiple of 32.

    Returns:
        Float32 codes ``[rows, blocks, 32]`` of 0 to 15, scales and minimums ``[rows, blocks, 1]``.
    """
    blocks = weight.reshape(weight.shape[0], -1, BLOCK)
    least = blocks.amin(-1, keepdim=True)
    scale = ((blocks.amax(-1, keepdim=True) - least) / 15).half().float()
    least = least.half().float()
    codes = torch.where(scale > 0, ((blocks - least) / scale.clamp(min=1e-30)).round().clamp(0, 15), 0.0)
    return codes, scale, least


def rounded(weight: Tensor) -> Tensor:
    """Return a matrix with the values that its codes hold; see ``codes_of``."""
    codes, scale, least = codes_of(weight)
    return (codes * scale + least).reshape(weight.shape)
