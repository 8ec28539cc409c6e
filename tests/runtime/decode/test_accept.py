from __future__ import annotations

import numpy as np
import pytest

from edge_rt.errors import InferenceError
from edge_rt.runtime.config import GenerationConfig
from edge_rt.runtime.decode.accept import accept, accept_best
from edge_rt.runtime.decode.draft import ROOT, Draft
from edge_rt.runtime.decode.sampling import Sampler
from edge_rt.runtime.forward.outputs import Outputs, TopTokens


class Argmax:
    """A sampler that takes the most likely token and remembers what it was told."""

    def __init__(self):
        self.seen = []

    def sample(self, logits):
        return int(logits.argmax())

    def observe(self, token_id):
        self.seen.append(token_id)


def rows(*tokens):
    """Return logits that make these the most likely tokens."""
    return np.eye(10, dtype=np.float32)[list(tokens)]


@pytest.mark.parametrize(
    ("draft", "chosen", "expected"),
    [
        ((), (4,), (4,)),
        ((4,), (4, 5), (4, 5)),
        ((4, 5, 6), (4, 5, 6, 7), (4, 5, 6, 7)),
        ((4, 5, 6), (4, 9, 6, 7), (4, 9)),
        ((4, 5, 6), (3, 5, 6, 7), (3,)),
        ((4, 2, 6), (4, 2, 6, 7), (4, 2)),
        ((2,), (2, 7), (2,)),
        ((4, 5), (4, 2, 7), (4, 2)),
    ],
    ids=["nothing drafted", "right", "all right", "half right", "wrong", "right end", "end first", "end instead"],
)
def test_tokens_along_the_draft(draft, chosen, expected):
    sampler = Argmax()
    accepted = accept(Draft.chain(draft), rows(*chosen), sampler, end_ids={2})
    assert accepted.token_ids == expected
    assert tuple(sampler.seen) == expected
    assert (accepted.num_drafted, accepted.num_accepted) == (len(draft), len(expected) - 1)


#        +-- 4 -- 5
# root --+        +-- 6 -- 8
#        +-- 3 -- 7 (and 3 -- 5)
TREE = Draft((4, 3, 5, 6, 7, 5, 8), (-1, -1, 0, 0, 1, 1, 3))


@pytest.mark.parametrize(
    ("chosen", "expected", "path"),
    [
        ({-1: 9}, (9,), ()),
        ({-1: 4, 0: 9}, (4, 9), (0,)),
        ({-1: 4, 0: 5, 2: 9}, (4, 5, 9), (0, 2)),
        ({-1: 4, 0: 6, 3: 8, 6: 9}, (4, 6, 8, 9), (0, 3, 6)),
        ({-1: 3, 1: 5, 5: 9}, (3, 5, 9), (1, 5)),
        ({-1: 3, 1: 2}, (3, 2), (1,)),
    ],
)
def test_tokens_down_a_tree(chosen, expected, path):
    TREE.check()
    sampler = Argmax()
    # Rows that are not on the path would lead elsewhere.
    logits = rows(*[chosen.get(node, 0) for node in range(-1, len(TREE))])
    accepted = accept(TREE, logits, sampler, end_ids={2})
    assert (accepted.token_ids, accepted.path, accepted.num_drafted) == (expected, path, len(TREE))
    assert tuple(sampler.seen) == expected


def test_cutting_a_tree_keeps_parents():
    for count in range(len(TREE) + 1):
        TREE.first(count).check()


@pytest.mark.parametrize("draft", [Draft((1, 1), (-1, -1)), Draft((1, 2), (1, -1)), Draft((1,), (0,)), Draft((1,), ())])
def test_malformed_trees_are_found(draft):
    with pytest.raises(AssertionError):
        draft.check()


@pytest.mark.parametrize("count", [0, 1, 2, 3, 9])
def test_a_draft_is_cut_to_its_limit(count):
    draft = Draft.chain((4, 5, 6)).first(count)
    assert draft.token_ids == (4, 5, 6)[:count]
    draft.check()


@pytest.mark.parametrize("end_ids", [set(), {5}])
def test_the_best_tokens_that_the_graph_found_are_accepted_like_those_of_logits(end_ids):
    random = np.random.default_rng(3)
    draft = Draft((5, 6, 7, 5), (ROOT, ROOT, 0, 1))
    for _ in range(200):
        logits = random.integers(0, 3, (5, 8)).astype(np.float32)
        order = np.argsort(-logits, axis=1, kind="stable")[:, :4].astype(np.int32)
        top = TopTokens(order, np.take_along_axis(logits, order, 1), np.zeros(5, np.float32))
        sampler = Sampler(GenerationConfig(temperature=0.0), 8)
        assert sampler.takes_best
        expected = accept(draft, logits, sampler, end_ids)
        assert accept_best(draft, Outputs(logits), top, sampler, end_ids) == expected


def test_logits_that_are_no_numbers_are_an_error_there_too():
    logits = np.full((1, 8), np.nan, np.float32)
    # What RowTopK returns for such a row.
    top = TopTokens(np.full((1, 4), -1, np.int32), np.full((1, 4), -np.inf, np.float32), np.zeros(1, np.float32))
    with pytest.raises(InferenceError, match="not numbers"):
        accept_best(Draft(), Outputs(logits), top, Sampler(GenerationConfig(temperature=0.0), 8), set())


def test_penalties_and_bias_have_to_read_the_logits():
    for options in ({"presence_penalty": 0.1}, {"logit_bias": {1: 2.0}}, {"repetition_penalty": 1.1}):
        assert not Sampler(GenerationConfig(temperature=0.0, **options), 8).takes_best
    assert not Sampler(GenerationConfig(temperature=0.5), 8).takes_best
