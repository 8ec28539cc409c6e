"""Guesses of the model's own first layers: where a chain ends and how long it is, with siblings from the same rows."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Collection, Sequence as Items
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from edge_rt.runtime.cache.kv_cache import KVCache
from edge_rt.runtime.decode.draft import Accepted, Draft
from edge_rt.runtime.forward.outputs import Outputs
from edge_rt.runtime.forward.segmented_runner import SegmentedRunner
from edge_rt.runtime.speculation.exit_costs import ExitCurves
from edge_rt.runtime.speculation.source import (
    CHAIN_KINDS,
    MAX_CHAIN,
    NO_GUESSES,
    RANKS,
    SURENESS,
    ChainGuess,
    Forest,
    ForestSource,
    chain_forest,
    chain_prior,
)
from edge_rt.runtime.speculation.statistics import Rates

if TYPE_CHECKING:
    from edge_rt.runtime.speculation.exit_adapters import ExitAdapters

_FIRST: Final = 0.4
"""Share of guesses that is taken to be right before any is known."""


@dataclass(frozen=True)
class ExitPlan:
    """A draft to be made.

    Attributes:
        length: most tokens of its chain, at least 1.
    """

    exit_index: int
    length: int


_LEVELS: Final = len(SURENESS) + 1
_TRIALS: Final = 4.0
"""Weight of the rates before anything is learned."""


class ExitRates:
    """Learned acceptance of guesses at every exit."""

    def __init__(self, exits: int) -> None:
        self._places = [Rates([_FIRST] * MAX_CHAIN, _TRIALS) for _ in range(exits)]
        levels = [_FIRST * (0.5 + level / (_LEVELS - 1)) for level in range(_LEVELS)]
        self._levels = [Rates(levels, _TRIALS) for _ in range(exits)]
        self.trials = [0] * exits
        """Guesses whose outcome is known, by exit."""

    def expected(self, exit_index: int, place: int) -> float:
        """Return the probability that the guess at a place of the chain is right, if those before it are."""
        return self._places[exit_index].value[min(place, MAX_CHAIN - 1)]

    def of_guess(self, exit_index: int, probability: float) -> float:
        """Return the probability that a guess is right to which the exit gives a probability."""
        return self._levels[exit_index].value[bisect(SURENESS, probability)]

    def learn(self, exit_index: int, place: int, probability: float, hit: bool) -> None:
        """Learn whether a guess at a place of the chain was right, to which the exit gave a probability."""
        self.trials[exit_index] += 1
        self._places[exit_index].learn(min(place, MAX_CHAIN - 1), hit)
        self._levels[exit_index].learn(bisect(SURENESS, probability), hit)

    def relax(self, keep: float) -> None:
        """Move part of the way back to the priors, between generations."""
        for rates in (*self._places, *self._levels):
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
    """

    def __init__(self, curves: ExitCurves) -> None:
        self.rates = ExitRates(curves.exits)
        self._curves = curves
        self._idle = 0
        self._wait = _FIRST_PROBE

    def begin(self) -> None:
        """Start another generation."""
        self.rates.relax(_KEEP_GENERATION)

    def plan(self, depth: int, limit: int) -> ExitPlan | None:
        """Return the draft that promises the most tokens per millisecond, a probe, or None."""
        self._curves.go_to(depth)
        best, found = MARGIN / self._curves.plain, None
        for index in range(self._curves.exits):
            expected = reach = 1.0
            for length in range(1, min(limit, MAX_CHAIN, self._curves.most - 1) + 1):
                reach *= self.rates.expected(index, length - 1)
                expected += reach
                speed = expected / self._time(index, length)
                if speed > best:
                    best, found = speed, ExitPlan(index, length)
        if found is not None:
            self._idle, self._wait = 0, _FIRST_PROBE
            return found
        self._idle += 1
        if self._idle < self._wait or limit < 1:
            return None
        self._idle, self._wait = 0, min(2 * self._wait, _LAST_PROBE)
        trials = self.rates.trials
        return ExitPlan(trials.index(min(trials)), 1)

    def goes_on(self, exit_index: int, values: Items[float]) -> bool:
        """Return whether the next token's chance is worth more than its time."""
        length = len(values)
        reach = (values[-1] if values else 1.0) * self.rates.expected(exit_index, length)
        speed = (1.0 + sum(values)) / self._time(exit_index, length)
        return (1.0 + sum(values) + reach) / self._time(exit_index, length + 1) > speed

    def _time(self, exit_index: int, length: int) -> float:
        """Return the milliseconds of a step with a chain of ``length`` tokens; the last one is not yet computed."""
        curves = self._curves
        return length * curves.draft(exit_index) + curves.verify(exit_index, 1 + length, length)


def draft_chain(
    runner: SegmentedRunner,
    cache: KVCache,
    token: int,
    plan: ExitPlan,
    planner: ExitController,
    end_ids: Collection[int],
) -> list[ChainGuess]:
    """Draft behind the last known token, which is not in the cache yet; its rows run ahead (``KVCache.ahead``).

    Raises:
        Cancelled: a pass was stopped; nothing of the draft is left.
    """
    guesses: list[ChainGuess] = []
    values = [1.0]
    cache.ahead.begin(cache.length, plan.exit_index + 1)
    try:
        cache.make_room(plan.length)
        for node in range(plan.length):
            if node and not planner.goes_on(plan.exit_index, values[1:]):
                break
            top = runner.draft(token, node - 1)
            ids = top.ids[0].tolist()
            token = ids[0]
            guesses.append(ChainGuess(token, float(top.probabilities()[0, 0]), tuple(ids[1 : 1 + RANKS])))
            values.append(values[-1] * planner.rates.of_guess(plan.exit_index, guesses[-1].probability))
            if token in end_ids:
                break
    except BaseException:
        cache.ahead.clear()
        raise
    return guesses


def learn_chain(rates: ExitRates, plan: ExitPlan, guesses: Items[ChainGuess], emitted: Items[int]) -> None:
    """Learn which guesses of a chain were right, up to the first wrong one."""
    for place, (guess, token) in enumerate(zip(guesses, emitted, strict=False)):
        hit = guess.token_id == token
        rates.learn(plan.exit_index, place, guess.probability, hit)
        if not hit:
            break


class ExitSource(ForestSource):
    """Guesses at exits: a chain, and siblings from the same rows.

    The pass that verifies goes on with the drafted rows wherever they are in that tree.

    Args:
        runner: returns the runner as long as the model is open.
        planner: decides where drafts end; it drafts nothing where none pays.
        adapters: what guesses at the exits, if that is not the model's head.
    """

    name = "exit"
    num_kinds = CHAIN_KINDS

    def __init__(
        self,
        runner: Callable[[], SegmentedRunner],
        cache: KVCache,
        planner: ExitController,
        end_ids: Collection[int] = (),
        adapters: ExitAdapters | None = None,
    ) -> None:
        self._adapters = adapters
        self._runner = runner
        self._cache = cache
        self._planner = planner
        self._end_ids = frozenset(end_ids)
        self._known = 0
        self._last = 0
        self._plan: ExitPlan | None = None
        self._guesses: list[ChainGuess] = []

    def prior(self, kind: int) -> float:
        """Return the probability that a guess is right, before anything is learned."""
        return chain_prior(kind, _FIRST)

    def begin(self, token_ids: Items[int]) -> None:
        """Start a generation."""
        self._planner.begin()
        if self._adapters is not None:
            self._adapters.add_tokens(token_ids)
        self._known, self._plan = len(token_ids), None
        self._last = token_ids[-1] if token_ids else 0

    def extend(self, token_ids: Items[int]) -> None:
        """Add emitted tokens."""
        self._known += len(token_ids)
        self._last = token_ids[-1]

    def observe(self, draft: Draft, accepted: Accepted, outputs: Outputs, context: tuple[int, ...]) -> None:
        """Learn which guesses were right, whether they were verified or not."""
        del draft, outputs, context
        if self._plan is not None:
            learn_chain(self._planner.rates, self._plan, self._guesses, accepted.token_ids)
        self._plan = None

    def forest(self) -> Forest:
        """Draft; return the chain and its siblings, none if none pays."""
        self._plan = None
        runner, cache = self._runner(), self._cache
        room = min(cache.capacity - cache.length, cache.largest_pass, runner.most_ahead) - 1
        # A piece of the prompt that is not yet computed has no single row to begin with.
        if self._known - cache.length == 1 and room > 0:
            self._plan = self._planner.plan(self._known, room)
        if self._plan is None:
            return NO_GUESSES
        plan = ExitPlan(self._plan.exit_index, min(self._plan.length, room))
        self._guesses = draft_chain(runner, cache, self._last, plan, self._planner, self._end_ids)
        return chain_forest(self._guesses)

    @property
    def memory_bytes(self) -> int:
        """Memory of the adapters in bytes; without them none that counts."""
        return 0 if self._adapters is None else self._adapters.memory_bytes
