"""RowTopK against a full sort."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests.helpers.examples import share_of
from tests.ops.single_op import ISAS, SingleOp, needs_native

pytestmark = [needs_native, pytest.mark.own_pools]


def top_k(logits, k, **options):
    return SingleOp("RowTopK", {"k": k}, {"logits": logits}, **options)(logits=logits)


def check(logits, k, found):
    ids, values, log_sum_exp = found
    order = np.argsort(-logits, axis=-1, kind="stable")[:, :k]
    np.testing.assert_array_equal(ids, order)
    np.testing.assert_array_equal(values, np.take_along_axis(logits, order, -1))
    wide = logits.astype(np.float64)
    peak = wide.max(-1)
    np.testing.assert_allclose(log_sum_exp, peak + np.log(np.exp(wide - peak[:, None]).sum(-1)), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("width", [1, 15, 16, 17, 4096, 4097, 49152])
@pytest.mark.parametrize("k", [1, 8, 64])
def test_largest_and_log_sum_exp(width, k):
    if k > width:
        pytest.skip("k is larger than the row")
    rng = np.random.default_rng(width)
    logits = (rng.standard_normal((3, width)) * 5).astype(np.float32)
    check(logits, k, top_k(logits, k))


@settings(max_examples=share_of(40))
@given(st.integers(1, 200), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_ties_go_to_the_smaller_id(width, k, seed):
    logits = np.random.default_rng(seed).integers(-2, 3, (2, width)).astype(np.float32)
    check(logits, min(k, width), top_k(logits, min(k, width)))


def test_rows_threads_and_instruction_sets_do_not_show():
    rng = np.random.default_rng(4)
    logits = (rng.standard_normal((9, 20000)) * 4).astype(np.float32)
    wanted = [np.concatenate(parts) for parts in zip(*(top_k(logits[i : i + 1], 8) for i in range(9)), strict=True)]
    for options in ({"threads": 3}, *({"isa": isa} for isa in ISAS)):
        for found, want in zip(top_k(logits, 8, **options), wanted, strict=True):
            assert found.tobytes() == want.tobytes(), options


def test_a_logit_that_is_no_number_is_left_out():
    logits = np.full((1, 40), np.nan, np.float32)
    logits[0, 5] = 1.0
    ids, values, log_sum_exp = top_k(logits, 3)
    assert ids.tolist() == [[5, -1, -1]]
    assert values.tolist() == [[1.0, -np.inf, -np.inf]]
    assert np.isnan(log_sum_exp).all()


@pytest.mark.parametrize("k", [0, 65])
def test_wrong_k_is_an_error(k):
    with pytest.raises(Exception, match="RowTopK: k is"):
        top_k(np.zeros((1, 100), np.float32), k)


def test_k_beyond_the_row_is_an_error():
    with pytest.raises(Exception, match="2 columns"):
        top_k(np.zeros((1, 2), np.float32), 3)
