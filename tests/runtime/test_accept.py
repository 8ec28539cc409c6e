from __future__ import annotations

import numpy as np
import pytest

from edge_rt.runtime.accept import accept
from edge_rt.runtime.draft import Draft


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
    accepted = accept(Draft(draft), rows(*chosen), sampler, end_ids={2})
    assert accepted.token_ids == expected
    assert tuple(sampler.seen) == expected
    assert (accepted.num_drafted, accepted.num_accepted) == (len(draft), len(expected) - 1)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 9])
def test_a_draft_is_cut_to_its_limit(count):
    assert Draft((4, 5, 6)).first(count).token_ids == (4, 5, 6)[:count]
