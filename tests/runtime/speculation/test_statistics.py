"""Counting what speculation did for an answer."""

from __future__ import annotations

import pytest

from edge_rt.runtime.decode.draft import ROOT, Accepted, Draft
from edge_rt.runtime.speculation.statistics import SpecCounter

TREE = Draft((1, 2, 3, 4), (ROOT, 0, 0, ROOT))


def test_nothing_happened():
    stats = SpecCounter().stats("auto", 5)
    assert (stats.mode, stats.memory_bytes, stats.choices, stats.accepted_per_position) == ("auto", 5, {}, ())
    zeros = (stats.steps, stats.tokens_per_step, stats.acceptance, stats.draft_n, stats.drafting_share)
    assert zeros == (0, 0.0, 0.0, 0, 0.0)


def test_steps_add_up():
    counter = SpecCounter()
    counter.add(Draft(), Accepted((7,), (), 0), 0, 5.0, 100.0, "off", is_first=True)
    counter.add(TREE, Accepted((1, 3, 9), (0, 2), 4), 4, 1.0, 10.0, "fusion", is_first=False)
    counter.add(TREE, Accepted((8,), (), 4), 2, 1.0, 10.0, "fusion", is_first=False)
    counter.add(Draft.chain([5]), Accepted((5, 6), (0,), 1), 1, 1.0, 10.0, "suffix", is_first=False)
    counter.add(Draft(), Accepted((6,), (), 0), 0, 0.0, 4.0, "off", is_first=False)
    stats = counter.stats("auto", 0)
    assert stats.steps == 4
    assert stats.tokens_per_step == 7 / 4
    assert (stats.draft_n, stats.draft_n_accepted, stats.rows_drafted) == (7, 3, 9)
    assert stats.acceptance == pytest.approx(3 / 7)
    assert stats.accepted_per_position == (0.5, 0.25)
    assert stats.choices == {"fusion": 2, "suffix": 1, "off": 1}
    # The first step's pass computes the prompt; only its drafting counts.
    assert (stats.drafting_ms, stats.verifying_ms) == (8.0, 34.0)
    assert stats.drafting_share == pytest.approx(8 / 42)


def test_statistics_are_of_their_moment():
    counter = SpecCounter()
    counter.add(Draft(), Accepted((6,), (), 0), 0, 0.0, 4.0, "off", is_first=False)
    before = counter.stats("auto", 0)
    counter.add(Draft(), Accepted((6,), (), 0), 0, 0.0, 4.0, "off", is_first=False)
    assert (before.steps, before.choices) == (1, {"off": 1})
