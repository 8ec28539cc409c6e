"""Matrices in the layout of ONNX Runtime's operators ("matmulnbits"): their positions in the file, and writing them."""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO

import numpy as np

from edge_rt.export.weights.blocks import BLOCK, CODE_BITS, FLOAT_TYPES, convert_rows, float_rows
from edge_rt.export.weights.linear import Linear
from edge_rt.export.weights.weights_file import WeightsFile, WeightsLayout


def has_minimum(linear: Linear) -> bool:
    """Return whether blocks have a minimum in addition to their scale."""
    return linear.type_name == "Q4_1"


def codes_of(linear: Linear) -> str:
    """Return the name of the tensor of codes."""
    return f"{linear.name}.codes"


def scale_of(linear: Linear) -> str:
    """Return the name of the tensor of scales."""
    return f"{linear.name}.scale"


def minimum_of(linear: Linear) -> str:
    """Return the name of the tensor of minima."""
    return f"{linear.name}.minimum"


def weight_of(linear: Linear) -> str:
    """Return the name of the tensor of a matrix that is not quantised."""
    return f"{linear.name}.weight"


def place(linear: Linear, layout: WeightsLayout) -> None:
    """Add a matrix's tensors to the layout."""
    rows, blocks = linear.out_features, linear.in_features // BLOCK
    if not linear.is_quantised:
        layout.add(weight_of(linear), FLOAT_TYPES[linear.type_name], (rows, linear.in_features))
        return
    layout.add(codes_of(linear), np.uint8, (rows, blocks, BLOCK * CODE_BITS[linear.type_name] // 8))
    layout.add(scale_of(linear), np.float32, (rows, blocks))
    if has_minimum(linear):
        layout.add(minimum_of(linear), np.float32, (rows, blocks))


def fill(
    linear: Linear, source: BinaryIO, layout: WeightsLayout, out: WeightsFile, on_bytes: Callable[[int], None]
) -> None:
    """Read the parts of a matrix, convert them and write them to their slots.

    Args:
        linear: the matrix.
        source: the open checkpoint.
        layout: where the matrix was placed.
        out: the open ``weights.bin``.
        on_bytes: called with the number of bytes read from the checkpoint.

    Raises:
        InvalidModelFile: a value is not finite.
        StorageError: reading or writing failed.
    """
    row = 0
    for part in linear.parts:
        for raw in part.pieces(source):
            if linear.is_quantised:
                rows = convert_rows(part.tensor, raw)
                out.write(layout.slots[codes_of(linear)], row, rows.codes)
                out.write(layout.slots[scale_of(linear)], row, rows.scale)
                if rows.minimum is not None:
                    out.write(layout.slots[minimum_of(linear)], row, rows.minimum)
            else:
                out.write(layout.slots[weight_of(linear)], row, float_rows(part.tensor, raw))
            row += raw.shape[0]
            on_bytes(raw.nbytes)
