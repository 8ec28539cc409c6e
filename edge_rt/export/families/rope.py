"""Rotary frequencies: what every kind of scaling makes of the base.

Positions beyond the context of training are stretched in different ways. All of them end in a frequency for every pair
of dimensions, and a factor on cosines and sines.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from edge_rt.package.decoder import Rope

MIN_ROPE_THETA: Final = 2.0
"""At 1 all pairs rotate at the same speed, and YaRN divides by its logarithm."""
MAX_ROPE_THETA: Final = 1e12


@dataclass(frozen=True)
class Yarn:
    """Numbers of YaRN (Peng et al., arXiv 2309.00071, sections 3.2 and 3.4).

    Attributes:
        beta_fast: rotations within the original context from which on a frequency is left alone.
        beta_slow: rotations up to which a frequency is divided by the whole factor.
        extrapolation: share of the blend that is used, from 0 (every frequency divided) to 1.
        is_truncated: whether the borders between the two are rounded to whole pairs.
    """

    factor: float
    original_context: int
    magnitude: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    extrapolation: float = 1.0
    is_truncated: bool = True


def plain_frequencies(base: float, dimensions: int) -> list[float]:
    """Return ``base^(-2 i / dimensions)`` for every pair i of ``dimensions`` elements."""
    half = dimensions // 2
    return [base ** (-pair / half) for pair in range(half)]


def default_rope(base: float, dimensions: int, *, magnitude: float = 1.0) -> Rope:
    """Return the rotation without any scaling."""
    return Rope("default", base, tuple(plain_frequencies(base, dimensions)), magnitude)


def linear_rope(base: float, dimensions: int, factor: float, *, magnitude: float = 1.0) -> Rope:
    """Return the rotation in which every frequency is divided by a factor."""
    return Rope("linear", base, tuple(one / factor for one in plain_frequencies(base, dimensions)), magnitude)


def proportional_rope(base: float, dimensions: int, rotated: int, factor: float = 1.0) -> Rope:
    """Return the rotation in which some pairs turn, as fast as if all did, and the others stand still."""
    plain = plain_frequencies(base, dimensions)
    turning = tuple(one / factor for one in plain[: rotated // 2])
    return Rope("proportional", base, turning + (0.0,) * (len(plain) - len(turning)))


def divided_rope(rope: Rope, kind: str, divisors: Sequence[float]) -> Rope:
    """Return a rotation whose frequencies are divided one by one."""
    frequencies = tuple(one / divisor for one, divisor in zip(rope.frequencies, divisors, strict=True))
    return Rope(kind, rope.base, frequencies, rope.magnitude)


def yarn_borders(base: float, dimensions: int, yarn: Yarn) -> tuple[float, float]:
    """Return the pairs between which YaRN blends; the second is below the first where the original context is tiny."""
    half = dimensions // 2

    def pair_of(rotations: float) -> float:
        return half * math.log(yarn.original_context / (rotations * 2 * math.pi)) / math.log(base)

    first, last = pair_of(yarn.beta_fast), pair_of(yarn.beta_slow)
    if yarn.is_truncated:
        first, last = math.floor(first), math.ceil(last)
    return max(first, 0), min(last, dimensions - 1)


def yarn_rope(base: float, dimensions: int, yarn: Yarn) -> Rope:
    """Return YaRN's rotation: fast frequencies as they are, slow ones divided, a blend in between."""
    low, high = yarn_borders(base, dimensions, yarn)
    blended = []
    for pair, frequency in enumerate(plain_frequencies(base, dimensions)):
        slow = min(max((pair - low) / max(high - low, 1e-3), 0.0), 1.0)
        kept = (1.0 - slow) * yarn.extrapolation
        blended.append(frequency / yarn.factor * (1.0 - kept) + frequency * kept)
    return Rope("yarn", base, tuple(blended), yarn.magnitude)


def yarn_temperature(factor: float, share: float = 1.0) -> float:
    """Return YaRN's usual factor on cosines and sines: ``0.1 share ln(factor) + 1``."""
    return 0.1 * share * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def llama3_divisors(
    base: float, dimensions: int, *, factor: float, low: float, high: float, original_context: float
) -> list[float]:
    """Return what Llama 3.1 divides every frequency by: long waves by the factor, short ones by 1, a blend between.

    Args:
        low: waves that fit the original context fewer times than this are long.
        high: those that fit it more often than this are short.
    """
    divisors = []
    for pair in range(dimensions // 2):
        wave = 2 * math.pi * base ** (2 * pair / dimensions)
        share = min(max((original_context / wave - low) / (high - low), 0.0), 1.0)
        divisors.append(1 / ((1 - share) / factor + share))
    return divisors
