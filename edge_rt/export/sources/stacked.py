"""Experts as gpt-oss has them in folders: one tensor for all experts of a layer, in which gate and up take turns.

=========================== ======================================== ==============================================
tensor                      type and shape                           contents
=========================== ======================================== ==============================================
gate_up_proj                float [experts, inputs, 2 size]          even columns are rows of the gate, odd ones of up
down_proj                   float [experts, size, outputs]           transposed as well
gate_up_proj_blocks         U8 [experts, 2 size, inputs / 32, 16]    MXFP4: two codes a byte, the first in the low half
gate_up_proj_scales         U8 [experts, 2 size, inputs / 32]        exponents of these blocks, 127 for 1
down_proj_blocks, _scales   the same, not transposed either
gate_up_proj_bias           float [experts, 2 size]
down_proj_bias              float [experts, outputs]
=========================== ======================================== ==============================================
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from edge_rt.export.sources.compound import BlockMatrix, BlockTensor, CompoundTensor, ConvertedMatrix, ConvertedTensor
from edge_rt.export.sources.float4 import CODES
from edge_rt.export.sources.gguf_types import COMPOUND_TYPE_ID, not_finite
from edge_rt.export.sources.hf_folder import GGML_TYPE_OF
from edge_rt.export.sources.model_file import TensorReader
from edge_rt.export.sources.packed_arrays import (
    Array,
    halves_of_pairs,
    misfit,
    nibbles_of_bytes,
    read_array,
    read_floats,
    require_scales,
    require_shape,
)
from edge_rt.export.sources.safetensors_folder import StoredTensor
from edge_rt.package.layers import Experts

BLOCK: Final = 32
_BIAS: Final = 127
_REMARK: Final = "The checkpoint's experts are stored with their inputs first: they are transposed."


@dataclass(frozen=True)
class Place:
    """Which rows of a stored tensor make a matrix: those of an expert, every ``step``-th from ``first`` on."""

    expert: int
    first: int
    step: int

    def of(self, rows: Array) -> Array:
        """Return the numbers that rows of the matrix have in the expert."""
        return self.first + self.step * rows


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StackedTensor(BlockTensor):
    """A matrix in MXFP4 whose blocks lie in two tensors."""

    place: Place

    def open(self, source: TensorReader) -> StackedMatrix:
        """Prepare to read the matrix; see ``CompoundTensor``."""
        return StackedMatrix(self, source)


class StackedMatrix(BlockMatrix):
    """The codes and exponents of an expert."""

    def __init__(self, tensor: StackedTensor, source: TensorReader) -> None:
        self._tensor = tensor
        expert = tensor.place.expert
        self._codes = read_array(source, _slice(tensor.parts["blocks"], expert), np.dtype("u1"))
        self._exponents = read_array(source, _slice(tensor.parts["scales"], expert), np.dtype("u1"))

    def values(self, rows: Array) -> Array:
        """Return the weights of some rows; see ``MatrixValues``."""
        codes, exponents = self._of(rows)
        pairs = nibbles_of_bytes(codes)
        if (exponents == 255).any():
            raise not_finite(self._tensor)
        with np.errstate(over="ignore"):
            found: Array = np.ldexp(CODES[pairs], exponents[..., None].astype(np.int32) - _BIAS).reshape(len(rows), -1)
        if not np.isfinite(found).all():
            raise not_finite(self._tensor)
        return found

    def blocks(self, rows: Array) -> Array:
        """Return some rows as GGUF files have them, uint8 ``[rows, bytes]``: codes j and j + 16 share a byte there."""
        codes, exponents = self._of(rows)
        return np.concatenate([exponents[..., None], halves_of_pairs(codes)], axis=-1).reshape(len(rows), -1)

    def _of(self, rows: Array) -> tuple[Array, Array]:
        numbers = self._tensor.place.of(rows)
        return self._codes[numbers], self._exponents[numbers]


class _TransposedMatrix(ConvertedMatrix):
    """An expert in floats, its inputs first."""

    def __init__(self, tensor: ConvertedTensor, source: TensorReader, place: Place) -> None:
        super().__init__(tensor, source)
        self._place = place
        self._whole = read_floats(source, _slice(tensor.parts["weight"], place.expert))

    def products(self, rows: Array) -> Array:
        """Return the weights of some rows; see ``ConvertedMatrix``."""
        return np.ascontiguousarray(self._whole[:, self._place.of(rows)].T)


class _BiasVector(ConvertedMatrix):
    """The bias of an expert: one row."""

    def __init__(self, tensor: ConvertedTensor, source: TensorReader, place: Place) -> None:
        super().__init__(tensor, source)
        self._place = place

    def products(self, rows: Array) -> Array:
        """Return the bias so often; see ``ConvertedMatrix``."""
        whole = read_floats(self.source, _slice(self.tensor.parts["bias"], self._place.expert))
        return whole[None, self._place.first :: self._place.step].repeat(len(rows), axis=0)


def _slice(stored: StoredTensor, number: int) -> StoredTensor:
    """Return a part of a tensor's first axis."""
    size = stored.nbytes // stored.shape[0]
    return StoredTensor(stored.name, stored.dtype, stored.shape[1:], stored.offset + number * size, size, stored.file)


def stacked_experts(
    stored: Mapping[str, StoredTensor], module: str, layer: str, width: int, experts: Experts
) -> tuple[dict[str, CompoundTensor], set[str]]:
    """Return the tensors of a layer's experts by the names that they have apart, and the names of those they lie in.

    What is missing is not among them.

    Args:
        module: what their names begin with, for example ``model.layers.0.mlp.experts.``.
        layer: what the names apart begin with, for example ``blk.0.``.
        width: inputs of the first matrices.
    """
    found: dict[str, CompoundTensor] = {}
    used: set[str] = set()
    size = experts.each.size
    for name, inputs, parts in (("gate_up_proj", width, ("gate", "up")), ("down_proj", size, ("down",))):
        outputs = len(parts) * size if name == "gate_up_proj" else width
        stacks = {end: stored[key] for end in _ENDS if (key := f"{module}{name}{end}") in stored}
        _check(stacks, experts.count, inputs, outputs)
        used |= {one.name for one in stacks.values()}
        for expert, (first, part) in _every(experts.count, parts):
            place = Place(expert, first, len(parts))
            found |= _apart(stacks, f"{layer}ffn_{part}.{expert}.", place, inputs, outputs // len(parts))
    return found, used


_ENDS: Final = ("", "_blocks", "_scales", "_bias")


def _every(count: int, parts: tuple[str, ...]) -> Iterator[tuple[int, tuple[int, str]]]:
    for expert in range(count):
        for first in enumerate(parts):
            yield expert, first


def _check(stacks: Mapping[str, StoredTensor], count: int, inputs: int, outputs: int) -> None:
    if "" in stacks and stacks.keys() & {"_blocks", "_scales"}:
        raise misfit(stacks[""], "it is there as floats and packed")
    if "" in stacks:
        require_scales(stacks[""], (count, inputs, outputs))
    if "_bias" in stacks:
        require_scales(stacks["_bias"], (count, outputs))
    if "_blocks" in stacks:
        require_shape(stacks["_blocks"], ("U8",), (count, outputs, inputs // BLOCK, BLOCK // 2))
    if "_scales" in stacks:
        require_shape(stacks["_scales"], ("U8",), (count, outputs, inputs // BLOCK))


def _apart(
    stacks: Mapping[str, StoredTensor], name: str, place: Place, inputs: int, outputs: int
) -> Iterator[tuple[str, CompoundTensor]]:
    """Yield the matrix and the bias of an expert, as far as they are there."""
    if (whole := stacks.get("")) is not None:
        yield f"{name}weight", _converted(whole, f"{name}weight", (inputs, outputs), place, _TransposedMatrix, "weight")
    if (whole := stacks.get("_bias")) is not None:
        yield f"{name}bias", _converted(whole, f"{name}bias", (outputs,), place, _BiasVector, "bias")
    blocks, scales = stacks.get("_blocks"), stacks.get("_scales")
    if blocks is not None and scales is not None and inputs % BLOCK == 0:
        nbytes = (blocks.nbytes + scales.nbytes) // blocks.shape[0] // place.step
        yield (
            f"{name}weight",
            StackedTensor(
                name=f"{name}weight",
                shape=(inputs, outputs),
                type_id=COMPOUND_TYPE_ID,
                type_name="MXFP4",
                offset=blocks.offset,
                nbytes=nbytes,
                file=blocks.file,
                parts={"blocks": blocks, "scales": scales},
                place=place,
            ),
        )


def _converted(
    whole: StoredTensor,
    name: str,
    shape: tuple[int, ...],
    place: Place,
    read: type[_TransposedMatrix | _BiasVector],
    part: str,
) -> ConvertedTensor:
    return ConvertedTensor(
        name=name,
        shape=shape,
        type_id=COMPOUND_TYPE_ID,
        type_name=GGML_TYPE_OF[whole.dtype][1],
        offset=whole.offset,
        nbytes=whole.nbytes // whole.shape[0] // place.step,
        file=whole.file,
        parts={part: whole},
        remark=_REMARK if part == "weight" else "",
        read=functools.partial(read, place=place),
    )
