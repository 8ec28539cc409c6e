"""The ledger: what every way of drafting would have given, against steps worked out by hand."""

from __future__ import annotations

import pytest

from edge_rt.runtime.decode.draft import ROOT, Accepted, Draft
from edge_rt.runtime.speculation.arms import OFF, Arm, arms_of, texts_arm
from tests.reference.core import Ledger
from tests.reference.tree import EMPTY, Tree

COSTS = [1.0, 1.5, 2.0, 2.5, 3.0, 3.5]
DRAFTING = [0.1, 0.2, 0.3, 0.4]
OFF_, FIRST, SECOND, BOTH = range(4)


def tree_of(*nodes):
    """Return a tree of (parent, sources that guessed)."""
    parents, masks = zip(*nodes, strict=True)
    evidence = tuple(([(source, 0) for source in guessed], 0) for guessed in masks)
    return Tree(Draft(tuple(range(len(nodes))), parents), (0.5,) * len(nodes), evidence)


def outcome(*path, drafted=0):
    return Accepted((*path, 99), path, drafted)


@pytest.fixture
def ledger():
    return Ledger([Arm("off", 0), Arm("first", 1), Arm("second", 2), Arm("both", 3)])


def test_arms_are_nothing_and_all():
    assert arms_of([]) == (Arm("off", 0),)
    assert arms_of(["a"]) == (Arm("off", 0), Arm("a", 1))
    assert arms_of(["a", "b", "c"]) == (Arm("off", 0), Arm("fusion", 7))
    assert arms_of(["head"], ["head"]) == (Arm("off", 0), Arm("head", 1))
    assert arms_of(["a"])[OFF].name == "off"


def test_texts_beside_a_source_that_computes_are_an_arm():
    arms = arms_of(["a", "b", "head"], ["head"])
    assert arms == (Arm("off", 0), Arm("texts", 3), Arm("fusion", 7))
    assert texts_arm(arms) == 1
    arms = arms_of(["a", "head"], ["head"])
    assert arms == (Arm("off", 0), Arm("a", 1), Arm("fusion", 3))
    assert texts_arm(arms) == 1
    assert texts_arm(arms_of(["head"], ["head"])) is None
    assert texts_arm(arms_of(["a", "b"])) is None


def test_nothing_is_known_at_first(ledger):
    assert ledger.speeds() == [None] * 4
    assert ledger.steps == 0


def test_a_step_of_both_tells_of_each(ledger):
    #   0 (both) -> 1 (first) -> 3 (both: the second source is past its gap)
    #   2 (second)
    tree = tree_of((ROOT, (0, 1)), (0, (0,)), (ROOT, (1,)), (1, (0, 1)))
    ledger.add(BOTH, tree, outcome(0, 1, 3), COSTS, DRAFTING)
    assert ledger.speeds() == pytest.approx(
        [
            1 / (COSTS[0] + 0.1),
            4 / (COSTS[3] + 0.2),  # nodes 0, 1, 3, all of them right
            2 / (COSTS[2] + 0.3),  # nodes 0 and 2, of which 0 is right
            4 / (COSTS[4] + 0.4),
        ]
    )


def test_what_lies_behind_a_gap_counts_for_nobody_alone(ledger):
    """The second source names the grandchild too, but alone it would not have come that far."""
    tree = tree_of((ROOT, (0,)), (0, (0, 1)))
    ledger.add(BOTH, tree, outcome(0, 1), COSTS, DRAFTING)
    speeds = ledger.speeds()
    assert speeds[SECOND] == pytest.approx(1 / (COSTS[0] + 0.3))
    assert speeds[FIRST] == pytest.approx(3 / (COSTS[2] + 0.2))


def test_a_step_of_one_tells_of_it_and_of_nothing(ledger):
    tree = tree_of((ROOT, (1,)), (0, (1,)))
    ledger.add(SECOND, tree, outcome(0), COSTS, DRAFTING)
    speeds = ledger.speeds()
    assert speeds[OFF_] == pytest.approx(1 / 1.1)
    assert speeds[SECOND] == pytest.approx(2 / 2.3)
    assert speeds[FIRST] is speeds[BOTH] is None


def test_a_step_without_drafting_tells_of_itself(ledger):
    ledger.add(OFF, EMPTY, outcome(), COSTS, DRAFTING)
    assert ledger.speeds() == [pytest.approx(1 / 1.1), None, None, None]


def test_a_wrong_draft_costs_its_rows(ledger):
    tree = tree_of((ROOT, (0, 1)), (0, (0, 1)), (1, (0,)))
    ledger.add(BOTH, tree, outcome(), COSTS, DRAFTING)
    rows = (0, 3, 2, 3)
    expected = [1 / (COSTS[count] + extra) for count, extra in zip(rows, DRAFTING, strict=True)]
    assert ledger.speeds() == pytest.approx(expected)


def test_steps_add_up_and_are_cleared(ledger):
    right, wrong = tree_of((ROOT, (0, 1))), tree_of((ROOT, (0,)), (ROOT, (1,)))
    ledger.add(BOTH, right, outcome(0), COSTS, DRAFTING)
    ledger.add(BOTH, wrong, outcome(1), COSTS, DRAFTING)
    assert ledger.steps == 2
    assert ledger.speeds() == pytest.approx([2 / 2.2, 3 / 3.4, 4 / 3.6, 4 / (1.5 + 2.0 + 0.8)])
    ledger.clear()
    assert (ledger.steps, ledger.speeds()) == (0, [None] * 4)
