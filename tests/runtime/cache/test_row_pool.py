"""Caches that share the rows of a pool: nobody loses a row, and nobody writes what another reads."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from edge_rt.errors import ContextOverflow, MemoryBudgetExceeded
from edge_rt.package.kv_formats import ROW_BLOCK
from edge_rt.runtime.cache.row_pool import PooledCache, RowPool
from tests.helpers.examples import share_of

CAPACITY, BLOCKS = 90, 14


class FailingPool(RowPool):
    """Gives no blocks, or is interrupted where it wakes what rests, while it is told so."""

    fails = is_interrupted = False

    def take(self, count):
        if self.fails:
            raise MemoryBudgetExceeded("There are no rows.")
        return super().take(count)

    def wake(self, sequence):
        if self.is_interrupted:
            raise KeyboardInterrupt
        return super().wake(sequence)


class Sequences:
    """Caches of a pool, the memory of its rows, and what every cache must find there."""

    def __init__(self, **options):
        self.pool = FailingPool(BLOCKS * ROW_BLOCK + 5, **options)
        self.caches, self.texts = [], []
        self.memory, self.written = {}, 0

    def add(self, source=None, length=0):
        cache = PooledCache(CAPACITY, self.pool)
        kept = 0 if source is None else cache.fork(self.caches[source], length)
        assert kept <= length < kept + CAPACITY
        self.caches.append(cache)
        self.texts.append([] if source is None else self.texts[source][:kept])
        return cache

    def extend(self, number, count, parents=None, path=None):
        cache = self.caches[number]
        with cache.reserve(count, parents) as rows:
            numbers = range(self.written, self.written + count)
            self.written += count
            for row, token in zip(cache.row_map[rows.start : rows.start + count].tolist(), numbers, strict=True):
                self.memory[row] = token
            path = list(range(count)) if path is None else path
            rows.commit([numbers[row] for row in path], path)
        self.texts[number] += [numbers[row] for row in path]

    def truncate(self, number, length):
        kept = self.caches[number].truncate(length)
        assert kept <= length
        del self.texts[number][kept:]

    def release(self, number):
        self.caches.pop(number).release()
        self.texts.pop(number)

    def check(self):
        self.pool.check(self.caches)
        for cache, text in zip(self.caches, self.texts, strict=True):
            assert list(cache.token_ids) == text
            assert [self.memory[row] for row in cache.row_map[: cache.length].tolist()] == text


def draw_path(draw, count):
    """Return a tree and a path through it."""
    parents = [draw(st.integers(-1, i - 1)) for i in range(count)]
    path, node = [], draw(st.integers(-1, count - 1))
    while node >= 0:
        path.append(node)
        node = parents[node]
    return parents, path[::-1]


@settings(max_examples=share_of(150))
@given(st.data())
def test_rows_stay_what_they_are_whatever_other_sequences_do(data):
    draw, sequences = data.draw, Sequences()
    for _ in range(draw(st.integers(5, 40))):
        kinds = ["add", *(["extend"] * 3 + ["fork", "truncate", "provide", "release"] if sequences.caches else [])]
        kind, before = draw(st.sampled_from(kinds)), [list(text) for text in sequences.texts]
        number = draw(st.integers(0, len(before) - 1)) if before else 0
        sequences.pool.fails = draw(st.integers(0, 5)) == 0
        try:
            if kind == "add":
                sequences.add()
            elif kind == "fork":
                sequences.add(number, draw(st.integers(0, len(before[number]))))
            elif kind == "extend":
                count = draw(st.integers(1, 40))
                sequences.extend(number, count, *(draw_path(draw, count) if draw(st.booleans()) else ()))
            elif kind == "truncate":
                sequences.truncate(number, draw(st.integers(0, len(before[number]))))
            elif kind == "provide":
                sequences.caches[number].provide(draw(st.integers(0, CAPACITY)))
            else:
                sequences.release(number)
        except (MemoryBudgetExceeded, ContextOverflow):
            assert sequences.texts == before
        sequences.check()
    while sequences.caches:
        sequences.release(0)
    assert sequences.pool.num_free == sequences.pool.num_blocks == BLOCKS


def test_a_beginning_in_common_takes_rows_once():
    sequences = Sequences()
    sequences.add()
    sequences.extend(0, 40)
    free = sequences.pool.num_free
    assert sequences.add(0, 40).length == 32
    assert sequences.pool.num_free == free
    sequences.extend(1, 3)
    assert sequences.pool.num_free == free - 1
    sequences.release(0)
    assert sequences.pool.num_free == free
    sequences.check()


def test_what_another_shares_is_kept_in_whole_blocks_and_not_written():
    sequences = Sequences()
    sequences.add()
    sequences.extend(0, 40)
    sequences.add(0, 40)
    # The third block is the first cache's alone: rows of it may be written again.
    sequences.truncate(0, 36)
    assert sequences.caches[0].length == 36
    sequences.truncate(0, 21)
    assert sequences.caches[0].length == 16
    sequences.extend(0, 20)
    sequences.check()


def test_rows_that_were_provided_are_there_when_others_have_taken_the_rest():
    sequences = Sequences()
    sequences.add().provide(80)
    sequences.add()
    sequences.extend(1, 90)
    with pytest.raises(MemoryBudgetExceeded, match="64 rows wanted, 48 of 224 free"):
        sequences.add().provide(49)
    sequences.extend(0, 80)
    sequences.check()


def test_blocks_are_counted_anew_once_for_each_cache_that_holds_them():
    sequences = Sequences()
    pool = sequences.pool
    sequences.add()
    sequences.extend(0, 40)
    sequences.add(0, 40)
    sequences.add(1, 16)
    pool.recount(sequences.caches)
    sequences.check()
    # Interrupts came before these were in a map.
    pool.share(sequences.caches[0].blocks)
    pool.take(2)
    assert pool.num_free == BLOCKS - 5
    pool.recount(sequences.caches)
    sequences.check()
    assert pool.num_free == BLOCKS - 3


def test_where_more_rest_than_may_the_oldest_are_left_out_when_blocks_are_counted_anew():
    sequences = Sequences(most_resting=2)
    pool, caches = sequences.pool, sequences.caches
    for number in range(3):
        sequences.add()
        sequences.extend(number, 20)
    sequences.add(2, 16)
    caches[0].rest()
    caches[1].rest()
    pool.is_interrupted = True
    with pytest.raises(KeyboardInterrupt):
        caches[2].rest()
    pool.is_interrupted = False
    assert len(pool.resting) == 3
    kept = pool.resting[1:]
    pool.recount(caches)
    assert pool.resting == kept
    # Its rows rest, and it holds them as well until it has left.
    caches[2].rest()
    pool.check(caches)
    assert pool.num_free == BLOCKS - 4
