"""Trains a head on anchors: unrolled steps, towards the model's own distribution over the reduced vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from edge_rt.train.batches import Anchors
from edge_rt.train.head import DraftHead
from edge_rt.train.target import TargetModel
from edge_rt.train.updates import Found, Progress, Schedule, run_updates

_BATCH = 2048
RANKS = (1, 2, 4)
"""Numbers of most likely guesses, among which the right one may be."""


@dataclass(frozen=True)
class Acceptance:
    """Shares of guesses that are right.

    Attributes:
        first: of the first token, among the most likely 1, 2 and 4 guesses.
        by_position: of the most likely guess at positions 1, 2, ..., where all guesses before it were right.
    """

    first: tuple[float, ...]
    by_position: tuple[float, ...]
    anchors: int


@torch.no_grad()
def acceptance(
    net: DraftHead, target: TargetModel, anchors: Anchors, *, steps: int = 3, most: int = 20_000
) -> Acceptance:
    """Measure a head on recorded answers: at every place against the token that the answer has.

    Args:
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


@dataclass(frozen=True)
class TrainingRecipe:
    """How a head is trained.

    Attributes:
        step_weight: factor of the loss from one step to the next.
        soft: share of the model's distribution in the loss; the rest is its most likely token.
        dropout: share of a matrix's inputs that is left out in every update (Srivastava et al. 2014): answers are few,
            and come several times.
        rounding: share of the training, at its end, in which weights are rounded to 4 bits.
    """

    steps: int = 1
    step_weight: float = 0.8
    soft: float = 0.6
    regression: float = 0.3
    learning_rate: float = 1.5e-3
    weight_decay: float = 0.05
    dropout: float = 0.0
    batch: int = 1024
    warm_up: int = 40
    rounding: float = 0.15


def learn(
    net: DraftHead,
    target: TargetModel,
    batches: Iterator[tuple[Anchors, Tensor]],
    recipe: TrainingRecipe,
    share_done: Callable[[], float],
    report: Callable[[Progress], None],
    *,
    report_seconds: float = 20.0,
) -> None:
    """Train a head in place until ``share_done`` returns 1.

    Args:
        share_done: which part of the training is over; it sets the learning rate.
    """
    net.dropout = recipe.dropout

    def loss_at(share: float) -> Found:
        net.rounds_weights = share > 1.0 - recipe.rounding
        anchors, rows = next(batches)
        return _loss(net, target, anchors, rows, recipe)

    schedule = Schedule(recipe.learning_rate, recipe.weight_decay, recipe.warm_up)
    run_updates(net, loss_at, schedule, share_done, report, report_seconds=report_seconds)


def _loss(net: DraftHead, target: TargetModel, anchors: Anchors, rows: Tensor, recipe: TrainingRecipe) -> Found:
    """Return the loss, that of the first step, and the first step's share of right guesses."""
    state = anchors.begins(rows)
    left = anchors.left[rows]
    total = torch.zeros(())
    first = hit = 0.0
    for step in range(recipe.steps):
        state = net.step(state, functional.embedding(anchors.tokens(rows + step), target.embedding))
        truth = anchors.states(rows + step + 1)
        with torch.no_grad():
            wanted = target.logits(truth)
            soft, best = wanted.softmax(-1), wanted.argmax(-1)
        logits = target.capped(functional.linear(net.output(state), target.head))
        logs = logits.log_softmax(-1)
        distance = -(soft * logs).sum(-1)
        surprise = -logs.gather(1, best[:, None])[:, 0]
        regression = (net.rms(state) - net.rms(truth)).pow(2).mean(-1)
        each = recipe.soft * distance + (1.0 - recipe.soft) * surprise + recipe.regression * regression
        counts = (left > step).float()
        loss = (each * counts).sum() / counts.sum().clamp(min=1.0)
        if step == 0:
            first, hit = float(loss.detach()), float((logits.argmax(-1) == best).float().mean())
        total = total + recipe.step_weight**step * loss
    return Found(total, first, hit)
