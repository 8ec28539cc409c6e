"""SpecAttention with fewer rows than positions: rows that a window has left are given to new positions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from edge_rt.runtime.cache.sliding_window import SlidingWindow
from tests.ops.attention_cases import Case, Layer, check, make_rows, make_tables, random_parents
from tests.ops.single_op import needs_native
from tests.ops.spec_attention_reference import FORMATS, Config

pytestmark = [needs_native, pytest.mark.own_pools]

POSITIONS = 700


class Ring(Layer):
    """A layer whose cache holds ``capacity`` of ``POSITIONS`` rows; what no position was written to is no number."""

    def __init__(self, config, tables, kv_format, capacity, **options):
        super().__init__(config, tables, kv_format, capacity=capacity, **options)
        self.rows = SlidingWindow(config.window, capacity, POSITIONS)
        self.row_map = self.rows.row_map
        self.cache[...] = 0xFF

    def run(self, qkv, past, parents=None, /, **changed):
        self.rows.assign(past + len(qkv))
        return super().run(qkv, past, parents, **changed)


def make_pair(rng, window, slack, kv_format, **options):
    """Return the same layer with all rows and with those of a ring that has room for passes of ``slack`` rows."""
    config = Config(heads=6, kv_heads=2, dim=24, window=window)
    tables = make_tables(rng, Case(config, is_long=True))
    whole = Layer(config, tables, kv_format, capacity=POSITIONS, threads=2)
    return config, whole, Ring(config, tables, kv_format, window + slack - 1, threads=2, **options)


@settings(max_examples=25, derandomize=True)
@given(st.data())
def test_a_ring_gives_the_bits_of_a_whole_cache(data):
    window = data.draw(st.sampled_from([1, 2, 15, 16, 17, 63, 64, 65, 100, 255, 257, 300]))
    slack = data.draw(st.sampled_from([1, 2, 8, 33, 80]))
    kv_format = data.draw(st.sampled_from(FORMATS))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    config, whole, ring = make_pair(rng, window, slack, kv_format)
    past = 0
    while past < min(POSITIONS - slack, 2 * window + 130):
        count = data.draw(st.integers(1, slack))
        is_tree = data.draw(st.booleans()) and count < 20
        rows = make_rows(rng, config, count)
        parents = random_parents(rng, count) if is_tree else None
        found = ring.run(rows, past, parents)
        assert found.tobytes() == whole.run(rows, past, parents).tobytes()
        # Of a tree the first row stays.
        past += 1 if is_tree else count


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize(("window", "slack"), [(40, 9), (257, 64), (300, 1)])
def test_a_ring_matches_the_reference(window, slack, kv_format):
    rng = np.random.default_rng(window)
    config, _, ring = make_pair(rng, window, slack, kv_format)
    past = 0
    while past + slack <= POSITIONS:
        rows = make_rows(rng, config, slack)
        y = ring.run(rows, past)
        if past + 3 * slack > POSITIONS:
            check(y, ring.expected(rows, past), kv_format)
        past += slack
    assert ring.rows.assigned >= 2 * ring.rows.capacity


def prepared(window=8, slack=4, past=40):
    config, _, ring = make_pair(np.random.default_rng(0), window, slack, "f32")
    rng = np.random.default_rng(1)
    for position in range(past):
        ring.run(make_rows(rng, config, 1), position)
    return ring, make_rows(rng, config, 3)


def changed_map(ring, position, row):
    row_map = ring.row_map.copy()
    row_map[position] = row
    return row_map


def test_rows_that_nobody_sees_may_be_written():
    ring, rows = prepared()
    ring.rows.assign(43)
    # Position 32 is the last that the token at 40 does not see, 33 the first that it does.
    ring.run(rows, 40, row_map=changed_map(ring, 41, ring.row_map[32]))
    with pytest.raises(Exception, match="row_map gives row 0 of position 33 to the pass"):
        ring.run(rows, 40, row_map=changed_map(ring, 41, ring.row_map[33]))


@pytest.mark.parametrize(
    ("position", "row", "message"),
    [
        (40, -1, "row_map holds -1, must be 0 to 10"),
        (42, 11, "row_map holds 11"),
        (35, 2**31 - 1, "row_map holds 2147483647"),
        # Not seen, but looked at when memory is fetched ahead.
        (0, -(2**31), "row_map holds -2147483648"),
        (42, "of 41", "row_map gives row 8 to two positions"),
    ],
)
def test_maps_that_lead_astray_are_errors(position, row, message):
    ring, rows = prepared()
    ring.rows.assign(43)
    wrong = changed_map(ring, position, ring.row_map[41] if isinstance(row, str) else row)
    before = ring.memory.copy()
    with pytest.raises(Exception, match=f"SpecAttention: {message}"):
        ring.run(rows, 40, row_map=wrong)
    assert ring.memory.tobytes() == before.tobytes()
    assert np.isfinite(ring.run(rows, 40)).all()


def test_a_pass_that_is_larger_than_the_ring_has_room_for_is_an_error():
    ring, _ = prepared()
    rng = np.random.default_rng(0)
    ring.run(make_rows(rng, ring.config, 4), 40)
    with pytest.raises(Exception, match="7 positions seen and 5 rows of the pass, cache has 11 rows"):
        ring.run(make_rows(rng, ring.config, 5), 40)


def test_a_map_that_ends_before_the_pass_is_an_error():
    ring, rows = prepared()
    with pytest.raises(Exception, match="past_length 40 and 3 rows of the pass, row_map has 42 positions"):
        ring.run(rows, 40, row_map=ring.row_map[:42].copy())


def test_without_a_window_a_cache_needs_as_many_rows_as_positions_are_used():
    config = Config(dim=24)
    layer = Layer(config, make_tables(np.random.default_rng(0), Case(config)), capacity=20)
    rows, row_map = make_rows(np.random.default_rng(0), config, 3), np.zeros(40, np.int32)
    row_map[:20] = np.arange(20)
    layer.run(rows, 17, row_map=row_map)
    with pytest.raises(Exception, match="18 positions seen and 3 rows of the pass, cache has 20 rows"):
        layer.run(rows, 18, row_map=row_map)
