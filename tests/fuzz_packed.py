"""Reads packed matrices made up at random, good and bad ones, in every layout; 100,000 of each unless told otherwise.

Good ones must give the weights that they were made of, by both ways to read them and through tiles; bad ones, in which
one thing is wrong, must raise an error of edge-rt and nothing else, or be as good as the others. Matrices that are
converted through float have one way to be read: all rows at once, and some of them in any order, must agree. Not part
of CI, where ``tests/export/sources/test_packed.py`` and ``test_converted.py`` run fewer::

    python -m tests.fuzz_packed [--runs N] [--seed N]
"""

from __future__ import annotations

import argparse
import time
from collections import Counter

import numpy as np

from edge_rt.errors import InvalidModelFile, UnsupportedModel
from edge_rt.export.sources.packed_config import PackedSettings
from edge_rt.export.weights.codes import Codes
from edge_rt.export.weights.tile_formats import tile_format
from edge_rt.export.weights.tiles import pack_rows, unpack_rows
from tests.helpers.converted_factory import bitsandbytes, float8, mlx, opened_bitsandbytes, opened_float8, opened_mlx
from tests.helpers.packed_factory import (
    LAYOUTS,
    NUMPY,
    awq,
    compressed,
    gptq,
    random_matrix,
    raw_bytes,
    stored,
)

GROUPS = (32, 64, 96, 128, 256, 0)
REQUIRED = ("weight", "weight.absmax", "weight.quant_map", "scales", "biases")
"""Parts without which no matrix is opened."""
DTYPES = ("I32", "I64", "F16", "BF16", "F32", "U8")


def good(rng, layout):
    """Return a matrix, its parts and the settings to read them with."""
    inputs, rows = 32 * int(rng.integers(1, 9)), 8 * int(rng.integers(1, 4))
    group = int(rng.choice(GROUPS))
    size = min(group or inputs, inputs)
    can_move = layout != "awq" and rng.random() < 0.3 and inputs % size == 0
    symmetric, second = rng.random() < 0.3, rng.random() < 0.5
    low, high = (8, 8) if layout == "compressed-tensors" and symmetric else (0, 15)
    if layout == "gptq" and not second:
        low, high = 1, 16
    order = rng.permutation(inputs) if can_move else None
    matrix = random_matrix(rng, rows, inputs, size, zeros=(low, high), order=order)
    settings = {"group": group, "needs_order": can_move}
    if layout == "gptq":
        parts = gptq(matrix, less=0 if second else 1, with_order=can_move or second)
        settings["zero_added"] = 0 if second else 1
    elif layout == "awq":
        parts = awq(matrix)
    else:
        parts = compressed(matrix, symmetric=symmetric, with_order=can_move)
        settings["has_zeros"] = not symmetric
    return matrix, parts, settings


def good_float8(rng):
    """Return weights, their parts and the settings to read them with."""
    rows, inputs = int(rng.integers(1, 40)), int(rng.integers(1, 200))
    kind = str(rng.choice(["scalar", "tensor", "channel", "block"]))
    block = (int(rng.integers(1, 50)), int(rng.integers(1, 250))) if kind == "block" else None
    values = rng.standard_normal((rows, inputs)).astype(np.float32) * np.float32(2.0 ** rng.integers(-20, 20))
    parts, expected = float8(
        values, kind=kind, block=block, dtype=str(rng.choice(["F32", "BF16"])), powers=rng.random() < 0.3,
        suffix=str(rng.choice(["weight_scale", "weight_scale_inv"])),
    )  # fmt: skip
    kinds = {"scalar": ("tensor", "channel"), "tensor": ("tensor",)}.get(kind, (kind,))
    return expected, parts, {"kinds": kinds, "block": block}


def spoil_float8(rng, settings):
    """Make the settings say something else."""
    settings["kinds"], settings["block"] = [(("tensor",), None), (("channel",), None), (("block",), (8, 8))][
        int(rng.integers(3))
    ]


def good_bitsandbytes(rng):
    """Return weights, their parts and the settings to read them with."""
    rows, inputs, kind = int(rng.integers(1, 20)), 2 * int(rng.integers(1, 60)), str(rng.choice(["nf4", "fp4"]))
    values = rng.standard_normal((rows, inputs)).astype(np.float32) * np.float32(2.0 ** rng.integers(-20, 20))
    nested = int(rng.choice([0, 1, 4, 256]))
    parts, expected = bitsandbytes(values, kind=kind, block=int(rng.choice([1, 7, 32, 64])), nested_block=nested)
    return expected, parts, {"kind": kind}


def spoil_bitsandbytes(_, settings):
    """Make the settings say something else."""
    settings["kind"] = "nf4" if settings["kind"] == "fp4" else "fp4"


def good_mlx(rng):
    """Return weights, their parts and the settings to read them with."""
    bits, group = int(rng.choice([4, 8])), int(rng.choice([32, 64, 128]))
    rows, inputs = int(rng.integers(1, 20)), group * int(rng.integers(1, 5))
    values = rng.standard_normal((rows, inputs)).astype(np.float32) * np.float32(2.0 ** rng.integers(-20, 20))
    parts, expected = mlx(values, bits=bits, group=group, dtype=str(rng.choice(["F32", "BF16"])))
    return expected, parts, {"bits": bits, "group": group}


def spoil_mlx(rng, settings):
    """Make the settings say something else."""
    settings["bits"], settings["group"] = int(rng.choice([4, 8])), int(rng.choice([32, 64, 128]))


CONVERTED = {
    "mlx": (good_mlx, spoil_mlx, opened_mlx),
    "fp8": (good_float8, spoil_float8, opened_float8),
    "bitsandbytes": (good_bitsandbytes, spoil_bitsandbytes, opened_bitsandbytes),
}
"""Layout -> what makes a good matrix, what spoils its settings, and what opens it."""


def spoil(rng, parts, settings, spoil_settings=None):
    """Make one thing wrong, in place, and return what."""
    name = str(rng.choice(sorted(parts)))
    dtype, array = parts[name]
    array = np.array(array)
    kinds = ["group", "order", "zeros"] if spoil_settings is None else ["missing", "bytes", "settings"]
    kind = str(rng.choice(["type", "longer", "shorter", "axes", "value", *kinds]))
    if kind == "settings":
        spoil_settings(rng, settings)
    elif kind == "missing" and name not in REQUIRED:
        del parts[name]
    elif kind == "bytes" and array.size:
        raw = np.frombuffer(raw_bytes(dtype, array), np.uint8).copy()
        raw[rng.integers(len(raw), size=3)] = rng.integers(0, 256, 3)
        parts[name] = (dtype, raw.view(NUMPY[dtype]).reshape(array.shape))
    elif kind == "type":
        with np.errstate(invalid="ignore"):
            parts[name] = (str(rng.choice(DTYPES)), array.astype(np.float64).astype(np.int64))
    elif kind in ("longer", "shorter") and array.ndim:
        axis = int(rng.integers(array.ndim))
        part = array.take(range(array.shape[axis] - 1), axis=axis)
        parts[name] = (dtype, np.concatenate([array, array], axis=axis) if kind == "longer" else part)
    elif kind == "axes":
        parts[name] = (dtype, array[None] if rng.random() < 0.5 else array.reshape(-1))
    elif kind == "value" and array.size:
        values = [np.nan, np.inf, 1e6] if dtype in ("F16", "F32") else [-1, -(2**31), 2**31 - 1, 9, 1000]
        with np.errstate(over="ignore"):
            array.reshape(-1)[int(rng.integers(array.size))] = np.asarray(rng.choice(values)).astype(array.dtype)
        parts[name] = (dtype, array)
    elif kind == "group":
        settings["group"] = int(rng.choice([0, 32, 64, 96, 1 << 20]))
    elif kind == "order":
        settings["needs_order"] = not settings["needs_order"]
    elif kind == "zeros":
        settings["has_zeros"] = not settings.get("has_zeros", True)
    return kind if kind in ("group", "order", "zeros", "settings") else f"{kind} of {name}"


def read(layout, parts, settings):
    """Return the weights in three ways, float32 ``[rows, inputs]``, and the order of their inputs."""
    found, source = stored(parts)
    tensor = LAYOUTS[layout](PackedSettings(layout, **settings)).tensor("m", found, source)
    matrix, every = tensor.open(source), np.arange(tensor.shape[1])
    rows = matrix.rows(every)
    form = tile_format(tensor.type_name)
    tiles = unpack_rows(pack_rows(Codes(rows.codes, zeros=rows.zeros, d=rows.scales), form), form)[: len(every)]
    less = rows.codes.astype(np.int32) - np.repeat(rows.zeros, tensor.unit, axis=1)
    direct = less.astype(np.float32) * np.repeat(rows.scales.astype(np.float32), tensor.unit, axis=1)
    return matrix.values(every), direct, tiles, tensor.input_order


def run(layout, runs, seed):
    """Return how often each kind of input came up; a fault is an exception."""
    counts = Counter()
    for number in range(runs):
        rng = np.random.default_rng([seed, number])
        matrix, parts, settings = good(rng, layout)
        is_bad = rng.random() < 0.5
        kind = spoil(rng, parts, settings) if is_bad else "good"
        try:
            values, direct, tiles, order = read(layout, parts, settings)
        except Exception as error:
            if is_bad and isinstance(error, (InvalidModelFile, UnsupportedModel)):
                counts[f"{kind}: refused"] += 1
                continue
            raise AssertionError(f"{layout}, seed {seed}, number {number}, {kind}") from error
        same = np.array_equal(values, direct) and np.array_equal(values, tiles)
        if not is_bad:
            expected = matrix.values if order is None else matrix.values[:, order]
            same = same and np.array_equal(values, expected)
        assert same, (layout, seed, number, kind)
        counts[f"{kind}: read" if is_bad else kind] += 1
    return counts


def run_converted(layout, runs, seed):
    """Return how often each kind of input came up; a fault is an exception."""
    counts, (make, spoil_settings, open_parts) = Counter(), CONVERTED[layout]
    for number in range(runs):
        rng = np.random.default_rng([seed, number])
        expected, parts, settings = make(rng)
        is_bad = rng.random() < 0.5
        kind = spoil(rng, parts, settings, spoil_settings) if is_bad else "good"
        try:
            tensor, matrix = open_parts(parts, **settings)
            values = matrix.values(np.arange(tensor.shape[1]))
            some = rng.integers(0, tensor.shape[1], 5)
            again = matrix.values(some)
        except Exception as error:
            if is_bad and isinstance(error, (InvalidModelFile, UnsupportedModel)):
                counts[f"{kind}: refused"] += 1
                continue
            raise AssertionError(f"{layout}, seed {seed}, number {number}, {kind}") from error
        same = np.isfinite(values).all() and np.array_equal(values[some], again)
        if tensor.type_name == "Q4_1":
            rows, form = matrix.rows(some), tile_format("Q4_1")
            tiles = unpack_rows(pack_rows(Codes(rows.codes, d=rows.scales, m=rows.minima), form), form)
            same = same and np.array_equal(tiles[: len(some)], again)
        if tensor.type_name == "BF16":
            same = same and not (values.view(np.uint32) & 0xFFFF).any()
        if not is_bad:
            same = same and np.array_equal(values, expected)
        assert same, (layout, seed, number, kind)
        counts[f"{kind}: read" if is_bad else kind] += 1
    return counts


def main():
    """Run all layouts."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for layout in (*LAYOUTS, *CONVERTED):
        began = time.monotonic()
        counts = (run if layout in LAYOUTS else run_converted)(layout, options.runs, options.seed)
        print(f"{layout}: {options.runs} inputs, {time.monotonic() - began:.0f} s")
        for kind, count in sorted(counts.items()):
            print(f"  {kind:40} {count:7}")


if __name__ == "__main__":
    main()
