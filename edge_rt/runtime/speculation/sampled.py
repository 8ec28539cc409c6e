"""Recycled tokens drawn at random, for the acceptance rule that needs the probability of every draw.

``accept_ratio`` keeps the text's distribution only if being in the draft does not depend on which token was drawn. So
the shape of a draft is chosen first, from what was learned about its slots. Then tokens are drawn into it, and nothing
is sorted or dropped afterwards.
"""

from __future__ import annotations

import heapq
import time
from array import array
from bisect import bisect
from collections.abc import Callable, Collection, Sequence as Items
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from edge_rt.runtime.decode.accept_ratio import Proposal, accept_ratio
from edge_rt.runtime.decode.draft import ROOT, Accepted, Draft
from edge_rt.runtime.decode.numpy_chain import LEAST_TEMPERATURE
from edge_rt.runtime.decode.sampling import Chance, Sampler
from edge_rt.runtime.forward.outputs import Outputs
from edge_rt.runtime.results import SpecStats
from edge_rt.runtime.speculation.adaptive import LEAST_VALUE, Trace, context_of
from edge_rt.runtime.speculation.core import Tree, divide
from edge_rt.runtime.speculation.cost_model import CostCurve, Costs
from edge_rt.runtime.speculation.library import DraftLibrary
from edge_rt.runtime.speculation.source import AskedSource, Guess
from edge_rt.runtime.speculation.statistics import Rates, SpecCounter, decision

if TYPE_CHECKING:
    from edge_rt.runtime.decode.sequence import Sequence


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


class DraftSlot(NamedTuple):
    """A position in the draft for a token that is yet to be drawn.

    Attributes:
        depth: 0 directly after the known tokens.
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

    def learn(self, sure: int, slot: DraftSlot, hit: bool) -> None:
        """Learn whether a token was accepted whose parent was; a slot that stayed empty counts as rejected."""
        self._rates.learn(self._cell(sure, slot.depth, slot.rank), hit)

    def shape(self, sure: int, limit: int, *, least: float, siblings: int = MAX_SIBLINGS) -> list[DraftSlot]:
        """Return the most valuable slots, the best first, parents and earlier siblings before the others.

        Args:
            sure: 0 to 3.
            siblings: most slots after one token, 1 to 3; 1 makes chains.
        """
        slots: list[DraftSlot] = []
        # The second number breaks ties between slots of equal value; the last is the value of the parent slot.
        heap: list[tuple[float, int, DraftSlot, float]] = []

        def add(parent: int, above: float, depth: int, rank: int, bound: float) -> None:
            value = min(above * self.rate(sure, depth, rank), bound)
            if value >= least:
                heapq.heappush(
                    heap, (-value, parent * MAX_SIBLINGS + rank, DraftSlot(parent, depth, rank, value), above)
                )

        if limit > 0:
            add(ROOT, 1.0, 0, 0, 1.0)
        while heap and len(slots) < limit:
            _, _, slot, above = heapq.heappop(heap)
            slots.append(slot)
            add(len(slots) - 1, slot.value, slot.depth + 1, 0, slot.value)
            if slot.rank + 1 < siblings:
                add(slot.parent, above, slot.depth, slot.rank + 1, slot.value)
        return slots


PROBE_STEPS: Final = 16
"""Steps without a draft after which one token is drafted anyway, to learn whether drafting pays again."""
_DRAFTING_MS: Final = 0.2
"""Assumed cost of drafting. It is not measured while decoding: a seed would then give another text every time."""
_LEAST_WEIGHT: Final = 1e-6
"""Tokens that are less likely than the best one by this factor are not drawn."""


class _SourceContext(NamedTuple):
    """A source's guesses after one context: the distribution to draw from, and the cursor of each token."""

    proposal: Proposal
    cursors: dict[int, Any]


class SampledDrafter:
    """Draws trees from the probabilities of a source, as large as pays off; ``accept`` is the matching acceptance rule.

    It serves one generation. It has random numbers of its own, which come from the request's seed but are not the
    sampler's. Its decisions do not depend on a clock, so a seed repeats its text as long as the source, the rates and
    the costs are the same.

    Args:
        source: guesses whose prior is proportional to their probability among the guesses at one context.
        temperature: of the request, above 0; the probabilities are raised to its inverse, as the model's are.
        seed: of the request; None takes a new seed.
        clock: seconds; for the statistics.
    """

    def __init__(
        self,
        source: AskedSource,
        rates: SlotRates,
        costs: Costs,
        *,
        library: DraftLibrary,
        temperature: float,
        seed: int | None,
        max_nodes: int,
        chain: bool = False,
        trace: Trace | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.counter = SpecCounter()
        self._library = library
        self._source = source
        self._rates = rates
        self._curve = CostCurve(costs, max_nodes + 1)
        self._exponent = 1.0 / max(temperature, LEAST_TEMPERATURE)
        self._random = Chance(drafting_seed(seed))
        self._max_nodes = max_nodes
        self._siblings = 1 if chain else MAX_SIBLINGS
        self._trace = trace
        self._clock = clock
        self._priors = [source.prior(kind) for kind in range(source.num_kinds)]
        self._idle = 0
        self._sure = 0
        self._slots: list[DraftSlot] = []
        # For every slot its node, None if nothing could be drawn; for every node the proposal it was drawn from.
        self._nodes: list[int | None] = []
        self._proposals: list[Proposal] = []
        self._started = self._proposed = 0.0
        self._sequence: Sequence | None = None

    def statistics(self, mode: str, taken_back: int = 0) -> SpecStats:
        """Return the statistics since ``begin``."""
        return self.counter.stats(mode, self._source.memory_bytes, taken_back)

    def begin(self, sequence: Sequence) -> None:
        """Start drafting for a sequence."""
        self._sequence = sequence
        self.counter = SpecCounter()
        started = self._clock()
        self._source.begin(sequence.token_ids)
        self.counter.drafting_ms += 1e3 * (self._clock() - started)

    def propose(self, sequence: Sequence, limit: int) -> Draft:
        """Return tokens drawn into the shape that maximises tokens per second; empty where plain decoding is faster."""
        self._started = self._clock()
        self._slots, self._nodes, self._proposals = [], [], []
        draft = Draft()
        cursor = self._source.root()
        most = min(limit, self._max_nodes)
        # The first pass also computes the rest of the prompt, at the cost of prefill: it gets no draft.
        if sequence.num_answer_tokens and most > 0 and cursor is not None:
            guesses = self._source.children(cursor)
            if guesses:
                self._sure = bisect(SURE_BOUNDS, max(self._priors[guess.kind] for guess in guesses))
                self._slots = self._shape(most, len(sequence.token_ids))
                draft = self._draw(guesses)
        self._proposed = self._clock()
        return draft

    def pass_begins(self, draft: Draft) -> None:
        """Do nothing: what is drawn depends on what was accepted."""
        del draft

    def pass_ends(self, *, quietly: bool = False) -> None:
        """Do nothing."""
        del quietly

    def accept(self, draft: Draft, logits: npt.NDArray[Any], sampler: Sampler, end_ids: Collection[int]) -> Accepted:
        """Apply ``accept_ratio`` to the last draft of ``propose``, or to its first nodes."""
        return accept_ratio(draft, self._proposals[: len(draft)], logits, sampler, end_ids, sampler.chance)

    def observe(self, draft: Draft, accepted: Accepted, outputs: Outputs) -> None:
        """Learn from a step."""
        verified = self._clock()
        sequence = self._sequence
        assert sequence is not None, "begin was not called"
        reached = {ROOT, *accepted.path}
        for slot, node in zip(self._slots, self._nodes, strict=True):
            parent = ROOT if slot.parent == ROOT else self._nodes[slot.parent]
            if parent in reached and (node is None or node < len(draft)):
                self._rates.learn(self._sure, slot, node in reached)
        emitted = len(accepted.token_ids)
        self._source.observe(draft, accepted, outputs, context_of(sequence, emitted))
        self._source.extend(accepted.token_ids)
        ended = self._clock()
        is_first = sequence.num_answer_tokens == emitted
        drafting = 1e3 * (self._proposed - self._started + ended - verified)
        verifying = 1e3 * (verified - self._proposed)
        name = self._source.name if len(draft) else "off"
        tested = sum(parent in reached for parent in draft.parents)
        self.counter.add(draft, accepted, tested, drafting, verifying, name, is_first=is_first)
        if self._trace is not None and not is_first:
            expected = sum(slot.value for slot in self._slots)
            self._trace(decision(sequence, name, draft, accepted, expected, drafting, verifying))

    def _shape(self, most: int, depth: int) -> list[DraftSlot]:
        """Return the slots to draw into; they depend on the source's guesses at the root, but on no drawn token."""
        costs = self._curve.at(depth)
        slots = self._rates.shape(
            self._sure, most, least=max(LEAST_VALUE, self._curve.cheapest), siblings=self._siblings
        )
        values = array("d", [slot.value for slot in slots])
        tree = Tree(len(slots), values.buffer_info()[0])
        (size,) = divide(self._library, [tree], array("d", costs), most=len(slots), tokens=1.0, drafting=_DRAFTING_MS)
        self._idle = 0 if size else self._idle + 1
        if self._idle >= PROBE_STEPS:
            self._idle = 0
            return self._rates.shape(self._sure, 1, least=0.0)
        return slots[:size]

    def _draw(self, guesses: Items[Guess]) -> Draft:
        """Fill the slots in order; after a context that the source does not know they stay empty."""
        families: dict[int, int] = {}
        for slot in self._slots:
            families[slot.parent] = slot.rank + 1
        contexts: list[_SourceContext] = []
        tokens: list[int] = []
        parents: list[int] = []
        # Slot -> its context, and the tokens drawn after it.
        drawn: dict[int, tuple[_SourceContext, tuple[int, ...]] | None] = {}
        for slot in self._slots:
            above = slot.parent
            if slot.rank == 0:
                behind = guesses if above == ROOT else self._behind(above, tokens, contexts)
                drawn[above] = self._open(behind, families[above]) if behind else None
            found = drawn[above]
            if found is None or slot.rank >= len(found[1]):
                self._nodes.append(None)
                continue
            parent = ROOT if above == ROOT else self._nodes[above]
            assert parent is not None
            self._nodes.append(len(tokens))
            tokens.append(found[1][slot.rank])
            parents.append(parent)
            contexts.append(found[0])
            self._proposals.append(found[0].proposal)
        return Draft(tuple(tokens), tuple(parents))

    def _behind(self, slot: int, tokens: Items[int], contexts: Items[_SourceContext]) -> Items[Guess]:
        """Return the source's guesses after the token of a slot; none if the slot is empty."""
        node = self._nodes[slot]
        return () if node is None else self._source.children(contexts[node].cursors[tokens[node]])

    def _open(self, guesses: Items[Guess], count: int) -> tuple[_SourceContext, tuple[int, ...]]:
        """Draw at most ``count`` of the guesses."""
        weights = np.array([self._priors[guess.kind] for guess in guesses])
        weights = (weights / weights.max()) ** self._exponent
        weights[weights < _LEAST_WEIGHT] = 0.0
        proposal = Proposal.of([guess.token_id for guess in guesses], weights.tolist())
        context = _SourceContext(proposal, {guess.token_id: guess.cursor for guess in guesses})
        return context, proposal.draw(count, self._random)


def drafting_seed(seed: int | None) -> int | None:
    """Return a seed for drawing drafts, derived from a request's seed but independent of the sampler's numbers."""
    if seed is None:
        return None
    high, low = np.random.SeedSequence(seed, spawn_key=(1,)).generate_state(2, np.uint64).tolist()
    return int(high) << 64 | int(low)
