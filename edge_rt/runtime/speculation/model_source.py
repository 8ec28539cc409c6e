"""Guesses of a model that drafts a token a pass: a second one, or the same one with fewer bits.

Its likeliest tokens are a chain, the next likely ones of the same rows siblings.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence as Items
from dataclasses import dataclass
from typing import Final, Protocol

from edge_rt.runtime.cache.kv_cache import KVCache
from edge_rt.runtime.cache.row_pool import PooledCache
from edge_rt.runtime.decode.draft import Accepted, Draft
from edge_rt.runtime.forward.io_binding_base import Part
from edge_rt.runtime.forward.outputs import Outputs, TopTokens
from edge_rt.runtime.forward.runner import Runner
from edge_rt.runtime.speculation.beside import Beside
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
from edge_rt.runtime.speculation.statistics import BesideCounts, Rates

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
_FIRST_HIDDEN: Final = 0.4
_HIDDEN_KEEP: Final = 0.9
_UNASKED: Final = 8
"""Steps without being asked after which nothing is computed beside passes."""


class ChainCosts:
    """Decides how many tokens to draft.

    A chain of d tokens costs d passes of what drafts and one pass of the model over 1 + d rows; it gives one token more
    than are accepted. The d that promises the most tokens per millisecond is taken, 0 included. Passes that ran beside
    one of the model cost nothing.

    Args:
        prior: share of drafted tokens that is taken to be right before any is known.
        hides: whether passes may run beside those of the model.
    """

    def __init__(self, whole: Costs, draft: Costs, most: int, *, prior: float = 0.9, hides: bool = False) -> None:
        # Of the passes that drafted, the share that had run beside others.
        self._hidden = _FIRST_HIDDEN if hides else 0.0
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

    def goes_on(self, depth: int, values: Items[float], most: int, ready: int = 0) -> bool:
        """Return whether another token is to be drafted.

        Args:
            values: of the tokens drafted so far, the probability that each and all before it are accepted.
            ready: tokens so far that cost nothing.
        """
        count, expected = len(values), 1.0 + sum(values)
        stopping = expected / self._cost(depth, count, ready)
        value = values[-1] if values else 1.0
        for length in range(count + 1, most + 1):
            value *= self._mean.value[0]
            expected += value
            if expected / self._cost(depth, length, ready) > stopping:
                return True
        return False

    def _cost(self, depth: int, drafted: int, ready: float = 0.0) -> float:
        return (drafted - ready) * self._draft.at(depth)[0] + self._whole.at(depth)[drafted]

    def gain(self, depth: int) -> float:
        """Return the speed of the best length over that of plain decoding, by mean acceptance."""
        plain = 1.0 / self._cost(depth, 0)
        value, expected, best = 1.0, 1.0, plain
        for length in range(1, len(self._whole.at(depth))):
            value *= self._mean.value[0]
            expected += value
            best = max(best, expected / self._cost(depth, length, self._hidden * length))
        return best / plain

    def price(self, depth: int, tokens: int, passes: int) -> float:
        """Return what computing known tokens and drafting in some passes costs, in plain passes over one row."""
        return (tokens * _READING + passes) * self._draft.at(depth)[0] / self._whole.at(depth)[0]

    @property
    def usual_value(self) -> float:
        """How likely any drafted token is accepted, if all before it are."""
        return self._mean.value[0]

    def learn_hidden(self, ready: int, drafted: int) -> None:
        """Learn how many of the passes that drafted so many (at least 1) tokens had run beside others."""
        self._hidden += (1.0 - _HIDDEN_KEEP) * (ready / drafted - self._hidden)

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


@dataclass(frozen=True)
class Way:
    """A way to draft.

    Attributes:
        planner: decides how long the chain is; nothing is drafted where none pays.
        beside: lets the model go on beside passes that verify; None: it does not.
    """

    model: Follower
    planner: ChainCosts
    beside: Beside | None = None


class ModelSource(ForestSource):
    """Drafts with a model, as many tokens as pay for their passes.

    Args:
        ways: to draft; the one that promises most is taken, of equal ones the first.
        beside: what is to be told of drafting beside passes that verify; None: nothing.
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
        beside: str | None = None,
    ) -> None:
        self.name = name
        self.beside = beside
        self._unasked = 0
        self.ways = tuple(ways)
        self._way = self.ways[0]
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
        self.pass_ends()
        for way in self.ways:
            if way.beside is not None:
                way.beside.begin_text()
            way.planner.begin()
            way.model.begin(token_ids)
        self._depth = len(token_ids)
        self._guesses = []

    def extend(self, token_ids: Items[int]) -> None:
        """Add emitted tokens."""
        self.pass_ends()
        for way in self.ways:
            way.model.extend(token_ids)
        self._depth += len(token_ids)
        self._unasked += 1
        self._guesses = []

    def pass_begins(self, draft: Draft, ms: float) -> None:
        """Let the model go on with its chain beside a pass, if that tree's likeliest path says the same."""
        way = self._way
        if way.beside is None or self._unasked > _UNASKED or way.planner.gain(self._depth) < self._least_gain:
            return
        path, chain = draft.first_path, [guess.token_id for guess in self._guesses]
        both = min(len(path), len(chain))
        guess = [*chain, *path[len(chain) :]]
        is_known = self._end_ids.isdisjoint(guess) and max(guess, default=0) < way.model.known_tokens
        if path[:both] != chain[:both] or not is_known:
            return
        value = math.prod(way.planner.value_of(one.probability) for one in self._guesses)
        value *= way.planner.usual_value ** (len(guess) - len(chain))
        most = min(self._most, way.model.room())
        pays = most > 0 and way.planner.goes_on(self._depth, (), most)
        way.beside.begin(guess, value, self._depth, ms, pays=pays)

    def pass_ends(self, *, quietly: bool = False) -> None:
        """Let nothing go on; see ``Drafter.pass_ends``."""
        for way in self.ways:
            if way.beside is not None:
                way.beside.end()
                if not quietly:
                    way.beside.tell()

    @property
    def beside_counts(self) -> BesideCounts:
        """See ``ForestSource.beside_counts``."""
        return next((way.beside.counts for way in self.ways if way.beside is not None), BesideCounts())

    def observe(self, draft: Draft, accepted: Accepted, outputs: Outputs, context: tuple[int, ...]) -> None:
        """Learn which guesses of the chain were right, whether they were verified or not."""
        del draft, outputs, context
        self.pass_ends()
        for guess, found in zip(self._guesses, accepted.token_ids, strict=False):
            self._way.planner.learn(guess.probability, guess.token_id == found)
            if guess.token_id != found:
                break

    def forest(self) -> Forest:
        """Draft; return the chain and its siblings, none if none pays."""
        self.pass_ends()
        self._unasked = 0
        self._guesses = self._draft()
        return chain_forest(self._guesses)

    def _draft(self) -> list[ChainGuess]:
        depth = self._depth
        gains = [way.planner.gain(depth) for way in self.ways]
        gain = max(gains)
        self._way = way = self.ways[gains.index(gain)]
        model, planner = way.model, way.planner
        most = min(self._most, model.room())
        if most < 1:
            return []
        self._idle += 1
        ready = int(self._is_ready(()))
        if not ready:
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
        while True:
            top = model.follow(drafted)
            ids = [token for token in top.ids[0, : 1 + RANKS].tolist() if token < model.known_tokens]
            if not ids or ids[0] != top.ids[0, 0]:
                break
            guesses.append(ChainGuess(ids[0], float(top.probabilities()[0, 0]), tuple(ids[1:])))
            values.append(values[-1] * planner.value_of(guesses[-1].probability))
            drafted.append(ids[0])
            if ids[0] in self._end_ids or len(guesses) >= most:
                break
            if self._is_ready(drafted):
                ready += 1
            elif not planner.goes_on(depth, values[1:], most, ready):
                break
        if guesses and way.beside is not None:
            planner.learn_hidden(min(ready, len(guesses)), len(guesses))
        return guesses

    def _is_ready(self, drafted: Items[int]) -> bool:
        """Return whether what follows was computed beside a pass."""
        beside = self._way.beside
        return beside is not None and beside.is_ready(drafted)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the model that drafts, mapped weights included."""
        return self._held_bytes()
