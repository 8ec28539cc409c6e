"""The dimensions of a llama model, and its rotary frequencies."""

from __future__ import annotations

import math
from dataclasses import dataclass

from edge_rt.package.manifest import ModelConfig


@dataclass(frozen=True)
class RopeScaling:
    """How positions are stretched beyond the context of training.

    Attributes:
        kind: ``"none"``, ``"linear"`` or ``"yarn"``.
        factor: how many times longer the context is made.
        original_context: tokens of the context of training.
        attention_factor: extra factor on cos and sin, whatever the kind.
        beta_fast: rotations within the original context from which on YaRN leaves a frequency alone.
        beta_slow: rotations up to which YaRN divides a frequency by the whole factor.
        extrapolation: share of YaRN's blend that is used, from 0 (every frequency divided, no temperature) to 1.
    """

    kind: str = "none"
    factor: float = 1.0
    original_context: int = 0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    extrapolation: float = 1.0


@dataclass(frozen=True)
class LlamaConfig:
    """Dimensions of a llama model as the checkpoint states them, checked against each other.

    ``sliding_window``: tokens that attention sees in every layer, the token itself included; 0: all. ``rope_divisors``:
    what every frequency is divided by, besides ``rope_scaling``; empty: nothing, or what the checkpoint's tensor says.
    """

    name: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    context_length: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling
    tied_embedding: bool
    sliding_window: int = 0
    rope_divisors: tuple[float, ...] = ()

    def to_model_config(self, num_parameters: int) -> ModelConfig:
        """Return the dimensions that are written into the package's manifest."""
        return ModelConfig(
            name=self.name,
            architecture="llama",
            hidden_size=self.hidden_size,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            intermediate_size=self.intermediate_size,
            vocab_size=self.vocab_size,
            context_length=self.context_length,
            rms_norm_eps=self.rms_norm_eps,
            rope_theta=self.rope_theta,
            rope_scaling=self.rope_scaling.kind,
            tied_embedding=self.tied_embedding,
            num_parameters=num_parameters,
            sliding_window=self.sliding_window,
        )


def scaled_frequencies(config: LlamaConfig) -> tuple[list[float], float]:
    """Return the rotation per position of every pair of dimensions, in radians, and the factor on cos and sin.

    Linear scaling divides every frequency. YaRN (Peng et al., arXiv 2309.00071, sections 3.2 and 3.4) leaves fast
    frequencies alone, divides slow ones, blends in between and sharpens attention by ``0.1 ln(factor) + 1``. With an
    extrapolation of 0 only the division remains.
    """
    half = config.head_dim // 2
    plain = [config.rope_theta ** (-pair / half) for pair in range(half)]
    scaling = config.rope_scaling
    if scaling.kind == "none":
        return plain, scaling.attention_factor
    if scaling.kind == "linear" or scaling.extrapolation == 0.0:
        return [frequency / scaling.factor for frequency in plain], scaling.attention_factor

    def pair_of(rotations: float) -> float:
        return half * math.log(scaling.original_context / (rotations * 2 * math.pi)) / math.log(config.rope_theta)

    low = max(math.floor(pair_of(scaling.beta_fast)), 0)
    high = min(math.ceil(pair_of(scaling.beta_slow)), config.head_dim - 1)
    blended = []
    for pair, frequency in enumerate(plain):
        slow = min(max((pair - low) / max(high - low, 1e-3), 0.0), 1.0)
        kept = (1.0 - slow) * scaling.extrapolation
        blended.append(frequency / scaling.factor * (1.0 - kept) + frequency * kept)
    temperature = (0.1 * math.log(scaling.factor) + 1.0) if scaling.factor > 1.0 else 1.0
    return blended, temperature * scaling.attention_factor
