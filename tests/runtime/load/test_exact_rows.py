from __future__ import annotations

import numpy as np
import pytest

from edge_rt.runtime.forward.outputs import Outputs
from edge_rt.runtime.load.drafters import CONTEXT, MOST_ROWS, rows_are_exact


class Runner:
    """Logits that depend on the token and its place, and on what ``spoil`` adds for a row of a pass."""

    def __init__(self, spoil=lambda rows, row: 0.0):
        self.spoil = spoil
        self.passes = []

    def forward(self, token_ids, start, num_logits):
        rows = len(token_ids)
        self.passes.append((rows, start, num_logits))
        found = [np.full(7, token + start + row + self.spoil(rows, row)) for row, token in enumerate(token_ids)]
        return Outputs(np.asarray(found[-num_logits:], np.float32))


def tried(runner, capacity=64, most_rows=24):
    return rows_are_exact(runner, vocab_size=99, capacity=capacity, most_rows=most_rows)


def test_equal_bits():
    runner = Runner()
    assert tried(runner)
    assert runner.passes[0] == (CONTEXT, 0, 1)
    assert {rows for rows, start, _ in runner.passes if start == CONTEXT} == {1, 2, MOST_ROWS}


@pytest.mark.parametrize("rows", [2, MOST_ROWS])
@pytest.mark.parametrize("row", [0, 1])
def test_one_row_of_other_bits(rows, row):
    assert not tried(Runner(lambda found, place: 1e-5 if (found, place) == (rows, row) else 0.0))


def test_a_plan_with_few_rows_of_logits_is_kept_to():
    runner = Runner()
    assert tried(runner, most_rows=3)
    assert max(logits for _, _, logits in runner.passes) == 3


@pytest.mark.parametrize(("capacity", "most_rows"), [(8, 8), (64, 1)])
def test_without_room_nothing_is_known(capacity, most_rows):
    assert not tried(Runner(), capacity, most_rows)
