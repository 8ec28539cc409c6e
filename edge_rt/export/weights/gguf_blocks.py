"""The quantised blocks of GGUF, taken apart into integers and scales; one function for each layout.

Layouts: ``ggml-common.h`` and ``ggml-quants.c`` of ggml (MIT licence), of which this is a description in numpy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from edge_rt.errors import InvalidModelFile
from edge_rt.export.sources.gguf_types import FETCH_AGAIN, TensorInfo, not_finite
from edge_rt.export.weights.codes import Array, Codes

LARGEST_EXPONENT: Final = 200
"""Of MXFP4: 2^72. Sums of products with larger scales could exceed float32."""


def _blocks(raw: Array, size: int) -> Array:
    return raw.reshape(raw.shape[0], -1, size)


def _half(blocks: Array, at: int) -> Array:
    """Return the fp16 number at a byte of every block, float16 ``[rows, blocks]``."""
    found: Array = np.ascontiguousarray(blocks[:, :, at : at + 2]).view("<f2")[:, :, 0]
    return found


def _halves_apart(packed: Array) -> Array:
    """``[..., n]`` -> ``[..., 2 n]``: the low halves of all bytes, then the high ones."""
    return np.concatenate([packed & np.uint8(15), packed >> np.uint8(4)], axis=-1)


def _flat(codes: Array) -> Array:
    return codes.reshape(codes.shape[0], -1)


def _bits(packed: Array, count: int) -> Array:
    """``[..., n]`` -> ``[..., count, n]``: bit j of every byte, for j < count."""
    shifts = np.arange(count, dtype=np.uint8)[:, None]
    found: Array = packed[..., None, :] >> shifts & np.uint8(1)
    return found


def _pairs(packed: Array) -> Array:
    """``[..., n]`` -> ``[..., 4, n]``: bits 2 j and 2 j + 1 of every byte."""
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    found: Array = packed[..., None, :] >> shifts & np.uint8(3)
    return found


def _q4_0(raw: Array) -> Codes:
    blocks = _blocks(raw, 18)
    return Codes(_flat(_halves_apart(blocks[:, :, 2:])), d=_half(blocks, 0))


def _q4_1(raw: Array) -> Codes:
    blocks = _blocks(raw, 20)
    return Codes(_flat(_halves_apart(blocks[:, :, 4:])), d=_half(blocks, 0), m=_half(blocks, 2))


def _with_fifth_bits(blocks: Array, at: int) -> Array:
    """Return codes of 4 bits whose fifth bits, a little-endian word of 32, lie before them."""
    fifth = np.unpackbits(blocks[:, :, at : at + 4], axis=2, bitorder="little")
    return _flat(_halves_apart(blocks[:, :, at + 4 :]) | fifth << np.uint8(4))


def _q5_0(raw: Array) -> Codes:
    blocks = _blocks(raw, 22)
    return Codes(_with_fifth_bits(blocks, 2), d=_half(blocks, 0))


def _q5_1(raw: Array) -> Codes:
    blocks = _blocks(raw, 24)
    return Codes(_with_fifth_bits(blocks, 4), d=_half(blocks, 0), m=_half(blocks, 2))


def _q8_0(raw: Array) -> Codes:
    blocks = _blocks(raw, 34)
    return Codes(_flat(blocks[:, :, 2:]), d=_half(blocks, 0))


def _six_bit_scales(packed: Array) -> tuple[Array, Array]:
    """Return the 8 scales and 8 minima in 12 bytes of a block."""
    first, second, third = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    six, four, two = np.uint8(63), np.uint8(15), np.uint8(6)
    scales = np.concatenate([first & six, third & four | first >> two << np.uint8(4)], axis=-1)
    minima = np.concatenate([second & six, third >> np.uint8(4) | second >> two << np.uint8(4)], axis=-1)
    return scales, minima


def _q4_k(raw: Array) -> Codes:
    blocks = _blocks(raw, 144)
    scales, minima = _six_bit_scales(blocks[:, :, 4:16])
    chunks = blocks[:, :, 16:].reshape(*blocks.shape[:2], 4, 32)
    return Codes(_flat(_halves_apart(chunks)), _flat(scales), _flat(minima), d=_half(blocks, 0), m=_half(blocks, 2))


def _q5_k(raw: Array) -> Codes:
    blocks = _blocks(raw, 176)
    scales, minima = _six_bit_scales(blocks[:, :, 4:16])
    chunks = _halves_apart(blocks[:, :, 48:].reshape(*blocks.shape[:2], 4, 32)).reshape(*blocks.shape[:2], 8, 32)
    codes = chunks | _bits(blocks[:, :, 16:48], 8) << np.uint8(4)
    return Codes(_flat(codes), _flat(scales), _flat(minima), d=_half(blocks, 0), m=_half(blocks, 2))


def _q6_k(raw: Array) -> Codes:
    blocks = _blocks(raw, 210)
    shape = blocks.shape[:2]
    # Per half of 128: 64 bytes hold the low four bits of elements l and l + 64; 32 bytes two bits of l, l + 32, ...
    low = _halves_apart(blocks[:, :, :128].reshape(*shape, 2, 64)).reshape(*shape, 2, 4, 32)
    high = _pairs(blocks[:, :, 128:192].reshape(*shape, 2, 32))
    scales = np.ascontiguousarray(blocks[:, :, 192:208]).view(np.int8)
    return Codes(_flat(low | high << np.uint8(4)), _flat(scales), d=_half(blocks, 208))


def _q3_k(raw: Array) -> Codes:
    blocks = _blocks(raw, 110)
    shape = blocks.shape[:2]
    low = _pairs(blocks[:, :, 32:96].reshape(*shape, 2, 32)).reshape(*shape, 8, 32)
    codes = low | _bits(blocks[:, :, :32], 8) << np.uint8(2)
    packed = blocks[:, :, 96:108]
    high = _pairs(packed[:, :, 8:12]).reshape(*shape, 16)
    scales = _halves_apart(packed[:, :, :8]) | high << np.uint8(4)
    return Codes(_flat(codes), _flat(scales.view(np.int8) - np.int8(32)), d=_half(blocks, 108))


def _q2_k(raw: Array) -> Codes:
    blocks = _blocks(raw, 84)
    codes = _pairs(blocks[:, :, 16:80].reshape(*blocks.shape[:2], 2, 32))
    packed = _flat(blocks[:, :, :16])
    return Codes(_flat(codes), packed & np.uint8(15), packed >> np.uint8(4), d=_half(blocks, 80), m=_half(blocks, 82))


def _iq4_xs(raw: Array) -> Codes:
    blocks = _blocks(raw, 136)
    shape = blocks.shape[:2]
    # Scale i: its low four bits are half i % 2 of byte i / 2, its high two bits pair i of a little-endian word.
    low = np.stack([blocks[:, :, 4:8] & np.uint8(15), blocks[:, :, 4:8] >> np.uint8(4)], axis=-1).reshape(*shape, 8)
    high = _pairs(blocks[:, :, 2:4, None]).reshape(*shape, 8)
    scales = (low | high << np.uint8(4)).view(np.int8) - np.int8(32)
    codes = _halves_apart(blocks[:, :, 8:].reshape(*shape, 8, 16))
    return Codes(_flat(codes), _flat(scales), d=_half(blocks, 0))


def _mxfp4(raw: Array) -> Codes:
    blocks = _blocks(raw, 17)
    return Codes(_flat(_halves_apart(blocks[:, :, 1:])), scales=np.ascontiguousarray(blocks[:, :, 0]))


_ROW_SCALE: Final = np.float32(128)
"""What multiplies rows of NVFP4: scales are 2^-8 times what their bytes say, and codes are doubled."""
_NO_NUMBER: Final = 127


def _nvfp4(raw: Array) -> Codes:
    blocks = _blocks(raw, 36)
    scales = _flat(blocks[:, :, :4]) & np.uint8(127)
    # ggml takes the one that is no number for 0, unless it has a sign.
    scales = np.where(_flat(blocks[:, :, :4]) == _NO_NUMBER, np.uint8(0), scales)
    codes = _halves_apart(blocks[:, :, 4:].reshape(*blocks.shape[:2], 4, 8))
    return Codes(_flat(codes), scales=scales, d=np.full(blocks.shape[:2], _ROW_SCALE))


_LAYOUTS: Final[dict[str, Callable[[Array], Codes]]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _q4_0,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
    "NVFP4": _nvfp4,
}
"""ggml type -> function that takes raw rows, uint8 ``[rows, bytes per row]``, apart."""


def read_codes(tensor: TensorInfo, raw: Array) -> Codes:
    """Take raw rows of a quantised tensor, uint8 ``[rows, bytes per row]``, apart."""
    found = _LAYOUTS[tensor.type_name](raw)
    halves = [part for part in (found.d, found.m) if part is not None]
    if not all(np.isfinite(part).all() for part in halves):
        raise not_finite(tensor, "scale")
    if tensor.type_name == "MXFP4" and found.scales is not None and found.scales.max(initial=0) > LARGEST_EXPONENT:
        raise InvalidModelFile(
            f"The tensor '{tensor.name}' holds a scale that is too large.",
            f"Its exponent is {found.scales.max()}, at most {LARGEST_EXPONENT} is taken; the tensor begins at byte "
            f"{tensor.offset} of the file.",
            FETCH_AGAIN,
        )
    return found
