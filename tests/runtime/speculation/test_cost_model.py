"""The costs of passes: measured, interpolated, kept on disk."""

from __future__ import annotations

import itertools
import json
import os
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from hypothesis import assume, given, strategies as st

from edge_rt.runtime.speculation.cost_model import (
    CURVE_DEPTHS,
    CURVE_ROWS,
    MOST_FILES,
    MOST_SETTINGS,
    CostStore,
    RowCosts,
    measure,
)
from edge_rt.system.json_files import JsonCache
from tests.helpers.fake_sources import Clock

COSTS = RowCosts((1, 2, 4, 8), (100, 500), ((10.0, 11.0, 15.0, 17.0), (14.0, 15.0, 23.0, 25.0)))
KEY = {"package_id": "abc", "threads": 4}


@st.composite
def tables(draw):
    """Draw costs whose entries rise with depth, and are noisy over rows."""
    rows = (1, *sorted(draw(st.sets(st.integers(2, 40), max_size=5))))
    depths = tuple(sorted(draw(st.sets(st.integers(0, 4000), min_size=1, max_size=4))))
    line = draw(st.lists(st.floats(0.1, 100), min_size=len(rows), max_size=len(rows)))
    lines = [line]
    for _ in depths[1:]:
        more = draw(st.lists(st.floats(0, 10), min_size=len(rows), max_size=len(rows)))
        lines.append([a + b for a, b in zip(lines[-1], more, strict=True)])
    return RowCosts(rows, depths, tuple(map(tuple, lines)))


class TestCurve:
    def test_measured_points_are_met(self):
        curve = COSTS.curve(100, 8)
        assert [curve[rows - 1] for rows in COSTS.rows] == [10.0, 11.0, 15.0, 17.0]
        curve = COSTS.curve(500, 8)
        assert [curve[rows - 1] for rows in COSTS.rows] == [14.0, 15.0, 23.0, 25.0]

    def test_between_rows(self):
        assert COSTS.curve(100, 8) == pytest.approx([10, 11, 13, 15, 15.5, 16, 16.5, 17])

    def test_between_depths(self):
        curve = COSTS.curve(200, 8)
        assert [curve[rows - 1] for rows in COSTS.rows] == pytest.approx([11.0, 12.0, 17.0, 19.0])

    def test_behind_the_last_rows(self):
        assert COSTS.curve(100, 12)[8:] == pytest.approx([17.5, 18.0, 18.5, 19.0])

    def test_behind_the_last_depth(self):
        assert COSTS.curve(900, 2) == pytest.approx([18.0, 19.0])

    @pytest.mark.parametrize("depth", [0, 50, 100])
    def test_before_the_first_depth(self, depth):
        assert COSTS.curve(depth, 2) == [10.0, 11.0]

    def test_one_depth_serves_all(self):
        costs = RowCosts((1, 4), (0,), ((2.0, 5.0),))
        assert costs.curve(0, 5) == costs.curve(9999, 5) == pytest.approx([2, 3, 4, 5, 6])

    def test_one_row_count(self):
        assert RowCosts((1,), (0,), ((2.0,),)).curve(0, 3) == pytest.approx([2, 4, 6])

    def test_noise_does_not_make_larger_passes_cheaper(self):
        costs = RowCosts((1, 2, 4), (0,), ((5.0, 4.0, 3.0),))
        assert costs.curve(0, 6) == [5.0] * 6

    @given(costs=tables(), depth=st.integers(0, 20000), most=st.integers(1, 64))
    def test_it_never_falls(self, costs, depth, most):
        curve = costs.curve(depth, most)
        assert len(curve) == most
        assert all(first <= second for first, second in pairwise(curve))

    @given(costs=tables(), depth=st.integers(0, 5000))
    def test_a_shorter_curve_is_the_beginning_of_a_longer_one(self, costs, depth):
        assert costs.curve(depth, 5) == costs.curve(depth, 30)[:5]

    @given(costs=tables(), data=st.data())
    def test_it_lies_between_the_depths_around(self, costs, data):
        assume(len(costs.depths) > 1)
        place = data.draw(st.integers(0, len(costs.depths) - 2))
        depth = data.draw(st.integers(costs.depths[place], costs.depths[place + 1] - 1))
        low, high = (line[0] for line in costs.ms[place : place + 2])
        assert low - 1e-9 <= costs.curve(depth, 1)[0] <= high + 1e-9


class TestJSON:
    @given(costs=tables())
    def test_round_trip(self, costs):
        assert RowCosts.from_json(json.loads(json.dumps(costs.to_json()))) == costs

    @pytest.mark.parametrize(
        "change",
        [
            {"version": 1}, {"version": None}, {"rows": []}, {"rows": [2, 4]}, {"rows": [1, 4, 2, 8]},
            {"rows": [1, 1, 2, 4]}, {"rows": [1, 2, 4]}, {"rows": None}, {"rows": 4}, {"rows": [1, None, 4, 8]},
            {"depths": []}, {"depths": [100]}, {"depths": [500, 100]}, {"depths": [100, 100]}, {"depths": 5},
            {"ms": []}, {"ms": [[1.0] * 4]}, {"ms": [[1.0] * 4, [1.0] * 3]}, {"ms": [[1.0] * 4, [0.0] * 4]},
            {"ms": [[1.0] * 4, [-1.0] * 4]}, {"ms": [[1.0] * 4, [float("nan")] * 4]}, {"ms": [[1.0] * 4, [1e9] * 4]},
            {"ms": [[1.0] * 4, [float("inf")] * 4]}, {"ms": [[1.0] * 4, ["x"] * 4]}, {"ms": 7}, {"ms": [[1.0] * 4, 3]},
        ],
    )  # fmt: skip
    def test_what_is_malformed_is_refused(self, change):
        document = COSTS.to_json()
        assert RowCosts.from_json(document) == COSTS
        assert RowCosts.from_json(document | change) is None

    @pytest.mark.parametrize("name", ["version", "rows", "depths", "ms"])
    def test_what_lacks_a_part_is_refused(self, name):
        document = COSTS.to_json()
        del document[name]
        assert RowCosts.from_json(document) is None

    @pytest.mark.parametrize("document", [None, 5, "text", [], [1, 2], {}])
    def test_what_is_something_else_is_refused(self, document):
        assert RowCosts.from_json(document) is None


class FakePasses:
    """Passes that take as long as a function of rows, depth and how often they ran says."""

    def __init__(self, ms):
        self.clock = Clock()
        self.calls = []
        self._ms = ms

    def __call__(self, rows, depth):
        self.calls.append((rows, depth))
        self.clock.sleep(self._ms(rows, depth, self.calls.count((rows, depth))))


class TestMeasure:
    def test_all_sizes_at_all_depths(self):
        passes = FakePasses(lambda rows, depth, turn: rows + depth / 1000)
        costs = measure(passes, 8192, clock=passes.clock)
        assert (costs.rows, costs.depths) == (CURVE_ROWS, CURVE_DEPTHS)
        for depth, line in zip(costs.depths, costs.ms, strict=True):
            assert line == pytest.approx([rows + depth / 1000 for rows in CURVE_ROWS])

    @pytest.mark.parametrize("first", [0.5, 100.0])
    def test_the_first_round_and_slow_ones_do_not_count(self, first):
        passes = FakePasses(lambda rows, depth, turn: {1: first, 2: 50.0, 4: 2.0 + rows}.get(turn, 9.0))
        costs = measure(passes, 100, rows=(1, 3), depths=(10,), rounds=5, clock=passes.clock)
        assert costs.ms == (pytest.approx((3.0, 5.0)),)

    @pytest.mark.parametrize(
        ("budget", "rounds"), [(0.0, [2, 0]), (0.05, [2, 0]), (0.1, [2, 2]), (0.3, [4, 2]), (9.0, [5, 5])]
    )
    def test_a_slow_machine_measures_less_often(self, budget, rounds):
        passes = FakePasses(lambda rows, depth, turn: 10.0 * rows)
        costs = measure(passes, 100, rows=(1, 3), depths=(0, 8), budget=budget, clock=passes.clock)
        assert [passes.calls.count((3, depth)) for depth in (0, 8)] == rounds
        assert costs.ms == (pytest.approx((10.0, 30.0)),) * len([count for count in rounds if count])

    @pytest.mark.parametrize(("ms", "rows"), [(400.0, (1, 2, 4, 8)), (500.0, (1, 2, 4)), (4000.0, (1, 2))])
    def test_a_very_slow_device_is_measured_with_few_rows(self, ms, rows):
        passes = FakePasses(lambda rows, depth, turn: ms * (1 + rows / 10))
        costs = measure(passes, 100, rows=(1, 2, 4, 8, 16), depths=(0, 8), budget=0.5, clock=passes.clock)
        assert (costs.rows, costs.depths) == (rows, (0,))
        assert costs.curve(0, 16)[15] == pytest.approx(ms * 2.6)

    def test_sizes_take_turns(self):
        """What slows the machine for a moment hits all sizes alike."""
        passes = FakePasses(lambda rows, depth, turn: 1.0)
        measure(passes, 100, rows=(1, 2, 4), depths=(0, 8), rounds=2, clock=passes.clock)
        assert passes.calls == [(rows, depth) for depth in (0, 8) for _ in range(3) for rows in (1, 1, 2, 4)]

    @pytest.mark.parametrize(
        ("capacity", "rows", "depths"),
        [(8192, CURVE_ROWS, CURVE_DEPTHS), (600, CURVE_ROWS, (64, 320)), (336, CURVE_ROWS, (64, 320)),
         (335, CURVE_ROWS, (64,)), (30, CURVE_ROWS, (0,)), (10, (1, 2, 4, 8, 9), (0,)), (2, (1, 2), (0,))],
    )  # fmt: skip
    def test_only_what_fits_the_cache(self, capacity, rows, depths):
        passes = FakePasses(lambda rows, depth, turn: 1.0)
        costs = measure(passes, capacity, clock=passes.clock)
        assert (costs.rows, costs.depths) == (rows, depths)
        assert max(count + depth for count, depth in passes.calls) <= capacity
        assert len(costs.curve(capacity, 24)) == 24
        assert RowCosts.from_json(json.loads(json.dumps(costs.to_json()))) == costs


class TestStore:
    def test_costs_are_stored_by_key(self, tmp_path):
        store = CostStore(tmp_path / "new")
        assert store.load(KEY) is None
        assert store.save(KEY, COSTS)
        assert store.load(KEY) == COSTS
        assert store.find({"threads": 4}) == [(KEY, COSTS)]

    def test_a_package_has_one_file_of_the_settings_that_changed_last(self, tmp_path):
        store = CostStore(tmp_path)
        for threads in range(MOST_SETTINGS + 3):
            store.save(KEY | {"threads": threads}, COSTS)
        assert len(list(tmp_path.iterdir())) == 1
        kept = [key["threads"] for key, _ in store.find({"package_id": "abc"})]
        assert kept == list(reversed(range(3, MOST_SETTINGS + 3)))
        store.save(KEY | {"threads": 3}, COSTS)
        assert [key["threads"] for key, _ in store.find({})][:2] == [3, MOST_SETTINGS + 2]

    def test_the_oldest_files_are_dropped(self, tmp_path):
        store = CostStore(tmp_path)
        for number in range(MOST_FILES + 5):
            (tmp_path / f"{number}.json").write_text("of another layout")
            os.utime(tmp_path / f"{number}.json", (number, number))
        store.save(KEY, COSTS)
        assert len(list(tmp_path.iterdir())) == MOST_FILES
        assert not (tmp_path / "5.json").exists()
        assert store.load(KEY) == COSTS

    @pytest.mark.parametrize(
        "entries",
        [None, 5, {}, [5], [{}], [{"key": KEY, "time": 1.0, "rows": [1], "depths": [0], "ms": [["fast"]]}],
         [{"key": 3, "time": 1.0, **COSTS.to_json()}], [{"key": KEY, "time": "now", **COSTS.to_json()}]],
    )  # fmt: skip
    def test_stored_numbers_that_are_no_costs_are_none(self, tmp_path, entries):
        store = CostStore(tmp_path)
        file_key = {"package_id": "abc", "edge_rt": None, "cpu": None}
        assert JsonCache(tmp_path).save(file_key, {"entries": entries})
        assert (store.load(KEY), store.find({})) == (None, [])
        assert store.save(KEY, COSTS)
        assert store.load(KEY) == COSTS

    def test_writers_at_once_leave_a_whole_file(self, tmp_path):
        def write(number):
            return [CostStore(tmp_path).save(KEY | {"threads": number}, COSTS) for _ in range(20)]

        with ThreadPoolExecutor(4) as pool:
            assert all(itertools.chain(*pool.map(write, range(4))))
        found = CostStore(tmp_path).find({})
        assert 1 <= len(found) <= 4
        assert all(costs == COSTS for _, costs in found)
