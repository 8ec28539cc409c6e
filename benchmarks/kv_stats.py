"""Paired comparison of two ways to compute the same text: the ratio of their perplexities, with an interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

BLOCK = 64
DRAWS = 4000

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % interval."""

    value: float
    low: float
    high: float

    def percent_change(self) -> str:
        """Return a ratio as a change in per cent: ``+1.30 % (+1.02 to +1.61)``."""
        value, low, high = (100 * (figure - 1) for figure in (self.value, self.low, self.high))
        return f"{value:+.2f} % ({low:+.2f} to {high:+.2f})"


def blocks_of(series: Sequence[Array], block: int = BLOCK) -> tuple[Array, Array]:
    """Return sums and counts, float64 and int64 ``[blocks]``, of ``block`` neighbours at a time, none across series.

    Neighbouring tokens are alike, so an interval that drew single tokens would be too narrow.
    """
    pieces = [one[at : at + block] for one in series for at in range(0, len(one), block)]
    sums = np.array([np.sum(piece, dtype=np.float64) for piece in pieces])
    return sums, np.array([len(piece) for piece in pieces])


def mean_interval(series: Sequence[Array], block: int = BLOCK, draws: int = DRAWS, seed: int = 0) -> Estimate:
    """Return the mean over all elements, with the bootstrap interval over blocks of neighbours."""
    sums, counts = blocks_of(series, block)
    drawn = np.random.default_rng(seed).integers(0, len(sums), (draws, len(sums)))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return Estimate(float(sums.sum() / counts.sum()), float(low), float(high))


def perplexity(series: Sequence[Array]) -> float:
    """Return the perplexity of negative log-likelihoods, in nats, of all tokens together."""
    return float(np.exp(np.concatenate(list(series)).mean(dtype=np.float64)))


def perplexity_ratio(series: Sequence[Array], baseline: Sequence[Array], block: int = BLOCK) -> Estimate:
    """Return perplexity over the baseline's, of the same tokens, with its 95 % interval.

    Args:
        series: negative log-likelihoods in nats, per window ``[tokens]``.
        baseline: the same for the other format, of the same tokens.
        block: neighbouring tokens that are drawn together.
    """
    change = mean_interval([ours - theirs for ours, theirs in zip(series, baseline, strict=True)], block)
    return Estimate(*(float(np.exp(figure)) for figure in (change.value, change.low, change.high)))
