"""Drafts with fewer bits of the model itself: the upper halves of nested weights and of the cache.

The draft pass runs a second graph over the same weights, on the same cache, of which it reads the upper halves or all:
in a short context the cache is a small part of what a pass reads. The rows that it writes lie behind the
committed ones, and the pass that verifies writes them again, with whole codes. So nothing of a draft is ever read by
it, and rolling back is forgetting a length.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence as Items
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from edge_rt.runtime.cache.kv_cache import KVCache
from edge_rt.runtime.decode.draft import ROOT, Accepted, Draft
from edge_rt.runtime.decode.loop import Target
from edge_rt.runtime.forward.outputs import Outputs
from edge_rt.runtime.results import SpecStats
from edge_rt.runtime.speculation.chain_costs import ChainCosts
from edge_rt.runtime.speculation.statistics import SpecCounter, decision

if TYPE_CHECKING:
    from edge_rt.runtime.decode.sequence import Sequence

Trace = Callable[[dict[str, Any]], None]

_IDLE_STEPS: Final = 64
"""Steps without a draft after which one token is drafted all the same, so that an improvement is noticed."""
MOST_DRAFTED: Final = 8
"""Longer chains never paid."""


@dataclass(frozen=True)
class View:
    """A way to draft.

    Attributes:
        runner: runs its passes, on the model's cache.
        costs: what it costs and gives; decides how much is drafted.
    """

    name: str
    runner: Target
    costs: ChainCosts


class SelfDrafter:
    """Drafts chains with the upper halves of the model's own weights.

    Args:
        views: of the cache; the one that promises most is taken, of equal ones the first.
        clock: seconds.
    """

    def __init__(
        self,
        views: Items[View],
        cache: KVCache,
        *,
        max_nodes: int,
        trace: Trace | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._views = tuple(views)
        self._view = self._views[0]
        self._cache = cache
        self._max_nodes = max_nodes
        self._trace = trace
        self._clock = clock
        self._counter = SpecCounter()
        self._sequence: Sequence | None = None
        self._idle = 0
        self._begin_step()

    def _begin_step(self) -> None:
        self._started = self._proposed = self._clock()
        self._depth = 0
        self._probabilities: list[float] = []
        self._values: list[float] = []

    def statistics(self, mode: str, taken_back: int = 0) -> SpecStats:
        """Return the statistics since ``begin``."""
        return self._counter.stats(mode, 0, taken_back)

    def begin(self, sequence: Sequence) -> None:
        """Start drafting for a sequence; what was learned from earlier ones fades a little."""
        self._sequence = sequence
        self._counter = SpecCounter()
        for view in self._views:
            view.costs.begin()

    def propose(self, sequence: Sequence, limit: int) -> Draft:
        """Return the chain that promises the most tokens per millisecond; empty where none pays.

        Raises:
            Cancelled: a pass was stopped; nothing of the draft is left.
        """
        self._begin_step()
        self._depth = len(sequence.token_ids)
        # The pass that verifies has a row more.
        most = min(limit, self._max_nodes, self._cache.largest_pass - 1)
        self._view = max(self._views, key=lambda view: view.costs.gain(self._depth))
        tokens: list[int] = []
        # The first pass computes the rest of the prompt, at the cost of prefill: it gets no draft.
        if sequence.num_answer_tokens and most > 0:
            tokens = self._chain(sequence, most)
            tokens = tokens[: self._view.costs.size(self._depth, self._values) or int(self._is_trial)]
        self._proposed = self._clock()
        return Draft.chain(tokens)

    @property
    def _is_trial(self) -> bool:
        return self._idle >= _IDLE_STEPS

    def _chain(self, sequence: Sequence, most: int) -> list[int]:
        tokens: list[int] = []
        costs = self._view.costs
        if not self._is_trial and not costs.goes_on(self._depth, (), most):
            self._idle += 1
            return tokens
        with self._cache.reserve(1 if self._is_trial else most) as rows:
            token = sequence.token_ids[-1]
            while len(tokens) < rows.count:
                if tokens and not costs.goes_on(self._depth, self._values, most):
                    break
                top = self._view.runner.forward([token], rows.start + len(tokens), 1).top
                assert top is not None, "native graphs compute the most likely tokens"
                token, probability = int(top.ids[0, 0]), float(top.probabilities()[0, 0])
                tokens.append(token)
                self._probabilities.append(probability)
                before = self._values[-1] if self._values else 1.0
                self._values.append(before * costs.value_of(probability))
                if token in sequence.end_ids:
                    break
        return tokens

    def observe(self, draft: Draft, accepted: Accepted, outputs: Outputs) -> None:
        """Learn from a step."""
        del outputs
        verified = self._clock()
        sequence = self._sequence
        assert sequence is not None, "begin was not called"
        emitted = len(accepted.token_ids)
        is_first = sequence.num_answer_tokens == emitted
        for place, (token, found) in enumerate(zip(draft.token_ids, accepted.token_ids, strict=False)):
            self._view.costs.learn(self._probabilities[place], token == found)
            if token != found:
                break
        drafting, verifying = 1e3 * (self._proposed - self._started), 1e3 * (verified - self._proposed)
        drafted = len(self._probabilities)
        if drafted:
            self._idle = 0
        if not is_first:
            self._view.costs.time(self._depth, drafted, drafting, len(draft), verifying)
        reached = {ROOT, *accepted.path}
        arm = self._view.name if drafted else "off"
        tested = sum(parent in reached for parent in draft.parents)
        self._counter.add(draft, accepted, tested, drafting, verifying, arm, is_first=is_first)
        if self._trace is not None and not is_first:
            self._trace(decision(sequence, arm, draft, accepted, sum(self._values[: len(draft)]), drafting, verifying))
