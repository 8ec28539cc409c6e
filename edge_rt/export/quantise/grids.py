"""The values that a format of tiles can hold, the scales that fit weights best, and rounding to codes.

Arrays here have inputs first, ``[inputs, rows]``, so that what is done to one input is done to contiguous rows.

Scales are searched by weighted least squares: for codes q of weights w of importance h, ``sum h (w - s q)^2`` is least
for ``s = sum h w q / sum h q^2``. Rounding to codes and solving for the scale take turns, from several starts. With a
minimum, the same with two unknowns.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.export.weights.codes import Codes
from edge_rt.export.weights.tile_formats import BLOCK, TileFormat

Array = npt.NDArray[Any]

QUANTISABLE: Final = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS")
"""ggml types that floats are quantised to."""

_STARTS: Final = (0.78, 0.82, 0.86, 0.9, 0.94, 0.97, 1.0, 1.05)
"""Where the largest weight of a group lies at the start, over the largest code, of 16 codes; with more of them, nearer
to 1. At 1 is plain rounding, which the search is never worse than."""
_TABLE_STARTS: Final = (0.85, 0.93, 1.0, 1.05)
"""The same of a table, for each of its ends."""
_RANGES: Final = (0.75, 0.8, 0.85, 0.9, 0.94, 0.97, 1.0)
"""How much of the range of a group the codes span at the start, with a minimum."""
ROUNDS: Final = 3
"""How often rounding and solving take turns."""
LARGEST_HALF: Final = 65504.0
"""Largest number of float16; larger weights cannot be quantised."""
_TINY: Final = np.float32(1e-30)
_CODES: Final = {"nibbles": 16, "five": 32, "six": 64, "bytes": 255}


@dataclass(frozen=True)
class Scales:
    """Scales and minima of rows, in a form that the format holds.

    Attributes:
        scale: float32 ``[groups, rows]``.
        minimum: float32 ``[groups, rows]``, or None.
        d: float16 ``[units, rows]``.
        m: float16 ``[units, rows]``, or None.
        factors: uint8 or int8 ``[groups, rows]``, or None where a group's scale is d itself.
        minima: uint8 ``[groups, rows]``, or None.
    """

    scale: Array
    minimum: Array | None
    d: Array
    m: Array | None
    factors: Array | None
    minima: Array | None


@dataclass(frozen=True)
class Grid:
    """A format's values."""

    form: TileFormat

    @property
    def group(self) -> int:
        """Inputs that share a scale."""
        return BLOCK // self.form.groups

    @cached_property
    def limits(self) -> tuple[float, float]:
        """Least and largest integer that a code stands for."""
        if self.form.table:
            return float(min(self.form.table)), float(max(self.form.table))
        count = _CODES[self.form.codes]
        lowest = -127 if self.form.codes == "bytes" else -self.form.offset
        return float(lowest), float(lowest + count - 1)

    @cached_property
    def nearest(self) -> Array:
        """Of a table: the code for every integer from -128 to 127."""
        table = np.asarray(self.form.table, np.float32)
        order = np.argsort(table, kind="stable")
        middles = (table[order][1:] + table[order][:-1]) / 2
        codes: Array = order[np.searchsorted(middles, np.arange(-128, 128, dtype=np.float32))].astype(np.uint8)
        return codes

    @cached_property
    def rounded(self) -> Array:
        """Of a table: the nearest value for every integer from -128 to 127."""
        values: Array = np.asarray(self.form.table, np.float32)[self.nearest]
        return values

    @cached_property
    def starts(self) -> Array:
        """Where the search begins, float32: divisors of the largest weight; with a minimum, parts of the range."""
        if self.form.has_minimum:
            return np.asarray(_RANGES, np.float32)
        lowest, highest = self.limits
        if self.form.table:
            return np.asarray([end * start for end in (lowest, highest) for start in _TABLE_STARTS], np.float32)
        narrower = (16 / _CODES[self.form.codes]) ** 0.5
        return np.asarray([lowest * (1 + (start - 1) * narrower) for start in _STARTS], np.float32)

    def integers(self, ratios: Array) -> Array:
        """Return the integers, as float32, that weights over their scale are rounded to; ``ratios`` is overwritten."""
        lowest, highest = self.limits
        np.rint(ratios, out=ratios)
        if self.form.table:
            np.clip(ratios, -128, 127, out=ratios)
            ratios += 128
            # Indices of the machine's own size are looked up twice as fast as shorter ones.
            return self.rounded.take(ratios.astype(np.intp))
        return np.clip(ratios, lowest, highest, out=ratios)

    def codes(self, integers: Array) -> Array:
        """Return the codes, uint8, of integers as ``integers`` returns them."""
        if self.form.table:
            return self.nearest[integers.astype(np.int16) + 128]
        if self.form.codes == "bytes":
            return integers.astype(np.int8).view(np.uint8)
        return (integers + np.float32(self.form.offset)).astype(np.uint8)

    def fit(self, weights: Array, importance: Array) -> tuple[Array, Array | None]:
        """Search scale and minimum of groups.

        Args:
            weights: float32 ``[group, n]``.
            importance: float32 ``[group, n]`` or ``[group, 1]``, above 0.

        Returns:
            Scale, and minimum or None, float32 ``[n]``; not yet as the format holds them.
        """
        if self.form.has_minimum:
            return self._fit_range(weights, importance)
        return self._fit_scale(weights, importance), None

    def _fit_scale(self, weights: Array, importance: Array) -> Array:
        peak = np.take_along_axis(weights, np.abs(weights).argmax(axis=0)[None], axis=0)[0]
        weighted = importance * weights
        best, scale = np.full(len(peak), -1.0, np.float32), np.zeros(len(peak), np.float32)
        for start in self.starts:
            tried = peak / start
            for _ in range(ROUNDS):
                integers = self.integers(weights * inverse_of(tried))
                with_weight = np.einsum("gn,gn->n", weighted, integers)
                squares = np.einsum("gn,gn->n", importance * integers, integers)
                tried = with_weight / np.maximum(squares, _TINY)
            gain = with_weight * tried
            better = gain > best
            best[better], scale[better] = gain[better], tried[better]
        return scale

    def _fit_range(self, weights: Array, importance: Array) -> tuple[Array, Array]:
        least, most = weights.min(axis=0), weights.max(axis=0)
        steps = np.float32(self.limits[1])
        weighted, n = importance * weights, weights.shape[1]
        total = np.broadcast_to(importance.sum(axis=0), (n,))
        sums, squares = weighted.sum(axis=0), np.einsum("gn,gn->n", weighted, weights)
        # A format with factors cannot hold a minimum above 0.
        has_factors = self.form.scale_bytes > 0
        best = np.full(n, np.inf, np.float32)
        scale, minimum = np.zeros(n, np.float32), least.copy()
        for share in self.starts:
            half = (most - least) * (share / 2)
            low = (least + most) / 2 - half
            step = 2 * half / steps
            if has_factors:
                step, low = np.where(low > 0, (low + 2 * half) / steps, step), np.minimum(low, 0)
            for _ in range(ROUNDS):
                integers = self.integers((weights - low) * inverse_of(step))
                hq = importance * integers
                one, two = hq.sum(axis=0), np.einsum("gn,gn->n", hq, integers)
                mixed = np.einsum("gn,gn->n", weighted, integers)
                spread = total * two - one * one
                found = (total * mixed - one * sums) / np.maximum(spread, _TINY)
                step = np.where((spread > 1e-6 * total * two) & (found > 0), found, step)
                low = (sums - step * one) / total
                if has_factors:
                    step = np.where((low > 0) & (two > 0), mixed / np.maximum(two, _TINY), step)
                    low = np.minimum(low, 0)
            error = squares - 2 * (step * mixed + low * sums) + step * step * two + 2 * step * low * one
            error += low * low * total
            better = error < best
            best[better], scale[better], minimum[better] = error[better], step[better], low[better]
        return scale, minimum

    def settle(self, scale: Array, minimum: Array | None) -> Scales:
        """Round scales and minima, float32 ``[groups, rows]`` of whole units, to what the format holds."""
        if self.form.scales == "half":
            d, m = _halves(scale), None if minimum is None else _halves(minimum)
            return Scales(d.astype(np.float32), None if m is None else m.astype(np.float32), d, m, None, None)
        per_unit = self.form.unit_blocks * self.form.groups
        if self.form.scales == "signed":
            d, factors = _factors(scale, per_unit, 127, np.int8)
            return Scales(_product(d, factors), None, d, None, factors, None)
        assert self.form.scales == "byte", self.form.name
        assert minimum is not None
        d, factors = _factors(scale, per_unit, 255, np.uint8)
        m, minima = _factors(-minimum, per_unit, 255, np.uint8)
        return Scales(_product(d, factors), -_product(m, minima), d, m, factors, minima)

    def change(self, found: Scales, groups: slice, scale: Array, minimum: Array | None) -> None:
        """Replace scales and minima of groups of one unit, ``[groups, rows]``; d and m stay."""
        if found.factors is None:
            return
        most, kind = (127, np.int8) if self.form.scales == "signed" else (255, np.uint8)
        found.factors[groups] = _over(found.d, scale[None], most, kind)[0]
        found.scale[groups] = _product(found.d, found.factors[groups])
        if found.minima is not None:
            assert found.minimum is not None
            assert found.m is not None
            assert minimum is not None
            found.minima[groups] = _over(found.m, -minimum[None], most, kind)[0]
            found.minimum[groups] = -_product(found.m, found.minima[groups])


def _halves(numbers: Array) -> Array:
    """Return numbers as float16; those that are a little too large as the largest one."""
    return np.clip(numbers, -LARGEST_HALF, LARGEST_HALF).astype(np.float16)


def inverse_of(scale: Array) -> Array:
    """Return 1 over a scale, 0 for 0."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse: Array = np.where(np.abs(scale) > _TINY, np.float32(1) / scale, np.float32(0))
    return inverse


def ratios(weights: Array, scale: Array, minimum: Array | None) -> Array:
    """Return weights over their scale, from their minimum on; all of one shape, or broadcast."""
    return (weights if minimum is None else weights - minimum) * inverse_of(scale)


def _factors(scale: Array, per_unit: int, most: int, kind: type[np.generic]) -> tuple[Array, Array]:
    """Return d, float16 ``[units, rows]``, and the integers that it is multiplied by, ``[groups, rows]``."""
    units = scale.reshape(-1, per_unit, scale.shape[1])
    d = _halves(np.abs(units).max(axis=1) / most)
    return d, _over(d, units, most, kind).reshape(scale.shape)


def _over(d: Array, scales: Array, most: int, kind: type[np.generic]) -> Array:
    """Return the integers that d, ``[units, rows]``, is multiplied by for scales ``[units, groups, rows]``."""
    factors = np.rint(scales * inverse_of(d.astype(np.float32))[:, None])
    clipped: Array = np.clip(factors, -most if kind is np.int8 else 0, most).astype(kind)
    return clipped


def _product(d: Array, factors: Array) -> Array:
    product: Array = np.repeat(d.astype(np.float32), len(factors) // len(d), axis=0) * factors.astype(np.float32)
    return product


def joined(codes: Array, scales: list[Scales]) -> Codes:
    """Return rows of codes ``[inputs, rows]``, uint8."""

    def rows(parts: list[Array | None]) -> Array | None:
        present = [part for part in parts if part is not None]
        return np.ascontiguousarray(np.concatenate(present).T) if present else None

    return Codes(
        np.ascontiguousarray(codes.T),
        rows([part.factors for part in scales]),
        rows([part.minima for part in scales]),
        rows([part.d for part in scales]),
        rows([part.m for part in scales]),
    )
