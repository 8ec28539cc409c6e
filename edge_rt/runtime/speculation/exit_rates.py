"""How often the guess behind a model's first layers is right, learned per exit, place in the draft and sureness."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence as Items
from typing import Final

from edge_rt.runtime.drafters.chain import MAX_CHAIN, SURENESS
from edge_rt.runtime.speculation.rates import Rates

_LEVELS: Final = len(SURENESS) + 1
# Rates before anything is learned; the weight of these, in trials.
_FIRST: Final = 0.4
_SIBLINGS: Final = (0.2, 0.1, 0.05)
_TRIALS: Final = 4.0


class ExitRates:
    """Learned acceptance of guesses at every exit.

    Args:
        exits: number of exits.
    """

    def __init__(self, exits: int) -> None:
        self._places = [Rates([_FIRST] * MAX_CHAIN, _TRIALS) for _ in range(exits)]
        levels = [_FIRST * (0.5 + level / (_LEVELS - 1)) for level in range(_LEVELS)]
        self._levels = [Rates(levels, _TRIALS) for _ in range(exits)]
        self._siblings = [Rates(_SIBLINGS, _TRIALS) for _ in range(exits)]
        self.trials = [0] * exits
        """Guesses whose outcome is known, by exit."""

    def expected(self, exit_index: int, place: int) -> float:
        """Return the probability that the guess at a place of the chain is right, if those before it are."""
        return self._places[exit_index].value[min(place, MAX_CHAIN - 1)]

    def of_guess(self, exit_index: int, probability: float) -> float:
        """Return the probability that a guess is right to which the exit gives a probability."""
        return self._levels[exit_index].value[bisect(SURENESS, probability)]

    def of_sibling(self, exit_index: int, rank: int) -> float:
        """Return the probability that the token of rank 1, 2, ... is right where the first one, rank 0, is wrong."""
        return self._siblings[exit_index].value[rank - 1]

    def learn(
        self, exit_index: int, place: int, probability: float, siblings: Items[int], guess: int, found: int
    ) -> None:
        """Learn the outcome of a guess.

        Args:
            exit_index: of the exit.
            place: of the guess in the chain.
            probability: that the exit gave it.
            siblings: the next likely tokens of the row, at most ``RANKS``.
            guess: the token.
            found: the model's own token.
        """
        hit = guess == found
        self.trials[exit_index] += 1
        self._places[exit_index].learn(min(place, MAX_CHAIN - 1), hit)
        self._levels[exit_index].learn(bisect(SURENESS, probability), hit)
        if not hit:
            for rank, token in enumerate(siblings):
                self._siblings[exit_index].learn(rank, token == found)

    def relax(self, keep: float) -> None:
        """Move part of the way back to the priors, between generations."""
        for rates in (*self._places, *self._levels, *self._siblings):
            rates.relax(keep)
