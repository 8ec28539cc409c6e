"""Weights that are too large for their type are refused by name, others are handed on."""

from __future__ import annotations

import numpy as np
import pytest

from edge_rt.errors import UnsupportedModel
from edge_rt.export.quantise.grids import QUANTISABLE
from edge_rt.export.quantise.rows import LimitedMatrices
from tests.helpers.arrays import Arrays

SMALL = np.arange(-32, 32, dtype=np.float32).reshape(8, 8)


def with_value(value):
    array = SMALL.copy()
    array[6, 3] = value
    return array


@pytest.mark.parametrize("value", [65504.1, -65536, 1e30, -3e38])
@pytest.mark.parametrize("type_name", [*QUANTISABLE, "F16"])
def test_too_large(type_name, value):
    matrices = LimitedMatrices(Arrays({"a": with_value(value), "b": SMALL}), {"a": type_name, "b": type_name})
    with pytest.raises(UnsupportedModel, match=r"'a' does not fit half precision.*largest half is 65504"):
        list(matrices.pieces("a"))
    with pytest.raises(UnsupportedModel, match="'a'"):
        matrices.rows("a", [0, 6])
    np.testing.assert_array_equal(matrices.rows("a", [5, 0]), SMALL[[5, 0]])
    np.testing.assert_array_equal(np.concatenate(list(matrices.pieces("b"))), SMALL)


@pytest.mark.parametrize("types", [{}, {"a": "F32"}, {"a": "BF16"}, {"b": "Q4_0"}])
def test_types_with_the_range_of_float32(types):
    matrices = LimitedMatrices(Arrays({"a": with_value(1e30)}), types)
    np.testing.assert_array_equal(np.concatenate(list(matrices.pieces("a"))), with_value(1e30))


@pytest.mark.parametrize("value", [65504, -65504, 0])
def test_the_largest_that_fit(value):
    matrices = LimitedMatrices(Arrays({"a": with_value(value)}), {"a": "F16"})
    np.testing.assert_array_equal(matrices.rows("a", range(8)), with_value(value))
