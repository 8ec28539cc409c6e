"""Rounds weights to codes, each input's error made up for by the inputs behind it.

The error of a row's output for inputs x is ``sum_t ((w - v) x_t)^2 = (w - v) H (w - v)^T``, H the second moments of the
inputs. With ``H = M M^T``, M upper triangular, and N = M over its diagonal, rounding ``w_j`` plus the errors before it
times ``N[:, j]`` minimises it greedily (GPTQ, Frantar et al., arXiv 2210.17323; in this form LDLQ, Chee et al.,
arXiv 2307.13304). Moments of few tokens fit these tokens and not the next: off the diagonal they are shrunk.

Scales are searched with what that leaves to count of each input, and those of a unit's later groups again when their
turn comes. The native library does this; what stands here in numpy says what it does, and rounds where there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.export.quantise.grids import Grid, Scales, inverse_of, joined, ratios
from edge_rt.export.quantise.native import has_native_rounding, round_rows
from edge_rt.export.weights.codes import Codes
from edge_rt.export.weights.tile_formats import BLOCK

Array = npt.NDArray[Any]

SHRINKAGE: Final = 0.3
"""What moments off the diagonal lose."""
_DAMPING: Final = 1e-4
"""Least moment of an input, over the mean of all: unused inputs get some importance."""


def importance(moments: Array) -> Array:
    """Return the importance of inputs from their mean squares, float32 ``[inputs]``, mean 1, above 0."""
    mean = float(moments.mean())
    if not mean > 0:
        return np.ones(len(moments), np.float32)
    return np.maximum(moments / mean, _DAMPING).astype(np.float32)


def feedback(moments: Array, shrinkage: float = SHRINKAGE) -> tuple[Array, Array]:
    """Return what errors of inputs add to the inputs behind them, and what each input counts then.

    Args:
        moments: second moments of some consecutive inputs, ``[inputs, inputs]``.
        shrinkage: what moments off the diagonal lose, 0 to 1.

    Returns:
        The transpose of N, float32 ``[inputs, inputs]``, C-contiguous, with zeros on and above the diagonal: row i has
        what the errors of the inputs before i add to it. And the squares of M's diagonal, float32 ``[inputs]``: times
        them, the squares of what rounding changes of ``w_j`` and what was added to it sum up to the output's error.
    """
    diagonal = np.maximum(moments.diagonal(), _DAMPING * max(float(moments.diagonal().mean()), 1e-30))
    shrunk = moments * np.float32(1 - shrinkage)
    np.fill_diagonal(shrunk, diagonal)
    # The upper factor of a matrix is the lower one of the matrix turned around.
    upper = np.linalg.cholesky(shrunk[::-1, ::-1])[::-1, ::-1]
    factor = np.tril((upper / upper.diagonal()).T, -1).astype(np.float32, order="C")
    return factor, np.square(upper.diagonal()).astype(np.float32)


def quantise(rows: Array, weight_of: Array, feedbacks: Sequence[Array], grid: Grid) -> tuple[Codes, Array]:
    """Quantise rows.

    Args:
        rows: float32 ``[rows, inputs]``.
        weight_of: importance of the inputs, float32 ``[inputs]``; with feedback of what that leaves of them.
        feedbacks: matrices of ``feedback`` for consecutive inputs, each for a multiple of a unit; none: every weight is
            rounded by itself.

    Returns:
        The codes, and the errors ``rows - values``, float32 ``[rows, inputs]``.
    """
    if has_native_rounding():
        return round_rows(rows, weight_of, feedbacks, grid)
    return quantise_with_numpy(rows, weight_of, feedbacks, grid)


def quantise_with_numpy(rows: Array, weight_of: Array, feedbacks: Sequence[Array], grid: Grid) -> tuple[Codes, Array]:
    """Quantise rows as ``quantise`` does, many times slower."""
    weights = np.ascontiguousarray(rows.T)
    target = weights.copy() if feedbacks else weights
    codes, errors, scales = np.empty(weights.shape, np.uint8), np.empty_like(weights), []
    factors = {begin: factor for factor, begin in _placed(feedbacks)}
    unit, factor, origin = grid.form.unit_inputs, None, 0
    for begin in range(0, len(weights), unit):
        if begin in factors:
            factor, origin = factors[begin], begin
        found = _unit_scales(target[begin : begin + unit], weight_of[begin : begin + unit], grid)
        scales.append(found)
        for at in range(begin, begin + unit, BLOCK):
            block = slice(at, at + BLOCK)
            first = (at - begin) // grid.group
            groups = slice(first, first + grid.form.groups)
            if factor is None:
                _round_block(weights[block], found, groups, grid, codes[block], errors[block])
                continue
            if at > begin:
                # Errors of the unit's first blocks made these groups others than those whose scales were found.
                grid.change(found, groups, *_fit(target[block], weight_of[block], grid))
            own = factor[at - origin :, at - origin : at - origin + BLOCK]
            _round_inputs(weights[block], target[block], found, groups, grid, own, codes[block], errors[block])
            behind = slice(at + BLOCK, origin + len(factor))
            if behind.start < behind.stop:
                target[behind] += own[BLOCK:] @ errors[block]
    return joined(codes, scales), np.ascontiguousarray(errors.T)


def _placed(feedbacks: Sequence[Array]) -> list[tuple[Array, int]]:
    begins = np.cumsum([0, *map(len, feedbacks)])
    return list(zip(feedbacks, begins.tolist(), strict=False))


def _unit_scales(weights: Array, weight_of: Array, grid: Grid) -> Scales:
    """Search the scales of one unit, ``[inputs, rows]``."""
    return grid.settle(*_fit(weights, weight_of, grid))


def _fit(weights: Array, weight_of: Array, grid: Grid) -> tuple[Array, Array | None]:
    """Search scale and minimum of groups, ``[groups, rows]``."""
    inputs, rows = weights.shape
    groups = inputs // grid.group
    by_group = weights.reshape(groups, grid.group, rows).transpose(1, 0, 2).reshape(grid.group, -1)
    shares = np.repeat(weight_of.reshape(groups, grid.group).T, rows, axis=1) if groups > 1 else weight_of[:, None]
    scale, minimum = grid.fit(by_group, shares)
    return scale.reshape(groups, rows), None if minimum is None else minimum.reshape(groups, rows)


def _round_block(weights: Array, scales: Scales, groups: slice, grid: Grid, codes: Array, errors: Array) -> None:
    """Round a block without feedback; write codes and errors."""
    shape = (-1, grid.group, weights.shape[1])
    scale = scales.scale[groups, None]
    minimum = None if scales.minimum is None else scales.minimum[groups, None]
    grouped = weights.reshape(shape)
    integers = grid.integers(ratios(grouped, scale, minimum))
    codes[:] = grid.codes(integers).reshape(weights.shape)
    values = scale * integers
    if minimum is not None:
        values += minimum
    errors[:] = (grouped - values).reshape(weights.shape)


def _round_inputs(
    weights: Array,
    target: Array,
    scales: Scales,
    groups: slice,
    grid: Grid,
    own: Array,
    codes: Array,
    errors: Array,
) -> None:
    """Round a block input by input; ``own`` has what its errors add to itself, and to what is behind."""
    integers = np.empty_like(errors)
    for j in range(len(weights)):
        if j % grid.group == 0:
            group = groups.start + j // grid.group
            scale, inverse = scales.scale[group], inverse_of(scales.scale[group])
            minimum = None if scales.minimum is None else scales.minimum[group]
        integers[j] = grid.integers((target[j] if minimum is None else target[j] - minimum) * inverse)
        np.multiply(scale, integers[j], out=errors[j])
        if minimum is not None:
            errors[j] += minimum
        np.subtract(weights[j], errors[j], out=errors[j])
        if j + 1 < len(weights):
            target[j + 1 :] += own[j + 1 : len(weights), j, None] * errors[j]
    codes[:] = grid.codes(integers)
