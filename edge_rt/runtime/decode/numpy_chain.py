"""Sampling without the native library: the same tokens from the same numbers, slower, and without its newer steps.

Weights are the native ones to the bit (``csrc/sampling/``): the same polynomial, with fused multiply-adds that are
computed in float64 and rounded once, as a whole part of 2^30.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

WHOLE: Final = 1 << 30
"""The weight of the largest logit."""
LEAST_TEMPERATURE: Final = 1e-30
"""Temperatures between 0 and this one sample like this one."""
_F: Final = np.float32


def fused(a: Array, b: Array | np.float32, c: Array | np.float32) -> Array:
    """Return a * b + c of float32, rounded once."""
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    wide = np.asarray(c, np.float64)
    total = product + wide
    back = total - product
    error = (product - (total - back)) + (wide - back)
    # To odd: the float32 behind it is that of the exact sum.
    bits = total.view(np.int64)
    inexact = error != 0
    bits = (bits - (inexact & (np.signbit(error) != np.signbit(total)))) | inexact
    result: Array = bits.view(np.float64).astype(np.float32)
    return result


_POLYNOMIAL: Final = tuple(
    np.float32(float.fromhex(text))
    for text in ("0x1.6a2352p-10", "0x1.123a6cp-7", "0x1.5558f4p-5", "0x1.555490p-3", "0x1.fffffcp-2")
)


def exp32(x: Array) -> Array:
    """Return ``vf_exp`` of ``csrc/kernels/simd_math.inl``, float32."""
    x = np.minimum(np.maximum(x, _F(-87.3)), _F(88.3))
    whole = np.rint(x * _F(float.fromhex("0x1.715476p+0")))
    rest = fused(-whole, _F(float.fromhex("0x1.62e430p-1")), x)
    rest = fused(-whole, _F(-float.fromhex("0x1.05c610p-29")), rest)
    value = np.full_like(rest, _POLYNOMIAL[0])
    for term in _POLYNOMIAL[1:]:
        value = fused(value, rest, term)
    power = ((whole.astype(np.int32) + 127) << 23).view(np.float32)
    result: Array = (_F(1) + fused(rest * rest, value, rest)) * power
    return result


def whole_weights(scores: Array, temperature: float) -> Array:
    """Return the weights of scores, int64: of the largest one ``WHOLE``."""
    scale = _F(1.0 / max(temperature, LEAST_TEMPERATURE))
    with np.errstate(over="ignore", invalid="ignore"):
        logarithms = (scores - scores.max()) * scale
    result: Array = np.rint(exp32(logarithms) * _F(WHOLE)).astype(np.int64)
    return result


def allowed_by(mask: Array, size: int) -> Array:
    """Return a mask's bits as bools ``[size]``."""
    bits: Array = np.unpackbits(np.ascontiguousarray(mask, "<u4").view(np.uint8), count=size, bitorder="little")
    return bits.astype(bool)


class NumpyChain:
    """The chain of one generation; temperature, top-k, top-p, min-p, penalties, bias and bans alone."""

    def __init__(
        self,
        numbers: dict[str, float],
        *,
        prompt: Iterable[int],
        exempt: Iterable[int],
        banned: Iterable[int],
        bias: dict[int, float],
    ) -> None:
        self._n = numbers
        self._exempt = frozenset(exempt)
        self._banned = np.asarray(list(banned), np.int64)
        self._bias_ids = np.asarray(list(bias), np.int64)
        self._bias = np.asarray(list(bias.values()), np.float32)
        self._seen = dict.fromkeys(token for token in prompt if token not in self._exempt)
        self._answered: dict[int, int] = {}

    def observe(self, token_id: int) -> None:
        """Remember a token of the answer."""
        if token_id not in self._exempt:
            self._seen[token_id] = None
        self._answered[token_id] = self._answered.get(token_id, 0) + 1

    def scores(self, logits: Array, mask: Array | None) -> Array:
        """Return the row after mask, bans, penalties and bias."""
        numbers, scores = self._n, logits.copy()
        if mask is not None:
            scores[~allowed_by(mask, len(scores))] = -np.inf
        scores[self._banned] = -np.inf
        if numbers["repetition"] != 1.0:
            ids = np.asarray(list(self._seen), np.int64)
            values, penalty = scores[ids], _F(numbers["repetition"])
            scores[ids] = np.where(values > 0, values / penalty, values * penalty)
        if self._answered:
            ids = np.asarray(list(self._answered), np.int64)
            counts = np.asarray(list(self._answered.values()), np.float32)
            scores[ids] -= _F(numbers["presence"]) + _F(numbers["frequency"]) * counts
        scores[self._bias_ids] += self._bias
        return scores

    def law(self, scores: Array) -> tuple[Array, Array]:
        """Return the tokens that may be drawn, by id, and their weights, both int64.

        Args:
            scores: finite, or minus infinity, but not all of them.
        """
        numbers = self._n
        if numbers["temperature"] == 0.0:
            return np.asarray([scores.argmax()]), np.asarray([WHOLE])
        weights = whole_weights(scores, numbers["temperature"])
        total = int(weights.sum())
        top_k, least = int(numbers["top_k"]), max(1, math.ceil(numbers["min_p"] * WHOLE))
        bound = 1
        if 0 < top_k < len(weights):
            bound = max(1, int(np.partition(weights, len(weights) - top_k)[len(weights) - top_k]))
        elif not top_k:
            bound = least
        ids = np.flatnonzero(weights >= bound)
        ids = ids[np.argsort(-weights[ids], kind="stable")]
        if top_k:
            ids = ids[:top_k]
            total = int(weights[ids].sum())
        if numbers["top_p"] < 1.0:
            wanted = math.ceil(numbers["top_p"] * total)
            ids = ids[: int(np.searchsorted(np.cumsum(weights[ids]), wanted)) + 1]
        ids = np.sort(ids[weights[ids] >= least])
        return ids, weights[ids]
