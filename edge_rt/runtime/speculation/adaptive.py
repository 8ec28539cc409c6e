"""The adaptive drafter: chooses the sources and the size of drafts, and drafts nothing where that is faster."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence as Items
from typing import TYPE_CHECKING, Any, Final

from edge_rt.runtime.decode.draft import ROOT, Accepted, Draft
from edge_rt.runtime.graph.outputs import Outputs
from edge_rt.runtime.results import SpecStats
from edge_rt.runtime.speculation.arms import OFF, Ledger, arms_of
from edge_rt.runtime.speculation.bandit import MAX_REWARD, Bandit
from edge_rt.runtime.speculation.cost_model import CostCurve, RowCosts
from edge_rt.runtime.speculation.statistics import SpecCounter, decision
from edge_rt.runtime.speculation.tree import EMPTY, LEAST_VALUE, TreeGrower, context_of

if TYPE_CHECKING:
    from edge_rt.runtime.decode.sequence import Sequence

BLOCK_STEPS: Final = 8
"""Steps between two choices of the bandit: a single step is too noisy."""
_SPEED_KEEP: Final = 0.95
_USUAL_KEEP: Final = 0.75
_IDLE_STEPS: Final = 64
_WORST: Final = 5.0
"""Longer steps are blamed on other programs, and count as this many times the usual time."""
Trace = Callable[[dict[str, Any]], None]


def best_size(values: Items[float], costs: Items[float], drafting: float) -> int:
    """Return how many nodes to verify: those that maximise expected tokens over cost; 0 if plain decoding is faster.

    The goodput rule (Liu et al., "TurboSpec") over the values of a best-first tree: the m that maximises ``(1 + v_1 +
    ... + v_m) / (t(1 + m) + drafting)``. The time for drafting is spent however much is verified, so it counts for m =
    0 as well.

    Args:
        values: probability of every node that it is accepted, descending.
        costs: ``t``: costs of passes over 1, 2, ... rows, at least one more than values.
        drafting: cost of drafting, in the same unit.
    """
    best, size, expected = 1.0 / (costs[0] + drafting), 0, 1.0
    for count, value in enumerate(values, start=1):
        expected += value
        speed = expected / (costs[count] + drafting)
        if speed > best:
            best, size = speed, count
    return size


class AdaptiveDrafter:
    """Drafts with the arm that the bandit chooses, as many tokens as pay by the cost model.

    Args:
        grower: grows trees.
        costs: costs of passes on this machine.
        bandit: chooses among ``arms``; None: always the last arm.
        max_nodes: most nodes of a draft.
        trace: called with every step's decision.
        clock: seconds.
    """

    def __init__(
        self,
        grower: TreeGrower,
        costs: RowCosts,
        bandit: Bandit | None,
        *,
        max_nodes: int,
        trace: Trace | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.arms = arms_of([source.name for source in grower.sources])
        self.counter = SpecCounter()
        self._grower = grower
        self._curve = CostCurve(costs, max_nodes + 1)
        self._bandit = bandit
        self._max_nodes = max_nodes
        self._trace = trace
        self._clock = clock
        # Milliseconds of drafting and learning, by arm.
        self._drafting = [0.05, *[0.1] * (len(self.arms) - 1)]
        # Current slowdown of passes relative to the measured costs, due to heat or other work.
        self._slowness = 1.0
        # Tokens per millisecond of the last blocks.
        self._usual = 0.0
        self._arm = len(self.arms) - 1
        self._ledger = Ledger(self.arms)
        self._idle = 0
        self._tree = EMPTY
        self._started = self._proposed = 0.0
        self._sequence: Sequence | None = None

    @property
    def memory_bytes(self) -> int:
        """Memory of the sources in bytes."""
        return sum(source.memory_bytes for source in self._grower.sources)

    def statistics(self, mode: str, taken_back: int = 0) -> SpecStats:
        """Return the statistics since ``begin``."""
        return self.counter.stats(mode, self.memory_bytes, taken_back)

    def begin(self, sequence: Sequence) -> None:
        """Start drafting for a sequence; what was learned from earlier ones is kept."""
        self._sequence = sequence
        self.counter = SpecCounter()
        started = self._clock()
        self._grower.begin()
        for source in self._grower.sources:
            source.begin(sequence.token_ids)
        self.counter.drafting_ms += 1e3 * (self._clock() - started)

    def propose(self, sequence: Sequence, limit: int) -> Draft:
        """Return the tree that maximises tokens per second, at most ``limit`` nodes; empty where plain is faster."""
        self._started = self._clock()
        self._tree = EMPTY
        # The first pass also computes the rest of the prompt, at the cost of prefill: it gets no draft.
        if sequence.num_answer_tokens:
            if self._bandit is not None and self._ledger.steps >= BLOCK_STEPS:
                self._close_block()
            most = min(limit, self._max_nodes)
            if self._arm != OFF and most > 0:
                costs = self._curve.at(len(sequence.token_ids))
                tree = self._grower.grow(most, self.arms[self._arm].mask, max(LEAST_VALUE, self._curve.cheapest))
                size = best_size(tree.values, costs, self._drafting[self._arm])
                self._tree = tree.first(size)
                # Sources that are not tried learn nothing: now and then one guess is verified although it does not seem
                # to pay.
                self._idle = 0 if size else self._idle + 1
                if self._idle >= _IDLE_STEPS:
                    self._idle = 0
                    self._tree = self._grower.grow(1, self.arms[self._arm].mask, 0.0)
        self._proposed = self._clock()
        return self._tree.draft

    def observe(self, draft: Draft, accepted: Accepted, outputs: Outputs) -> None:
        """Learn from a step."""
        verified = self._clock()
        sequence = self._sequence
        assert sequence is not None, "begin was not called"
        tree = self._tree.first(len(draft))
        self._grower.learn(tree, accepted)
        emitted = len(accepted.token_ids)
        context = context_of(sequence, emitted)
        for source in self._grower.sources:
            source.observe(draft, accepted, outputs, context)
            source.extend(accepted.token_ids)
        ended = self._clock()
        is_first = sequence.num_answer_tokens == emitted
        drafting = 1e3 * (self._proposed - self._started + ended - verified)
        verifying = 1e3 * (verified - self._proposed)
        reached = {ROOT, *accepted.path}
        self.counter.add(
            draft, accepted, [parent in reached for parent in draft.parents], drafting, verifying,
            self.arms[self._arm].name if len(draft) else "off", is_first=is_first,
        )  # fmt: skip
        if is_first:
            return
        costs = self._curve.at(len(sequence.token_ids))
        self._slowness += (1 - _SPEED_KEEP) * (min(verifying / costs[len(draft)], _WORST) - self._slowness)
        spent = min(drafting / max(self._slowness, 0.1), _WORST * self._drafting[self._arm])
        self._drafting[self._arm] += (1 - _SPEED_KEEP) * (spent - self._drafting[self._arm])
        self._ledger.add(self._arm, tree, accepted, costs, self._drafting)
        if self._trace is not None:
            arm = self.arms[self._arm].name
            self._trace(decision(sequence, arm, draft, accepted, sum(tree.values), drafting, verifying))

    def _close_block(self) -> None:
        """Give the bandit the speeds of the arms in the last steps, and let it choose the arm of the next ones."""
        assert self._bandit is not None
        speeds = self._ledger.speeds()
        played = speeds[self._arm]
        if played is not None:
            self._usual += (1 - _USUAL_KEEP) * (played - self._usual) if self._usual else played
            for arm, speed in enumerate(speeds):
                if speed is not None:
                    self._bandit.learn(arm, min(speed / self._usual, MAX_REWARD))
        self._arm = self._bandit.choose()
        self._ledger.clear()
