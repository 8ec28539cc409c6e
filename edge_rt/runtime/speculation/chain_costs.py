"""How long a chain pays that takes a pass for every token: measured times, learned acceptance."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence as Items
from typing import Final

from edge_rt.runtime.speculation.cost_model import CostCurve, RowCosts
from edge_rt.runtime.speculation.statistics import Rates

_SURENESS: Final = (0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 0.97)
"""Bounds of the probabilities that the draft gives its tokens; acceptance is learned for each range between them."""
_PRIORS: Final = (0.5, 0.6, 0.7, 0.8, 0.87, 0.92, 0.96, 0.99)
_PRIOR_TRIALS: Final = 20.0
_READING: Final = 1 / 6
"""Time for a token of a text that is computed in chunks, in passes over one row."""
_RELAX: Final = 0.8


class ChainCosts:
    """Decides how many tokens to draft.

    A chain of d tokens costs d passes of what drafts and one pass of the model over 1 + d rows; it gives one token more
    than are accepted. The d that promises the most tokens per millisecond is taken, 0 included.

    Args:
        draft: costs of passes over one row by what drafts.
        prior: share of drafted tokens that is taken to be right before any is known.
    """

    def __init__(self, whole: RowCosts, draft: RowCosts, most: int, *, prior: float = 0.9) -> None:
        self._whole = CostCurve(whole, most + 1)
        self._draft = CostCurve(draft, 1)
        self._mean = Rates((prior,), _PRIOR_TRIALS)
        self._by_sureness = Rates(_PRIORS, _PRIOR_TRIALS)

    def begin(self) -> None:
        """Start another generation: part of what was learned fades."""
        self._mean.relax(_RELAX)
        self._by_sureness.relax(_RELAX)

    def value_of(self, probability: float) -> float:
        """Return how likely a drafted token is accepted that the draft gives this probability."""
        return self._by_sureness.value[bisect_right(_SURENESS, probability)]

    def goes_on(self, depth: int, values: Items[float], most: int) -> bool:
        """Return whether another token is to be drafted.

        Args:
            depth: tokens of the context.
            values: of the tokens drafted so far, the probability that each and all before it are accepted.
        """
        count, expected = len(values), 1.0 + sum(values)
        stopping = expected / self._cost(depth, count)
        value = values[-1] if values else 1.0
        for length in range(count + 1, most + 1):
            value *= self._mean.value[0]
            expected += value
            if expected / self._cost(depth, length) > stopping:
                return True
        return False

    def _cost(self, depth: int, drafted: int) -> float:
        return drafted * self._draft.at(depth)[0] + self._whole.at(depth)[drafted]

    def gain(self, depth: int) -> float:
        """Return the speed of the best length over that of plain decoding, by mean acceptance."""
        plain = 1.0 / self._cost(depth, 0)
        value, expected, best = 1.0, 1.0, plain
        for length in range(1, len(self._whole.at(depth))):
            value *= self._mean.value[0]
            expected += value
            best = max(best, expected / self._cost(depth, length))
        return best / plain

    def price(self, depth: int, tokens: int, passes: int) -> float:
        """Return what computing known tokens and drafting in some passes costs, in plain passes over one row."""
        return (tokens * _READING + passes) * self._draft.at(depth)[0] / self._whole.at(depth)[0]

    def learn(self, probability: float, hit: bool) -> None:
        """Learn whether a drafted token was accepted, if all before it were."""
        self._mean.learn(0, hit)
        self._by_sureness.learn(bisect_right(_SURENESS, probability), hit)
