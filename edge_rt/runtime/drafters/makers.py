"""What loads trained drafters, by kind; each is imported when its first drafter is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from edge_rt.runtime.drafters.provider import DrafterJob, DrafterMaker, DrafterProvider


def _head(job: DrafterJob) -> DrafterProvider:
    # A plan knows this table, and is made where nothing that computes is installed.
    from edge_rt.runtime.drafters.head_provider import HeadProvider

    return HeadProvider(job)


MAKERS: Final[Mapping[str, DrafterMaker]] = {"head": _head}
"""Kind of a trained drafter -> what loads it, in this build of edge-rt."""
