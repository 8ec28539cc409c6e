"""The shape of a draft that tokens are drawn into: its slots are chosen before any token is drawn."""

from __future__ import annotations

import heapq
from typing import Final, NamedTuple

from edge_rt.runtime.decode.draft import ROOT
from edge_rt.runtime.speculation.rates import Rates

SURE_BOUNDS: Final = (0.2, 0.4, 0.65)
"""Bounds of four ranges of sureness: the probability of a source's best guess after the known tokens."""
_DEPTHS: Final = 6
MAX_SIBLINGS: Final = 3
"""Most slots after one token."""
_TRIALS: Final = 6.0
# Priors: acceptance of the first drawn token, by sureness; of deeper ones; a further sibling's share of what earlier
# siblings leave.
_FIRST: Final = (0.2, 0.35, 0.55, 0.8)
_DEEPER: Final = 0.5
_SHARE: Final = 0.3


class Slot(NamedTuple):
    """A position in the draft for a token that is yet to be drawn.

    Attributes:
        parent: index of the slot above, or ``ROOT``.
        depth: 0 directly after the known tokens.
        rank: number of siblings drawn before.
        value: probability that a token drawn there is accepted.
    """

    parent: int
    depth: int
    rank: int
    value: float


class SlotRates:
    """Acceptance of drawn tokens whose parents were accepted: learned by sureness of the source, depth and rank.

    One object serves all generations of a model.
    """

    def __init__(self) -> None:
        priors: list[float] = []
        for first in _FIRST:
            for depth in range(_DEPTHS):
                left = 1.0
                for rank in range(MAX_SIBLINGS):
                    share = left * ((first if depth == 0 else _DEEPER) if rank == 0 else _SHARE)
                    left -= share
                    priors.append(share)
        self._rates = Rates(priors, _TRIALS)

    @staticmethod
    def _cell(sure: int, depth: int, rank: int) -> int:
        return (sure * _DEPTHS + min(depth, _DEPTHS - 1)) * MAX_SIBLINGS + rank

    def rate(self, sure: int, depth: int, rank: int) -> float:
        """Return the share of tokens that were accepted.

        Args:
            sure: 0 to 3, the range of ``SURE_BOUNDS``.
            depth: at least 0.
            rank: 0 to 2.
        """
        return self._rates.value[self._cell(sure, depth, rank)]

    def learn(self, sure: int, slot: Slot, hit: bool) -> None:
        """Learn whether a token was accepted whose parent was; a slot that stayed empty counts as rejected."""
        self._rates.learn(self._cell(sure, slot.depth, slot.rank), hit)

    def shape(self, sure: int, limit: int, *, least: float, siblings: int = MAX_SIBLINGS) -> list[Slot]:
        """Return the most valuable slots, the best first, parents and earlier siblings before the others.

        Args:
            sure: 0 to 3.
            limit: most slots.
            least: slots of less value are left out.
            siblings: most slots after one token, 1 to 3; 1 makes chains.
        """
        slots: list[Slot] = []
        # The second number breaks ties between slots of equal value; the last is the value of the parent slot.
        heap: list[tuple[float, int, Slot, float]] = []

        def add(parent: int, above: float, depth: int, rank: int, bound: float) -> None:
            value = min(above * self.rate(sure, depth, rank), bound)
            if value >= least:
                heapq.heappush(heap, (-value, parent * MAX_SIBLINGS + rank, Slot(parent, depth, rank, value), above))

        if limit > 0:
            add(ROOT, 1.0, 0, 0, 1.0)
        while heap and len(slots) < limit:
            _, _, slot, above = heapq.heappop(heap)
            slots.append(slot)
            add(len(slots) - 1, slot.value, slot.depth + 1, 0, slot.value)
            if slot.rank + 1 < siblings:
                add(slot.parent, above, slot.depth, slot.rank + 1, slot.value)
        return slots
