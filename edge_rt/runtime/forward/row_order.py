"""Another order of rows in a pass than the one that is asked for, with results and rows of the cache as in that."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_rt.runtime.forward.io_binding_base import Part


def depth_first(parents: Sequence[int]) -> list[int]:
    """Return the nodes of a tree depth first, children in their order.

    Args:
        parents: for every node the earlier one that it follows, or -1.
    """
    children: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for node, parent in enumerate(parents):
        children[parent].append(node)
    order, waiting = list[int](), children[-1][::-1]
    while waiting:
        node = waiting.pop()
        order.append(node)
        waiting += children[node][::-1]
    return order


def in_order(part: Part, order: Sequence[int]) -> tuple[Part, list[int]]:
    """Return a part whose rows have another order, with results in that of before, and the new place of every row."""
    count = len(part.token_ids)
    places = np.argsort(order).tolist()
    above = range(-1, count - 1) if part.parents is None else part.parents
    wanted = range(count - part.num_logits, count) if part.logit_rows is None else part.logit_rows
    ordered = part._replace(
        token_ids=[part.token_ids[node] for node in order],
        parents=[-1 if above[node] < 0 else places[above[node]] for node in order],
        logit_rows=[places[node] for node in wanted],
    )
    return ordered, places


def put_back(row_maps: Iterable[npt.NDArray[Any] | None], start: int, places: Sequence[int]) -> None:
    """Permute the maps of a part's rows behind its pass, as if its rows had been computed in their own order."""
    for row_map in row_maps:
        if row_map is not None:
            rows = row_map[start : start + len(places)]
            rows[:] = rows[list(places)]
