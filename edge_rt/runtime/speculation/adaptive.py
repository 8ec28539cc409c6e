"""The adaptive drafter: chooses the sources and the size of drafts, and drafts nothing where that is faster."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from edge_rt.runtime.decode.draft import Accepted, Draft
from edge_rt.runtime.forward.outputs import Outputs
from edge_rt.runtime.results import SpecStats
from edge_rt.runtime.speculation.arms import MAX_REWARD, OFF, Asking, Bandit
from edge_rt.runtime.speculation.core import DraftCore
from edge_rt.runtime.speculation.cost_model import CostCurve, Costs
from edge_rt.runtime.speculation.live_costs import LiveCosts
from edge_rt.runtime.speculation.source import CONTEXT_TOKENS, AnySource, ForestSource
from edge_rt.runtime.speculation.statistics import SpecCounter, decision

if TYPE_CHECKING:
    from edge_rt.runtime.decode.sequence import Sequence

LEAST_VALUE: Final = 0.03
"""Default bound: nodes that are less likely to be accepted are not added."""
BLOCK_STEPS: Final = 8
"""Steps between two choices of the bandit: a single step is too noisy."""
_SPEED_KEEP: Final = 0.95
_USUAL_KEEP: Final = 0.75
_IDLE_STEPS: Final = 64
_WORST: Final = 5.0
"""Longer steps are blamed on other programs, and count as this many times the usual time."""
_GAIN_KEEP: Final = 0.95
_LEAST_GAIN: Final = 0.03
"""Accepted tokens per step that looking texts up and learning cost, about."""
_DEAR: Final = 1.5
"""The same in a pass that several sequences share: so many times the tokens that they have in the time of drafting."""
_FIRST_GAINS: Final = (0.15, 0.045)
"""Accepted tokens per step that are assumed at first, and at least when an answer begins."""
_REST_STEPS: Final = 24
_AWAKE_STEPS: Final = 8
"""Where nothing is accepted, steps without and with drafting."""
Trace = Callable[[dict[str, Any]], None]


class AdaptiveDrafter:
    """Drafts as many tokens as pay by the cost model, from all sources.

    Args:
        bandit: chooses among the core's arms, where asking the sources takes time; None: always the last arm.
        corrects: whether its passes correct the costs, if these are live: not where sources compute a part of them.
        clock: seconds.

    Attributes:
        outcome: of the last shared step: drafted tokens that were expected to be accepted, and that were.
    """

    def __init__(
        self,
        core: DraftCore,
        costs: Costs,
        bandit: Bandit | None,
        *,
        max_nodes: int,
        corrects: bool = True,
        trace: Trace | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.arms = core.arms
        self.counter = SpecCounter()
        self._core = core
        self._curve = CostCurve(costs, max_nodes + 1)
        self._live = costs if corrects and isinstance(costs, LiveCosts) else None
        # Rows that seemed to pay, if a draft has more to learn what they cost.
        self._instead: int | None = None
        self._bandit = bandit
        self._max_nodes = max_nodes
        self._trace = trace
        self._clock = clock
        # Current slowdown of passes relative to the measured costs, due to heat or other work.
        self._slowness = 1.0
        # Tokens per millisecond of the last blocks.
        self._usual = 0.0
        self._arm = len(self.arms) - 1
        self._asking = Asking()
        # Milliseconds of a draft of which a source computes a part, beyond those of looking texts up.
        self._computing = 0.0
        # Steps since the last choice of the bandit, and since the last draft.
        self._steps = self._idle = 0
        self._proposed = 0.0
        # Seconds of drafting for the step under way, whether others share its pass, and who drafted.
        self._spent, self._is_shared, self._played = 0.0, False, self._arm
        # Whether the core knows what the pass of the step under way costs.
        self._is_priced = False
        self.outcome = 0.0, 0
        # Tokens that others have less for a drafted row.
        self._price = 0.0
        # Whether the next pass computes a prompt as well, and how many tokens it computes that a grammar has forced.
        self._is_first, self._forced = True, 0
        self._sequence: Sequence | None = None
        # Those that compute, whether they may do so beside the pass under way, and seconds that these were waited for.
        self._computers = tuple(source for source in core.sources if isinstance(source, ForestSource))
        self._is_beside, self._waited = False, 0.0
        # Accepted tokens per step, less the price of their rows; steps of rest left, below 0: steps since the last one.
        self._gain, self._rest = _FIRST_GAINS[0], -_AWAKE_STEPS

    @property
    def sources(self) -> tuple[AnySource, ...]:
        """What guesses."""
        return self._core.sources

    @property
    def memory_bytes(self) -> int:
        """Memory of the sources in bytes."""
        return sum(source.memory_bytes for source in self.sources)

    def statistics(self, mode: str, taken_back: int = 0) -> SpecStats:
        """Return the statistics since ``begin``."""
        for source in self._computers:
            if source.beside is not None:
                self.counter.beside, self.counter.beside_counts = source.beside, source.beside_counts
        return self.counter.stats(mode, self.memory_bytes, taken_back)

    def begin(self, sequence: Sequence) -> None:
        """Start drafting for a sequence; what was learned from earlier ones is kept."""
        self._sequence = sequence
        self.counter = SpecCounter()
        self._is_first, self._forced = True, 0
        self._gain, self._rest = max(self._gain, _FIRST_GAINS[1]), -_AWAKE_STEPS
        started = self._clock()
        self._asking.begin()
        self._core.begin(sequence.token_ids)
        self.counter.drafting_ms += 1e3 * (self._clock() - started)

    def propose(self, sequence: Sequence, limit: int) -> Draft:
        """Return the tree that maximises tokens per second, at most ``limit`` nodes; empty where plain is faster."""
        started = self._clock()
        draft, self._instead, self._is_shared, self._price = Draft(), None, False, 0.0
        self._waited = 0.0
        self._is_priced = False
        # The first pass also computes the rest of the prompt, at the cost of prefill: it gets no draft.
        if not self._is_first and not self._is_resting():
            if self._bandit is not None and self._steps >= BLOCK_STEPS:
                self._close_block()
            self._core.price(self._curve.at(len(sequence.token_ids)))
            self._is_priced = True
            most = min(limit, self._max_nodes)
            if self._arm != OFF and most > 0:
                draft = self._draft(most, max(LEAST_VALUE, self._curve.cheapest))
                # Sources that are not tried learn nothing: now and then one guess is verified although it does not seem
                # to pay.
                self._idle = 0 if len(draft) else self._idle + 1
                if self._idle >= _IDLE_STEPS:
                    self._idle = 0
                    draft = self._core.propose(1, self._arm, 0.0, whole=True)
                if (
                    self._live is not None
                    and not self._forced
                    and (more := self._live.wanted(1 + len(draft), 1 + most))
                ):
                    self._instead = 1 + len(draft)
                    draft = self._core.propose(more - 1, self._text_arm(), 0.0, whole=True) if more > 1 else Draft()
        self._played, self._proposed = self._arm, self._clock()
        self._spent = self._proposed - started
        return draft

    def pass_begins(self, draft: Draft) -> None:
        """Let sources that compute go on beside the pass that verifies a draft."""
        if not self._computers or self._arm == OFF or self._rest > 0 or self._sequence is None:
            return
        self._is_beside = True
        started = self._clock()
        usual = self._curve.at(len(self._sequence.token_ids))[min(len(draft), self._max_nodes)]
        for source in self._computers:
            source.pass_begins(draft, usual * self._slowness)
        # The pass begins now.
        self._proposed = self._clock()
        self._spent += self._proposed - started

    def pass_ends(self, *, quietly: bool = False) -> None:
        """Let no source compute beside a pass."""
        if self._is_beside:
            started = self._clock()
            for source in self._computers:
                source.pass_ends(quietly=quietly)
            self._is_beside = False
            self._waited += self._clock() - started

    def wakes(self, rate: float) -> bool:
        """Return whether it drafts for the next pass, which several sequences share.

        Args:
            rate: tokens per millisecond of such a pass without drafts.
        """
        self._instead, self._is_shared, self._played, self._price = None, True, OFF, 0.0
        self._is_priced = False
        self._spent, self._waited, self._proposed, self.outcome = 0.0, 0.0, self._clock(), (0.0, 0)
        return not self._is_first and not self._is_resting(rate)

    def offer(self, sequence: Sequence, limit: int, least: float, rate: float) -> tuple[int, int]:
        """Grow a tree for a pass that several sequences share, without sources that compute; ``take`` cuts it.

        Args:
            limit: most nodes.
            least: nodes that are less likely to be accepted are left out.
            rate: tokens per millisecond of the pass without drafts.

        Returns:
            The number of nodes, and the address of their values.
        """
        started, nodes = self._clock(), 0
        if self._bandit is not None:
            if self._steps >= BLOCK_STEPS:
                self._close_block()
            # Its blocks are compared by the share of the pass that a sequence has.
            costs = self._curve.at(len(sequence.token_ids))
            self._core.price([1.0 / rate + ms - costs[0] for ms in costs])
            self._is_priced = True
        self._played = self._shared_arm()
        most = min(limit, self._max_nodes)
        if self._played != OFF and most > 0:
            nodes = self._core.grow(most, self._played, least, whole=True)
        self._spent = self._clock() - started
        return nodes, self._core.values_address

    def take(self, size: int, price: float, *, is_room: bool) -> Draft:
        """Return the first nodes of the tree of ``offer``.

        Args:
            price: tokens that the pass gives less, for its time, for each of them.
            is_room: whether the pass has room for a node more, which is tried now and then where none pays.
        """
        started, self._price = self._clock(), price
        draft = self._core.first(size)
        if self._played != OFF:
            self._idle = 0 if size else self._idle + 1
            if self._idle >= _IDLE_STEPS and is_room:
                self._idle = 0
                draft = self._core.propose(1, self._played, 0.0, whole=True)
        self._proposed = self._clock()
        self._spent += self._proposed - started
        return draft

    @property
    def drafting_ms(self) -> float:
        """Milliseconds that drafting and learning of this step are expected to take."""
        return self._core.drafting[self._played]

    def _shared_arm(self) -> int:
        """Return the arm, without sources that compute."""
        if self._arm == OFF or not any(isinstance(source, ForestSource) for source in self.sources):
            return self._arm
        return OFF if self._core.texts is None else self._core.texts

    def _is_resting(self, rate: float = 0.0) -> bool:
        """Return whether nothing is drafted or learned for some steps, because nothing was right for many.

        Args:
            rate: tokens that others lose in a millisecond.
        """
        least = max(_LEAST_GAIN, _DEAR * rate * self._core.drafting[-1])
        if self._rest <= -_AWAKE_STEPS and self._gain < least and self._bandit is None:
            self._rest = _REST_STEPS
        return self._rest > 0

    def _text_arm(self) -> int:
        """Return the arm, or that of all texts if sources of this one compute."""
        core, texts = self._core, self._core.texts
        computes = texts is not None and core.arms[self._arm].mask & ~core.arms[texts].mask
        return texts if texts is not None and computes else self._arm

    def _draft(self, most: int, least: float) -> Draft:
        """Return a draft; sources that compute are asked only if that is likely to pay, given what the texts say."""
        core, arm, texts = self._core, self._arm, self._core.texts
        if texts is None or not core.arms[arm].mask & ~core.arms[texts].mask:
            return core.propose(most, arm, least)
        begun = self._clock()
        draft = core.propose(most, texts, least)
        value, without = core.expected(1) if len(draft) else 0.0, self._speed(draft, core.drafting[texts])
        looked_up = self._clock()
        if not self._asking.wants(value):
            return draft
        draft = core.propose(most, arm, least)
        spent = 1e3 * (self._clock() - looked_up) - 1e3 * (looked_up - begun)
        self._computing += (1.0 - _SPEED_KEEP) * (spent - self._computing) if self._computing else spent
        self._asking.learn(value, without, self._speed(draft, core.drafting[texts] + self._computing))
        return draft

    def _speed(self, draft: Draft, drafting: float) -> float:
        """Return the expected tokens per millisecond of a draft."""
        costs = self._curve.at(len(self._sequence.token_ids) if self._sequence is not None else 0)
        return (1.0 + self._core.expected(len(draft))) / (costs[len(draft)] + max(drafting, 0.0))

    def observe(self, draft: Draft, accepted: Accepted, outputs: Outputs) -> None:
        """Learn from a step."""
        verified = self._clock()
        sequence = self._sequence
        assert sequence is not None, "begin was not called"
        emitted, arm = len(accepted.token_ids), self._played
        is_first, forced = self._is_first, self._forced
        self._is_first, self._forced = False, len(accepted.forced)
        if not is_first:
            self._rest -= 1
            if self._rest >= 0:
                self._pass_over(draft, accepted, verified, outputs)
                return
            gained = len(accepted.path) - self._price * len(draft)
            self._gain += (1.0 - _GAIN_KEEP) * (gained - self._gain)
        expected = self._core.expected(len(draft)) if self._trace is not None or self._is_shared else 0.0
        self.outcome = expected, len(accepted.path)
        # What is drafted to learn its costs says nothing about the arm, and a pass without room for drafts neither.
        is_scored = self._is_priced and self._instead is None and self._bandit is not None
        scored = arm if is_scored and not is_first else None
        tested = self._core.observe(draft, accepted, outputs, context_of(sequence, emitted), scored)
        ended = self._clock()
        drafting = 1e3 * (self._spent + self._waited + ended - verified)
        verifying = self._verifying(verified, outputs)
        choice = self.arms[arm].name if len(draft) else "off"
        self.counter.add(draft, accepted, tested, drafting, verifying, choice, is_first=is_first)
        if is_first:
            return
        self._steps += 1
        if self._is_shared:
            self._learn_drafting(drafting)
        elif not forced:
            self._learn_costs(draft, emitted, verified, drafting, outputs)
        if self._trace is not None:
            self._trace(decision(sequence, self.arms[arm].name, draft, accepted, expected, drafting, verifying))

    def _verifying(self, verified: float, outputs: Outputs) -> float:
        """Return the milliseconds of the pass and, unless it is shared, of choosing tokens."""
        is_noted = self._is_shared and self._proposed < outputs.ended < verified
        return 1e3 * ((outputs.ended if is_noted else verified - self._waited) - self._proposed)

    def _pass_over(self, draft: Draft, accepted: Accepted, verified: float, outputs: Outputs) -> None:
        """Count a step of rest; the sources get its tokens and no more."""
        assert self._sequence is not None
        self._idle += 1
        for source in self.sources:
            source.extend(accepted.token_ids)
        drafting, verifying = 1e3 * self._spent, self._verifying(verified, outputs)
        self.counter.add(draft, accepted, 0, drafting, verifying, "off", is_first=False)
        if self._trace is not None:
            self._trace(decision(self._sequence, "off", draft, accepted, 0.0, drafting, verifying))

    def _learn_costs(self, draft: Draft, emitted: int, verified: float, drafting: float, outputs: Outputs) -> None:
        """Correct what passes and drafts cost by a step; ``drafting`` in milliseconds."""
        sequence = self._sequence
        assert sequence is not None
        # Tokens are chosen for as long as they are accepted, however many rows there are: no cost of rows.
        passed = outputs.ended if self._proposed < outputs.ended < verified else verified - self._waited
        passing = 1e3 * (passed - self._proposed)
        if self._live is not None:
            self._live.observe(1 + len(draft), len(sequence.token_ids) - emitted, passing, self._instead)
        usual = self._curve.at(len(sequence.token_ids))[len(draft)]
        self._slowness += (1 - _SPEED_KEEP) * (min(passing / usual, _WORST) - self._slowness)
        self._learn_drafting(drafting)

    def _learn_drafting(self, drafting: float) -> None:
        known = self._core.drafting[self._played]
        spent = min(drafting / max(self._slowness, 0.1), _WORST * known)
        self._core.drafting[self._played] = known + (1 - _SPEED_KEEP) * (spent - known)

    def _close_block(self) -> None:
        """Give the bandit the speeds of the arms in the last steps, and let it choose the arm of the next ones."""
        assert self._bandit is not None
        speeds = self._core.speeds()
        played = speeds[self._arm]
        if played is not None:
            self._usual += (1 - _USUAL_KEEP) * (played - self._usual) if self._usual else played
            for arm, speed in enumerate(speeds):
                if speed is not None:
                    self._bandit.learn(arm, min(speed / self._usual, MAX_REWARD))
        self._arm = self._bandit.choose()
        self._core.clear()
        self._steps = 0


def context_of(sequence: Sequence, emitted: int) -> tuple[int, ...]:
    """Return the last known tokens before a step that emitted ``emitted`` tokens."""
    end = len(sequence.token_ids) - emitted
    return tuple(sequence.token_ids[max(0, end - CONTEXT_TOKENS) : end])
