"""QuantEmbed: rows of a packed matrix."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.packed import random_matrix, wide
from tests.ops.single_op import ISAS, SingleOp, needs_native

pytestmark = [needs_native, pytest.mark.own_pools]


def embed(form, packed, rows, columns, ids, **options):
    attributes = {"format": form, "out_features": rows, "in_features": columns}
    return SingleOp("QuantEmbed", attributes, {"ids": ids, "weight": packed}, **options)(ids=ids, weight=packed)[0]


@pytest.mark.parametrize("form", ["w4m", "w4", "w8", "f16", "f32", "w4z32", "w4z64", "w4z128"])
def test_rows_are_the_weights(form):
    rng = np.random.default_rng(1)
    columns = wide(form, 96)
    packed, weights = random_matrix(rng, form, 37, columns)
    ids = rng.integers(0, 37, 50)
    found = [embed(form, packed, 37, columns, ids, isa=isa) for isa in ISAS]
    # d * q + m is rounded once here and twice there.
    np.testing.assert_allclose(found[0], weights[ids], rtol=0, atol=1e-7 if form == "w4m" else 0)
    assert len({y.tobytes() for y in found}) == 1


@pytest.mark.parametrize("bad", [-1, 37, 2**62])
def test_ids_outside_are_errors(bad):
    packed, _ = random_matrix(np.random.default_rng(2), "w8", 37, 32)
    with pytest.raises(Exception, match=rf"ids\[1\] is {bad}, must be 0 to 36"):
        embed("w8", packed, 37, 32, np.array([0, bad]))
