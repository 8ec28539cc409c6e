"""The stored tensors of packed matrices: checked against what they should be, and read into numpy arrays."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.errors import InvalidModelFile, UnsupportedModel
from edge_rt.export.sources.gguf_types import FETCH_AGAIN, TensorInfo
from edge_rt.export.sources.model_file import TensorReader
from edge_rt.export.sources.safetensors_folder import StoredTensor

Array = npt.NDArray[Any]

NIBBLES: Final = 8
"""Codes in a word of 32 bits."""

_WORDS: Final[dict[str, np.dtype[Any]]] = {"I32": np.dtype("<u4")}
_INDICES: Final[dict[str, np.dtype[Any]]] = {"I32": np.dtype("<i4"), "I64": np.dtype("<i8")}
_FLOATS: Final[dict[str, np.dtype[Any]]] = {
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "F32": np.dtype("<f4"),
}


def require_shape(stored: StoredTensor, types: Collection[str], shape: tuple[int, ...]) -> None:
    """Refuse a stored tensor of another type or shape."""
    if stored.dtype not in types:
        raise misfit(stored, f"it is {stored.dtype}, must be {' or '.join(types)}")
    if stored.shape != shape:
        raise misfit(stored, f"it has the shape {list(stored.shape)}, must have {list(shape)}")


def require_matrix(stored: StoredTensor, types: Collection[str] = _WORDS) -> tuple[int, int]:
    """Return the shape of a matrix of one of these types, by default of words."""
    if stored.dtype not in types or len(stored.shape) != 2 or min(stored.shape) < 1:
        wanted = " or ".join(types)
        raise misfit(stored, f"it is {stored.dtype} {list(stored.shape)}, must be {wanted} with two dimensions")
    return stored.shape[0], stored.shape[1]


def require_words(stored: StoredTensor, shape: tuple[int, ...]) -> None:
    """Refuse a tensor that is not I32 of this shape; see ``require_shape``."""
    require_shape(stored, _WORDS, shape)


def require_scales(stored: StoredTensor, shape: tuple[int, ...]) -> None:
    """Refuse a tensor that is not of floats of this shape; see ``require_shape``."""
    require_shape(stored, _FLOATS, shape)


def misfit(stored: StoredTensor, why: str) -> InvalidModelFile:
    """Return the error for a tensor that does not fit the others."""
    return InvalidModelFile(
        f"The tensor '{stored.name}' does not fit the quantisation of its layer.", f"{why[:1].upper()}{why[1:]}.",
        FETCH_AGAIN,
    )  # fmt: skip


def read_array(source: TensorReader, stored: StoredTensor, dtype: np.dtype[Any]) -> Array:
    """Return a whole stored tensor as numbers of that type."""
    return np.frombuffer(source.read(_info(stored), 0, stored.nbytes), dtype).reshape(stored.shape)


def read_byte_rows(source: TensorReader, stored: StoredTensor, row_bytes: int, rows: Array) -> Array:
    """Return rows of a tensor by their numbers, uint8 ``[rows, row_bytes]``; neighbours are read together."""
    tensor = _info(stored)
    runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
    found = [source.read(tensor, int(run[0]) * row_bytes, len(run) * row_bytes) for run in runs]
    return np.frombuffer(found[0] if len(found) == 1 else b"".join(found), np.uint8).reshape(len(rows), row_bytes)


def _info(stored: StoredTensor) -> TensorInfo:
    return TensorInfo(stored.name, stored.shape[::-1], -1, stored.dtype, stored.offset, stored.nbytes, stored.file)


def read_words(source: TensorReader, stored: StoredTensor) -> Array:
    """Return a tensor of I32, uint32 of its shape."""
    return read_array(source, stored, _WORDS[stored.dtype])


def read_groups(source: TensorReader, stored: StoredTensor, inputs: int) -> Array | None:
    """Return the group of every input, int64 ``[inputs]``; None if the tensor says that there is none."""
    require_shape(stored, _INDICES, (inputs,))
    found = read_array(source, stored, _INDICES[stored.dtype]).astype(np.int64)
    return None if (found == -1).all() else found


def read_floats(source: TensorReader, stored: StoredTensor) -> Array:
    """Return a tensor of F32, F16 or BF16, float32 of its shape."""
    found = read_array(source, stored, _FLOATS[stored.dtype])
    if stored.dtype == "BF16":
        # The first half of a float32.
        found = (found.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return found.astype(np.float32)


def read_finite(source: TensorReader, stored: StoredTensor) -> Array:
    """Return a tensor of F32, F16 or BF16 that is to hold scales, float32 of its shape."""
    scales = read_floats(source, stored)
    if not np.isfinite(scales).all():
        raise misfit(stored, "it holds a scale that is not finite")
    return scales


def as_halves(values: Array) -> Array:
    """Return numbers in float16; those that are too large become infinite."""
    with np.errstate(over="ignore"):
        return values.astype(np.float16)


def read_scales(source: TensorReader, stored: StoredTensor) -> tuple[Array, Array]:
    """Return scales as they are stored, in float32, and as a package holds them, in float16."""
    scales = read_finite(source, stored)
    halves = as_halves(scales)
    wrong = halves.astype(np.float32) != scales
    if wrong.any():
        largest = np.abs(scales[wrong]).max()
        raise UnsupportedModel(
            f"The scales in '{stored.name}' cannot be stored exactly.",
            f"{np.count_nonzero(wrong)} of {scales.size} are not exact in float16; the largest of them is {largest}.",
            "Get the model with scales in float16, or in another quantisation.",
        )
    return scales, halves


def nibbles_of(words: Array) -> Array:
    """Return the codes in words, low bits first, uint8: ``[..., n]`` -> ``[..., 8 n]``."""
    return nibbles_of_bytes(np.ascontiguousarray(words).view(np.uint8))


def halves_of_pairs(pairs: Array) -> Array:
    """Return bytes of two codes in GGUF's order: of ``n`` bytes byte j has the codes j (low half) and j + n.

    Args:
        pairs: uint8 ``[..., n]``: byte i has the codes 2 i and 2 i + 1.
    """
    codes = nibbles_of_bytes(pairs)
    size = pairs.shape[-1]
    joined: Array = codes[..., :size] | codes[..., size:] << np.uint8(4)
    return joined


def nibbles_of_bytes(pairs: Array) -> Array:
    """Return the codes in bytes, low half first, uint8: ``[..., n]`` -> ``[..., 2 n]``."""
    return np.stack([pairs & np.uint8(15), pairs >> np.uint8(4)], axis=-1).reshape(*pairs.shape[:-1], -1)


def read_pair(source: TensorReader, stored: StoredTensor) -> tuple[int, int]:
    """Return a tensor of two whole numbers."""
    require_shape(stored, _INDICES, (2,))
    first, second = read_array(source, stored, _INDICES[stored.dtype]).tolist()
    return first, second
