"""Rounding in the native library (``csrc/quantise/``): the steps of ``feedback.py``, 16 rows at a time."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from ctypes import POINTER, c_char_p, c_float, c_int, c_int32, c_int64, c_void_p
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.errors import InferenceError, MemoryBudgetExceeded, RuntimeUnavailable
from edge_rt.export.quantise.grids import ROUNDS, Grid
from edge_rt.export.weights.codes import Codes
from edge_rt.ort.op_library import native_library

Array = npt.NDArray[Any]

_MOST_STARTS: Final = 16
_SCALES: Final = ("half", "signed", "byte")
_NO_MEMORY: Final = -2


class _Format(ctypes.Structure):
    _fields_ = (
        ("group", c_int32),
        ("unit", c_int32),
        ("scales", c_int32),
        ("has_minimum", c_int32),
        ("offset", c_int32),
        ("rounds", c_int32),
        ("num_starts", c_int32),
        ("lowest", c_float),
        ("highest", c_float),
        ("starts", c_float * _MOST_STARTS),
        ("table", c_void_p),
        ("table_codes", c_void_p),
    )


class _StepTable(ctypes.Structure):
    _fields_ = (("values", c_float * 256), ("steps", c_int32 * 32))


class _Task(ctypes.Structure):
    _fields_ = (
        ("format", POINTER(_Format)),
        ("weights", c_void_p),
        ("rows", c_int64),
        ("inputs", c_int64),
        ("importance", c_void_p),
        ("factors", c_void_p),
        ("widths", c_void_p),
        ("num_factors", c_int64),
        ("codes", c_void_p),
        ("scales", c_void_p),
        ("minima", c_void_p),
        ("d", c_void_p),
        ("m", c_void_p),
        ("errors", c_void_p),
    )


@functools.cache
def _function() -> Callable[..., int] | None:
    try:
        return native_library().function("quantise", c_int, POINTER(_Task), c_char_p)
    except RuntimeUnavailable:
        return None


def has_native_rounding() -> bool:
    """Return whether there is a library that rounds; without one numpy does."""
    return _function() is not None


def round_rows(
    rows: Array, weight_of: Array, feedbacks: Sequence[Array], grid: Grid, *, isa: str | None = None
) -> tuple[Codes, Array]:
    """Quantise rows as ``feedback.quantise`` does, in the caller's thread and without Python's lock.

    Args:
        rows: float32 ``[rows, inputs]``.
        weight_of: importance of the inputs, float32 ``[inputs]``.
    """
    form = grid.form
    count, inputs = rows.shape
    rows, weight_of = np.ascontiguousarray(rows, np.float32), np.ascontiguousarray(weight_of, np.float32)
    factors = [np.ascontiguousarray(factor, np.float32) for factor in feedbacks]
    units, groups = inputs // form.unit_inputs, inputs // grid.group
    has_factors = form.scales != "half"
    codes, errors = np.empty((count, inputs), np.uint8), np.empty((count, inputs), np.float32)
    d = np.empty((count, units), np.float16)
    m = np.empty_like(d) if form.has_minimum else None
    scales = np.empty((count, groups), np.int8 if form.scales == "signed" else np.uint8) if has_factors else None
    minima = np.empty((count, groups), np.uint8) if has_factors and form.has_minimum else None
    addresses, widths = (c_void_p * len(factors))(), (c_int64 * len(factors))()
    for number, factor in enumerate(factors):
        addresses[number], widths[number] = factor.ctypes.data, len(factor)
    task = _Task(
        ctypes.pointer(_format_of(grid)),
        _address(rows),
        count,
        inputs,
        _address(weight_of),
        ctypes.addressof(addresses),
        ctypes.addressof(widths),
        len(factors),
        *map(_address, (codes, scales, minima, d, m, errors)),
    )
    function = _function()
    assert function is not None
    code = function(task, None if isa is None else isa.encode())
    if code == _NO_MEMORY:
        raise MemoryBudgetExceeded(
            "Weights cannot be rounded.", "The system has no memory for it.", "Close other programs, and export again."
        )
    if code != 0:
        raise InferenceError(
            "The native library refused to round weights.",
            f"{count} rows of {inputs} inputs as {form.name}, code {code}.",
            "Report it; --profile portable with --weights f32 exports without rounding.",
        )
    return Codes(codes, scales, minima, d, m), errors


def _address(array: Array | None) -> int | None:
    return None if array is None else array.ctypes.data


@functools.cache
def _step_table(grid: Grid) -> _StepTable:
    return _StepTable((c_float * 256)(*grid.rounded.tolist()))


@functools.cache
def _format_of(grid: Grid) -> _Format:
    form, starts = grid.form, grid.starts.tolist()
    lowest, highest = grid.limits
    table = _step_table(grid) if form.table else None
    # The caches keep the grid, and with it its codes, and the table.
    return _Format(
        grid.group,
        form.unit_inputs,
        _SCALES.index(form.scales),
        form.has_minimum,
        0 if form.codes == "bytes" else form.offset,
        ROUNDS,
        len(starts),
        lowest,
        highest,
        (c_float * _MOST_STARTS)(*starts),
        None if table is None else ctypes.addressof(table),
        _address(grid.nearest if form.table else None),
    )
