"""Drafts with the model's own first layers: a chain that ends at an exit, and siblings from the same rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence as Items
from typing import TYPE_CHECKING, Any

from edge_rt.runtime.cache.kv_cache import KVCache
from edge_rt.runtime.decode.draft import ROOT, Accepted, Draft
from edge_rt.runtime.forward.outputs import Outputs
from edge_rt.runtime.forward.segmented_runner import SegmentedRunner
from edge_rt.runtime.results import SpecStats
from edge_rt.runtime.speculation.exit_controller import Controller
from edge_rt.runtime.speculation.exit_source import Plan, PromptTokens, draft_chain, learn_chain
from edge_rt.runtime.speculation.source import ChainGuess
from edge_rt.runtime.speculation.statistics import SpecCounter, decision

if TYPE_CHECKING:
    from edge_rt.runtime.decode.sequence import Sequence

Trace = Callable[[dict[str, Any]], None]


class ExitDrafter:
    """Drafts behind an exit; the pass that verifies goes on with the rows that were drafted.

    Args:
        runner: returns the runner as long as the model is open.
        controller: decides where drafts end and how long they are.
        exits: numbers of layers before every exit.
        max_nodes: most nodes of a draft.
        adapters: what guesses at the exits, if that is not the model's head.
        clock: seconds.
    """

    def __init__(
        self,
        runner: Callable[[], SegmentedRunner],
        cache: KVCache,
        controller: Controller,
        exits: Items[int],
        *,
        max_nodes: int,
        adapters: PromptTokens | None = None,
        trace: Trace | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._runner = runner
        self._cache = cache
        self._controller = controller
        self._exits = tuple(exits)
        self._max_nodes = max_nodes
        self._adapters = adapters
        self._trace = trace
        self._clock = clock
        self._counter = SpecCounter()
        self._sequence: Sequence | None = None
        self._plan: Plan | None = None
        self._guesses: list[ChainGuess] = []
        self._expected = 0.0
        self._started = self._proposed = 0.0

    def statistics(self, mode: str, taken_back: int = 0) -> SpecStats:
        """Return the statistics since ``begin``."""
        memory = 0 if self._adapters is None else self._adapters.memory_bytes
        return self._counter.stats(mode, memory, taken_back)

    def begin(self, sequence: Sequence) -> None:
        """Start drafting for a sequence; what was learned is kept."""
        self._sequence = sequence
        self._counter = SpecCounter()
        self._controller.begin()
        if self._adapters is not None:
            self._adapters.add_tokens(sequence.token_ids)

    def propose(self, sequence: Sequence, limit: int) -> Draft:
        """Return the chain that promises the most tokens per millisecond, with siblings; empty where none pays.

        Raises:
            Cancelled: a pass was stopped; nothing of the draft is left.
        """
        self._started = self._clock()
        self._plan, self._guesses, self._expected = None, [], 0.0
        draft = Draft()
        runner, known = self._runner(), len(sequence.token_ids)
        most = min(limit, self._max_nodes, runner.most_ahead - 1)
        # The first pass computes the rest of the prompt, at the cost of prefill; later ones begin with one token.
        if sequence.num_answer_tokens and known - self._cache.length == 1 and most > 0:
            self._plan = self._controller.plan(known, most)
            if self._plan is not None:
                plan = Plan(self._plan.exit_index, min(self._plan.length, most))
                self._guesses = draft_chain(
                    runner, self._cache, sequence.token_ids[-1], plan, self._controller, sequence.end_ids
                )
                draft = self._chosen(plan.exit_index, most)
        self._proposed = self._clock()
        return draft

    def _chosen(self, exit_index: int, most: int) -> Draft:
        """Return the nodes that are worth verifying: first those of the chain, which the pass goes on with."""
        rates = self._controller.rates
        nodes: list[tuple[float, int, int, int]] = []  # less its value, number, place of the row behind it, token
        reach = 1.0
        for place, guess in enumerate(self._guesses):
            share = rates.of_guess(exit_index, guess.probability)
            nodes.append((-reach * share, len(nodes), place, guess.token_id))
            for rank, token in enumerate(guess.siblings, start=1):
                value = reach * (1.0 - share) * rates.of_sibling(exit_index, rank)
                nodes.append((-value, len(nodes), place, token))
            reach *= share
        nodes.sort()
        size = self._controller.size(exit_index, [-node[0] for node in nodes[:most]], len(self._guesses))
        self._expected = -sum(node[0] for node in nodes[:size])
        kept = {(place, token) for _, _, place, token in nodes[:size]}
        chain = [guess.token_id for place, guess in enumerate(self._guesses) if (place, guess.token_id) in kept]
        siblings = [
            (token, place - 1)
            for _, _, place, token in nodes[:size]
            if place <= len(chain) and token != self._guesses[place].token_id
        ]
        parents = [*range(ROOT, len(chain) - 1), *(parent for _, parent in siblings)]
        return Draft((*chain, *(token for token, _ in siblings)), tuple(parents))

    def observe(self, draft: Draft, accepted: Accepted, outputs: Outputs) -> None:
        """Learn from a step."""
        del outputs
        verified = self._clock()
        sequence = self._sequence
        assert sequence is not None, "begin was not called"
        if self._plan is not None:
            learn_chain(self._controller.rates, self._plan, self._guesses, accepted.token_ids)
        emitted = len(accepted.token_ids)
        is_first = sequence.num_answer_tokens == emitted
        reached = {ROOT, *accepted.path}
        arm = "off" if self._plan is None else f"exit {self._exits[self._plan.exit_index]}"
        drafting = 1e3 * (self._proposed - self._started + self._clock() - verified)
        verifying = 1e3 * (verified - self._proposed)
        if not is_first:
            index = None if self._plan is None else self._plan.exit_index
            proposing = 1e3 * (self._proposed - self._started)
            self._controller.time(index, len(self._guesses), proposing, len(draft) + 1, verifying)
        tested = sum(parent in reached for parent in draft.parents)
        self._counter.add(draft, accepted, tested, drafting, verifying, arm, is_first=is_first)
        if self._trace is not None and not is_first:
            self._trace(decision(sequence, arm, draft, accepted, self._expected, drafting, verifying))
