"""Guesses of a model that drafts a token a pass: a second one, or the same one with fewer bits.

Its likeliest tokens are a chain, the next likely ones of the same rows siblings.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence as Items
from dataclasses import dataclass
from typing import Final, Protocol

from edge_rt.runtime.cache.kv_cache import KVCache
from edge_rt.runtime.cache.row_pool import PooledCache
from edge_rt.runtime.decode.draft import Accepted, Draft
from edge_rt.runtime.decode.loop import Target
from edge_rt.runtime.forward.io_binding_base import Part
from edge_rt.runtime.forward.outputs import Outputs, TopTokens
from edge_rt.runtime.forward.runner import Runner
from edge_rt.runtime.speculation.cost_model import CostCurve, Costs
from edge_rt.runtime.speculation.source import (
    CHAIN_KINDS,
    MAX_CHAIN,
    RANKS,
    ChainGuess,
    Forest,
    ForestSource,
    chain_forest,
    chain_prior,
)
from edge_rt.runtime.speculation.statistics import Rates

_FIRST: Final = 0.6
"""Share of guesses that is taken to be right before any is known."""
_TRIAL_SHARE: Final = 0.03
"""Part of a pass a step that may go into trials where nothing pays, so that an improvement is noticed."""
_PAID_BACK: Final = 256
"""Tokens within which reading a text that another model has read must be paid back."""
_SURENESS: Final = (0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 0.97)
"""Bounds of the probabilities that the draft gives its tokens; acceptance is learned for each range between them."""
_SURENESS_PRIORS: Final = (0.5, 0.6, 0.7, 0.8, 0.87, 0.92, 0.96, 0.99)
_PRIOR_TRIALS: Final = 20.0
_READING: Final = 1 / 6
"""Time for a token of a text that is computed in chunks, in passes over one row."""
_RELAX: Final = 0.8


class ChainCosts:
    """Decides how many tokens to draft.

    A chain of d tokens costs d passes of what drafts and one pass of the model over 1 + d rows; it gives one token more
    than are accepted. The d that promises the most tokens per millisecond is taken, 0 included.

    Args:
        prior: share of drafted tokens that is taken to be right before any is known.
    """

    def __init__(self, whole: Costs, draft: Costs, most: int, *, prior: float = 0.9) -> None:
        self._whole = CostCurve(whole, most + 1)
        self._draft = CostCurve(draft, 1)
        self._mean = Rates((prior,), _PRIOR_TRIALS)
        self._by_sureness = Rates(_SURENESS_PRIORS, _PRIOR_TRIALS)

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


class Follower(Protocol):
    """A model that drafts behind the known tokens of a text."""

    known_tokens: int

    def begin(self, token_ids: Items[int]) -> None:
        """Start a text with these known tokens."""

    def extend(self, token_ids: Items[int]) -> None:
        """Add known tokens."""

    def room(self) -> int:
        """Return how many tokens it can draft."""

    def behind(self) -> int:
        """Return how many known tokens it has to compute before the last one."""

    def follow(self, drafted: Items[int]) -> TopTokens:
        """Compute what is new; return the likely next tokens, which the next pass overwrites.

        Args:
            drafted: tokens behind the known ones: none, then one more at every call.

        Raises:
            Cancelled: a pass was stopped; what is computed is whole.
        """


class UpperHalves:
    """The model itself with the upper halves of its nested weights, on its own cache, behind the committed rows.

    The pass that verifies writes the same rows again, with whole codes, before it reads them. So nothing of a draft is
    ever read by it, and rolling back is forgetting a length. The draft reads the upper halves of the cache or all of
    it: in a short context the cache is a small part of what a pass reads.
    """

    def __init__(self, runner: Runner, cache: KVCache, vocab_size: int) -> None:
        self.known_tokens = vocab_size
        self._runner, self._cache = runner, cache
        self._depth = self._last = 0

    def begin(self, token_ids: Items[int]) -> None:
        """Start a text."""
        self._depth = 0
        self.extend(token_ids)

    def extend(self, token_ids: Items[int]) -> None:
        """Add known tokens."""
        if token_ids:
            self._depth, self._last = self._depth + len(token_ids), token_ids[-1]

    def room(self) -> int:
        """Return how many tokens it can draft; none behind a piece of a prompt that is not computed yet."""
        cache = self._cache
        return min(cache.capacity - self._depth, cache.largest_pass - 1) if self._depth - cache.length == 1 else 0

    def behind(self) -> int:
        """Return 0: the model itself has computed the text."""
        return 0

    def follow(self, drafted: Items[int]) -> TopTokens:
        """Compute the last token; those between it and the committed rows were computed before."""
        token = drafted[-1] if drafted else self._last
        cache = self._cache
        with cache.reserve(self._depth + len(drafted) - cache.length) as rows:
            start = rows.start + rows.count - 1
            if isinstance(cache, PooledCache):
                # Its rows lie anywhere in the pool.
                top = self._runner.forward_many([Part([token], start, 1, row_map=cache.row_map)])[0].top
            else:
                top = self._runner.forward([token], start, 1).top
        assert top is not None, "native graphs compute the most likely tokens"
        return top


class DraftModel:
    """A model that drafts: its own graph and cache, which follow the tokens of another model.

    Its cache holds what was drafted, too: what the other model accepts need not be computed again.

    Args:
        known_tokens: ids below are the same tokens in both models; others are unknown here.
    """

    def __init__(self, runner: Target, cache: KVCache, *, known_tokens: int, stand_in: int, chunk: int) -> None:
        self.cache = cache
        self.known_tokens = known_tokens
        self._runner = runner
        self._stand_in = stand_in
        self._chunk = max(1, min(chunk, cache.largest_pass))
        # Known tokens, and the tokens of the cache's rows; so many of the first rows hold known tokens.
        self._known: list[int] = []
        self._rows: list[int] = []
        self._agreed = 0

    def begin(self, token_ids: Items[int]) -> None:
        """Start a text; what the cache has of it stays."""
        self._known = self._shared(token_ids)
        self._rows = list(self.cache.token_ids)
        self._agreed = self.cache.common_prefix(self._known)

    def extend(self, token_ids: Items[int]) -> None:
        """Add known tokens; rows that were drafted for them stay."""
        for token in self._shared(token_ids):
            place = len(self._known)
            self._known.append(token)
            if self._agreed == place < len(self._rows) and self._rows[place] == token:
                self._agreed += 1

    def room(self) -> int:
        """Return how many tokens it can draft: the last one of a chain is not computed."""
        return self.cache.capacity - len(self._known) + 1 if self._known else 0

    def behind(self) -> int:
        """Return how many known tokens it has to compute before the last one."""
        return len(self._known) - 1 - min(self._agreed, len(self._known) - 1)

    def follow(self, drafted: Items[int]) -> TopTokens:
        """Compute what is new of a text, in chunks; see ``Follower.follow``."""
        cache, known = self.cache, self._known
        # Without a draft the last known token is computed again if nothing is new: its row's outputs are gone.
        keep = len(self._rows) if drafted else min(self._agreed, len(known) - 1)
        kept = cache.truncate(keep)
        del self._rows[kept:]
        length = len(known) + len(drafted)
        while True:
            begin = cache.length
            pending = [*known[begin : begin + self._chunk], *drafted[max(begin - len(known), 0) :]][: self._chunk]
            with cache.reserve(len(pending)) as rows:
                top = self._runner.forward(pending, rows.start, 1).top
                rows.commit(pending)
            self._rows += pending
            self._agreed = min(len(self._rows), len(known))
            if cache.length == length:
                assert top is not None, "native graphs compute the most likely tokens"
                return top

    def _shared(self, token_ids: Items[int]) -> list[int]:
        return [token if token < self.known_tokens else self._stand_in for token in token_ids]


@dataclass(frozen=True)
class Way:
    """A way to draft.

    Attributes:
        planner: decides how long the chain is; nothing is drafted where none pays.
    """

    model: Follower
    planner: ChainCosts


class ModelSource(ForestSource):
    """Drafts with a model, as many tokens as pay for their passes.

    Args:
        ways: to draft; the one that promises most is taken, of equal ones the first.
    """

    num_kinds = CHAIN_KINDS

    def __init__(
        self,
        ways: Items[Way],
        *,
        name: str = "model",
        least_gain: float = 1.0,
        most: int = MAX_CHAIN,
        end_ids: Collection[int] = (),
        held_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        self.name = name
        self._ways = tuple(ways)
        self._way = self._ways[0]
        self._least_gain = least_gain
        self._most = min(most, MAX_CHAIN)
        self._end_ids = frozenset(end_ids)
        self._held_bytes = held_bytes
        self._depth = 0
        self._idle = 0
        self._guesses: list[ChainGuess] = []

    def prior(self, kind: int) -> float:
        """Return the probability that a guess is right, before anything is learned."""
        return chain_prior(kind, _FIRST)

    def begin(self, token_ids: Items[int]) -> None:
        """Start a generation."""
        for way in self._ways:
            way.planner.begin()
            way.model.begin(token_ids)
        self._depth = len(token_ids)
        self._guesses = []

    def extend(self, token_ids: Items[int]) -> None:
        """Add emitted tokens."""
        for way in self._ways:
            way.model.extend(token_ids)
        self._depth += len(token_ids)
        self._guesses = []

    def observe(self, draft: Draft, accepted: Accepted, outputs: Outputs, context: tuple[int, ...]) -> None:
        """Learn which guesses of the chain were right, whether they were verified or not."""
        del draft, outputs, context
        for guess, found in zip(self._guesses, accepted.token_ids, strict=False):
            self._way.planner.learn(guess.probability, guess.token_id == found)
            if guess.token_id != found:
                break

    def forest(self) -> Forest:
        """Draft; return the chain and its siblings, none if none pays."""
        self._guesses = self._draft()
        return chain_forest(self._guesses)

    def _draft(self) -> list[ChainGuess]:
        depth = self._depth
        gains = [way.planner.gain(depth) for way in self._ways]
        gain = max(gains)
        self._way = self._ways[gains.index(gain)]
        model, planner = self._way.model, self._way.planner
        most = min(self._most, model.room())
        if most < 1:
            return []
        self._idle += 1
        pays = gain >= self._least_gain and planner.goes_on(depth, (), most)
        # Text that it has not read yet is a price that later steps pay back, if drafts pay; else that of a trial.
        spent = planner.price(depth, model.behind(), 0 if pays else 1)
        if spent > _TRIAL_SHARE * self._idle + (_PAID_BACK * (1.0 - 1.0 / gain) if pays else 0.0):
            return []
        if not pays:
            most = 1
        self._idle = 0
        guesses: list[ChainGuess] = []
        drafted: list[int] = []
        values = [1.0]
        while len(guesses) < most and (not guesses or planner.goes_on(depth, values[1:], most)):
            top = model.follow(drafted)
            ids = [token for token in top.ids[0, : 1 + RANKS].tolist() if token < model.known_tokens]
            if not ids or ids[0] != top.ids[0, 0]:
                break
            guesses.append(ChainGuess(ids[0], float(top.probabilities()[0, 0]), tuple(ids[1:])))
            values.append(values[-1] * planner.value_of(guesses[-1].probability))
            drafted.append(ids[0])
            if ids[0] in self._end_ids:
                break
        return guesses

    @property
    def memory_bytes(self) -> int:
        """Bytes of the model that drafts, mapped weights included."""
        return self._held_bytes()
