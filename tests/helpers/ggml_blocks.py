"""Random quantised rows as a GGUF holds them, of every type that is exported."""

from __future__ import annotations

import gguf
import numpy as np
from gguf.quants import dequantize

from edge_rt.export.sources.gguf_types import TensorInfo
from edge_rt.export.weights.rows import stored_rows
from edge_rt.export.weights.tile_formats import FORMAT_OF_GGML, TILE_FORMATS, tile_format
from edge_rt.export.weights.tiles import pack_rows

HALVES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,), "MXFP4": (),
    "NVFP4": (),
}  # fmt: skip
"""Type -> where a block has its fp16 numbers."""
BLOCK_TYPES = tuple(HALVES)
FLOAT_TYPES = ("F16", "F32", "BF16")
TYPE_OF = {form: name for name, form in FORMAT_OF_GGML.items()}
"""Format of tiles -> ggml type."""


def kind_of(type_name):
    return gguf.GGMLQuantizationType[type_name]


def block_of(type_name):
    """Return weights and bytes of a block."""
    return gguf.GGML_QUANT_SIZES[kind_of(type_name)]


def tensor_of(type_name, rows, inputs, name="m"):
    return TensorInfo(name, (inputs, rows), int(kind_of(type_name)), type_name, 4096, 0)


def wide(type_name, inputs):
    """Return the next number of inputs that rows of a type can have."""
    unit = TILE_FORMATS[FORMAT_OF_GGML[type_name]].unit_inputs if type_name in HALVES else 1
    return -(-inputs // unit) * unit


def random_rows(rng, type_name, rows, inputs, scale=None):
    """Return raw rows with every code, uint8 ``[rows, bytes]``.

    Args:
        rng: numpy's.
        type_name: a block type.
        rows: how many.
        inputs: of a row.
        scale: standard deviation of the fp16 numbers; None for any that fp16 has.
    """
    weights, size = block_of(type_name)
    raw = rng.integers(0, 256, (rows, inputs // weights, size), dtype=np.uint8)
    for at in HALVES[type_name]:
        if scale is None:
            halves = rng.integers(0, 0x7C00, raw.shape[:2], dtype=np.uint16)
            halves |= rng.integers(0, 2, halves.shape, dtype=np.uint16) << np.uint16(15)
        else:
            halves = (rng.standard_normal(raw.shape[:2]) * scale).astype(np.float16).view(np.uint16)
        raw[..., at : at + 2] = halves[..., None].view(np.uint8)
    if type_name == "MXFP4":
        raw[..., 0] = rng.integers(0, 201, raw.shape[:2]) if scale is None else rng.integers(118, 126, raw.shape[:2])
    if type_name == "NVFP4" and scale is not None:
        raw[..., :4] = rng.integers(24, 40, raw[..., :4].shape)
    return raw.reshape(rows, -1)


def exact_values(type_name, raw, inputs):
    """Return what gguf's own library says that rows hold, float32 ``[rows, inputs]``."""
    return dequantize(raw, kind_of(type_name)).reshape(len(raw), inputs).astype(np.float32)


def packed_raw(tensor, raw):
    """Return the tiles of raw rows of a checkpoint, uint8 ``[tiles, units, bytes]``."""
    return pack_rows(stored_rows(tensor, raw), tile_format(tensor.type_name))
