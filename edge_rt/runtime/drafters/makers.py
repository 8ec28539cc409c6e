"""What loads trained drafters, by kind; each is imported when its first drafter is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from edge_rt.runtime.drafters.provider import DrafterJob, DrafterMaker, LoadedDrafter


def _head(job: DrafterJob) -> LoadedDrafter:
    # A plan knows this table, and is made where nothing that computes is installed.
    from edge_rt.runtime.drafters.head_provider import HeadProvider

    return HeadProvider(job)


def _exit(job: DrafterJob) -> LoadedDrafter:
    from edge_rt.runtime.drafters.exit_adapters import ExitAdapters

    return ExitAdapters(job)


MAKERS: Final[Mapping[str, DrafterMaker]] = {"head": _head, "exit": _exit}
"""Kind of a trained drafter -> what loads it, in this build of edge-rt."""
