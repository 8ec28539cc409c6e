"""Takes quantised blocks of GGUF made up at random apart; 100,000 matrices of each type unless told otherwise.

Any bytes are blocks of some kind, so good ones must give exactly what gguf's own library says they hold, both through
tiles and through the layout of ONNX Runtime's operators; bad ones, which have a scale that is not finite or too large,
must be refused. Not part of CI, where ``tests/export/weights/test_blocks_at_random.py`` runs fewer::

    python -m tests.fuzz_blocks [--runs N] [--seed N] [TYPE ...]
"""

from __future__ import annotations

import argparse
import time
from collections import Counter

import numpy as np

from edge_rt.errors import InvalidModelFile
from edge_rt.export.weights.gguf_blocks import LARGEST_EXPONENT, read_codes
from edge_rt.export.weights.portable import block_rows, code_bits
from edge_rt.export.weights.tile_formats import tile_format
from edge_rt.export.weights.tiles import pack_rows, unpack_rows
from tests.helpers.ggml_blocks import BLOCK_TYPES, HALVES, block_of, exact_values, tensor_of

NOT_FINITE = (0x7C00, 0xFC00, 0x7E00, 0x7C01, 0xFFFF)


def made_up(rng, type_name):
    """Return raw rows, uint8 ``[rows, bytes]``, and whether one of their scales has to be refused."""
    weights, size = block_of(type_name)
    units = tile_format(type_name).unit_inputs // weights
    rows, blocks = int(rng.integers(1, 20)), units * int(rng.integers(1, 4))
    kind = rng.random()
    raw = rng.integers(0, 256, (rows, blocks, size), dtype=np.uint8)
    if kind < 0.1:
        raw[:] = rng.choice([0, 1, 127, 128, 255])
    for at in HALVES[type_name]:
        halves = raw[..., at : at + 2].copy().view(np.uint16)[..., 0]
        raw[..., at : at + 2] = np.where(halves & 0x7C00 == 0x7C00, halves & 0xBFFF, halves)[..., None].view(np.uint8)
    if type_name == "MXFP4":
        raw[..., 0] %= LARGEST_EXPONENT + 1
    if kind < 0.8 or type_name == "NVFP4":  # which has nothing that has to be refused
        return raw.reshape(rows, -1), False
    block = raw[int(rng.integers(rows)), int(rng.integers(blocks))]
    if type_name == "MXFP4":
        block[0] = rng.integers(LARGEST_EXPONENT + 1, 256)
    else:
        at = int(rng.choice(HALVES[type_name]))
        block[at : at + 2] = np.asarray([rng.choice(NOT_FINITE)], np.uint16).view(np.uint8)
    return raw.reshape(rows, -1), True


def operator_values(found, form):
    """Return what ONNX Runtime's operators make of rows, float32 ``[rows, inputs]``, and half a last place of it."""
    rows = block_rows(found, form)
    codes = rows.codes
    if code_bits(form) == 4:
        codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:2], -1)
    centred = codes.astype(np.float64) - (1 << code_bits(form) - 1)
    values = centred * rows.scale[:, :, None]
    off = np.zeros_like(values)
    if rows.minimum is not None:
        values = values + rows.minimum[:, :, None]
        off = off + np.abs(rows.minimum[:, :, None]) * 2.0**-23 + np.abs(values) * 2.0**-23
    return values.reshape(len(values), -1), off.reshape(len(values), -1)


def check(type_name, raw):
    """Compare what rows hold; raises what ``read_codes`` raises."""
    form, inputs = tile_format(type_name), raw.shape[1] // block_of(type_name)[1] * block_of(type_name)[0]
    found = read_codes(tensor_of(type_name, len(raw), inputs), raw)
    expected = exact_values(type_name, raw, inputs)
    tiles = unpack_rows(pack_rows(found, form), form)
    assert np.array_equal(tiles[: len(raw)], expected), "tiles"
    assert not tiles[len(raw) :].any(), "rows that fill the last tile"
    values, off = operator_values(found, form)
    assert (np.abs(values - expected) <= off).all(), "operators"


def run(type_name, runs, seed):
    """Return how often each kind of input came up; a fault is an exception."""
    counts = Counter()
    for number in range(runs):
        raw, is_bad = made_up(np.random.default_rng([seed, number]), type_name)
        try:
            check(type_name, raw)
        except InvalidModelFile:
            assert is_bad, (type_name, seed, number)
            counts["bad: refused"] += 1
            continue
        except BaseException as error:
            error.add_note(f"{type_name}, seed {seed}, number {number}")
            raise
        assert not is_bad, (type_name, seed, number)
        counts["good: read"] += 1
    return counts


def main():
    """Run all types, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("types", nargs="*", metavar="TYPE", default=BLOCK_TYPES)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for type_name in options.types:
        began = time.monotonic()
        counts = run(type_name, options.runs, options.seed)
        print(f"{type_name}: {options.runs} matrices, {time.monotonic() - began:.0f} s, {dict(counts)}", flush=True)


if __name__ == "__main__":
    main()
