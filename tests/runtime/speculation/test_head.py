"""The draft source of a head: when it guesses, from which state, and of which kinds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edge_rt.runtime.decode.draft import ROOT, Accepted, Draft
from edge_rt.runtime.forward.outputs import Outputs
from edge_rt.runtime.speculation.head_runner import BOUNDS, Guesses, HeadSource
from tests.reference.core import Asked

HIDDEN = 4
LOGITS = np.zeros((9, 3), np.float32)


class FakeRunner:
    """Returns one tree, and remembers what it was asked."""

    memory_bytes = 1234

    def __init__(self, *nodes):
        self.state = np.zeros(HIDDEN, np.float32)
        self.nodes = nodes
        self.grown = []
        self.added = []

    def grow(self, state, token_id, *limits):
        self.grown.append((state.tolist(), token_id, limits))
        return (
            Guesses(*(list(part) for part in zip(*self.nodes, strict=True))) if self.nodes else Guesses([], [], [], [])
        )

    def add_tokens(self, token_ids):
        self.added.append(list(token_ids))


def node(token, parent=ROOT, depth=1, probability=0.5):
    return token, parent, depth, math.log(probability)


def outputs(rows, *, hidden=True):
    """Return outputs whose states are the numbers of their rows."""
    states = np.repeat(np.arange(rows, dtype=np.float32)[:, None], HIDDEN, axis=1)
    return Outputs(LOGITS[:rows], hidden=states if hidden else None)


def take(source, token_ids, path=(), *, draft=None, hidden=True):
    """Let the source see a step that emitted these tokens."""
    draft = draft or Draft.chain(range(max(path, default=-1) + 1))
    source.observe(
        draft, Accepted(tuple(token_ids), tuple(path), len(draft)), outputs(len(draft) + 1, hidden=hidden), ()
    )
    source.extend(token_ids)


def test_nothing_is_guessed_before_a_step():
    runner = FakeRunner(node(7))
    source = Asked(HeadSource(runner))
    assert source.root() is None
    source.begin([1, 2, 3])
    assert source.root() is None
    source.extend([4])
    assert source.root() is None
    assert not runner.grown
    assert runner.added == [[1, 2, 3]]


def test_the_state_is_that_of_the_last_accepted_row():
    runner = FakeRunner(node(7))
    source = Asked(HeadSource(runner, nodes=5, width=4, depth=2))
    source.begin([1])
    take(source, [9])
    assert source.root() == ROOT
    take(source, [5, 6, 8], path=(0, 2), draft=Draft((5, 4, 6, 3), (ROOT, ROOT, 0, 2)))
    assert source.root() == ROOT
    assert runner.grown == [([0] * HIDDEN, 9, (5, 4, 2)), ([3] * HIDDEN, 8, (5, 4, 2))]


@pytest.mark.parametrize("hidden", [True, False])
def test_a_step_without_a_state_guesses_nothing(hidden):
    runner = FakeRunner(node(7))
    source = Asked(HeadSource(runner))
    take(source, [9])
    take(source, [3], hidden=hidden)
    assert (source.root() is None) is not hidden
    assert len(runner.grown) == hidden


def test_other_tokens_than_those_of_the_step_guess_nothing():
    source = Asked(HeadSource(FakeRunner(node(7))))
    take(source, [9])
    source.extend([3])
    assert source.root() is None
    source.observe(Draft(), Accepted((4,), (), 0), outputs(1), ())
    source.extend([5])
    assert source.root() is None


def test_a_new_generation_forgets_the_state():
    source = Asked(HeadSource(FakeRunner(node(7))))
    take(source, [9])
    source.begin([1, 2])
    assert source.root() is None


def test_no_guesses_no_root():
    source = Asked(HeadSource(FakeRunner()))
    take(source, [9])
    assert source.root() is None


def test_children():
    tree = [
        node(7, probability=0.6),
        node(8, probability=0.3),
        node(5, 0, 2, 0.4),
        node(6, 0, 2, 0.2),
        node(9, 2, 3, 0.95),
    ]
    source = Asked(HeadSource(FakeRunner(*tree)))
    take(source, [1])
    first = source.children(source.root())
    assert [guess.token_id for guess in first] == [7, 8]
    second = source.children(first[0].cursor)
    assert [guess.token_id for guess in second] == [5, 6]
    assert source.children(first[1].cursor) == ()
    assert [guess.token_id for guess in source.children(second[0].cursor)] == [9]
    kinds = [guess.kind for guess in (*first, *second, *source.children(second[0].cursor))]
    assert kinds == [5, 3, 8 + 4, 8 + 3, 16 + 7]


def test_kinds_are_depths_and_levels_of_probability():
    inside = [(low + high) / 2 for low, high in zip((0, *BOUNDS), (*BOUNDS, 1), strict=True)]
    source = Asked(HeadSource(FakeRunner(*(node(10 * depth + level, ROOT, depth, share)
                                     for depth in (1, 2, 3, 4) for level, share in enumerate(inside)))))  # fmt: skip
    take(source, [1])
    kinds = [guess.kind for guess in source.children(source.root())]
    assert kinds == [*range(24), *range(16, 24)]
    assert source.num_kinds == 24
    assert [source.prior(kind) for kind in kinds] == pytest.approx(inside * 4)
    assert source.memory_bytes == 1234
