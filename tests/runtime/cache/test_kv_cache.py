from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from edge_rt.errors import ContextOverflow
from edge_rt.runtime.cache.kv_cache import KVCache


@pytest.fixture
def cache():
    cache = KVCache(10)
    with cache.reserve(4) as rows:
        rows.commit([1, 2, 3, 4])
    return cache


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
    cache.truncate(2)
    assert (cache.length, cache.token_ids) == (2, (1, 2))
    with cache.reserve(8) as rows:
        assert rows.start == 2


class TestPaths:
    """Tokens of a tree are kept by renaming rows, not by moving them."""

    @pytest.fixture
    def row_map(self):
        return np.arange(10, dtype=np.int32)

    @pytest.fixture
    def cache(self, row_map):
        cache = KVCache(10, row_map=row_map)
        with cache.reserve(2) as rows:
            rows.commit([1, 2])
        return cache

    def test_the_first_rows_need_no_renaming(self, cache, row_map):
        with cache.reserve(4) as rows:
            rows.commit([5, 6], path=[0, 1])
        assert list(row_map) == list(range(10))
        assert cache.token_ids == (1, 2, 5, 6)

    def test_a_path_comes_first_and_the_rest_behind_it(self, cache, row_map):
        with cache.reserve(5, [-1, -1, 0, 1, 1]) as rows:
            rows.commit([5, 6], path=[1, 4])
        cache.check()
        assert list(row_map) == [0, 1, 3, 6, 2, 4, 5, 7, 8, 9]
        assert cache.token_ids == (1, 2, 5, 6)

    def test_the_map_stays_when_rows_are_rolled_back(self, cache, row_map):
        with cache.reserve(3, [-1, -1, -1]) as rows:
            rows.commit([5], path=[2])
        cache.truncate(1)
        assert list(row_map) == [0, 1, 4, 2, 3, 5, 6, 7, 8, 9]
        with cache.reserve(3, [-1, -1, 1]) as rows:
            rows.commit([7, 8], path=[1, 2])
        assert list(row_map) == [0, 4, 2, 1, 3, 5, 6, 7, 8, 9]
        cache.check()

    def test_without_commit_nothing_is_renamed(self, cache, row_map):
        with cache.reserve(5):
            pass
        assert list(row_map) == list(range(10))

    # Row 3 follows row 1, the others follow the one before them.
    @pytest.mark.parametrize("path", [[1, 1], [0], [0, 5], [-1, 0], [0, 1, 2], [0, 2], [1, 2], [0, 3], [1, 0], [2, 3]])
    def test_misuse_is_an_assertion_and_changes_nothing(self, cache, row_map, path):
        with cache.reserve(5, [-1, 0, 1, 1, 3]) as rows, pytest.raises(AssertionError):
            rows.commit([5, 6], path=path)
        assert list(row_map) == list(range(10))
        assert cache.length == 2

    def test_a_cache_without_a_map_keeps_the_first_rows_only(self):
        cache = KVCache(10)
        with cache.reserve(3, [-1, -1, -1]) as rows, pytest.raises(AssertionError, match="cannot change places"):
            rows.commit([5], path=[1])
        with cache.reserve(3) as rows:
            rows.commit([5, 6], path=[0, 1])
        assert cache.token_ids == (5, 6)

    def test_a_row_that_is_mapped_twice_is_found(self, cache, row_map):
        row_map[3] = 4
        with pytest.raises(AssertionError, match="mapped twice"):
            cache.check()

    @given(st.data())
    def test_every_kept_token_keeps_its_row(self, data):
        """However trees come and go, the row in memory of a committed token is the one it was computed into."""
        row_map = np.arange(24, dtype=np.int32)
        cache = KVCache(24, row_map=row_map)
        memory, token = [None] * 24, 0
        for _ in range(data.draw(st.integers(1, 8))):
            cache.truncate(data.draw(st.integers(0, cache.length)))
            count = data.draw(st.integers(1, 24 - cache.length)) if cache.length < 24 else 0
            parents = [data.draw(st.integers(-1, row - 1)) for row in range(count)]
            with cache.reserve(count, parents) as rows:
                tokens = list(range(token, token + count))
                for row in range(count):
                    memory[row_map[rows.start + row]] = tokens[row]
                path = [data.draw(st.integers(0, count - 1))] if count else []
                while path and parents[path[0]] >= 0:
                    path.insert(0, parents[path[0]])
                del path[data.draw(st.integers(0, len(path))) :]
                rows.commit([tokens[row] for row in path], path)
            token += count
            cache.check()
            assert [memory[row_map[i]] for i in range(cache.length)] == list(cache.token_ids)
