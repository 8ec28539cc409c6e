"""How many nodes of a draft are verified: as many as give most tokens for their time."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from edge_rt.runtime.speculation.cost_model import best_size


@st.composite
def values_and_costs(draw):
    values = sorted(draw(st.lists(st.floats(0, 1), max_size=12)), reverse=True)
    first, *more = draw(st.lists(st.floats(0.01, 5), min_size=len(values) + 1, max_size=len(values) + 3))
    costs = [first]
    for step in more:
        costs.append(costs[-1] + step)
    return values, costs


class TestBestSize:
    @given(drawn=values_and_costs(), drafting=st.floats(0, 3))
    def test_it_is_the_maximum_of_goodput(self, drawn, drafting):
        values, costs = drawn
        speeds = [(1 + sum(values[:size])) / (costs[size] + drafting) for size in range(len(values) + 1)]
        size = best_size(values, costs, drafting)
        assert speeds[size] == pytest.approx(max(speeds))

    def test_nothing_where_nothing_pays(self):
        assert best_size([], [4.0], 0.1) == 0
        assert best_size([0.0, 0.0], [4.0, 4.0, 4.0], 0.0) == 0
        assert best_size([0.1, 0.05], [4.0, 5.0, 6.0], 0.1) == 0
        assert best_size([0.99, 0.98], [4.0, 8.0, 12.0], 0.0) == 0

    def test_all_where_rows_cost_nothing(self):
        assert best_size([0.3, 0.2, 0.1], [4.0] * 4, 0.0) == 3

    def test_it_looks_beyond_a_step_of_the_costs(self):
        costs = [4.0, 6.0, 6.0, 6.0, 6.0]
        assert best_size([0.4], costs, 0.0) == 0
        assert best_size([0.4, 0.35, 0.3, 0.3], costs, 0.0) == 4
