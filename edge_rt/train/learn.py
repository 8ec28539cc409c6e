"""Trains a head on anchors: unrolled steps, towards the model's own distribution over the reduced vocabulary."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from edge_rt.train.anchors import Anchors
from edge_rt.train.head import DraftHead
from edge_rt.train.target import Target


@dataclass(frozen=True)
class Recipe:
    """How a head is trained; the defaults are those of the drafter that edge-rt ships.

    Attributes:
        steps: recurrent steps that are unrolled.
        step_weight: factor of the loss from one step to the next.
        soft: share of the model's distribution in the loss; the rest is its most likely token.
        regression: weight of the distance between normed states.
        learning_rate, weight_decay: of AdamW.
        batch: anchors of an update.
        warm_up: updates until the learning rate is reached.
        rounding: share of the training, at its end, in which weights are rounded to 4 bits.
    """

    steps: int = 2
    step_weight: float = 0.8
    soft: float = 0.6
    regression: float = 0.3
    learning_rate: float = 1.5e-3
    weight_decay: float = 0.05
    batch: int = 1024
    warm_up: int = 40
    rounding: float = 0.15


@dataclass(frozen=True)
class Progress:
    """State of a training.

    Attributes:
        updates: done so far.
        share: of the whole training, 0 to 1.
        loss: mean of the first step's loss since the last report.
        agreement: share of anchors whose most likely token was the model's, since then.
    """

    updates: int
    share: float
    loss: float
    agreement: float


def learn(
    net: DraftHead,
    target: Target,
    batches: Iterator[tuple[Anchors, Tensor]],
    recipe: Recipe,
    share_done: Callable[[], float],
    report: Callable[[Progress], None],
    *,
    report_seconds: float = 20.0,
) -> int:
    """Train a head in place until ``share_done`` returns 1.

    Args:
        net: the head.
        target: the model.
        batches: anchors, and the rows among them to draft from.
        recipe: how.
        share_done: which part of the training is over; it sets the learning rate.
        report: called now and then.
        report_seconds: between two reports.

    Returns:
        The number of updates.
    """
    optimiser = torch.optim.AdamW(_groups(net, recipe), lr=recipe.learning_rate, betas=(0.9, 0.95))
    updates = seen = 0
    loss_sum = hits = 0.0
    last = time.monotonic()
    while (share := share_done()) < 1.0:
        anchors, rows = next(batches)
        net.rounds_weights = share > 1.0 - recipe.rounding
        rate = recipe.learning_rate * min(1.0, (updates + 1) / recipe.warm_up)
        for group in optimiser.param_groups:
            group["lr"] = rate * (0.02 + 0.98 * 0.5 * (1.0 + math.cos(math.pi * share)))
        loss, first, hit = _loss(net, target, anchors, rows, recipe)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimiser.step()
        updates += 1
        seen += 1
        loss_sum += first
        hits += hit
        if time.monotonic() - last > report_seconds:
            report(Progress(updates, share, loss_sum / seen, hits / seen))
            loss_sum, hits, seen, last = 0.0, 0.0, 0, time.monotonic()
    return updates


def _groups(net: DraftHead, recipe: Recipe) -> list[dict[str, object]]:
    """Norms are not decayed."""
    matrices = [p for p in net.parameters() if p.ndim > 1]
    vectors = [p for p in net.parameters() if p.ndim < 2]
    return [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": vectors, "weight_decay": 0.0}]


def _loss(
    net: DraftHead, target: Target, anchors: Anchors, rows: Tensor, recipe: Recipe
) -> tuple[Tensor, float, float]:
    """Return the loss, that of the first step, and the first step's share of right guesses."""
    state = anchors.states(rows)
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
    return total, first, hit
