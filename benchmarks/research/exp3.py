"""The bandit that lost: EXP3, for ``benchmarks/replay_drafters.py`` to compare with."""

from __future__ import annotations

import math

import numpy as np

from edge_rt.runtime.speculation.arms import MAX_REWARD


class EXP3:
    """Arms drawn by weights that grow with their importance-weighted rewards (Auer et al.), with forgetting.

    Args:
        arms: how many.
        rate: how fast weights move.
        explore: share of choices made at random.
        keep: what is left of a weight's logarithm after a step.
        seed: of the draws.
    """

    def __init__(
        self, arms: int, *, rate: float = 0.15, explore: float = 0.07, keep: float = 0.97, seed: int = 0
    ) -> None:
        self._logs = [0.0] * arms
        self._rate, self._explore, self._keep = rate, explore, keep
        self._random = np.random.Generator(np.random.PCG64(seed))

    def probabilities(self) -> list[float]:
        """Return the probability of every arm."""
        top = max(self._logs)
        weights = [math.exp(log - top) for log in self._logs]
        total, arms = sum(weights), len(weights)
        return [(1 - self._explore) * weight / total + self._explore / arms for weight in weights]

    def choose(self) -> int:
        """Draw an arm."""
        return int(self._random.choice(len(self._logs), p=self.probabilities()))

    def learn(self, arm: int, reward: float) -> None:
        """Take in a reward."""
        share = self.probabilities()[arm]
        self._logs = [self._keep * log for log in self._logs]
        self._logs[arm] += self._rate * min(reward, MAX_REWARD) / MAX_REWARD / share
