"""Random packed matrices and what they stand for."""

from __future__ import annotations

import numpy as np

from edge_rt.export.weights.codes import Codes
from edge_rt.export.weights.tile_formats import TILE_FORMATS
from edge_rt.export.weights.tiles import pack_rows, stored_order, unpack_rows
from tests.helpers.ggml_blocks import HALVES, TYPE_OF, packed_raw, random_rows, tensor_of

SCALES = {"half": 0.02, "byte": 0.001, "signed": 0.0005, "nibble": 0.005, "exponent": 1, "float8": 1}
"""Standard deviation of fp16 numbers with which weights of every kind of scale are about 0.1."""
FLOAT_FORMATS = ("f16", "f32", "bf16")
ZERO_FORMATS = ("w4z32", "w4z64", "w4z128")


def wide(form, columns):
    """Return the next number of columns that a format can have."""
    unit = 1 if form in FLOAT_FORMATS else TILE_FORMATS[form].unit_inputs
    return -(-columns // unit) * unit


def random_matrix(rng, form, rows, columns):
    """Return the packed bytes ``[tiles, units, bytes]`` and the weights, float32 ``[rows, columns]``."""
    if form in ZERO_FORMATS:
        return random_zeros(rng, form, rows, columns)
    if form == "w8n":
        return random_nested(rng, rows, columns)
    if form == "nv4":
        return random_float4(rng, rows, columns)
    type_name = TYPE_OF[form]
    if type_name in HALVES:
        raw = random_rows(rng, type_name, rows, columns, SCALES[TILE_FORMATS[form].scales])
    else:
        values = (rng.standard_normal((rows, columns)) * 0.1).astype(np.float32)
        if form == "bf16":
            values = (values.view(np.uint32) >> 16).astype(np.uint16)
        raw = values.astype(np.float16 if form == "f16" else values.dtype).view(np.uint8)
    packed = packed_raw(tensor_of(type_name, rows, columns), raw)
    return packed, unpack_rows(packed, TILE_FORMATS[form])[:rows, :columns]


def random_zeros(rng, form, rows, columns):
    """The same for codes with zero points; the weights by another way than that of the product."""
    unit = TILE_FORMATS[form].unit_inputs
    codes = rng.integers(0, 16, (rows, columns), dtype=np.uint8)
    zeros = rng.integers(0, 17, (rows, columns // unit), dtype=np.uint8)
    d = (rng.standard_normal(zeros.shape) * 0.02).astype(np.float16)
    packed = pack_rows(Codes(codes, zeros=zeros, d=d), TILE_FORMATS[form])
    each = codes.reshape(rows, -1, unit).astype(np.float32) - zeros[..., None].astype(np.float32)
    return packed, (each * d[..., None].astype(np.float32)).reshape(rows, columns)


def random_nested(rng, rows, columns):
    """The same for nested codes; the weights by another way than that of the product."""
    codes = rng.integers(0, 256, (rows, columns), dtype=np.uint8)
    d, m = ((rng.standard_normal((rows, columns // 32)) * 0.02).astype(np.float16) for _ in range(2))
    packed = stored_order(pack_rows(Codes(codes, d=d, m=m), TILE_FORMATS["w8n"]), TILE_FORMATS["w8n"])
    each = codes.reshape(rows, -1, 32).astype(np.float32) * (d.astype(np.float32) / 16)[..., None]
    return packed, (each + (m.astype(np.float32) - d.astype(np.float32) / 2)[..., None]).reshape(rows, columns)


def random_float4(rng, rows, columns):
    """The same for codes with scales of 8 bits, and one for every row; the weights by another way."""
    codes = rng.integers(0, 16, (rows, columns), dtype=np.uint8)
    scales = rng.integers(0, 127, (rows, columns // 16), dtype=np.uint8)
    d = np.exp2(rng.uniform(-5, -3, (rows, 1))).astype(np.float32)
    form = TILE_FORMATS["nv4"]
    packed = pack_rows(Codes(codes, scales=scales, d=np.repeat(d, columns // 64, axis=1)), form)
    exponents, fractions = scales.astype(np.int32) >> 3, scales & 7
    small = np.where(exponents > 0, np.ldexp(1 + fractions / 8, exponents - 7), fractions / 512) / 256
    each = np.array(form.table)[codes].reshape(rows, -1, 16) * small[..., None]
    return packed, each.reshape(rows, columns).astype(np.float32) * d


def fine_blocks(form, columns):
    """Return numbers of some blocks of a format's input: its first unit, the last one, and those two before it."""
    unit = 1 if form in FLOAT_FORMATS else TILE_FORMATS[form].unit_inputs // 32
    units = columns // 32 // unit
    return [unit * i + k for i in sorted({0, *range(max(units - 3, 0), units)}) for k in range(unit)]


def rounded_rows(x, fine=()):
    """Return x as the kernels see it: int8 per block of 32, times its scale, float64; 16 bits in fine blocks."""
    blocks = x.reshape(x.shape[0], -1, 32)
    peak = np.abs(blocks).max(-1, keepdims=True).astype(np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):
        up = np.where(peak > 0, np.float32(127) / peak, np.float32(0))
    scale = peak / np.float32(127)
    rounded = np.rint((blocks * up).astype(np.float32)).astype(np.float64) * scale
    rest = (blocks - rounded).astype(np.float32)
    more = np.rint(rest * (np.float32(254) * up)).astype(np.float64) * (scale / np.float32(254))
    rounded[:, list(fine)] += more[:, list(fine)]
    return rounded.reshape(x.shape)
