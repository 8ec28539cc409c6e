"""Hit rates that are learned online and fade."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Final

_KEEP: Final = 0.998
"""Factor on a count at every new trial of the same kind: about 500 trials are remembered."""


class Rates:
    """Discounted hit rates with priors.

    Args:
        priors: rates before anything is learned.
        trials: weight of the priors, in trials.

    Attributes:
        value: the current rates.
    """

    def __init__(self, priors: Items[float], trials: float) -> None:
        self._priors = list(priors)
        self._prior_trials = trials
        self._hits = [prior * trials for prior in priors]
        self._trials = [trials] * len(priors)
        self._is_learned = [False] * len(priors)
        self.value = list(priors)

    def learn(self, index: int, hit: bool) -> None:
        """Learn the outcome of a trial."""
        trials = self._trials[index] * _KEEP + 1.0
        hits = self._hits[index] * _KEEP + hit
        self._trials[index], self._hits[index] = trials, hits
        self._is_learned[index] = True
        self.value[index] = hits / trials

    def relax(self, keep: float) -> None:
        """Move part of the way back to the priors."""
        own = self._prior_trials
        for index, is_learned in enumerate(self._is_learned):
            if is_learned:
                prior = self._priors[index]
                trials = own + keep * (self._trials[index] - own)
                hits = prior * own + keep * (self._hits[index] - prior * own)
                self._trials[index], self._hits[index] = trials, hits
                self.value[index] = hits / trials
