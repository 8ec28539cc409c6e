"""Drafts: tokens guessed ahead of the model, to be verified in one pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy.typing as npt

if TYPE_CHECKING:
    from edge_rt.runtime.sequence import Sequence


@dataclass(frozen=True)
class Draft:
    """Tokens guessed to follow the sequence, one after the other."""

    token_ids: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.token_ids)

    def first(self, count: int) -> Draft:
        """Return the draft cut to at most ``count`` (at least 0) tokens."""
        return self if len(self) <= count else Draft(self.token_ids[:count])


@dataclass(frozen=True)
class Accepted:
    """Outcome of one step.

    Attributes:
        token_ids: emitted tokens, at least one; all but the last were drafted.
        num_drafted: tokens that were drafted and verified.
    """

    token_ids: tuple[int, ...]
    num_drafted: int

    @property
    def num_accepted(self) -> int:
        """Drafted tokens that stay."""
        return len(self.token_ids) - 1


class Drafter(Protocol):
    """Guesses tokens, and learns from what became of them."""

    def propose(self, sequence: Sequence, limit: int) -> Draft:
        """Return at most ``limit`` tokens that may follow the sequence."""

    def observe(self, accepted: Accepted, logits: npt.NDArray[Any]) -> None:
        """Learn from a step: what was emitted, and the logits ``[draft + 1, vocabulary]`` behind it."""


class NullDrafter:
    """Proposes nothing: plain decoding, one token per pass."""

    def propose(self, sequence: Sequence, limit: int) -> Draft:
        """Return an empty draft."""
        del sequence, limit
        return Draft()

    def observe(self, accepted: Accepted, logits: npt.NDArray[Any]) -> None:
        """Do nothing."""
        del accepted, logits
