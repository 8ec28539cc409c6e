"""Progress of long work as plain events, so that a library call and the command line show the same stages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class ProgressEvent:
    """Progress within one stage.

    Attributes:
        stage: short name of the stage, for example ``"weights"``.
        step: position of the stage, counted from 1.
        steps: number of stages.
        done: units finished inside the stage.
        total: units of the whole stage, or None when unknown.
        unit: what is counted, usually ``"bytes"``.
        message: a sentence for the user, or empty.
    """

    stage: str
    step: int
    steps: int
    done: int = 0
    total: int | None = None
    unit: str = "bytes"
    message: str = ""


ProgressCallback = Callable[[ProgressEvent], None]


def no_progress(event: ProgressEvent) -> None:
    """Ignore the event."""
    del event
