"""Matrices in the layout of ONNX Runtime's operators ("matmulnbits"): their positions in the file, and writing them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from edge_rt.errors import UnsupportedModel
from edge_rt.export.weights.blocks import FLOAT_TYPES
from edge_rt.export.weights.codes import Codes
from edge_rt.export.weights.linear import Linear
from edge_rt.export.weights.matmul_nbits import block_rows, block_size, code_bits
from edge_rt.export.weights.rows import RowReader
from edge_rt.export.weights.weights_file import WeightsFile, WeightsLayout

MAX_ZERO: Final = 15
"""Largest zero point of 4-bit codes that MatMulNBits takes."""


def has_minimum(linear: Linear) -> bool:
    """Return whether blocks have a minimum in addition to their scale."""
    return linear.form.has_minimum


def has_zeros(linear: Linear) -> bool:
    """Return whether blocks have a zero point in addition to their scale."""
    return linear.form.has_zeros


def codes_of(linear: Linear) -> str:
    """Return the name of the tensor of codes."""
    return f"{linear.name}.codes"


def scale_of(linear: Linear) -> str:
    """Return the name of the tensor of scales."""
    return f"{linear.name}.scale"


def minimum_of(linear: Linear) -> str:
    """Return the name of the tensor of minima."""
    return f"{linear.name}.minimum"


def zeros_of(linear: Linear) -> str:
    """Return the name of the tensor of zero points."""
    return f"{linear.name}.zeros"


def weight_of(linear: Linear) -> str:
    """Return the name of the tensor of a matrix that is not quantised."""
    return f"{linear.name}.weight"


def place(linear: Linear, layout: WeightsLayout) -> None:
    """Add a matrix's tensors to the layout."""
    rows = linear.out_features
    if not linear.is_quantised:
        layout.add(weight_of(linear), FLOAT_TYPES[linear.type_name], (rows, linear.in_features))
        return
    size = block_size(linear.form)
    blocks = linear.in_features // size
    layout.add(codes_of(linear), np.uint8, (rows, blocks, size * code_bits(linear.form) // 8))
    layout.add(scale_of(linear), np.float32, (rows, blocks))
    if has_minimum(linear):
        layout.add(minimum_of(linear), np.float32, (rows, blocks))
    if has_zeros(linear):
        layout.add(zeros_of(linear), np.uint8, (rows, -(-blocks // 2)))


def fill(
    linear: Linear, source: RowReader, layout: WeightsLayout, out: WeightsFile, on_bytes: Callable[[int], None]
) -> None:
    """Read the parts of a matrix, convert them and write them to their slots.

    Args:
        linear: the matrix.
        source: gives its rows.
        layout: where the matrix was placed.
        out: the open ``weights.bin``.
        on_bytes: called with the number of bytes read from the checkpoint.

    Raises:
        InvalidModelFile: a value is not finite.
        UnsupportedModel: a zero point does not fit 4 bits.
        StorageError: reading or writing failed.
    """
    row = 0
    for part in linear.parts:
        for found, read in source.rows(part):
            count = len(found.codes if isinstance(found, Codes) else found)
            if isinstance(found, Codes):
                _check_zeros(linear, found)
                rows = block_rows(found, linear.form)
                out.write(layout.slots[codes_of(linear)], row, rows.codes)
                out.write(layout.slots[scale_of(linear)], row, rows.scale)
                if rows.minimum is not None:
                    out.write(layout.slots[minimum_of(linear)], row, rows.minimum)
                if rows.zeros is not None:
                    out.write(layout.slots[zeros_of(linear)], row, rows.zeros)
            else:
                out.write(layout.slots[weight_of(linear)], row, found)
            row += count
            on_bytes(read)


def _check_zeros(linear: Linear, found: Codes) -> None:
    # Only GPTQ's first format has such zero points: it stores them less 1.
    if found.zeros is not None and found.zeros.max() > MAX_ZERO:
        raise UnsupportedModel(
            f"A zero point of '{linear.name}' does not fit the operators of ONNX Runtime.",
            f"It is {found.zeros.max()}, they take 0 to {MAX_ZERO}.",
            "Export with --profile native.",
        )
