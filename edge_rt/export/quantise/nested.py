"""Quantises weights to nested codes: 4 bits that stand alone, and 4 finer ones that make them 8 bits.

Scale and minimum of a group are chosen so that the upper halves of the codes lose least, among those with which whole
codes lose hardly more than evenly spaced ones do: a range that is cut narrow serves 4 bits, but what lies outside of it
is lost to 8 bits, too. Each start is the range of the group, cut at either end, and one least-squares fit to the codes
that it gives. Finer codes hold what rounding to the upper ones leaves over. So there is no room for feedback as in
``feedback``: an upper code that is not the nearest one would take the finer ones out of their range.
"""

from __future__ import annotations

import itertools
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.export.quantise.grids import LARGEST_HALF, inverse_of
from edge_rt.export.weights.codes import Codes
from edge_rt.export.weights.tile_formats import BLOCK

Array = npt.NDArray[Any]

_CUTS: Final = (0.0, 0.025, 0.05)
"""Shares of a group's range that are cut off at either end, to start from."""
_WORSE: Final = 2.5
"""What whole codes may lose, over the error of 256 even steps over the range. Int8 with scales alone loses 1.1 times
that, because its range is that of the largest weight, to either side."""
_TINY: Final = np.float32(1e-30)


def quantise_nested(weights: Array, weight_of: Array) -> tuple[Codes, Array, Array]:
    """Quantise rows to nested codes.

    Args:
        weights: float32 ``[inputs, rows]``; inputs are a multiple of a block.

    Returns:
        The codes, and ``weights - values`` of whole codes and of the upper halves alone, float32 ``[inputs, rows]``.
    """
    inputs, rows = weights.shape
    codes = np.empty(weights.shape, np.uint8)
    errors, upper_errors = np.empty_like(weights), np.empty_like(weights)
    d, m = np.empty((2, inputs // BLOCK, rows), np.float16)
    for unit, begin in enumerate(range(0, inputs, BLOCK)):
        block = slice(begin, begin + BLOCK)
        own = weights[block]
        d[unit], m[unit] = _fit(own, weight_of[block, None])
        codes[block], errors[block], upper_errors[block] = _rounded(own, d[unit], m[unit])
    return (
        Codes(np.ascontiguousarray(codes.T), d=np.ascontiguousarray(d.T), m=np.ascontiguousarray(m.T)),
        errors,
        upper_errors,
    )


def _rounded(weights: Array, d: Array, m: Array) -> tuple[Array, Array, Array]:
    """Return codes, and the errors of whole ones and of upper halves, of groups ``[32, n]``."""
    scale, minimum = d.astype(np.float32), m.astype(np.float32)
    left = (weights - minimum) * inverse_of(scale)
    upper = np.clip(np.rint(left), 0, 15)
    finer = np.clip(np.rint((left - upper) * 16 + 8), 0, 15)
    upper_errors = weights - (upper * scale + minimum)
    errors = weights - ((16 * upper + finer) * (scale / 16) + (minimum - scale / 2))
    return (16 * upper + finer).astype(np.uint8), errors, upper_errors


def _fit(weights: Array, importance: Array) -> tuple[Array, Array]:
    """Return scale and minimum of groups, float16 ``[n]``; weights are ``[32, n]``, their importance ``[32, 1]``."""
    least, most = weights.min(axis=0), weights.max(axis=0)
    spread = most - least
    total = float(importance.sum())
    allowed = np.maximum(_WORSE * total / 12 * np.square(spread / 255), _TINY)
    best_upper = np.full(len(least), np.inf, np.float32)
    best_whole = np.full(len(least), np.inf, np.float32)
    best_d, best_m = np.zeros(len(least), np.float16), np.zeros(len(least), np.float16)
    for low, high in itertools.product(_CUTS, _CUTS):
        d, m = _refit(weights, importance, total, least + low * spread, (1 - low - high) / 15 * spread)
        _, errors, upper_errors = _rounded(weights, d, m)
        whole = (importance * np.square(errors)).sum(axis=0)
        upper = (importance * np.square(upper_errors)).sum(axis=0)
        # Where nothing is allowed so far, the least error of whole codes counts.
        fits, had = whole <= allowed, best_whole <= allowed
        better = np.where(fits & had, upper < best_upper, np.where(fits | had, fits, whole < best_whole))
        best_upper[better], best_whole[better] = upper[better], whole[better]
        best_d[better], best_m[better] = d[better], m[better]
    return best_d, best_m


def _refit(weights: Array, importance: Array, total: float, low: Array, step: Array) -> tuple[Array, Array]:
    """Return scale and minimum that fit best to the codes of 4 bits that a start gives, float16 ``[n]``."""
    codes = np.clip(np.rint((weights - low) * inverse_of(step)), 0, 15)
    weighted = importance * codes
    one, two = weighted.sum(axis=0), (weighted * codes).sum(axis=0)
    sums, mixed = (importance * weights).sum(axis=0), (weighted * weights).sum(axis=0)
    spread = total * two - one * one
    found = (total * mixed - one * sums) / np.maximum(spread, _TINY)
    is_better = (spread > 1e-6 * total * two) & (found > 0)
    scale = np.where(is_better, found, step)
    minimum = np.where(is_better, (sums - found * one) / total, low)
    return _halves(scale), _halves(minimum)


def _halves(numbers: Array) -> Array:
    return np.clip(numbers, -LARGEST_HALF, LARGEST_HALF).astype(np.float16)
