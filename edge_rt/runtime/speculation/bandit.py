"""Which way of drafting pays: bandits that forget, because a text changes its nature as it goes.

Rewards are speeds relative to what was usual just before: an arm must not look good for having been tried where any
would have been. Source: Hou et al., "BanditSpec: Adaptive Speculative Decoding
via Bandit Algorithms", with discounting (Garivier and Moulines, "On Upper-Confidence Bound Policies for Switching
Bandit Problems").
"""

from __future__ import annotations

import math
from typing import Final, Protocol

MAX_REWARD: Final = 2.0
"""Larger rewards count as this one."""


class Bandit(Protocol):
    """Chooses among arms."""

    def choose(self) -> int:
        """Return the arm to try next."""

    def learn(self, arm: int, reward: float) -> None:
        """Take in what an arm gave."""


class DiscountedUCB:
    """The arm with the largest mean plus a bonus for having been tried little; old trials fade.

    Args:
        priors: assumed mean of every arm, worth one trial that never fades.
        keep: what is left of a trial after one more of any arm.
        bonus: weight of the uncertainty.
    """

    def __init__(self, priors: tuple[float, ...], *, keep: float = 0.995, bonus: float = 0.08) -> None:
        self._priors = priors
        self._keep = keep
        self._bonus = bonus
        self._sums = [0.0] * len(priors)
        self._counts = [0.0] * len(priors)

    def means(self) -> list[float]:
        """Return what is expected of every arm."""
        facts = zip(self._priors, self._sums, self._counts, strict=True)
        return [(prior + total) / (1.0 + count) for prior, total, count in facts]

    def choose(self) -> int:
        """Return the arm with the largest upper bound; the first of equals."""
        log = math.log(2.0 + sum(self._counts))
        pairs = zip(self.means(), self._counts, strict=True)
        bounds = [mean + self._bonus * math.sqrt(log / (1.0 + count)) for mean, count in pairs]
        return bounds.index(max(bounds))

    def learn(self, arm: int, reward: float) -> None:
        """Take in a reward; what is known of every arm fades."""
        self._sums = [self._keep * total for total in self._sums]
        self._counts = [self._keep * count for count in self._counts]
        self._sums[arm] += reward
        self._counts[arm] += 1.0
