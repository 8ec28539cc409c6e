"""Bandits that choose a way of drafting; they forget, because a text changes its nature as it goes.

Rewards are speeds relative to the recent average: an arm must not look good only because it was tried on an easy
stretch of text. Source: Hou et al., "BanditSpec: Adaptive Speculative Decoding via Bandit Algorithms", with discounting
(Garivier and Moulines, "On Upper-Confidence Bound Policies for Switching Bandit Problems").
"""

from __future__ import annotations

import math
from typing import Final, Protocol

MAX_REWARD: Final = 2.0
"""Largest reward; larger ones are cut to it."""


class Bandit(Protocol):
    """Chooses among arms."""

    def choose(self) -> int:
        """Return the arm to try next."""

    def learn(self, arm: int, reward: float) -> None:
        """Learn the reward of an arm."""


class DiscountedUCB:
    """Chooses the arm with the largest mean plus a bonus for arms with few trials; old trials fade.

    Args:
        priors: assumed mean of every arm, worth one trial that never fades.
        keep: factor on the weight of every earlier trial, applied at each new trial.
        bonus: weight of the uncertainty.
    """

    def __init__(self, priors: tuple[float, ...], *, keep: float = 0.995, bonus: float = 0.08) -> None:
        self._priors = priors
        self._keep = keep
        self._bonus = bonus
        self._sums = [0.0] * len(priors)
        self._counts = [0.0] * len(priors)

    def means(self) -> list[float]:
        """Return the expected reward of every arm."""
        facts = zip(self._priors, self._sums, self._counts, strict=True)
        return [(prior + total) / (1.0 + count) for prior, total, count in facts]

    def choose(self) -> int:
        """Return the arm with the largest upper bound; of equal arms the first."""
        log = math.log(2.0 + sum(self._counts))
        pairs = zip(self.means(), self._counts, strict=True)
        bounds = [mean + self._bonus * math.sqrt(log / (1.0 + count)) for mean, count in pairs]
        return bounds.index(max(bounds))

    def learn(self, arm: int, reward: float) -> None:
        """Learn a reward; earlier trials of every arm fade."""
        self._sums = [self._keep * total for total in self._sums]
        self._counts = [self._keep * count for count in self._counts]
        self._sums[arm] += reward
        self._counts[arm] += 1.0
