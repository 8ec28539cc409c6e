"""Whether rows that are computed together have the bits of single ones, tried with the model that is loaded.

A package may say so, but the kernels of ONNX Runtime are others on another CPU and in another version.
"""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np

from edge_rt.runtime.graph.outputs import Outputs

CONTEXT: Final = 17
"""Tokens before the rows that are compared."""
MOST_ROWS: Final = 8


class Forward(Protocol):
    """Runs passes, as ``ModelRunner`` does."""

    def forward(self, token_ids: list[int], start: int, num_logits: int) -> Outputs:
        """Compute tokens into the cache's rows from ``start`` on, and return the logits of the last ones."""


def rows_are_exact(runner: Forward, *, vocab_size: int, capacity: int, most_rows: int) -> bool:
    """Compare the logits of passes over several rows with those of single rows, bit by bit.

    Args:
        runner: runs the passes; the first rows of its cache are overwritten.
        vocab_size: length of a row of logits.
        capacity: rows of the cache.
        most_rows: rows of logits that a pass may return.

    Returns:
        Whether all are equal; False if the cache has no room for two rows.

    Raises:
        Cancelled: a pass was stopped.
        InferenceError, MemoryBudgetExceeded: ONNX Runtime failed.
    """
    rows = min(MOST_ROWS, most_rows)
    context = min(CONTEXT, capacity - rows)
    if rows < 2 or context < 1:
        return False
    ids = [(11 + 7919 * i) % vocab_size for i in range(context + rows)]
    runner.forward(ids[:context], 0, 1)
    singles = [
        runner.forward([token], context + number, 1).logits[0].copy() for number, token in enumerate(ids[context:])
    ]
    for count in {2, rows}:
        together = runner.forward(ids[context : context + count], context, count).logits
        if not all(np.array_equal(found, single) for found, single in zip(together, singles, strict=False)):
            return False
    return True
