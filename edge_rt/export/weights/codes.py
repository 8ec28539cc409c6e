"""Quantised rows as integers and their scales, whatever file they come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_rt.export.weights.tile_formats import BLOCK, TileFormat

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Codes:
    """Rows of a quantised matrix, in a format's terms; what the format does not have is None.

    Attributes:
        codes: uint8 ``[rows, inputs]``; in two's complement where they are bytes.
        scales: uint8 or int8 ``[rows, groups]``.
        minima: uint8 ``[rows, groups]``.
        d: float16 ``[rows, units]``; float32 where scales are 8-bit floats.
        m: float16 ``[rows, units]``.
        zeros: uint8 ``[rows, units]``: taken from codes, 0 to 127.
    """

    codes: Array
    scales: Array | None = None
    minima: Array | None = None
    d: Array | None = None
    m: Array | None = None
    zeros: Array | None = None


def group_numbers(found: Codes, form: TileFormat) -> tuple[Array, Array | None]:
    """Return scale and minimum of every group, float32 ``[rows, groups]``; both are exact, unless scales are floats.

    The minimum is what is added: a weight is ``scale * (code - offset) + minimum``. With zero points a unit is a group.
    """
    per_unit = 1 if form.has_zeros else form.unit_blocks * form.groups
    if form.scales == "exponent":
        assert found.scales is not None
        return np.ldexp(np.float32(1), found.scales.astype(np.int32) - 128), None
    assert found.d is not None
    if form.scales == "float8":
        return _small_scales(found) * np.repeat(found.d, per_unit, axis=1), None
    scale = np.repeat(found.d.astype(np.float32), per_unit, axis=1)
    minimum = None if found.m is None else np.repeat(found.m.astype(np.float32), per_unit, axis=1)
    if form.is_nested:
        assert minimum is not None
        return scale * np.float32(1 / 16), minimum - scale * np.float32(0.5)
    if found.scales is not None:
        scale = scale * found.scales.astype(np.float32)
        if minimum is not None and found.minima is not None:
            minimum = -minimum * found.minima.astype(np.float32)
    return scale, minimum


def _small_scales(found: Codes) -> Array:
    """Return 2^-8 times the 8-bit floats that scales are, float32 ``[rows, groups]``."""
    assert found.scales is not None
    return (found.scales.astype(np.uint16) << np.uint16(7)).view(np.float16).astype(np.float32)


def scaled(found: Codes, scale: np.float32) -> Codes:
    """Return codes of a matrix that is so many times as large."""
    return found if scale == 1 or found.d is None else replace(found, d=found.d * scale)


def integers(found: Codes, form: TileFormat) -> Array:
    """Return the integer that each code stands for, int8 ``[rows, inputs]``; uint8 of nested codes."""
    if form.is_nested:
        return found.codes
    if form.codes == "bytes":
        return found.codes.view(np.int8)
    if form.table:
        return np.asarray(form.table, np.int8)[found.codes]
    if found.zeros is not None:
        return found.codes.view(np.int8) - np.repeat(found.zeros.view(np.int8), form.unit_inputs, axis=1)
    signed: Array = found.codes.view(np.int8) - np.int8(form.offset)
    return signed


def values(found: Codes, form: TileFormat) -> Array:
    """Return the weights, float32 ``[rows, inputs]``: one rounding where there is a minimum, else none."""
    rows, inputs = found.codes.shape
    if form.scales == "float8":
        assert found.d is not None
        groups = integers(found, form).reshape(rows, -1, BLOCK // form.groups) * _small_scales(found)[:, :, None]
        each: Array = groups.reshape(rows, inputs) * np.repeat(found.d, form.unit_inputs, axis=1)
        return each
    scale, minimum = group_numbers(found, form)
    grouped = integers(found, form).reshape(rows, scale.shape[1], -1).astype(np.float32)
    weights = scale[:, :, None] * grouped
    if minimum is not None:
        weights += minimum[:, :, None]
    return weights.reshape(rows, inputs)


def upper_codes(found: Codes) -> Codes:
    """Return the upper halves of nested codes, as codes of the format ``w4m``."""
    return Codes(found.codes >> np.uint8(4), d=found.d, m=found.m)


def joined_rows(parts: Sequence[Codes]) -> Codes:
    """Return rows that follow each other as one."""
    if len(parts) == 1:
        return parts[0]

    def join(name: str) -> Array | None:
        found = [getattr(part, name) for part in parts]
        return None if found[0] is None else np.concatenate(found)

    codes = join("codes")
    assert codes is not None
    return Codes(codes, join("scales"), join("minima"), join("d"), join("m"))
