"""Decides where a draft of the model's own first layers ends and how long it is; nothing is drafted where none pays."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence as Items
from typing import Final

from edge_rt.runtime.speculation.exit_costs import ExitCurves
from edge_rt.runtime.speculation.exit_source import Plan
from edge_rt.runtime.speculation.source import MAX_CHAIN, SURENESS
from edge_rt.runtime.speculation.statistics import Rates

_LEVELS: Final = len(SURENESS) + 1
# Rates before anything is learned; the weight of these, in trials.
_FIRST: Final = 0.4
_SIBLINGS: Final = (0.2, 0.1, 0.05)
_TRIALS: Final = 4.0


class ExitRates:
    """Learned acceptance of guesses at every exit."""

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
            probability: that the exit gave it.
            siblings: the next likely tokens of the row, at most ``RANKS``.
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


MARGIN: Final = 1.02
"""Speed-up that a draft must promise."""
_KEEP_GENERATION: Final = 0.8
_FIRST_PROBE: Final = 4
_LAST_PROBE: Final = 64
"""Steps between two probes, at first and at last."""


class ExitController:
    """Maximises expected tokens over measured milliseconds, as DEL (2025) does over layers.

    What differs from it: times are measured and have the head in them, a head that a small model reads as often as many
    layers; and no draft at all is one of the choices. While nothing pays, one guess is made now and then at the exit
    that is known least: the pass goes on with its row, so that it costs a product of the head.

    Args:
        rates: what was learned of earlier generations.
    """

    def __init__(self, curves: ExitCurves, rates: ExitRates | None = None) -> None:
        self._curves = curves
        self._rates = rates or ExitRates(curves.exits)
        self._idle = 0
        self._wait = _FIRST_PROBE

    @property
    def rates(self) -> ExitRates:
        """What was learned."""
        return self._rates

    def begin(self) -> None:
        """Start another generation."""
        self._rates.relax(_KEEP_GENERATION)

    def plan(self, depth: int, limit: int) -> Plan | None:
        """Return the draft that promises the most tokens per millisecond, a probe, or None."""
        self._curves.go_to(depth)
        best, found = MARGIN / self._curves.plain, None
        for index in range(self._curves.exits):
            expected = reach = 1.0
            for length in range(1, min(limit, MAX_CHAIN, self._curves.most - 1) + 1):
                reach *= self._rates.expected(index, length - 1)
                expected += reach
                speed = expected / self._time(index, length)
                if speed > best:
                    best, found = speed, Plan(index, length)
        if found is not None:
            self._idle, self._wait = 0, _FIRST_PROBE
            return found
        self._idle += 1
        if self._idle < self._wait or limit < 1:
            return None
        self._idle, self._wait = 0, min(2 * self._wait, _LAST_PROBE)
        trials = self._rates.trials
        return Plan(trials.index(min(trials)), 1)

    def goes_on(self, exit_index: int, values: Items[float]) -> bool:
        """Return whether the next token's chance is worth more than its time."""
        length = len(values)
        reach = (values[-1] if values else 1.0) * self._rates.expected(exit_index, length)
        speed = (1.0 + sum(values)) / self._time(exit_index, length)
        return (1.0 + sum(values) + reach) / self._time(exit_index, length + 1) > speed

    def _time(self, exit_index: int, length: int) -> float:
        """Return the milliseconds of a step with a chain of ``length`` tokens; the last one is not yet computed."""
        curves = self._curves
        return length * curves.draft(exit_index) + curves.verify(exit_index, 1 + length, length)
