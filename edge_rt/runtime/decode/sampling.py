"""Sampling: from a row of logits to a token, by penalties, bias, temperature, top-k, top-p, min-p and one draw.

No step sorts the vocabulary, which would cost a third of a small model's speed. Candidate sets are found with
thresholds and by bisection, and tokens are drawn in the order of their ids.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.errors import ConfigError, InferenceError
from edge_rt.package.sampling import Sampling
from edge_rt.runtime.config import GenerationConfig

Array = npt.NDArray[Any]

LEAST_TEMPERATURE: Final = 1e-30
"""Temperatures between 0 and this one sample like this one."""
_FIRST_THRESHOLD: Final = 1e-3
_THRESHOLD_STEP: Final = 1 / 64
_LAST_THRESHOLD: Final = 1e-12
_TOP_K_GROUP: Final = 64
_SORTED_AT_ONCE: Final = 256


class Chance:
    """The random choices of one generation, all from one seeded generator.

    Args:
        seed: makes the choices repeatable; None takes a new seed each time.
    """

    def __init__(self, seed: int | None) -> None:
        self._random = np.random.Generator(np.random.PCG64(seed))

    def happens(self, probability: float) -> bool:
        """Return True with this probability; one number is drawn."""
        return bool(self._random.random() < probability)

    def choose(self, weights: Array) -> int:
        """Return an index with a probability proportional to its weight; one number is drawn.

        Args:
            weights: ``[n]``, each at least 0, their sum above 0.
        """
        cumulated = np.cumsum(weights, dtype=np.float64)
        drawn = int(np.searchsorted(cumulated, self._random.random() * cumulated[-1], side="right"))
        return min(drawn, len(cumulated) - 1)


class Sampler:
    """Chooses tokens for one generation; call ``sample`` and then ``observe`` for every emitted token.

    One random number is drawn for every sampled token, whatever was drafted, so a seed gives the same text with any
    drafter.

    Args:
        sampling: sampling values in force; None takes those of ``config``, without values that a model recommends.
    """

    def __init__(
        self,
        config: GenerationConfig,
        vocab_size: int,
        prompt_ids: Iterable[int] = (),
        sampling: Sampling | None = None,
    ) -> None:
        self._config = config
        self._sampling = config.sampling() if sampling is None else sampling
        self.chance = Chance(config.seed)
        self._bias_ids = np.asarray(list(config.logit_bias), np.int64)
        self._bias = np.asarray(list(config.logit_bias.values()), np.float32)
        if self._bias_ids.size and self._bias_ids.max() >= vocab_size:
            raise ConfigError(
                "The option 'logit_bias' names a token outside the vocabulary.",
                f"Token {int(self._bias_ids.max())}, the vocabulary has {vocab_size}.",
                "Use ids of this model's tokens.",
            )
        self._seen = _TokenSet(vocab_size) if self._sampling.repetition_penalty != 1.0 else None
        penalises_answer = config.presence_penalty != 0.0 or config.frequency_penalty != 0.0
        self._answered = _TokenSet(vocab_size) if penalises_answer else None
        if self._seen is not None:
            for token in prompt_ids:
                self._seen.add(token)

    @property
    def takes_best(self) -> bool:
        """Whether the token of the largest logit is always taken, whatever was seen."""
        return self._sampling.temperature == 0.0 and self._keeps_logits

    def sample(self, logits: Array) -> int:
        """Choose a token for a row of logits, float32 ``[vocabulary]``, which is left unchanged."""
        ids, probabilities = self.distribution(logits)
        # Temperature 0 draws no number.
        return int(ids[0 if self._sampling.temperature == 0.0 else self.chance.choose(probabilities)])

    def distribution(self, logits: Array) -> tuple[Array, Array]:
        """Return what ``sample`` would draw a token from: after penalties, bias, temperature, top-k, top-p and min-p.

        Args:
            logits: float32 ``[vocabulary]``, left unchanged.

        Returns:
            Token ids int64 ``[n]``, ascending, and their probabilities float64 ``[n]``, which sum to 1. At temperature
            0 this is one token.
        """
        scores = self._adjusted(logits)
        best = int(scores.argmax())
        if not np.isfinite(scores[best]):
            raise InferenceError(
                "The model computed logits that are not numbers.",
                f"The largest of {len(scores)} is {scores[best]}.",
                "Export or pull the model again; report it if it repeats.",
            )
        if self._sampling.temperature == 0.0:
            return np.full(1, best, np.int64), np.ones(1)
        chain = self._sampling
        ids, weights = candidates(scores, chain.temperature, chain.top_k, chain.top_p, chain.min_p)
        probabilities = weights.astype(np.float64)
        probabilities /= probabilities.sum()
        return ids, probabilities

    def observe(self, token_id: int) -> None:
        """Remember an emitted token for the penalties."""
        for tokens in (self._seen, self._answered):
            if tokens is not None:
                tokens.add(token_id)

    @property
    def _keeps_logits(self) -> bool:
        return self._seen is None and self._answered is None and not self._bias_ids.size

    def _adjusted(self, logits: Array) -> Array:
        if self._keeps_logits:
            return logits
        scores = logits.copy()
        if self._seen is not None:
            ids = self._seen.ids
            values, penalty = scores[ids], np.float32(self._sampling.repetition_penalty)
            scores[ids] = np.where(values > 0, values / penalty, values * penalty)
        if self._answered is not None:
            ids = self._answered.ids
            counts = self._answered.counts[ids].astype(np.float32)
            scores[ids] -= self._config.presence_penalty + self._config.frequency_penalty * counts
        scores[self._bias_ids] += self._bias
        return scores


class _TokenSet:
    """Token ids seen so far, each once, with their counts; adding one takes constant time."""

    def __init__(self, vocab_size: int) -> None:
        self.counts = np.zeros(vocab_size, np.int32)
        self._ids = np.empty(64, np.int64)
        self._size = 0

    @property
    def ids(self) -> Array:
        return self._ids[: self._size]

    def add(self, token_id: int) -> None:
        if self.counts[token_id] == 0:
            if self._size == len(self._ids):
                self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
            self._ids[self._size] = token_id
            self._size += 1
        self.counts[token_id] += 1


def candidates(logits: Array, temperature: float, top_k: int, top_p: float, min_p: float) -> tuple[Array, Array]:
    """Return the tokens that may be drawn, by id, and their weights.

    Weights are ``exp((logit - max) / temperature)``. top-k keeps the k largest; top-p keeps the fewest largest ones
    whose sum reaches ``top_p`` of those that top-k kept; min-p keeps those of at least ``min_p``. Equal weights rank by
    token id.

    Args:
        logits: float32 ``[vocabulary]``, left unchanged.
        temperature: above 0.
        top_k: 0 for all.
        top_p: 1 for all.
        min_p: 0 for all.

    Returns:
        Token ids int64 ``[n]``, ascending, and weights float32 ``[n]``.
    """
    # Below the bound only the largest logits have any weight, and the quotient would overflow float32.
    weights = np.exp((logits - logits.max()) * np.float32(1.0 / max(temperature, LEAST_TEMPERATURE)))
    # The largest weight is 1, so min-p is a plain bound; weights below it only count in the sum for top-p.
    ids = np.flatnonzero(weights >= min_p) if min_p > 0.0 else np.arange(len(weights))
    if 0 < top_k < len(weights):
        kept = _top_k(weights, top_k)
        if top_p < 1.0:
            kept = kept[_top_p(weights[kept], top_p)]
        return _both(ids, kept, weights)
    if top_p < 1.0:
        return _both(ids, _top_p(weights, top_p), weights)
    return ids, weights[ids]


def _both(ids: Array, kept: Array, weights: Array) -> tuple[Array, Array]:
    if len(ids) < len(weights):
        kept = np.intersect1d(ids, kept, assume_unique=True)
    return kept, weights[kept]


def _top_k(weights: Array, count: int) -> Array:
    """Return the indices of the ``count`` largest weights, ascending.

    The count-th largest maximum of small groups is a lower bound of the count-th largest weight.
    """
    groups = len(weights) // _TOP_K_GROUP
    bound = np.float32(0)
    if count <= groups:
        maxima = weights[: groups * _TOP_K_GROUP].reshape(groups, _TOP_K_GROUP).max(axis=1)
        bound = np.partition(maxima, groups - count)[groups - count]
    near = np.flatnonzero(weights >= bound)
    cut = np.partition(weights[near], len(near) - count)[len(near) - count]
    return _above(weights, cut, count)


def _top_p(weights: Array, top_p: float) -> Array:
    """Return the indices of the fewest largest weights that sum to ``top_p`` of all, ascending."""
    wanted = top_p * float(weights.sum(dtype=np.float64))
    threshold = _FIRST_THRESHOLD
    rest = weights[weights > threshold]
    while threshold > _LAST_THRESHOLD and float(rest.sum(dtype=np.float64)) < wanted:
        threshold *= _THRESHOLD_STEP
        rest = weights[weights > threshold]
    if threshold <= _LAST_THRESHOLD:
        rest = weights
    # Halve the range that contains the last weight to keep, until sorting it is cheap.
    count = 0
    while len(rest) > _SORTED_AT_ONCE:
        middle = np.partition(rest, len(rest) // 2)[len(rest) // 2]
        upper = rest[rest > middle]
        mass = float(upper.sum(dtype=np.float64))
        if mass >= wanted:
            rest = upper
        elif len(upper) == 0 or len(upper) == len(rest):
            break
        else:
            count, wanted, rest = count + len(upper), wanted - mass, rest[rest <= middle]
    falling = np.sort(rest)[::-1]
    last = min(int(np.searchsorted(np.cumsum(falling, dtype=np.float64), wanted, side="left")), len(falling) - 1)
    return _above(weights, falling[last], count + last + 1)


def _above(weights: Array, cut: Any, count: int) -> Array:
    """Return the indices of the ``count`` largest weights, at least ``cut``; of equal weights the first ones."""
    indices = np.flatnonzero(weights >= cut)
    surplus = len(indices) - count
    if surplus > 0:
        equal = indices[weights[indices] == cut]
        indices = np.setdiff1d(indices, equal[len(equal) - surplus :], assume_unique=True)
    return indices
