"""From a row of logits to a token: penalties, bias, temperature, top-k, top-p, min-p, one draw.

No step sorts the vocabulary. The few tokens that can be drawn are found with thresholds that are proven to contain
them, and only those are sorted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.errors import ConfigError
from edge_rt.runtime.config import GenerationConfig

Array = npt.NDArray[Any]

_FIRST_THRESHOLD: Final = 1e-3
_THRESHOLD_STEP: Final = 1 / 64
_LAST_THRESHOLD: Final = 1e-12
_TOP_K_GROUP: Final = 64


class Sampler:
    """Chooses tokens for one generation; call ``sample`` and then ``observe`` for every emitted token.

    One number is drawn for every sampled token, whatever was drafted, so a seed gives the same text with any drafter.

    Args:
        config: the options.
        vocab_size: length of a row of logits.
        prompt_ids: tokens of the prompt (for the repetition penalty).

    Raises:
        ConfigError: ``logit_bias`` names a token outside the vocabulary.
    """

    def __init__(self, config: GenerationConfig, vocab_size: int, prompt_ids: Iterable[int] = ()) -> None:
        self._config = config
        self._random = np.random.Generator(np.random.PCG64(config.seed))
        self._bias_ids = np.asarray(list(config.logit_bias), np.int64)
        self._bias = np.asarray(list(config.logit_bias.values()), np.float32)
        if self._bias_ids.size and self._bias_ids.max() >= vocab_size:
            raise ConfigError(
                "The option 'logit_bias' names a token outside the vocabulary.",
                f"Token {int(self._bias_ids.max())}, the vocabulary has {vocab_size}.",
                "Correct it.",
            )
        self._seen = _TokenSet(vocab_size) if config.repetition_penalty != 1.0 else None
        penalises_answer = config.presence_penalty != 0.0 or config.frequency_penalty != 0.0
        self._answered = _TokenSet(vocab_size) if penalises_answer else None
        if self._seen is not None:
            for token in prompt_ids:
                self._seen.add(token)

    def sample(self, logits: Array) -> int:
        """Choose a token for a row of logits, float32 ``[vocabulary]``, which is left unchanged."""
        scores = self._adjusted(logits)
        if self._config.temperature == 0.0:
            return int(scores.argmax())
        ids, weights = candidates(
            scores, self._config.temperature, self._config.top_k, self._config.top_p, self._config.min_p
        )
        cumulated = np.cumsum(weights, dtype=np.float64)
        drawn = int(np.searchsorted(cumulated, self._random.random() * cumulated[-1], side="right"))
        return int(ids[min(drawn, len(ids) - 1)])

    def observe(self, token_id: int) -> None:
        """Remember an emitted token for the penalties."""
        for tokens in (self._seen, self._answered):
            if tokens is not None:
                tokens.add(token_id)

    def _adjusted(self, logits: Array) -> Array:
        if self._seen is None and self._answered is None and not self._bias_ids.size:
            return logits
        scores = logits.copy()
        if self._seen is not None:
            ids = self._seen.ids
            values, penalty = scores[ids], np.float32(self._config.repetition_penalty)
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
    """Return the tokens that may be drawn and their weights.

    Weights are ``exp((logit - max) / temperature)``. top-k keeps the k largest; top-p the shortest run of largest ones
    whose sum reaches ``top_p`` of what top-k left; min-p those of at least ``min_p``. Equal weights rank by token id.

    Args:
        logits: float32 ``[vocabulary]``, left unchanged.
        temperature: above 0.
        top_k: 0 for all.
        top_p: 1 for all.
        min_p: 0 for all.

    Returns:
        Token ids int64 ``[n]`` and weights float32 ``[n]``. Ordered by weight if anything was cut, else by id.
    """
    weights = np.exp((logits - logits.max()) * np.float32(1.0 / temperature))
    if 0 < top_k < len(weights):
        ids = _largest(weights, top_k)
    elif top_p < 1.0:
        ids = _nucleus_superset(weights, top_p)
    elif min_p > 0.0:
        ids = np.flatnonzero(weights >= min_p)
    else:
        return np.arange(len(weights)), weights
    ids = ids[np.argsort(-weights[ids], kind="stable")]
    if 0 < top_k < len(weights):
        ids = ids[:top_k]
    kept = weights[ids]
    if top_p < 1.0:
        total = kept.sum(dtype=np.float64) if 0 < top_k < len(weights) else weights.sum(dtype=np.float64)
        end = int(np.searchsorted(np.cumsum(kept, dtype=np.float64), top_p * total, side="left")) + 1
        ids, kept = ids[:end], kept[:end]
    if min_p > 0.0:
        # kept falls from left to right, and its first entry is 1.
        end = max(1, int(np.searchsorted(-kept, -min_p, side="right")))
        ids, kept = ids[:end], kept[:end]
    return ids, kept


def _largest(weights: Array, count: int) -> Array:
    """Return ids that contain the ``count`` largest weights.

    The count-th largest of the groups' maxima is a lower bound of the count-th largest weight.
    """
    groups = len(weights) // _TOP_K_GROUP
    if count > groups:
        bound = np.partition(weights, len(weights) - count)[len(weights) - count]
    else:
        maxima = weights[: groups * _TOP_K_GROUP].reshape(groups, _TOP_K_GROUP).max(axis=1)
        bound = np.partition(maxima, groups - count)[groups - count]
    return np.flatnonzero(weights >= bound)


def _nucleus_superset(weights: Array, top_p: float) -> Array:
    """Return ids that contain the nucleus: all above a threshold whose weights reach ``top_p`` of the sum."""
    wanted = top_p * float(weights.sum(dtype=np.float64))
    threshold = _FIRST_THRESHOLD
    while threshold > _LAST_THRESHOLD:
        ids = np.flatnonzero(weights > threshold)
        if float(weights[ids].sum(dtype=np.float64)) >= wanted:
            return ids
        threshold *= _THRESHOLD_STEP
    return np.arange(len(weights))
