"""How long a chain pays that takes a pass for every token: measured times, learned acceptance."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence as Items
from typing import Final

from edge_rt.runtime.speculation.acceptance import Rates
from edge_rt.runtime.speculation.cost_model import CostCurve, RowCosts

_SURENESS: Final = (0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 0.97)
"""Bounds of the probabilities that the draft gives its tokens; acceptance is learned for each range between them."""
_PRIORS: Final = (0.5, 0.6, 0.7, 0.8, 0.87, 0.92, 0.96, 0.99)
_PRIOR_TRIALS: Final = 20.0
_READING: Final = 1 / 6
"""Time for a token of a text that is computed in chunks, in passes over one row."""
_KEEP: Final = 0.95
"""Factor on how slow passes were, at every new pass."""
_RELAX: Final = 0.8
_WORST: Final = 5.0
"""Longer passes are blamed on other programs, and count as this many times the measured time."""


class ChainCosts:
    """Decides how many tokens to draft, and how many of them to verify.

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
        # Passes relative to the measured costs: the model's, those that draft.
        self._slowness = [1.0, 1.0]

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
        stopping = expected / self._cost(depth, count, count)
        value = values[-1] if values else 1.0
        for length in range(count + 1, most + 1):
            value *= self._mean.value[0]
            expected += value
            if expected / self._cost(depth, length, length) > stopping:
                return True
        return False

    def size(self, depth: int, values: Items[float]) -> int:
        """Return how many of the drafted tokens to verify."""
        drafted, expected, best, size = len(values), 1.0, 0.0, 0
        for count in range(drafted + 1):
            expected += values[count - 1] if count else 0.0
            speed = expected / self._cost(depth, drafted, count)
            if speed > best:
                best, size = speed, count
        return size

    def _cost(self, depth: int, drafted: int, verified: int) -> float:
        whole, draft = self._whole.at(depth), self._draft.at(depth)
        return drafted * draft[0] * self._slowness[1] + whole[verified] * self._slowness[0]

    def gain(self, depth: int) -> float:
        """Return the speed of the best length over that of plain decoding, by mean acceptance."""
        plain = 1.0 / self._cost(depth, 0, 0)
        value, expected, best = 1.0, 1.0, plain
        for length in range(1, len(self._whole.at(depth))):
            value *= self._mean.value[0]
            expected += value
            best = max(best, expected / self._cost(depth, length, length))
        return best / plain

    def price(self, depth: int, tokens: int, passes: int) -> float:
        """Return what computing known tokens and drafting in some passes costs, in plain passes over one row."""
        whole, draft = self._whole.at(depth)[0] * self._slowness[0], self._draft.at(depth)[0] * self._slowness[1]
        return (tokens * _READING + passes) * draft / whole

    def learn(self, probability: float, hit: bool) -> None:
        """Learn whether a drafted token was accepted, if all before it were."""
        self._mean.learn(0, hit)
        self._by_sureness.learn(bisect_right(_SURENESS, probability), hit)

    def time(self, depth: int, drafted: int, drafting_ms: float, verified: int, verifying_ms: float) -> None:
        """Learn how long the passes of a step took."""
        found = [(0, verifying_ms / self._whole.at(depth)[verified])]
        if drafted:
            found.append((1, drafting_ms / (drafted * self._draft.at(depth)[0])))
        for which, slowness in found:
            self._slowness[which] += (1 - _KEEP) * (min(slowness, _WORST) - self._slowness[which])
