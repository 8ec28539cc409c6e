"""The interface of a draft source: it returns, one token at a time, what may follow a context.

Several sources grow one tree together (``tree.py``); therefore they are asked for children and not for whole drafts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as Items
from typing import Any, NamedTuple, Protocol

from edge_rt.runtime.decode.draft import Accepted, Draft
from edge_rt.runtime.graph.outputs import Outputs
from edge_rt.runtime.graph.prefix import common_prefix

CONTEXT_TOKENS = 4
"""Known tokens before a draft that a source receives with the step's outputs."""


class Guess(NamedTuple):
    """A token that may come next.

    Attributes:
        token_id: the token.
        kind: how good such guesses are, ``0 <= kind < source.num_kinds``; acceptance is learned per kind.
        cursor: the argument of ``children`` for the tokens after this one.
    """

    token_id: int
    kind: int
    cursor: Any


class Source(Protocol):
    """Guesses tokens, and learns from what is known and what the model computes. It serves many generations.

    Attributes:
        name: its name in options and statistics.
        num_kinds: kinds of guesses.
    """

    name: str
    num_kinds: int

    def prior(self, kind: int) -> float:
        """Return the probability that a guess of this kind is right, before anything is learned."""

    def begin(self, token_ids: Items[int]) -> None:
        """Start a generation.

        Args:
            token_ids: all known tokens. A prefix shared with the tokens known so far is not added twice. Another text
                starts from the beginning, but what was learned is kept.
        """

    def extend(self, token_ids: Items[int]) -> None:
        """Add emitted tokens."""

    def observe(self, draft: Draft, accepted: Accepted, outputs: Outputs, context: tuple[int, ...]) -> None:
        """Learn from a step, before its tokens are added.

        Args:
            draft: what was verified.
            accepted: what was emitted.
            outputs: of ``len(draft) + 1`` rows: after the last known token, and after every node.
            context: the last known tokens before the draft, at most ``CONTEXT_TOKENS``.
        """

    def root(self) -> Any | None:
        """Return the cursor at the end of the known tokens; None if nothing can be guessed."""

    def children(self, cursor: Any) -> Items[Guess]:
        """Return the tokens that may follow, the most promising first; they differ."""

    @property
    def memory_bytes(self) -> int:
        """Memory in bytes."""


class TextSource(ABC):
    """Base of sources that learn from texts alone: every token is added once."""

    def __init__(self) -> None:
        self._known: list[int] = []

    def begin(self, token_ids: Items[int]) -> None:
        """Add the tokens that are new; what was learned from earlier texts is kept."""
        new = list(token_ids)
        common = common_prefix(self._known, new)
        self._take(new[common:] if common == len(self._known) else self._depart(new, common))
        self._known = new

    def extend(self, token_ids: Items[int]) -> None:
        """Add emitted tokens."""
        self._known.extend(token_ids)
        self._take(token_ids)

    def observe(self, draft: Draft, accepted: Accepted, outputs: Outputs, context: tuple[int, ...]) -> None:
        """Do nothing: this source learns from emitted tokens only."""
        del draft, accepted, outputs, context

    @abstractmethod
    def _depart(self, new: list[int], common: int) -> list[int]:
        """Switch to a text that shares only ``common`` tokens with the known one; return the tokens to be added."""

    @abstractmethod
    def _take(self, token_ids: Items[int]) -> None:
        """Learn tokens that follow those added last."""
