"""The updates of a training: AdamW with a warm-up and a cosine schedule, and reports on the way."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

_BETAS: Final = (0.9, 0.95)
_LEAST_RATE: Final = 0.02
_LARGEST_GRADIENT: Final = 1.0


@dataclass(frozen=True)
class Schedule:
    """How weights are changed.

    Attributes:
        learning_rate, weight_decay: of AdamW; vectors are not decayed.
        warm_up: updates until the learning rate is reached.
    """

    learning_rate: float
    weight_decay: float
    warm_up: int


@dataclass(frozen=True)
class Progress:
    """How a training is going.

    Attributes:
        loss: mean since the last report.
        agreement: share of guesses that were the model's most likely token, since then.
    """

    loss: float
    agreement: float


class Found(NamedTuple):
    """What an update gives: the loss, its part that is reported, and the share of guesses that were right."""

    total: Tensor
    loss: float
    agreement: float


def run_updates(
    net: nn.Module,
    loss_at: Callable[[float], Found],
    schedule: Schedule,
    share_done: Callable[[], float],
    report: Callable[[Progress], None],
    *,
    report_seconds: float = 20.0,
) -> None:
    """Train a net in place until ``share_done`` returns 1.

    Args:
        loss_at: computes the loss of the next batch, for the part of the training that is over.
        share_done: which part of the training is over; it sets the learning rate.
    """
    optimiser = torch.optim.AdamW(_groups(net, schedule), lr=schedule.learning_rate, betas=_BETAS)
    updates = seen = 0
    loss_sum = hits = 0.0
    last = time.monotonic()
    while (share := share_done()) < 1.0:
        rate = schedule.learning_rate * min(1.0, (updates + 1) / schedule.warm_up)
        for group in optimiser.param_groups:
            group["lr"] = rate * (_LEAST_RATE + (1.0 - _LEAST_RATE) * 0.5 * (1.0 + math.cos(math.pi * share)))
        found = loss_at(share)
        optimiser.zero_grad()
        found.total.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), _LARGEST_GRADIENT)
        optimiser.step()
        updates += 1
        seen += 1
        loss_sum += found.loss
        hits += found.agreement
        if time.monotonic() - last > report_seconds:
            report(Progress(loss_sum / seen, hits / seen))
            loss_sum, hits, seen, last = 0.0, 0.0, 0, time.monotonic()


def _groups(net: nn.Module, schedule: Schedule) -> list[dict[str, object]]:
    """Norms are not decayed."""
    matrices = [p for p in net.parameters() if p.ndim > 1]
    vectors = [p for p in net.parameters() if p.ndim < 2]
    return [{"params": matrices, "weight_decay": schedule.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
