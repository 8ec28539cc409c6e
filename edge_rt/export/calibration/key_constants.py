"""Constants with which 4-bit keys are written, computed from the keys and queries of a calibration text.

A key k of a head becomes a row of codes in three steps, each with constants of the layer (``KeyConstants``):

- a centre c is subtracted: every score of a query loses the same q . c, which does not change softmax. c is the mean of
  the keys, each weighted by the effect of an error of its score;
- the result is divided by a balance S per dimension, and the query is multiplied by it: this moves range from
  dimensions in which keys are large to those in which queries are. SmoothQuant (arXiv:2211.10438) does this for weights
  and activations; here half of the difference is moved, and standard deviations replace the largest magnitudes;
- it is rounded element by element, and the error of each element is compensated in those that follow: GPTQ
  (arXiv:2210.17323), with the second moment of the queries in place of that of a layer's inputs.

The effect of an error is measured at P, the attention after softmax: the diagonal of softmax's Jacobian is P (1 - P). A
key's weight is the sum of that over the queries, a query's weight the sum over the keys.

The arithmetic is float64, and the constants are rounded to half precision at the end, so that machines that add in
another order nearly always get the same constants.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.package.kv_formats import GROUP

MAX_BALANCE: Final = 16.0
"""Largest factor of a dimension; the smallest is its inverse."""
DAMPING: Final = 0.1
"""Share of the mean diagonal that is added to the queries' second moment, to keep it invertible."""

_DUST: Final = 1e-12
_ROWS: Final = 64
_PRODUCT: Final = 1 << 18
_VECTOR_PRODUCT: Final = 1 << 13
"""Multiplications of one matrix product, and of a vector-matrix product. BLAS does not split products this small among
threads: so results do not depend on the number of threads, and no thread waits for another.
"""

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class KeyConstants:
    """Constants of one layer, float32; every value is one of half precision.

    Attributes:
        centre: ``[kv_heads, head_dim]``.
        balance: ``[kv_heads, head_dim]``, above 0.
        feedback: ``[kv_heads, head_dim, head_dim]``, 0 on the diagonal and below; row i gives the compensation of
            element i's error in the elements after it.
    """

    centre: Array
    balance: Array
    feedback: Array

    @property
    def arrays(self) -> tuple[Array, Array, Array]:
        """All three arrays, in the order in which operators take them."""
        return self.centre, self.balance, self.feedback

    @classmethod
    def neutral(cls, kv_heads: int, head_dim: int) -> KeyConstants:
        """Return constants that change nothing."""
        shape = (kv_heads, head_dim)
        return cls(np.zeros(shape, np.float32), np.ones(shape, np.float32), np.zeros((*shape, head_dim), np.float32))

    @classmethod
    def joined(cls, heads: Sequence[KeyConstants]) -> KeyConstants:
        """Return the constants of a layer from those of its kv heads."""
        return cls(*(np.concatenate(arrays) for arrays in zip(*(head.arrays for head in heads), strict=True)))


@dataclass(frozen=True)
class KeyStatistics:
    """Statistics of the keys and queries of a kv head over a calibration text, float64.

    Attributes:
        key_weights: effect of an error of a key's scores, ``[tokens]``.
        centre: weighted mean of the keys, ``[head_dim]``.
        variance: weighted variance of every dimension of the keys, ``[head_dim]``.
        query_moment: weighted second moment of the queries, trace 1 (0 if there is none), ``[head_dim, head_dim]``.
    """

    key_weights: Array
    centre: Array
    variance: Array
    query_moment: Array


def statistics_bytes(tokens: int, rows: int, head_dim: int) -> int:
    """Return the bytes that ``key_statistics`` takes: scores and squares, keys and derived arrays, queries."""
    return 8 * (2 * _rows_at_once(head_dim) * tokens + (4 * tokens + 2 * rows) * head_dim)


def key_statistics(
    keys: Array, queries: Array, positions: Array, *, scale: float, window: int = 0, is_centred: bool = True
) -> KeyStatistics:
    """Compute the statistics of one kv head: keys and queries weighted by attention.

    Args:
        keys: as attention uses them, after norm and rotation, ``[tokens, head_dim]``; key t is at position t.
        queries: of some tokens, after norm and rotation, ``[rows, heads of the group, head_dim]``, not yet multiplied
            by ``scale``.
        positions: of the queries, ascending, ``[rows]``.
        window: tokens that a query sees, its own included; 0: all.
        is_centred: False if no centre may be subtracted: the variance is then about 0 instead of the mean.
    """
    tokens, head_dim = keys.shape
    keys = keys.astype(np.float64)
    rows = queries.reshape(-1, head_dim).astype(np.float64)
    places = np.repeat(positions, queries.shape[1])
    key_weights, row_weights = np.zeros(tokens), np.zeros(len(rows))
    step = _rows_at_once(head_dim)
    rooms = np.empty((2, step * tokens))
    for begin in range(0, len(rows), step):
        chunk, at = rows[begin : begin + step], places[begin : begin + step]
        seen = slice(max(0, at[0] + 1 - window) if window else 0, at[-1] + 1)
        shape = (len(chunk), seen.stop - seen.start)
        scores, squares = (room[: math.prod(shape)].reshape(shape) for room in rooms)
        _multiply(chunk * scale, keys[seen].T, scores)
        _hide(scores, at - seen.start, window)
        of_keys, row_weights[begin : begin + step] = _jacobian(scores, squares)
        key_weights[seen] += of_keys
    moment = weighted_moment(rows, row_weights)
    total, trace = key_weights.sum(), moment.trace()
    shares = key_weights / total if total else key_weights
    centre = (shares[:, None] * keys).sum(axis=0) if is_centred else np.zeros(head_dim)
    variance = (shares[:, None] * (keys - centre) ** 2).sum(axis=0)
    return KeyStatistics(key_weights, centre, variance, moment / trace if trace else moment)


def weighted_moment(rows: Array, weights: Array) -> Array:
    """Return the sum of w x x^T over the rows x ``[rows, head_dim]``, ``[head_dim, head_dim]``."""
    moment = np.zeros((rows.shape[1], rows.shape[1]))
    step = _rows_at_once(rows.shape[1])
    for begin in range(0, len(rows), step):
        piece = rows[begin : begin + step]
        moment += (piece * weights[begin : begin + step, None]).T @ piece
    return moment


def _rows_at_once(head_dim: int) -> int:
    return max(1, min(_ROWS, _PRODUCT // head_dim**2))


def _multiply(rows: Array, columns: Array, out: Array) -> None:
    """Write ``rows @ columns`` to ``out``, some columns at a time."""
    step = max(1, (_PRODUCT if len(rows) > 1 else _VECTOR_PRODUCT) // rows.size)
    for first in range(0, columns.shape[1], step):
        piece = slice(first, first + step)
        np.matmul(rows, columns[:, piece], out=out[:, piece])


def _hide(scores: Array, positions: Array, window: int) -> None:
    """Set the scores ``[rows, keys]`` of keys that a row does not see to minus infinity; a window of 0 sees all."""
    columns = np.arange(scores.shape[1])
    later = slice(positions[0] + 1, None)
    scores[:, later][columns[later] > positions[:, None]] = -np.inf
    if window:
        earlier = slice(0, max(0, positions[-1] + 1 - window))
        scores[:, earlier][columns[earlier] <= positions[:, None] - window] = -np.inf


def _jacobian(scores: Array, squares: Array) -> tuple[Array, Array]:
    """Return the sums of P (1 - P) over the rows and over the keys; ``scores [rows, keys]`` are overwritten."""
    scores -= scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    np.multiply(scores, scores, out=squares)
    inverse = 1.0 / scores.sum(axis=1)
    of_keys = np.empty((2, scores.shape[1]))
    _multiply(inverse[None], scores, of_keys[:1])
    _multiply(inverse[None] ** 2, squares, of_keys[1:])
    of_rows = 1.0 - squares.sum(axis=1) * inverse**2
    # If one key has all of the attention, rounding may give values below 0.
    return np.maximum(of_keys[0] - of_keys[1], 0.0), np.maximum(of_rows, 0.0)


def key_constants(statistics: KeyStatistics) -> KeyConstants:
    """Return the constants of one kv head, as a layer with this head alone."""
    moment, head_dim = statistics.query_moment, len(statistics.centre)
    # Keys that are all equal differ from their mean by rounding.
    variance = np.where(statistics.variance > _DUST * statistics.centre**2, statistics.variance, 0.0)
    balance = _balance(variance, moment.diagonal())
    turned = turn(turn(balance[:, None] * moment * balance).T)
    mean = turned.trace() / head_dim
    # Without queries, all elements have the same weight.
    turned += (DAMPING * mean if mean > 0 else 1.0) * np.eye(head_dim)
    # A unit of error is compensated in the following elements by the upper factor's row divided by its diagonal.
    upper = np.linalg.cholesky(np.linalg.inv(turned)).T
    feedback = np.triu(upper / upper.diagonal()[:, None], 1)
    return KeyConstants(*(_half(array)[None] for array in (statistics.centre, balance, feedback)))


def _balance(variance: Array, moment: Array) -> Array:
    """Return the factors of the dimensions, with geometric mean 1; 1 where keys or queries are 0."""
    is_used = (variance > 0) & (moment > 0)
    balance = np.ones(len(variance))
    logs = 0.25 * (np.log(variance[is_used]) - np.log(moment[is_used]))
    if logs.size:
        balance[is_used] = np.exp(np.clip(logs - logs.mean(), -np.log(MAX_BALANCE), np.log(MAX_BALANCE)))
    return balance


def _half(array: Array) -> Array:
    rounded: Array = array.astype(np.float16).astype(np.float32)
    return rounded


def turn(rows: Array) -> Array:
    """Return ``[..., head_dim]`` after the normalised Hadamard transform of the cache's 4-bit formats.

    The transform works on blocks of the largest power of two that divides the head size. It is its own inverse.
    """
    head_dim = rows.shape[-1]
    block = head_dim & -head_dim
    turned = rows.reshape(*rows.shape[:-1], head_dim // block, block) * block**-0.5
    distance = 1
    while distance < block:
        pairs = turned.reshape(*turned.shape[:-1], block // (2 * distance), 2, distance)
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        turned = np.stack([first + second, first - second], axis=-2).reshape(turned.shape)
        distance *= 2
    result: Array = turned.reshape(rows.shape)
    return result


JUDGED_KEYS: Final = 256
"""Keys that are rounded for the comparison, spread over the text."""
_LARGEST_CODE: Final = 15


def better_constants(keys: Array, statistics: KeyStatistics, constants: KeyConstants) -> KeyConstants:
    """Return the constants of a kv head if they make the error of rounding smaller, otherwise neutral ones."""
    neutral = KeyConstants.neutral(1, keys.shape[1])
    # Keys that do not fit half precision give NaN, which is not less than a number.
    with np.errstate(over="ignore", invalid="ignore"):
        is_better = weighted_error(keys, statistics, constants) < weighted_error(keys, statistics, neutral)
    return constants if is_better else neutral


def weighted_error(keys: Array, statistics: KeyStatistics, constants: KeyConstants) -> float:
    """Return the mean square of the scores' errors, weighted as in ``statistics``."""
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
    minimums = [_half_double(group.min(axis=0)) for group in groups]
    scales = [_half_double((group.max(axis=0) - group.min(axis=0)) / _LARGEST_CODE) for group in groups]
    result = np.empty_like(left)
    for i in range(head_dim):
        minimum, scale = minimums[i // GROUP], scales[i // GROUP]
        steps = np.divide(left[i] - minimum, scale, out=np.zeros_like(scale), where=scale > 0)
        result[i] = np.clip(np.rint(steps), 0, _LARGEST_CODE) * scale + minimum
        if feedback[i].any():
            left[i + 1 :] -= feedback[i, i + 1 :, None] * (left[i] - result[i])
    return result.T


def _half_double(values: Array) -> Array:
    as_half: Array = values.astype(np.float16).astype(np.float64)
    return as_half
