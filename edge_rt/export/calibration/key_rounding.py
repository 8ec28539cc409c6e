"""The error of rounding keys to 4 bits: decides whether the constants of ``key_constants`` are used."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.export.calibration.key_constants import KeyConstants, KeyStatistics, turn, weighted_moment
from edge_rt.kv_formats import GROUP

JUDGED_KEYS: Final = 256
"""Keys that are rounded for the comparison, spread over the text."""
_LARGEST_CODE: Final = 15

Array = npt.NDArray[Any]


def better_constants(keys: Array, statistics: KeyStatistics, constants: KeyConstants) -> KeyConstants:
    """Return the constants of a kv head if they make the error of rounding smaller, otherwise neutral ones.

    Args:
        keys: as attention uses them, ``[tokens, head_dim]``.
        statistics: of the same keys.
        constants: of the head, computed from ``statistics``.
    """
    neutral = KeyConstants.neutral(1, keys.shape[1])
    # Keys that do not fit half precision give NaN, which is not less than a number.
    with np.errstate(over="ignore", invalid="ignore"):
        is_better = weighted_error(keys, statistics, constants) < weighted_error(keys, statistics, neutral)
    return constants if is_better else neutral


def weighted_error(keys: Array, statistics: KeyStatistics, constants: KeyConstants) -> float:
    """Return the mean square of the scores' errors, weighted as in ``statistics``.

    Args:
        keys: as attention uses them, ``[tokens, head_dim]``.
        statistics: of the same keys.
        constants: of the head.
    """
    judged = np.unique(np.linspace(0, len(keys) - 1, min(len(keys), JUDGED_KEYS)).astype(np.int64))
    weights = statistics.key_weights[judged]
    centre, balance, feedback = (array[0].astype(np.float64) for array in constants.arrays)
    rows = turn((keys[judged].astype(np.float64) - centre) / balance)
    error = rows - rounded(rows, feedback)
    moment = turn(turn(balance[:, None] * statistics.query_moment * balance).T)
    total = max(float(weights.sum()), np.finfo(np.float64).tiny)
    return float((weighted_moment(error, weights) * moment).sum()) / total


def rounded(rows: Array, feedback: Array) -> Array:
    """Return rows as the format ``int4`` stores them.

    Scales and minimums of the groups are those of the given rows. Elements are rounded one after another; the error of
    element i, times ``feedback[i, j]``, is subtracted from element j.

    Args:
        rows: after the Hadamard transform, float64 ``[rows, head_dim]``.
        feedback: ``[head_dim, head_dim]``, 0 on the diagonal and below.
    """
    head_dim = rows.shape[1]
    # One element of all rows is contiguous, because a step processes that.
    left = np.ascontiguousarray(rows.T)
    begins = range(0, head_dim, GROUP)
    groups = [left[begin : begin + GROUP] for begin in begins]
    minimums = [_half(group.min(axis=0)) for group in groups]
    scales = [_half((group.max(axis=0) - group.min(axis=0)) / _LARGEST_CODE) for group in groups]
    result = np.empty_like(left)
    for i in range(head_dim):
        minimum, scale = minimums[i // GROUP], scales[i // GROUP]
        steps = np.divide(left[i] - minimum, scale, out=np.zeros_like(scale), where=scale > 0)
        result[i] = np.clip(np.rint(steps), 0, _LARGEST_CODE) * scale + minimum
        if feedback[i].any():
            left[i + 1 :] -= feedback[i, i + 1 :, None] * (left[i] - result[i])
    return result.T


def _half(values: Array) -> Array:
    as_half: Array = values.astype(np.float16).astype(np.float64)
    return as_half
