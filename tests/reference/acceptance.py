"""The probability that a guess is right, learned online from which earlier guesses were accepted."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Sequence as Items
from typing import Final

from edge_rt.runtime.speculation.core import KEEP_GENERATION, joint_priors
from edge_rt.runtime.speculation.source import DraftSource
from edge_rt.runtime.speculation.statistics import Rates

_KIND_TRIALS: Final = 6.0
_CELL_TRIALS: Final = 6.0
"""Weight of the prior, in trials."""
_WIDEST: Final = 5.0
_STEPS_PER_UNIT: Final = 2
_CELLS: Final = int(2 * _WIDEST * _STEPS_PER_UNIT) + 1
_LEADS: Final = (0.25, 0.5, 0.75)
_LEVELS: Final = len(_LEADS) + 2


def _logit(p: float) -> float:
    p = min(max(p, 1e-4), 1 - 1e-4)
    return math.log(p / (1 - p))


class AcceptanceModel:
    """Estimates the probability that a token follows, given the sources that guess it and their other guesses there.

    Every source has a rate of hits per kind of guess. Their log odds are added up, as in the mixing of context models,
    and a second table corrects the sum. Its cells are indexed by the sum, the set of sources, and the probability of
    the leading guess of the same position. Both forget slowly, so that they follow a change of subject.

    Args:
        sources: the sources that guess, at most 8.
    """

    def __init__(self, sources: Items[DraftSource]) -> None:
        self._kinds = [
            Rates([source.prior(kind) for kind in range(source.num_kinds)], _KIND_TRIALS) for source in sources
        ]
        self._odds = [[_logit(value) for value in rates.value] for rates in self._kinds]
        priors = []
        for start, slope in joint_priors([source.name for source in sources]):
            for lead in range(_LEVELS):
                # Share of the probability that the leading guess of the position leaves.
                share = 1.0 if lead == 0 else 1.0 - (0.0, *_LEADS)[lead - 1] - 0.1
                for cell in range(_CELLS):
                    x = start + slope * (cell / _STEPS_PER_UNIT - _WIDEST)
                    priors.append(share / (1 + math.exp(-x)))
        self._cells = Rates(priors, _CELL_TRIALS)

    def relax(self, keep: float = KEEP_GENERATION) -> None:
        """Move part of the way back to the priors, between generations.

        Guesses that seem wrong are no longer tried; without this, nothing would show that they are right in another
        text.
        """
        self._cells.relax(keep)
        for source, rates in enumerate(self._kinds):
            rates.relax(keep)
            self._odds[source][:] = [_logit(value) for value in rates.value]

    @property
    def odds(self) -> list[list[float]]:
        """Log odds of a source's guess alone, ``[source][kind]``."""
        return self._odds

    @property
    def probabilities(self) -> list[float]:
        """Probability of guesses of every cell."""
        return self._cells.value

    @staticmethod
    def cell(mask: int, odds: float, lead: float | None) -> int:
        """Return the cell of a guess.

        Args:
            mask: bit i is set if source i guesses the token.
            lead: probability of the leading guess of the same position; None for that guess itself.
        """
        level = 0 if lead is None else 1 + bisect(_LEADS, lead)
        if odds > _WIDEST:
            odds = _WIDEST
        elif odds < -_WIDEST:
            odds = -_WIDEST
        return (mask * _LEVELS + level) * _CELLS + int((odds + _WIDEST) * _STEPS_PER_UNIT + 0.5)

    def learn(self, guesses: Items[tuple[int, int]], cell: int, hit: bool) -> None:
        """Learn whether a guess was right.

        Args:
            guesses: (source, kind) of every source that guessed it.
            hit: whether it was right.
        """
        for source, kind in guesses:
            self._kinds[source].learn(kind, hit)
            self._odds[source][kind] = _logit(self._kinds[source].value[kind])
        self._cells.learn(cell, hit)
