"""How the rows of a pass are divided among drafts: so that it gives most tokens for its time."""

from __future__ import annotations

from array import array
from itertools import product

import pytest
from hypothesis import given, strategies as st

from edge_rt.errors import InferenceError
from edge_rt.runtime.speculation.core import Tree, divide
from edge_rt.runtime.speculation.library import draft_library
from tests.reference.tree import best_size


def sizes_of(values, costs, *, known=None, attention=None, most=None, tokens=None, drafting=0.0, least=0):
    """Return how many of the nodes of these values each tree may have."""
    known = known or [1] * len(values)
    held = [(array("d", one), None if attention is None else array("d", attention[i])) for i, one in enumerate(values)]
    trees = [
        Tree(len(one), one.buffer_info()[0], rows, more) for (one, more), rows in zip(held, known, strict=True)
    ]  # fmt: skip
    most = len(costs) - sum(known) if most is None else most
    tokens = len(values) if tokens is None else tokens
    options = {"most": most, "tokens": tokens, "drafting": drafting, "least": least}
    return divide(draft_library(), trees, array("d", costs), **options)


falling = st.lists(st.floats(0, 1), max_size=4).map(lambda values: sorted(values, reverse=True))


@st.composite
def passes(draw):
    values = draw(st.lists(falling, min_size=1, max_size=3))
    known = [draw(st.integers(1, 3)) for _ in values]
    rows = sum(known) + sum(map(len, values))
    steps = st.lists(st.floats(0.01, 5), min_size=rows, max_size=rows)
    costs, *attention = ([sum(line[: i + 1]) for i in range(rows)] for line in draw(st.tuples(*[steps] * 4)))
    return values, known, costs, attention[: len(values)]


class TestDivision:
    @given(drawn=passes(), drafting=st.floats(0, 3), tokens=st.floats(0.5, 4))
    def test_no_beginning_of_the_merged_trees_is_faster(self, drawn, drafting, tokens):
        values, known, costs, attention = drawn

        def speed(sizes):
            expected = tokens + sum(sum(line[:size]) for line, size in zip(values, sizes, strict=True))
            ms = costs[sum(known) + sum(sizes) - 1] + drafting
            for rows, size, line in zip(known, sizes, attention, strict=True):
                ms += line[rows + size - 1]
            return expected / ms

        merged = sorted(((-value, i) for i, line in enumerate(values) for value in line), key=lambda pair: pair[0])
        order = [i for _, i in merged]
        speeds = [speed([order[:m].count(i) for i in range(len(values))]) for m in range(len(order) + 1)]
        found = sizes_of(values, costs, known=known, attention=attention, tokens=tokens, drafting=drafting)
        assert speed(found) == pytest.approx(max(speeds))

    @given(values=st.lists(falling, min_size=1, max_size=3), row=st.floats(0.01, 1))
    def test_where_rows_cost_the_same_everywhere_no_other_division_is_faster(self, values, row):
        costs = [4.0 + row * rows for rows in range(20)]

        def speed(sizes):
            expected = len(values) + sum(sum(line[:size]) for line, size in zip(values, sizes, strict=True))
            return expected / costs[len(values) + sum(sizes) - 1]

        best = max(speed(sizes) for sizes in product(*(range(len(line) + 1) for line in values)))
        assert speed(sizes_of(values, costs)) == pytest.approx(best)

    @given(values=falling, row=st.floats(0, 3), drafting=st.floats(0, 3))
    def test_one_tree_is_cut_as_alone(self, values, row, drafting):
        costs = [4.0 + row * rows for rows in range(6)]
        assert sizes_of([values], costs, drafting=drafting) == [best_size(values, costs, drafting)]

    def test_nothing_where_nothing_pays(self):
        assert sizes_of([[]], [4.0], drafting=0.1) == [0]
        assert sizes_of([[0.1, 0.05], [0.1]], [4.0, 5.0, 6.0, 7.0, 8.0]) == [0, 0]

    def test_it_looks_beyond_a_step_of_the_costs(self):
        costs = [4.0, 6.0, 6.0, 6.0, 6.0]
        assert sizes_of([[0.4]], costs) == [0]
        assert sizes_of([[0.4, 0.35, 0.3, 0.3]], costs) == [4]

    def test_bounds_are_kept(self):
        sure = [[0.9, 0.8, 0.7], [0.85, 0.1, 0.1]]
        assert sizes_of(sure, [4.0] * 9) == [3, 3]
        assert sizes_of(sure, [4.0] * 9, most=3) == [2, 1]
        assert sizes_of(sure, [4.0 + 9 * rows for rows in range(9)]) == [0, 0]
        assert sizes_of(sure, [4.0 + 9 * rows for rows in range(9)], least=4) == [3, 1]

    def test_costs_of_too_few_rows_are_refused(self):
        with pytest.raises(InferenceError):
            sizes_of([[0.5]], [4.0, 5.0], most=2)
