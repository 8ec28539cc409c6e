"""Matrices as bitsandbytes stores them with 4 bits, in its types ``nf4`` and ``fp4``.

=========================== ==================== =================================================================
tensor                      type and shape       contents
=========================== ==================== =================================================================
weight                      U8 [values / 2, 1]   two codes a byte, the first in the high half, row after row
weight.quant_map            float [16]           the number of each code
weight.absmax               float [blocks]       what the numbers of a block are multiplied by: of value i that of
                                                 i // blocksize, so a block may begin in one row and end in the next
weight.quant_state          U8 [bytes]           JSON: quant_type, blocksize, shape (rows, inputs); the name goes on
                                                 with ``.bitsandbytes__nf4`` or ``.bitsandbytes__fp4``
=========================== ==================== =================================================================

With double quantisation ``absmax`` is U8, and number j of it is ``nested_quant_map[byte] * nested_absmax[j //
nested_blocksize] + nested_offset``. ``nested_quant_map`` is float [256], ``nested_absmax`` float [blocks of blocks];
the others are in the JSON object. Arithmetic is float32; bitsandbytes rounds the result to 16 bits, and this does not.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

import numpy as np

from edge_rt.export.sources.compound import ConvertedMatrix, ConvertedTensor, MatrixLayout
from edge_rt.export.sources.config_object import MAX_GROUP
from edge_rt.export.sources.gguf_types import COMPOUND_TYPE_ID
from edge_rt.export.sources.model_file import TensorReader
from edge_rt.export.sources.packed_arrays import (
    Array,
    misfit,
    read_array,
    read_byte_rows,
    read_finite,
    require_scales,
    require_shape,
)
from edge_rt.export.sources.packed_config import BITSANDBYTES_KINDS, BitsAndBytesSettings
from edge_rt.export.sources.safetensors_folder import StoredTensor
from edge_rt.system.json_files import parse_object

CODES: Final = "weight"
MAX_STATE_BYTES: Final = 1 << 16

_LARGEST: Final = 1e300
_BYTE: Final = np.dtype("u1")
_STATE: Final = {f"weight.quant_state.bitsandbytes__{kind}": kind for kind in BITSANDBYTES_KINDS}
"""What follows a layer's name in that of the state -> type that this promises."""
_NESTED: Final = ("weight.nested_absmax", "weight.nested_quant_map")


@dataclass(frozen=True)
class BlockState:
    """What the JSON object of a matrix says.

    Attributes:
        block: values that share a scale.
        nested_block: scales that share a scale, where they are bytes; else 0.
    """

    rows: int
    inputs: int
    block: int
    nested_block: int
    offset: float

    @property
    def blocks(self) -> int:
        """How many scales there are."""
        return -(-self.rows * self.inputs // self.block)


class BitsAndBytesLayout(MatrixLayout):
    """bitsandbytes, 4 bits."""

    required = (CODES, "weight.absmax", "weight.quant_map")
    optional = (*_STATE, *_NESTED)

    def __init__(self, settings: BitsAndBytesSettings) -> None:
        self.settings = settings

    def tensor(self, name: str, parts: Mapping[str, StoredTensor], source: TensorReader) -> ConvertedTensor:
        """Return a matrix; see ``MatrixLayout``."""
        codes, absmax = parts[CODES], parts["weight.absmax"]
        state = self._state(parts, source)
        require_shape(codes, ("U8",), (state.rows * state.inputs // 2, 1))
        require_scales(parts["weight.quant_map"], (16,))
        if state.nested_block:
            require_shape(absmax, ("U8",), (state.blocks,))
            require_scales(parts["weight.nested_absmax"], (-(-state.blocks // state.nested_block),))
            require_scales(parts["weight.nested_quant_map"], (256,))
        else:
            require_scales(absmax, (state.blocks,))
        return ConvertedTensor(
            name=name,
            shape=(state.inputs, state.rows),
            type_id=COMPOUND_TYPE_ID,
            # A product of two floats: no smaller type has it.
            type_name="F32",
            offset=codes.offset,
            nbytes=codes.nbytes,
            file=codes.file,
            parts=parts,
            remark=f"The checkpoint's weights are bitsandbytes {self.settings.kind}: they are converted through float.",
            read=functools.partial(BitsAndBytesMatrix, state=state),
        )

    def _state(self, parts: Mapping[str, StoredTensor], source: TensorReader) -> BlockState:
        """Read what the JSON object says."""
        suffixes = [suffix for suffix in _STATE if suffix in parts]
        if len(suffixes) != 1:
            raise misfit(parts[CODES], f"it has {len(suffixes)} tensors named weight.quant_state, must have one")
        stored = parts[suffixes[0]]
        values = _Values(stored, _read_object(source, stored))
        kind = values.found.get("quant_type")
        if kind != _STATE[suffixes[0]] or kind != self.settings.kind:
            raise misfit(stored, f"its quant_type is {kind!r:.40}, its name and config.json say {self.settings.kind}")
        rows, inputs = values.shape()
        is_nested = parts["weight.absmax"].dtype == "U8"
        missing = [suffix for suffix in _NESTED if (suffix in parts) is not is_nested]
        if missing:
            raise misfit(
                parts["weight.absmax"],
                f"it is {parts['weight.absmax'].dtype}, and {missing[0]} is {'missing' if is_nested else 'there'}",
            )
        return BlockState(
            rows=rows,
            inputs=inputs,
            block=values.size("blocksize"),
            nested_block=values.size("nested_blocksize") if is_nested else 0,
            offset=values.number("nested_offset") if is_nested else 0.0,
        )


class _Values:
    """The JSON object of a matrix, read with checks that raise ``InvalidModelFile``."""

    def __init__(self, stored: StoredTensor, found: dict[str, Any]) -> None:
        self._stored = stored
        self.found = found

    def size(self, key: str) -> int:
        value = self.found.get(key)
        if not _is_size(value) or value > MAX_GROUP:
            raise misfit(self._stored, f"its {key} is {value!r:.40}, must be 1 to {MAX_GROUP}")
        return value

    def number(self, key: str) -> float:
        value = self.found.get(key)
        # A whole number may be too large to become a float.
        if isinstance(value, bool) or not isinstance(value, int | float) or not -_LARGEST <= value <= _LARGEST:
            raise misfit(self._stored, f"its {key} is {value!r:.40}, must be a number")
        return float(value)

    def shape(self) -> tuple[int, int]:
        value = self.found.get("shape")
        if isinstance(value, list) and len(value) == 2:
            rows, inputs = value
            if _is_size(rows) and _is_size(inputs) and inputs % 2 == 0:
                return rows, inputs
        raise misfit(self._stored, f"its shape is {value!r:.60}, must be rows and an even number of inputs")


def _is_size(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _read_object(source: TensorReader, stored: StoredTensor) -> dict[str, Any]:
    if stored.dtype != "U8" or len(stored.shape) != 1 or stored.nbytes > MAX_STATE_BYTES:
        raise misfit(
            stored,
            f"it is {stored.dtype} {list(stored.shape)}, must be U8 with one dimension of at most {MAX_STATE_BYTES}",
        )
    data = read_array(source, stored, _BYTE).tobytes()
    return parse_object(
        data, lambda reason: misfit(stored, f"it is no JSON object: {reason.rstrip('.')}"), is_foreign=True
    )


class BitsAndBytesMatrix(ConvertedMatrix):
    """The weights of a matrix."""

    def __init__(self, tensor: ConvertedTensor, source: TensorReader, state: BlockState) -> None:
        super().__init__(tensor, source)
        self._state = state
        self._numbers = read_finite(source, tensor.parts["weight.quant_map"])
        self._scales = _read_absmax(tensor, source, state)

    def products(self, rows: Array) -> Array:
        """Return weights; see ``ConvertedMatrix``."""
        inputs, block = self._state.inputs, self._state.block
        pairs = read_byte_rows(self.source, self.tensor.parts[CODES], inputs // 2, rows)
        codes = np.stack([pairs >> np.uint8(4), pairs & np.uint8(15)], axis=-1).reshape(len(rows), inputs)
        values: Array = self._numbers[codes]
        if inputs % block:
            values *= self._scales[(rows[:, None] * inputs + np.arange(inputs)) // block]
        else:
            values *= np.repeat(self._scales.reshape(self._state.rows, -1)[rows], block, axis=1)
        return values


def _read_absmax(tensor: ConvertedTensor, source: TensorReader, state: BlockState) -> Array:
    """Return the scale of every block, float32 ``[blocks]``."""
    stored = tensor.parts["weight.absmax"]
    if not state.nested_block:
        return read_finite(source, stored)
    numbers = read_finite(source, tensor.parts["weight.nested_quant_map"])
    nested = read_finite(source, tensor.parts["weight.nested_absmax"])
    with np.errstate(over="ignore", invalid="ignore"):
        each = np.repeat(nested, state.nested_block)[: state.blocks]
        scales: Array = numbers[read_array(source, stored, _BYTE)] * each + np.float32(state.offset)
    if not np.isfinite(scales).all():
        raise misfit(stored, "it holds a scale that is not finite")
    return scales
