"""What makes the drafters that compute: networks beside the model, such as a trained head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from edge_rt.package.drafter import Drafter
from edge_rt.package.reader import Package

if TYPE_CHECKING:
    from edge_rt.runtime.speculation.source import Source


class LoadedDrafter(Protocol):
    """A loaded network.

    Attributes:
        name: the mode of speculation that it serves, such as ``"head"``.
    """

    name: str

    @property
    def memory_bytes(self) -> int:
        """Bytes that it holds, mapped weights included."""


@runtime_checkable
class DrafterProvider(LoadedDrafter, Protocol):
    """One that drafts by itself: its source has the name of the mode."""

    def source(self) -> Source:
        """Return a source of its guesses that has learned nothing."""


@dataclass(frozen=True)
class DrafterJob:
    """What a trained drafter is loaded for.

    Attributes:
        drafter: the drafter, which fits it.
        draft_max: most nodes of a draft.
        prompt_rows: most tokens of a prompt that its reduced head may take in.
        isa: instruction set of the native operators; None is the best.
    """

    package: Package
    drafter: Drafter
    draft_max: int
    prompt_rows: int
    threads: int
    isa: str | None


DrafterMaker = Callable[[DrafterJob], LoadedDrafter]
"""Loads a trained drafter: one that drafts by itself, or the adapters of exits."""
