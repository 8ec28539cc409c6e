"""How far a training is, by updates or by time; writes checkpoints on the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
from torch import nn

from edge_rt.system.progress import ProgressCallback
from edge_rt.train import checkpoint, options as stages
from edge_rt.train.updates import Progress

CHECKPOINT_SECONDS: Final = 60.0
"""Between two checkpoints."""


class Clock:
    """Counts the updates of a training.

    Args:
        state: of an earlier run that is continued, or None.
        updates: the whole training; None: by time.
        seconds: the whole training, where it is not counted in updates.
        label: what is trained, before every message.
        most_bytes: of a checkpoint; None: any number.
        clock: seconds.

    Attributes:
        updates: done, those of earlier runs included.
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
        """Write a checkpoint.

        Raises:
            StorageError: it cannot be written; the one before stays.
        """
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
        self._progress(stages.event("training", done, whole, unit, message))
