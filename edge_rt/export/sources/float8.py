"""Matrices of 8-bit floats with scales: FP8 as DeepSeek, Qwen and vLLM store it, and compressed-tensors' FP8.

================ ===================== ==================================================================
tensor           type and shape        contents
================ ===================== ==================================================================
weight           F8_E4M3 [rows, inputs] the codes
weight_scale_inv float, or weight_scale what a weight is multiplied by, in spite of the first name: one for the matrix
                                       (``[]`` or ``[1]``), one a row (``[rows, 1]``), or one a block of rows and
                                       inputs (``[blocks of rows, blocks of inputs]``)
================ ===================== ==================================================================

A code has a sign, 4 bits of exponent with the bias 7 and 3 bits of fraction. There is no infinity: only 0x7F and 0xFF
are no numbers. A weight is ``code * scale``, rounded to float32 once.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Final

import numpy as np

from edge_rt.export.sources.compound import ConvertedMatrix, ConvertedTensor, MatrixLayout
from edge_rt.export.sources.gguf_types import COMPOUND_TYPE_ID
from edge_rt.export.sources.model_file import TensorReader
from edge_rt.export.sources.packed_arrays import (
    Array,
    misfit,
    read_byte_rows,
    read_finite,
    require_matrix,
    require_scales,
)
from edge_rt.export.sources.packed_config import Float8Settings
from edge_rt.export.sources.safetensors_folder import StoredTensor

CODES: Final = "weight"
REMARK: Final = "The checkpoint's weights are FP8: they are converted through float."
IGNORES: Final = f"{REMARK} What it says of activations and caches in 8 bits is ignored."

_SMALLEST: Final = -9
_LARGEST: Final = 8
"""Powers of two of the smallest and of the largest code."""
_HALF_FLOATS: Final = (-126, 127)
"""The same of normal bfloat16 numbers."""


def e4m3_values() -> Array:
    """Return the number that each code stands for, float32 ``[256]``."""
    codes = np.arange(256)
    exponents, fractions = codes >> 3 & 15, codes & 7
    # Numbers with the exponent 0 have no leading 1, and the power of those with 1.
    magnitudes = np.ldexp(fractions + 8.0 * (exponents > 0), np.maximum(exponents, 1) - 10)
    magnitudes[codes & 127 == 127] = np.nan
    values: Array = np.where(codes & 128, -magnitudes, magnitudes).astype(np.float32)
    return values


class Float8Layout(MatrixLayout):
    """FP8 codes with scales."""

    required = (CODES,)
    optional = ("weight_scale_inv", "weight_scale")
    ignored = (".input_scale", ".activation_scale", ".output_scale", ".k_scale", ".v_scale")

    def __init__(self, settings: Float8Settings) -> None:
        self.settings = settings

    def tensor(self, name: str, parts: Mapping[str, StoredTensor], source: TensorReader) -> ConvertedTensor:
        """Return a matrix; see ``MatrixLayout``."""
        codes = parts[CODES]
        rows, inputs = require_matrix(codes, ("F8_E4M3",))
        scales = [parts[suffix] for suffix in self.optional if suffix in parts]
        if len(scales) != 1:
            raise misfit(codes, f"it has {len(scales)} tensors of scales, must have one")
        block = self._block_of(scales[0], rows, inputs)
        grid = read_finite(source, scales[0])
        return ConvertedTensor(
            name=name,
            shape=(inputs, rows),
            type_id=COMPOUND_TYPE_ID,
            type_name=exact_type(grid),
            offset=codes.offset,
            nbytes=codes.nbytes,
            file=codes.file,
            parts=parts,
            remark=IGNORES if self.settings.ignores_activations else REMARK,
            read=functools.partial(Float8Matrix, scales=scales[0], block=block),
        )

    def _block_of(self, scales: StoredTensor, rows: int, inputs: int) -> tuple[int, int]:
        """Return how many rows and inputs share a scale."""
        if (block := self.settings.block) is not None:
            require_scales(scales, (-(-rows // block[0]), -(-inputs // block[1])))
            return block
        kinds = self.settings.kinds
        if "tensor" in kinds and ("channel" not in kinds or scales.shape in ((), (1,))):
            require_scales(scales, () if scales.shape == () else (1,))
            return rows, inputs
        require_scales(scales, (rows, 1))
        return 1, inputs


def exact_type(scales: Array) -> str:
    """Return the smallest float type that has all products of codes and these scales.

    With a power of two a product has the 4 significant bits of its code. With any other scale it has up to 28; float32
    is then the type that it is rounded to.
    """
    fractions, exponents = np.frexp(np.abs(scales[scales != 0]))
    powers = exponents - 1
    is_small = powers.min(initial=0) + _SMALLEST < _HALF_FLOATS[0]
    is_large = powers.max(initial=0) + _LARGEST > _HALF_FLOATS[1]
    return "F32" if is_small or is_large or np.any(fractions != 0.5) else "BF16"


class Float8Matrix(ConvertedMatrix):
    """The weights of a matrix."""

    def __init__(
        self, tensor: ConvertedTensor, source: TensorReader, scales: StoredTensor, block: tuple[int, int]
    ) -> None:
        super().__init__(tensor, source)
        inputs, rows = tensor.shape
        self._block = block
        self._scales = read_finite(source, scales).reshape(-(-rows // block[0]), -(-inputs // block[1]))
        self._numbers = e4m3_values()

    def products(self, rows: Array) -> Array:
        """Return weights; see ``ConvertedMatrix``."""
        inputs = self.tensor.shape[0]
        values: Array = self._numbers[read_byte_rows(self.source, self.tensor.parts[CODES], inputs, rows)]
        high, wide = self._block
        values *= np.repeat(self._scales[rows // high], wide, axis=1)[:, :inputs]
        return values
