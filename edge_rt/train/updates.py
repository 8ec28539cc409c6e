"""The updates of a training: AdamW with a warm-up and a cosine schedule, its clock, and reports on the way."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from edge_rt.system.progress import ProgressCallback
from edge_rt.train import checkpoint
from edge_rt.train.options import stage_event

_BETAS: Final = (0.9, 0.95)
_LEAST_RATE: Final = 0.02
_LARGEST_GRADIENT: Final = 1.0


@dataclass(frozen=True)
class Schedule:
    """How weights are changed."""

    learning_rate: float
    weight_decay: float
    warm_up: int


@dataclass(frozen=True)
class Progress:
    """How a training is going.

    Attributes:
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


CHECKPOINT_SECONDS: Final = 60.0
"""Between two checkpoints."""


class Clock:
    """Counts the updates of a training.

    Args:
        state: of an earlier run that is continued, or None.
        updates: the whole training; None: by time.
        seconds: the whole training, where it is not counted in updates.
        most_bytes: of a checkpoint; None: any number.
        clock: seconds.
    """

    def __init__(
        self,
        net: nn.Module,
        file: Path,
        kept: np.ndarray,
        *,
        seed: int,
        state: checkpoint.State | None,
        updates: int | None,
        seconds: float,
        progress: ProgressCallback,
        label: str = "",
        most_bytes: int | None = checkpoint.MAX_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.updates = 0 if state is None else state.updates
        self._net, self._file, self._kept, self._seed = net, file, kept, seed
        self._whole = updates
        self._limit = seconds
        self._most_bytes = most_bytes
        self._progress, self._label = progress, label
        self._clock = clock
        self._begun = clock() - (0.0 if state is None else state.seconds)
        self._saved = clock()

    @property
    def seconds(self) -> float:
        """Time spent on the training, earlier runs included."""
        return self._clock() - self._begun

    def share(self) -> float:
        """Return which part of the training is over, 0 to 1; asked once before every update."""
        done, whole = (self.updates, self._whole) if self._whole is not None else (self.seconds, self._limit)
        share = done / whole if whole else 1.0
        if share < 1.0:
            if self._clock() - self._saved >= CHECKPOINT_SECONDS:
                self.save()
            self.updates += 1
        return min(1.0, share)

    def save(self) -> None:
        """Write a checkpoint."""
        state = checkpoint.State(self.updates, self.seconds, self._kept, self._seed)
        checkpoint.save(self._file, self._net, state, most_bytes=self._most_bytes)
        self._saved = self._clock()

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Write a checkpoint behind the block, and when Ctrl-C stops it."""
        try:
            yield
        except KeyboardInterrupt:
            self.save()
            raise
        self.save()

    def report(self, progress: Progress) -> None:
        """Show how a training is going."""
        whole, done = (self._whole, self.updates) if self._whole is not None else (int(self._limit), int(self.seconds))
        unit = "updates" if self._whole is not None else "seconds"
        right = f"first guess right {100 * progress.agreement:.1f} %"
        message = f"{self._label}{self.updates:,} updates, loss {progress.loss:.3f}, {right}"
        self._progress(stage_event("training", done, whole, unit, message))
