"""QuantEmbed: rows of a packed matrix."""

from __future__ import annotations

import numpy as np
import pytest

from edge_rt.export.weights.tile_formats import TILE_FORMATS
from tests.ops.packed import random_matrix, wide
from tests.ops.single_op import ISAS, SingleOp, needs_native

pytestmark = [needs_native, pytest.mark.own_pools]


def embed(form, packed, rows, columns, ids, numbers=None, **options):
    attributes = {"format": form, "out_features": rows, "in_features": columns, **(numbers or {})}
    return SingleOp("QuantEmbed", attributes, {"ids": ids, "weight": packed}, **options)(ids=ids, weight=packed)[0]


@pytest.mark.parametrize("form", ["w4m", "w4", "w8", "f16", "f32", "w4z32", "w4z64", "w4z128", "w8n"])
def test_rows_are_the_weights(form):
    rng = np.random.default_rng(1)
    columns = wide(form, 96)
    packed, weights = random_matrix(rng, form, 37, columns)
    ids = rng.integers(0, 37, 50)
    found = [embed(form, packed, 37, columns, ids, isa=isa) for isa in ISAS]
    # d * q + m is rounded once here and twice there.
    np.testing.assert_allclose(found[0], weights[ids], rtol=0, atol=1e-7 if form in ("w4m", "w8n") else 0)
    assert len({y.tobytes() for y in found}) == 1


@pytest.mark.parametrize("form", TILE_FORMATS)
@pytest.mark.parametrize("scale", [45.25, -0.3, 1.0])
def test_a_scale_is_one_multiplication_more(form, scale):
    rng = np.random.default_rng(3)
    columns = wide(form, 96)
    packed, _ = random_matrix(rng, form, 37, columns)
    ids = rng.integers(0, 37, 20)
    wanted = embed(form, packed, 37, columns, ids) * np.float32(scale)
    for isa in ISAS:
        assert embed(form, packed, 37, columns, ids, {"scale": scale}, isa=isa).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("scale", [float("nan"), float("inf")])
def test_a_scale_must_be_finite(scale):
    packed, _ = random_matrix(np.random.default_rng(2), "w8", 37, 32)
    with pytest.raises(Exception, match="QuantEmbed: scale is not finite"):
        embed("w8", packed, 37, 32, np.array([0]), {"scale": scale})


@pytest.mark.parametrize("bad", [-1, 37, 2**62])
def test_ids_outside_are_errors(bad):
    packed, _ = random_matrix(np.random.default_rng(2), "w8", 37, 32)
    with pytest.raises(Exception, match=rf"ids\[1\] is {bad}, must be 0 to 36"):
        embed("w8", packed, 37, 32, np.array([0, bad]))
