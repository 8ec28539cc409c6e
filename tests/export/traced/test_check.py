"""The checks of a traced graph, on passes that are made up."""

from __future__ import annotations

import numpy as np
import pytest

from edge_rt.errors import InvalidPackage
from edge_rt.export.traced.passes import (
    MAX_ERROR,
    PREFIXES,
    ROWS,
    TracedPasses,
    check_capacity,
    check_logits,
    exact_rows,
)

VOCABULARY = 13


class MadeUp(TracedPasses):
    """Logits that depend on a token and its place, and whatever ``spoil`` adds for a pass."""

    def __init__(self, spoil=lambda length, rows: 0.0, spoil_cache=lambda length, rows: b""):
        self.length = 0
        self.spoil, self.spoil_cache = spoil, spoil_cache
        self.added = b""
        self.sizes = []

    def run(self, token_ids):
        rows = len(token_ids)
        self.sizes.append(rows)
        logits = expected(token_ids, self.length) + np.float32(self.spoil(self.length, rows))
        self.added = self.spoil_cache(self.length, rows)
        self.length += rows
        return logits

    def newest(self, rows):
        return b"rows" + self.added


def expected(token_ids, start=0):
    places = np.arange(start, start + len(token_ids))[:, None] * np.arange(1, VOCABULARY + 1)
    return np.sin(places + np.asarray(token_ids)[:, None]).astype(np.float32)


def test_logits_are_compared_in_chunks_and_single_steps():
    ids = list(range(48))
    passes = MadeUp()
    assert check_logits(passes, ids, expected(ids)).relative_error == 0
    assert sum(passes.sizes) == 48
    assert passes.sizes.count(1) >= 5
    assert max(passes.sizes) > 8


@pytest.mark.parametrize("error", [2 * MAX_ERROR, np.nan, np.inf])
def test_a_single_step_that_is_off_is_found(error):
    ids = list(range(48))
    passes = MadeUp(lambda length, rows: error if (length, rows) == (13, 1) else 0.0)
    with pytest.raises(InvalidPackage, match="at token 13 of 48" if np.isfinite(error) else "limit 0.0001"):
        check_logits(passes, ids, expected(ids))


def test_equal_bits_everywhere_are_exact():
    assert exact_rows(MadeUp(), VOCABULARY, check_capacity(8192)) == ROWS[-1]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("rows", ROWS)
def test_one_bit_in_one_pass_is_found(prefix, rows):
    passes = MadeUp(lambda length, found: 1e-7 if (length, found) == (prefix, rows) and found > 1 else 0.0)
    assert exact_rows(passes, VOCABULARY, check_capacity(8192)) == 0


def test_other_keys_of_a_pass_are_found():
    passes = MadeUp(spoil_cache=lambda length, rows: b"off" if rows == ROWS[-1] else b"")
    assert exact_rows(passes, VOCABULARY, check_capacity(8192)) == 0


def test_a_short_context_is_checked_as_far_as_it_goes():
    assert exact_rows(MadeUp(), VOCABULARY, check_capacity(10)) == 8
    assert exact_rows(MadeUp(), VOCABULARY, 1) == 0
