"""Quantised rows in the layout of ONNX Runtime's MatMulNBits and GatherBlockQuantized.

Both subtract the zero point 8 (of 4-bit codes) or 128 (of 8-bit ones) unless one is given, so codes are stored centred.
Centred codes also lose less precision by rounding activations to int8 than codes from 0. Codes of 5 and 6 bits and of
tables are stored in 8. A minimum is not a multiple of the scale, and rounding it to a zero point would change the
weights: it is added as ``blocksum(x) @ minimum``. Scales are products that are exact in float32. Zero points that are
whole numbers are given as they are.

For 4-bit codes from 0 the minimum becomes ``minimum + 8 * scale``, which is rounded to float32 once: it is off by at
most 2^-24 of itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edge_rt.export.weights.codes import Array, Codes, group_numbers, integers
from edge_rt.export.weights.tile_formats import BLOCK, TileFormat


@dataclass(frozen=True)
class BlockRows:
    """Rows of a quantised matrix.

    Attributes:
        codes: uint8 ``[rows, blocks, bytes]``; of 4 bits, element 2j in the low half of byte j.
        scale: float32 ``[rows, blocks]``.
        minimum: float32 ``[rows, blocks]``, or None for formats without one.
        zeros: uint8 ``[rows, ceil(blocks / 2)]``, that of block 2j in the low half of byte j; None for formats without.
    """

    codes: Array
    scale: Array
    minimum: Array | None
    zeros: Array | None = None


def code_bits(form: TileFormat) -> int:
    """Return the bits of a code, 4 or 8."""
    return 4 if form.codes in ("nibbles", "two", "three") else 8


def block_size(form: TileFormat) -> int:
    """Return the number of weights that share a scale."""
    return form.unit_inputs if form.has_zeros else BLOCK // form.groups


def block_rows(found: Codes, form: TileFormat) -> BlockRows:
    """Convert rows of codes; zero points are at most 15."""
    scale, minimum = group_numbers(found, form)
    if found.zeros is not None:
        zeros = np.pad(found.zeros, ((0, 0), (0, found.zeros.shape[1] % 2)))
        return BlockRows(_pairs(found.codes).reshape(*scale.shape, -1), scale, None, _pairs(zeros))
    codes = integers(found, form)
    if code_bits(form) == 8:
        # Adding 128 in two's complement is a flip of the sign bit.
        centred = codes.view(np.uint8) ^ np.uint8(128)
    else:
        if minimum is None:
            codes = codes + np.int8(8)
        else:
            minimum = minimum + np.float32(8) * scale
        centred = _pairs(codes.view(np.uint8))
    return BlockRows(centred.reshape(*scale.shape, -1), scale, minimum)


def _pairs(codes: Array) -> Array:
    """Put neighbours into one byte, the first into its low half."""
    joined: Array = codes[:, 0::2] | codes[:, 1::2] << np.uint8(4)
    return joined
