"""Matrices of 4-bit floats: NVFP4 in GGUF files and in folders, and MXFP4 in folders.

A code has a sign, 2 bits of exponent and 1 of fraction. In NVFP4 16 inputs share an 8-bit float without a sign, and the
matrix has a float32; in MXFP4 32 inputs share a power of two.

====================== ============================== ================================================================
tensor                 type and shape                 contents
====================== ============================== ================================================================
GGUF
NAME.weight            NVFP4 [rows, inputs]           blocks of 64 inputs: 4 scales, then 8 bytes for each 16 inputs, of
                                                      which byte j has the codes j (low half) and j + 8
NAME.scale             F32 [1], or [experts]          multiplies the matrix, or each expert's; 1 where it is missing
ModelOpt
weight                 U8 [rows, inputs / 2]          byte i has the codes 2 i (low half) and 2 i + 1
weight_scale           F8_E4M3 [rows, inputs / 16]
weight_scale_2         F32 [] or [1]                  multiplies the matrix
compressed-tensors
weight_packed          U8 [rows, inputs / 2]          as ModelOpt's weight
weight_scale           F8_E4M3 [rows, inputs / 16]    NVFP4; in MXFP4 U8 [rows, inputs / 32], exponents, 127 for 1
weight_global_scale    F32 [] or [1]                  what the matrix is divided by; NVFP4 alone
====================== ============================== ================================================================

Scales of activations (``NAME.input_scale``, ``input_scale``, ``input_global_scale``) are for products of two 4-bit
matrices; activations have more bits here. A weight is ``(code * scale) * the matrix's scale``, rounded to float32 once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from edge_rt.errors import InvalidModelFile, UnsupportedModel
from edge_rt.export.sources.compound import BlockMatrix, BlockTensor, MatrixLayout
from edge_rt.export.sources.float8 import e4m3_values
from edge_rt.export.sources.gguf_types import COMPOUND_TYPE_ID, FETCH_AGAIN, TensorInfo, not_finite
from edge_rt.export.sources.model_file import TensorReader
from edge_rt.export.sources.packed_arrays import (
    Array,
    halves_of_pairs,
    misfit,
    nibbles_of_bytes,
    read_byte_rows,
    read_finite,
    require_matrix,
    require_scales,
    require_shape,
)
from edge_rt.export.sources.packed_config import Float4Settings
from edge_rt.export.sources.safetensors_folder import StoredTensor

CODES: Final = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
"""Values of the codes of 4 bits."""
NVFP4: Final = "NVFP4"
LARGEST_SCALE: Final = 2.0**64
"""Of a matrix, and one over the smallest: sums of products beyond could exceed float32."""
REMARK: Final = "The checkpoint's scales of activations are ignored: activations are not rounded to 4 bits."

_GROUP: Final = 16
"""Inputs that share a scale in NVFP4."""
_UNIT: Final = 64
"""Inputs of a block of NVFP4 in a GGUF file, and in a package."""
_MX_BLOCK: Final = 32
_NO_NUMBER: Final = 127
_WEIGHT: Final = ".weight"
_SCALE: Final = ".scale"
_INPUT_SCALE: Final = ".input_scale"


class Float4Matrix(BlockMatrix):
    """A matrix of NVFP4 in memory row by row; subclasses say where its codes and scales lie."""

    def __init__(self, tensor: BlockTensor, source: TensorReader, scale: np.float32) -> None:
        self.tensor = tensor
        self.source = source
        self.scale = scale

    def values(self, rows: Array) -> Array:
        """Return the weights of some rows; see ``MatrixValues``."""
        codes, scales = self.parts(rows)
        groups = CODES[codes].reshape(len(rows), -1, _GROUP) * _SMALL[scales][..., None]
        values: Array = groups.reshape(len(rows), -1) * self.scale
        return values

    def parts(self, rows: Array) -> tuple[Array, Array]:
        """Return codes, uint8 ``[rows, inputs]``, and scales, uint8 ``[rows, groups]``."""
        raise NotImplementedError


def _small_floats() -> Array:
    """Return the number of every scale: without a sign, and 0 in the place of what is no number."""
    values = np.abs(e4m3_values())
    values[_NO_NUMBER], values[_NO_NUMBER | 128] = 0, 480
    return values


_SMALL: Final = _small_floats()


def read_scale(tensor: TensorInfo, number: float) -> np.float32:
    """Return a matrix's scale; what cannot be computed with is refused."""
    scale = np.float32(number)
    size = abs(float(scale))
    if not np.isfinite(scale) or not 1 / LARGEST_SCALE <= size <= LARGEST_SCALE:
        raise InvalidModelFile(
            f"The scale of the tensor '{tensor.label}' is out of range.",
            f"It is {float(scale):g}; from {1 / LARGEST_SCALE:.3g} to {LARGEST_SCALE:.3g} are read.",
            FETCH_AGAIN,
        )
    return scale


# --- GGUF ---


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ScaledTensor(BlockTensor):
    """A tensor of NVFP4 in a GGUF file that has scales beside it, or a part of one: an expert, say.

    Attributes:
        whole: where the file's tensor begins, and its bytes: a part's place in it says which scale it has.
    """

    whole: tuple[int, int]

    def open(self, source: TensorReader) -> ScaledMatrix:
        """Read the scale; see ``CompoundTensor``."""
        stored = self.parts["scale"]
        scales = read_finite(source, stored).reshape(-1)
        begin, size = self.whole
        return ScaledMatrix(self, source, read_scale(self, float(scales[(self.offset - begin) * len(scales) // size])))


class ScaledMatrix(Float4Matrix):
    """The rows of such a tensor."""

    def blocks(self, rows: Array) -> Array:
        """Return rows as the file has them; see ``BlockMatrix``."""
        stored = StoredTensor(
            self.tensor.label, "U8", (), self.tensor.offset, self.tensor.nbytes, self.tensor.file
        )  # fmt: skip
        return read_byte_rows(self.source, stored, self.tensor.nbytes // self.tensor.shape[1], rows)

    def parts(self, rows: Array) -> tuple[Array, Array]:
        """Return codes and scales; see ``Float4Matrix``."""
        blocks = self.blocks(rows).reshape(len(rows), -1, 36)
        halves = blocks[:, :, 4:].reshape(len(rows), -1, _GROUP // 2)
        codes = np.concatenate([halves & np.uint8(15), halves >> np.uint8(4)], axis=-1)
        return codes.reshape(len(rows), -1), blocks[:, :, :4].reshape(len(rows), -1)


def join_scales(where: str, tensors: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    """Return a file's tensors, in which those of NVFP4 have their scales; those of activations are left out."""
    found = dict(tensors)
    for name, tensor in tensors.items():
        if tensor.type_name != NVFP4 or not name.endswith(_WEIGHT):
            continue
        module = name.removesuffix(_WEIGHT)
        more = found.pop(module + _INPUT_SCALE, None)
        scale = found.pop(module + _SCALE, None)
        if scale is None and more is None:
            continue
        remark = "" if more is None else REMARK
        parts = {} if scale is None else {"scale": _stored_scale(where, tensor, scale)}
        if parts:
            found[name] = ScaledTensor(
                **{key: getattr(tensor, key) for key in _FIELDS},
                parts=parts,
                remark=remark,
                whole=(tensor.offset, tensor.nbytes),
            )
    return found


_FIELDS: Final = ("name", "shape", "type_id", "type_name", "offset", "nbytes", "file", "stored_name")


def _stored_scale(where: str, tensor: TensorInfo, scale: TensorInfo) -> StoredTensor:
    """Return the tensor of a matrix's scale, or of the scales of a layer's experts."""
    counts = {1, tensor.shape[-1]} if len(tensor.shape) == 3 else {1}
    if scale.type_name != "F32" or scale.elements not in counts:
        raise InvalidModelFile(
            f"{where}: the tensor '{scale.label}' does not fit '{tensor.label}'.",
            f"It is {scale.type_name} with {scale.elements} numbers, must be F32 with "
            f"{' or '.join(map(str, sorted(counts)))}.",
            FETCH_AGAIN,
        )
    return StoredTensor(scale.label, "F32", (scale.elements,), scale.offset, scale.nbytes, scale.file)


# --- folders ---


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PairsTensor(BlockTensor):
    """A matrix in a folder, whose neighbouring codes share a byte.

    Attributes:
        codes: what the tensor of codes is called in ``parts``.
        scale: of the matrix.
    """

    codes: str
    scale: float

    def open(self, source: TensorReader) -> BlockMatrix:
        """Prepare to read the matrix; see ``CompoundTensor``."""
        kind = PairsMatrix if self.type_name == NVFP4 else PowersMatrix
        return kind(self, source, np.float32(self.scale))

    def stored_rows(self, source: TensorReader, rows: Array, group: int) -> tuple[Array, Array]:
        """Return pairs of codes, and scales, each uint8 ``[rows, ...]``."""
        inputs = self.shape[0]
        pairs = read_byte_rows(source, self.parts[self.codes], inputs // 2, rows)
        return pairs, read_byte_rows(source, self.parts["weight_scale"], inputs // group, rows)


class PairsMatrix(Float4Matrix):
    """The rows of such a matrix of NVFP4."""

    tensor: PairsTensor

    def blocks(self, rows: Array) -> Array:
        """Return rows as GGUF files have them; see ``BlockMatrix``."""
        pairs, scales = self._stored(rows)
        halves = halves_of_pairs(pairs.reshape(len(rows), -1, _GROUP // 2)).reshape(len(rows), -1, _UNIT // 2)
        found: Array = np.concatenate([scales.reshape(len(rows), -1, 4), halves], axis=-1)
        return found.reshape(len(rows), -1)

    def parts(self, rows: Array) -> tuple[Array, Array]:
        """Return codes and scales; see ``Float4Matrix``."""
        pairs, scales = self._stored(rows)
        return nibbles_of_bytes(pairs), scales

    def _stored(self, rows: Array) -> tuple[Array, Array]:
        pairs, scales = self.tensor.stored_rows(self.source, rows, _GROUP)
        if (scales >= _NO_NUMBER).any():
            raise misfit(self.tensor.parts["weight_scale"], "it holds a scale that is negative or no number")
        return pairs, scales


class PowersMatrix(Float4Matrix):
    """The rows of such a matrix of MXFP4."""

    tensor: PairsTensor

    def values(self, rows: Array) -> Array:
        """Return the weights of some rows; see ``MatrixValues``."""
        pairs, exponents = self.tensor.stored_rows(self.source, rows, _MX_BLOCK)
        codes = CODES[nibbles_of_bytes(pairs)].reshape(len(rows), -1, _MX_BLOCK)
        with np.errstate(over="ignore"):
            found: Array = np.ldexp(codes, exponents[..., None].astype(np.int32) - 127).reshape(len(rows), -1)
        if (exponents == 255).any() or not np.isfinite(found).all():
            raise not_finite(self.tensor)
        return found

    def blocks(self, rows: Array) -> Array:
        """Return rows as GGUF files have them; see ``BlockMatrix``."""
        pairs, exponents = self.tensor.stored_rows(self.source, rows, _MX_BLOCK)
        halves = halves_of_pairs(pairs.reshape(len(rows), -1, _MX_BLOCK // 2))
        return np.concatenate([exponents[..., None], halves], axis=-1).reshape(len(rows), -1)


class Float4Layout(MatrixLayout):
    """Such matrices in a folder."""

    def __init__(self, settings: Float4Settings) -> None:
        self._settings = settings
        self._is_model_opt = settings.tool == "modelopt"
        self._codes = "weight" if self._is_model_opt else "weight_packed"
        self._scale = "weight_scale_2" if self._is_model_opt else "weight_global_scale"
        has_scale = settings.kind == NVFP4
        self.required = (self._codes, "weight_scale", *([self._scale] if has_scale else []))
        self.optional = ()
        self.ignored = _IGNORED

    def tensor(self, name: str, parts: Mapping[str, StoredTensor], source: TensorReader) -> PairsTensor:
        """Return a matrix; see ``MatrixLayout``."""
        codes, kind = parts[self._codes], self._settings.kind
        rows, pairs = require_matrix(codes, ("U8",))
        inputs, group, unit = 2 * pairs, *((_GROUP, _UNIT) if kind == NVFP4 else (_MX_BLOCK, _MX_BLOCK))
        if inputs % unit:
            raise UnsupportedModel(
                f"The groups of '{codes.name}' cannot be stored in a package.",
                f"It has {inputs} inputs, which must be a multiple of {unit}.",
                "Get the model in another quantisation.",
            )
        require_shape(parts["weight_scale"], ("F8_E4M3",) if kind == NVFP4 else ("U8",), (rows, inputs // group))
        scale = np.float32(1)
        if kind == NVFP4:
            stored = parts[self._scale]
            require_scales(stored, () if stored.shape == () else (1,))
            scale = read_scale(_named(codes), float(read_finite(source, stored).reshape(())))
            scale = scale if self._is_model_opt else np.float32(1) / scale
        return PairsTensor(
            name=name,
            shape=(inputs, rows),
            type_id=COMPOUND_TYPE_ID,
            type_name=kind,
            offset=codes.offset,
            nbytes=codes.nbytes + parts["weight_scale"].nbytes,
            file=codes.file,
            stored_name=codes.name,
            parts=parts,
            remark=REMARK if self._settings.ignores_activations else "",
            codes=self._codes,
            scale=float(scale),
        )


_IGNORED: Final = (
    ".input_scale", ".input_global_scale", ".output_scale", ".k_scale", ".v_scale",
)  # fmt: skip


def _named(stored: StoredTensor) -> TensorInfo:
    return TensorInfo(stored.name, stored.shape[::-1], -1, stored.dtype, stored.offset, stored.nbytes, stored.file)
