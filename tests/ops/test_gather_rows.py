"""Rows of packed matrices copied into tiles of their own."""

from __future__ import annotations

import numpy as np
import pytest

from edge_rt.errors import ConfigError
from edge_rt.export.weights.tile_formats import TILE_FORMATS
from edge_rt.export.weights.tiles import unpack_rows
from edge_rt.ort.op_library import native_library
from tests.ops.packed import random_matrix, wide
from tests.ops.single_op import SingleOp, needs_native

pytestmark = [needs_native, pytest.mark.own_pools]

# Finer codes of nested ones lie apart from the tiles.
FORMATS = tuple(name for name, form in TILE_FORMATS.items() if not form.is_nested)


def gathered(form, packed, shape, ids):
    ids = np.asarray(ids, np.int32)
    target = np.full((-(-len(ids) // 16), *packed.shape[1:]), 0xAA, np.uint8)
    native_library().gather_rows(form, packed, shape, ids, target)
    return target


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("count", [1, 16, 37])
def test_rows_have_the_same_weights_and_the_rest_is_zero(form, count):
    rng = np.random.default_rng(count)
    columns = wide(form, 70)
    packed, weights = random_matrix(rng, form, 53, columns)
    ids = rng.integers(0, 53, count)
    ids[0] = 52
    found = gathered(form, packed, (53, columns), ids)
    values = unpack_rows(found, TILE_FORMATS[form])[:count, :columns]
    np.testing.assert_array_equal(values, weights[ids])
    # Row 0 of a matrix of its own: all bytes that are not the row's are zero.
    alone = gathered(form, packed, (53, columns), ids[-1:])
    again = gathered(form, alone, (1, columns), [0])
    assert alone.tobytes() == again.tobytes()
    assert np.count_nonzero(alone) <= -(-alone.size // 16)


@pytest.mark.parametrize("form", FORMATS)
def test_products_have_the_same_bits(form):
    rng = np.random.default_rng(7)
    columns = wide(form, 96)
    packed, _ = random_matrix(rng, form, 40, columns)
    ids = rng.permutation(40)[:21]
    x = rng.standard_normal((5, columns)).astype(np.float32)

    def product(rows, weight):
        attributes = {"format": form, "out_features": rows, "in_features": columns}
        return SingleOp("QuantLinear", attributes, {"x": x, "weight": weight})(x=x, weight=weight)[0]

    found = product(21, gathered(form, packed, (40, columns), ids))
    assert found.tobytes() == product(40, packed)[:, ids].tobytes()


@pytest.mark.parametrize("ids", [[40], [-1], [0, 3, 2**31 - 1]])
def test_a_row_that_does_not_exist_is_an_error_and_nothing_is_written(ids):
    packed, _ = random_matrix(np.random.default_rng(8), "w8", 40, 64)
    target = np.full((1, *packed.shape[1:]), 0xAA, np.uint8)
    with pytest.raises(ConfigError, match="cannot be copied"):
        native_library().gather_rows("w8", packed, (40, 64), np.array(ids, np.int32), target)
    assert np.all(target == 0xAA)


@pytest.mark.parametrize(
    ("form", "shape", "target_tiles"),
    [
        ("w8", (49, 64), 1),
        ("w8", (32, 64), 1),
        ("w8", (48, 32), 1),
        ("w8", (48, 64), 2),
        ("w8", (48, 64), 0),
        ("w4", (48, 64), 1),
        ("w9", (48, 64), 1),
        ("w8n", (48, 64), 1),
        ("w8n_upper", (48, 64), 1),
        ("w8", (48, 65), 1),
        ("w8", (48, -64), 1),
        ("w8", (-48, 64), 1),
    ],
)
def test_sizes_that_do_not_fit_are_errors(form, shape, target_tiles):
    packed, _ = random_matrix(np.random.default_rng(9), "w8", 48, 64)
    target = np.zeros((target_tiles, *packed.shape[1:]), np.uint8)
    with pytest.raises(ConfigError):
        native_library().gather_rows(form, packed, shape, np.array([3], np.int32), target)
