"""How caches of keys and values lose precision: quantisers in numpy, each giving back what a reader of the cache sees.

Arrays are float32 ``[..., tokens, head_dim]``. Scales, minima and factors are rounded to float16, as they would be
stored. Sources: KIVI (arXiv 2402.02750) quantises keys per channel over groups of tokens and values per token; GEAR
(arXiv 2403.05527) adds a low-rank approximation of the error and keeps outliers apart; QuantSpec (arXiv 2502.10424)
splits 8 bits into two planes of 4.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edge_rt.export.calibration.key_constants import KeyConstants, rounded, turn

GROUP = 32

Array = npt.NDArray[Any]


def half(x: Array) -> Array:
    """Round to what float16 holds; float32 again."""
    return x.astype(np.float16).astype(np.float32)


def symmetric8(x: Array) -> Array:
    """Round to 8 bits per group of 32 elements of a row, with a scale."""
    groups = x.reshape(*x.shape[:-1], -1, GROUP)
    scale = half(np.abs(groups).max(axis=-1, keepdims=True) / np.float32(127))
    codes = np.clip(np.rint(groups / np.where(scale > 0, scale, 1)), -127, 127)
    return (codes * scale).reshape(x.shape)


def asymmetric(x: Array, bits: int, axis: int = -1) -> Array:
    """Round groups of 32 along an axis to ``2 ** bits`` levels between their least and largest element."""
    groups = _grouped(x, axis)
    least, step = _least_and_step(groups, bits)
    codes = np.clip(np.rint((groups - least) / np.where(step > 0, step, 1)), 0, 2**bits - 1)
    return _ungrouped(codes * step + least, x, axis)


def calibrated_keys(keys: Array, constants: KeyConstants) -> Array:
    """Return what a query reads of ``[kv_heads, tokens, head_dim]`` in ``int4``, written with its constants."""
    read = np.empty_like(keys)
    for head, (centre, balance, feedback) in enumerate(zip(*constants.arrays, strict=True)):
        rows = turn((keys[head].astype(np.float64) - centre) / balance)
        read[head] = turn(rounded(rows, feedback.astype(np.float64))) * balance + centre
    return read


def two_planes(x: Array) -> tuple[Array, Array]:
    """Return what the upper plane of 4 bits says alone, and what both say together (QuantSpec, per row)."""
    groups = _grouped(x, -1)
    least, step = _least_and_step(groups, 4)
    safe = np.where(step > 0, step, 1)
    upper = np.clip(np.rint((groups - least) / safe), 0, 15) * step + least
    lower = np.clip(np.rint((groups - upper) / (safe / 16)), -8, 7) * (step / 16)
    return _ungrouped(upper, x, -1), _ungrouped(upper + lower, x, -1)


def _least_and_step(groups: Array, bits: int) -> tuple[Array, Array]:
    least = groups.min(axis=-1, keepdims=True)
    return half(least), half((groups.max(axis=-1, keepdims=True) - least) / np.float32(2**bits - 1))


def _grouped(x: Array, axis: int) -> Array:
    turned = np.moveaxis(x, axis, -1)
    return turned.reshape(*turned.shape[:-1], -1, GROUP)


def _ungrouped(groups: Array, like: Array, axis: int) -> Array:
    return np.moveaxis(groups.reshape(np.moveaxis(like, axis, -1).shape), -1, axis)


def hadamard(size: int) -> Array:
    """Return the normalised, symmetric Hadamard matrix, its own inverse; blocks of the largest power of two in size."""
    block = size & -size
    matrix = np.ones((1, 1))
    while len(matrix) < block:
        matrix = np.kron([[1, 1], [1, -1]], matrix)
    result: Array = np.kron(np.eye(size // block), matrix / np.sqrt(block)).astype(np.float32)
    return result


def low_rank(error: Array, rank: int) -> Array:
    """Return the best approximation of that rank for each matrix ``[tokens, head_dim]``, its factors in float16.

    GEAR finds it by power iteration, which is at most as good.
    """
    _, vectors = np.linalg.eigh(np.swapaxes(error, -1, -2) @ error)
    right = vectors[..., -rank:]
    return half(error @ right) @ np.swapaxes(half(right), -1, -2)


def outliers(x: Array, each: int, axis: int) -> Array:
    """Return a mask of the ``each`` least and the ``each`` largest elements of every vector along an axis."""
    order = np.argsort(x, axis=axis, kind="stable")
    ends = np.concatenate([np.take(order, range(each), axis), np.take(order, range(-each, 0), axis)], axis)
    mask = np.zeros(x.shape, bool)
    np.put_along_axis(mask, ends, True, axis)
    return mask


def without(x: Array, mask: Array, axis: int) -> Array:
    """Replace masked elements by the mean of what is left of their vector, so that they do not widen its range."""
    kept = ~mask
    mean = (x * kept).sum(axis=axis, keepdims=True) / np.maximum(kept.sum(axis=axis, keepdims=True), 1)
    return np.where(mask, mean, x)
