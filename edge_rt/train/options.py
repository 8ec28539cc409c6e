"""What is trained, from what, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from edge_rt.system.progress import ProgressEvent

DEFAULT_VOCABULARY: Final = 4096
"""Tokens that a head can guess, besides those of the prompt."""
DEFAULT_LAYERS: Final = 2
"""Layers of a draft model."""
WRITING_SHARE: Final = 0.5
"""Part of the time that goes into answers."""
TRAINING_SHARE: Final = 0.45
"""Part of the time that goes into the training; the rest is for measuring."""


@dataclass(frozen=True)
class TrainOptions:
    """What is trained, and for how long.

    Attributes:
        tokens: answer tokens to write, instead of ``WRITING_SHARE`` of the time; None: by time.
        updates: of the training, instead of ``TRAINING_SHARE`` of the time; None: by time. With both numbers given, a
            seed repeats a training on the same machine.
        threads: for both; None: all CPUs.
        vocabulary: rows of the LM head that guesses come from.
        intermediate_size: of a block; None: eight thirds of the hidden size, as usual.
        prompts: user messages to answer; None: the model writes them itself.
        exits: of the package, rising: those that adapters are trained for; none: a head is trained.
    """

    seconds: float = 1800.0
    tokens: int | None = None
    updates: int | None = None
    seed: int = 0
    threads: int | None = None
    vocabulary: int = DEFAULT_VOCABULARY
    intermediate_size: int | None = None
    blocks: int = 1
    layers: int = DEFAULT_LAYERS
    prompts: tuple[str, ...] | None = None
    exits: tuple[int, ...] = ()


STAGES: Final = ("answers", "training", "measuring")


def stage_event(
    stage: str, done: int = 0, total: int | None = None, unit: str = "", message: str = ""
) -> ProgressEvent:
    """Return progress within one of ``STAGES``."""
    return ProgressEvent(stage, STAGES.index(stage) + 1, len(STAGES), done, total, unit, message)
