from __future__ import annotations

import os

import numpy as np
import psutil
import pytest

from edge_rt.errors import ContextOverflow
from edge_rt.runtime.cache import KVCache
from tests.helpers.fake_model import model_config


@pytest.fixture
def cache():
    cache = KVCache(model_config(num_layers=2, num_kv_heads=3, head_dim=8), capacity=10)
    with cache.reserve(4) as rows:
        rows.commit([1, 2, 3, 4])
    return cache


def test_buffers_are_what_the_graph_binds(cache):
    assert [array.shape for array in (*cache.keys, *cache.values)] == [(1, 3, 10, 8)] * 4
    assert all(a.dtype == np.float32 and a.flags.c_contiguous and a.flags.writeable for a in cache.keys)
    assert cache.row_bytes == 2 * 2 * 3 * 8 * 4


def test_buffers_do_not_overlap(cache):
    for number, array in enumerate((*cache.keys, *cache.values)):
        array[:] = number
    assert [set(np.unique(a)) for a in (*cache.keys, *cache.values)] == [{0.0}, {1.0}, {2.0}, {3.0}]


def test_committed_rows_are_the_tokens(cache):
    assert (cache.length, cache.token_ids) == (4, (1, 2, 3, 4))


def test_a_reservation_begins_behind_the_committed_rows(cache):
    with cache.reserve(3) as rows:
        assert (rows.start, rows.count) == (4, 3)
        cache.check()
        rows.commit([5])
    assert cache.token_ids == (1, 2, 3, 4, 5)
    cache.check()


def test_without_commit_nothing_changes(cache):
    with cache.reserve(3):
        pass
    assert cache.length == 4
    with cache.reserve(6):
        pass


def test_an_exception_frees_the_rows(cache):
    with pytest.raises(RuntimeError), cache.reserve(6):
        raise RuntimeError
    cache.check()
    with cache.reserve(6) as rows:
        assert rows.start == 4


def test_more_rows_than_there_are(cache):
    with pytest.raises(ContextOverflow) as caught:
        cache.reserve(7)
    assert (caught.value.prompt_tokens, caught.value.requested_tokens, caught.value.context_tokens) == (4, 7, 10)
    assert cache.length == 4


def test_the_last_row_can_be_had(cache):
    with cache.reserve(6) as rows:
        rows.commit([9] * 6)
    assert cache.length == cache.capacity


def test_misuse_is_an_assertion(cache):
    with cache.reserve(2) as rows:
        with pytest.raises(AssertionError, match="reserved"):
            cache.reserve(1).__enter__()
        with pytest.raises(AssertionError, match="reserved"):
            cache.truncate(0)
        with pytest.raises(AssertionError):
            rows.commit([1, 2, 3])
        rows.commit([1])
        with pytest.raises(AssertionError, match="committed twice"):
            rows.commit([1])
    with pytest.raises(AssertionError):
        cache.truncate(6)


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [([], 0), ([1, 2], 2), ([1, 2, 3, 4], 4), ([1, 2, 3, 4, 5], 4), ([1, 9, 3], 1), ([9], 0)],
)
def test_common_prefix(cache, token_ids, expected):
    assert cache.common_prefix(token_ids) == expected


def test_rolling_back_is_a_smaller_length(cache):
    cache.keys[0][:] = 7
    cache.truncate(2)
    assert cache.token_ids == (1, 2)
    assert (cache.keys[0] == 7).all()


def test_rows_take_memory_only_when_written():
    process = psutil.Process(os.getpid())
    before = process.memory_info().rss
    cache = KVCache(model_config(num_layers=8, num_kv_heads=8, head_dim=64), capacity=4096)
    for array in (*cache.keys, *cache.values):
        array[:, :, :16] = 1
    assert cache.row_bytes * cache.capacity == 128 << 20
    assert process.memory_info().rss - before < 8 << 20
