from __future__ import annotations

import numpy as np

from edge_rt.runtime.forward.io_binding_base import Part
from edge_rt.runtime.forward.row_order import depth_first, in_order, put_back


def test_depth_first_keeps_the_order_of_children():
    assert depth_first([-1, 0, 0, 1, -1, 2, 4]) == [0, 1, 3, 2, 5, 4, 6]
    assert depth_first([-1, 0, 1, 2]) == [0, 1, 2, 3]
    assert depth_first([]) == []


def test_a_part_in_another_order_is_the_same_tree_with_results_as_asked_for():
    part = Part([10, 11, 12, 13], 5, 3, [-1, 0, 0, 1])
    order = depth_first(part.parents)
    found, places = in_order(part, order)
    assert (found.token_ids, found.parents) == ([10, 11, 13, 12], [-1, 0, 1, 0])
    # The last three rows, in their own order.
    assert found.logit_rows == [1, 3, 2]
    assert [found.token_ids[places[node]] for node in range(4)] == part.token_ids


def test_rows_of_the_cache_are_put_back():
    row_map = np.arange(100, 110, dtype=np.int32)
    put_back((row_map, None), 3, [0, 1, 3, 2])
    assert row_map.tolist() == [100, 101, 102, 103, 104, 106, 105, 107, 108, 109]
