"""Matrices in the layout of ONNX Runtime's operators ("matmulnbits"): their positions in the file, and writing them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from edge_rt.errors import InvalidPackage, UnsupportedModel
from edge_rt.export.sources.model_file import TensorReader
from edge_rt.export.weights.blocks import FLOAT_TYPES, float_values
from edge_rt.export.weights.codes import Array, Codes, group_numbers, integers
from edge_rt.export.weights.linear import Linear, Part
from edge_rt.export.weights.matrices import CheckpointMatrices, is_rounded
from edge_rt.export.weights.rows import RowReader
from edge_rt.export.weights.tile_formats import BLOCK, TileFormat
from edge_rt.export.weights.weights_file import WeightsFile, WeightsLayout


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


CHECKED_ROWS: Final = 64
"""Rows of a quantised part that are compared, evenly spread."""
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
    """Read the parts of a matrix, convert them and write them to their slots."""
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


def verify(linear: Linear, source: TensorReader, layout: WeightsLayout, weights: Path) -> None:
    """Compare some rows of what was quantised with the checkpoint; the check's float graph reads the others."""
    stored = StoredBlocks(weights, layout)
    for part in linear.parts:
        if part.quantised_to is None:
            continue
        rows = part.tensor.shape[1]
        numbers = np.unique(np.linspace(0, rows - 1, CHECKED_ROWS).astype(np.int64))
        theirs = numbers if part.row_order is None else part.row_order[numbers]
        expected = CheckpointMatrices(source, {part.tensor.name: part.tensor}).rows(part.tensor.name, theirs.tolist())
        found = stored.rows(linear, part, numbers.tolist())
        if not is_rounded(found, expected):
            raise InvalidPackage(
                "The packed weights are not the checkpoint's, so they were not published.",
                f"'{linear.name}': rows of '{part.tensor.name}' are off by more than rounding.",
                "Report this with the name of the checkpoint.",
            )


@dataclass(frozen=True)
class StoredBlocks:
    """Matrices that were written."""

    weights: Path
    layout: WeightsLayout

    def rows(self, linear: Linear, part: Part, numbers: Sequence[int]) -> Array:
        """Return rows of a part, in the package's order, float32 ``[len(numbers), inputs]``; not with zero points."""
        first = sum(other.tensor.shape[1] for other in linear.parts[: _place(linear, part)])
        taken = [first + number for number in numbers]
        if not linear.is_quantised:
            return float_values(self._slot(weight_of(linear))[taken])
        codes, scale = self._slot(codes_of(linear))[taken], self._slot(scale_of(linear))[taken]
        if code_bits(linear.form) == 4:
            codes = np.stack([codes & np.uint8(15), codes >> np.uint8(4)], axis=-1).reshape(*codes.shape[:2], -1)
        values = (codes.astype(np.float32) - np.float32(1 << code_bits(linear.form) - 1)) * scale[:, :, None]
        if has_minimum(linear):
            values += self._slot(minimum_of(linear))[taken][:, :, None]
        return values.reshape(len(taken), -1)

    def _slot(self, name: str) -> Array:
        slot = self.layout.slots[name]
        return np.memmap(self.weights, slot.dtype, "r", offset=slot.offset, shape=slot.shape)


def _place(linear: Linear, part: Part) -> int:
    return next(index for index, other in enumerate(linear.parts) if other is part)


def _check_zeros(linear: Linear, found: Codes) -> None:
    # Only GPTQ's first format has such zero points: it stores them less 1.
    if found.zeros is not None and found.zeros.max() > MAX_ZERO:
        raise UnsupportedModel(
            f"A zero point of '{linear.name}' does not fit the operators of ONNX Runtime.",
            f"It is {found.zeros.max()}, they take 0 to {MAX_ZERO}.",
            "Export with --profile native.",
        )
