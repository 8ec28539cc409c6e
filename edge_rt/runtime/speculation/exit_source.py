"""Guesses of the model's own first layers: a chain that ends at an exit, with siblings from the same rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence as Items
from dataclasses import dataclass
from typing import Final, Protocol

from edge_rt.runtime.cache.kv_cache import KVCache
from edge_rt.runtime.decode.draft import Accepted, Draft
from edge_rt.runtime.forward.outputs import Outputs
from edge_rt.runtime.forward.segmented_runner import SegmentedRunner
from edge_rt.runtime.speculation.source import (
    CHAIN_KINDS,
    NO_GUESSES,
    RANKS,
    ChainGuess,
    Forest,
    ForestSource,
    chain_forest,
    chain_prior,
)

_FIRST: Final = 0.4
"""Share of guesses that is taken to be right before any is known."""


@dataclass(frozen=True)
class Plan:
    """A draft to be made.

    Attributes:
        exit_index: the exit that it ends at.
        length: most tokens of its chain, at least 1.
    """

    exit_index: int
    length: int


class GuessRates(Protocol):
    """What guesses at exits are worth."""

    def of_guess(self, exit_index: int, probability: float) -> float:
        """Return the probability that a guess is right to which the exit gives a probability."""

    def learn(
        self, exit_index: int, place: int, probability: float, siblings: Items[int], guess: int, found: int
    ) -> None:
        """Learn that at a place of the chain, where ``guess`` was expected, the model's own token is ``found``."""


class PromptTokens(Protocol):
    """What guesses tokens of the prompt besides its own vocabulary."""

    def add_tokens(self, token_ids: Items[int]) -> None:
        """Take in the tokens of a prompt, instead of those of the one before."""

    @property
    def memory_bytes(self) -> int:
        """Bytes that it holds."""


class Planner(Protocol):
    """Decides where a draft ends and how long it is."""

    def begin(self) -> None:
        """Start another generation."""

    def plan(self, depth: int, limit: int) -> Plan | None:
        """Return the draft of a step, of at most ``limit`` tokens behind ``depth`` known ones; None for none."""

    def goes_on(self, exit_index: int, values: Items[float]) -> bool:
        """Return whether another token of the chain pays, behind those whose probabilities of staying are given."""

    @property
    def rates(self) -> GuessRates:
        """What was learned."""


def draft_chain(
    runner: SegmentedRunner, cache: KVCache, token: int, plan: Plan, planner: Planner, end_ids: Collection[int]
) -> list[ChainGuess]:
    """Draft behind the last known token, which is not in the cache yet; its rows run ahead (``KVCache.ahead``).

    Args:
        token: the last known token.
        plan: where the draft ends, and its length.
        planner: says after each token whether another one pays.
        end_ids: tokens that end the chain.

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


def learn_chain(rates: GuessRates, plan: Plan, guesses: Items[ChainGuess], emitted: Items[int]) -> None:
    """Learn which guesses of a chain were right, up to the first wrong one."""
    for place, (guess, found) in enumerate(zip(guesses, emitted, strict=False)):
        rates.learn(plan.exit_index, place, guess.probability, guess.siblings, guess.token_id, found)
        if guess.token_id != found:
            break


class ExitSource(ForestSource):
    """The same as a source among others: its chain and siblings join the tree of all.

    The pass that verifies goes on with the drafted rows wherever they are in that tree.

    Args:
        runner: returns the runner as long as the model is open.
        planner: decides where drafts end; it drafts nothing where none pays.
        end_ids: tokens that end an answer.
        adapters: what guesses at the exits, if that is not the model's head.
    """

    name = "exit"
    num_kinds = CHAIN_KINDS

    def __init__(
        self,
        runner: Callable[[], SegmentedRunner],
        cache: KVCache,
        planner: Planner,
        end_ids: Collection[int] = (),
        adapters: PromptTokens | None = None,
    ) -> None:
        self._adapters = adapters
        self._runner = runner
        self._cache = cache
        self._planner = planner
        self._end_ids = frozenset(end_ids)
        self._known = 0
        self._last = 0
        self._drafted = -1
        self._plan: Plan | None = None
        self._guesses: list[ChainGuess] = []
        self._made = NO_GUESSES

    def prior(self, kind: int) -> float:
        """Return the probability that a guess is right, before anything is learned."""
        return chain_prior(kind, _FIRST)

    def begin(self, token_ids: Items[int]) -> None:
        """Start a generation."""
        self._planner.begin()
        if self._adapters is not None:
            self._adapters.add_tokens(token_ids)
        self._known, self._drafted, self._plan = len(token_ids), -1, None
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
        """Draft, unless this was done for these known tokens; return the chain and its siblings, none if none pays."""
        if self._drafted != self._known:
            self._drafted, self._plan, self._made = self._known, None, NO_GUESSES
            runner, cache = self._runner(), self._cache
            room = min(cache.capacity - cache.length, cache.largest_pass, runner.most_ahead) - 1
            # A piece of the prompt that is not yet computed has no single row to begin with.
            if self._known - cache.length == 1 and room > 0:
                self._plan = self._planner.plan(self._known, room)
            if self._plan is not None:
                plan = Plan(self._plan.exit_index, min(self._plan.length, room))
                self._guesses = draft_chain(runner, cache, self._last, plan, self._planner, self._end_ids)
                self._made = chain_forest(self._guesses)
        return self._made

    @property
    def memory_bytes(self) -> int:
        """Memory of the adapters in bytes; without them none that counts."""
        return 0 if self._adapters is None else self._adapters.memory_bytes
