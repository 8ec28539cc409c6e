"""How often the guesses of a head are right, on answers that it was not trained on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from edge_rt.train.anchors import Anchors
from edge_rt.train.head import DraftHead
from edge_rt.train.target import Target

_BATCH = 2048
RANKS = (1, 2, 4)
"""Numbers of most likely guesses, among which the right one may be."""


@dataclass(frozen=True)
class Acceptance:
    """Shares of guesses that are right.

    Attributes:
        first: of the first token, among the most likely 1, 2 and 4 guesses.
        by_position: of the most likely guess at positions 1, 2, ..., where all guesses before it were right.
        anchors: places that were looked at.
    """

    first: tuple[float, ...]
    by_position: tuple[float, ...]
    anchors: int


@torch.no_grad()
def acceptance(net: DraftHead, target: Target, anchors: Anchors, *, steps: int = 3, most: int = 20_000) -> Acceptance:
    """Measure a head on recorded answers: at every place against the token that the answer has.

    Args:
        net: the head.
        target: the model.
        anchors: of held-out answers.
        steps: positions that are measured.
        most: most places; with more of them every n-th is taken.
    """
    places = anchors.places[:: max(1, -(-len(anchors.places) // most))]
    first = torch.zeros(len(RANKS))
    right, tried = torch.zeros(steps), torch.zeros(steps)
    for rows in places.split(_BATCH):
        state, is_right = anchors.begins(rows), torch.ones(len(rows), dtype=torch.bool)
        for step in range(steps):
            state = net.step(state, functional.embedding(anchors.tokens(rows + step), target.embedding))
            guesses = target.kept[functional.linear(net.output(state), target.head).topk(max(RANKS), -1).indices]
            hits = guesses == anchors.tokens(rows + step + 1)[:, None]
            is_right &= anchors.left[rows] > step
            tried[step] += is_right.sum()
            if step == 0:
                first += torch.stack([hits[is_right, :rank].any(-1).sum() for rank in RANKS])
            is_right &= hits[:, 0]
            right[step] += is_right.sum()
    shares = (right / tried.clamp(min=1)).tolist()
    return Acceptance(tuple((first / tried[0].clamp(min=1)).tolist()), tuple(shares), int(tried[0]))
