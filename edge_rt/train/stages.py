"""The stages of a training, as progress shows them."""

from __future__ import annotations

from typing import Final

from edge_rt.progress import ProgressEvent

STAGES: Final = ("answers", "training", "measuring")


def event(stage: str, done: int = 0, total: int | None = None, unit: str = "", message: str = "") -> ProgressEvent:
    """Return progress within one of ``STAGES``."""
    return ProgressEvent(stage, STAGES.index(stage) + 1, len(STAGES), done, total, unit, message)
