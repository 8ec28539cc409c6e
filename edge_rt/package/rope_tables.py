"""Cosines and sines of rotary embeddings, with the same bits on every CPU.

Libraries differ in the last bits of cosines, and so do the instruction sets that numpy chooses among. Here an angle is
reduced by multiples of pi / 2, given in three parts of which the first product is exact, and the rest goes into Taylor
series: additions, multiplications and rounding alone, whose results IEEE 754 fixes. Errors are below 1e-10 for angles
up to a million.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.package.decoder import Decoder, Rope, rope_names

PIECE_ROWS: Final = 4096
"""Positions that are computed at a time."""

_TERMS: Final = 10
_HALF_PI_BITS: Final = 33
"""Bits of the first two parts of pi / 2: products with integers below 2^20 are exact."""

Array = npt.NDArray[Any]


def _half_pi_parts() -> tuple[float, float, float]:
    # pi / 2 to 120 bits, by Machin's formula.
    scale = 1 << 160

    def arctangent(inverse: int) -> int:
        power, total, sign, n = scale // inverse, 0, 1, 1
        while power:
            total += sign * (power // n)
            power //= inverse * inverse
            sign, n = -sign, n + 2
        return total

    rest = Fraction(2 * (4 * arctangent(5) - arctangent(239)), scale)
    parts = []
    for _ in range(2):
        exponent = math.frexp(float(rest))[1]
        unit = Fraction(2) ** (exponent - _HALF_PI_BITS)
        parts.append(float(math.floor(rest / unit) * unit))
        rest -= Fraction(parts[-1])
    return parts[0], parts[1], float(rest)


_FIRST, _SECOND, _THIRD = _half_pi_parts()
_SINE: Final = [(-1) ** k / math.factorial(2 * k + 1) for k in range(_TERMS)]
_COSINE: Final = [(-1) ** k / math.factorial(2 * k) for k in range(_TERMS)]


def cosines_and_sines(angles: Array) -> tuple[Array, Array]:
    """Return cosines and sines of angles in radians, float64 of the same shape."""
    quarters = np.rint(angles * (2 / math.pi))
    rest = ((angles - quarters * _FIRST) - quarters * _SECOND) - quarters * _THIRD
    square = rest * rest
    sine, cosine = np.full_like(rest, _SINE[-1]), np.full_like(rest, _COSINE[-1])
    for term in range(_TERMS - 2, -1, -1):
        sine, cosine = sine * square + _SINE[term], cosine * square + _COSINE[term]
    sine = sine * rest
    quadrant = quarters.astype(np.int64) & 3
    is_odd = quadrant % 2 == 1
    of_sine, of_cosine = np.where(is_odd, cosine, sine), np.where(is_odd, sine, cosine)
    return np.where((quadrant == 1) | (quadrant == 2), -of_cosine, of_cosine), np.where(
        quadrant >= 2, -of_sine, of_sine
    )


def rope_tables(rope: Rope, positions: int, context: int) -> tuple[Array, Array]:
    """Compute the tables of a rotation.

    Args:
        context: planned tokens, which decide between frequencies of short and of long contexts.

    Returns:
        Cosines and sines, float32 ``[positions, pairs]``.
    """
    rates = np.asarray(rope.frequencies_for(context), np.float64)
    shape = (positions, len(rates))
    tables = np.empty(shape, np.float32), np.empty(shape, np.float32)
    for begin in range(0, positions, PIECE_ROWS):
        rows = slice(begin, min(begin + PIECE_ROWS, positions))
        angles = np.arange(rows.start, rows.stop, dtype=np.float64)[:, None] * rates
        for table, values in zip(tables, cosines_and_sines(angles), strict=True):
            table[rows] = values * rope.magnitude
    return tables


def loaded_tables(decoder: Decoder, positions: int) -> dict[str, Array]:
    """Return the tables that a graph takes as inputs, by name; none if they are in ``weights.bin``."""
    tables: dict[str, Array] = {}
    if decoder.loads_rope:
        for index, rope in enumerate(decoder.tables):
            tables |= zip(rope_names(index), rope_tables(rope, positions, positions), strict=True)
    return tables
