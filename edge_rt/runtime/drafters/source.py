"""What a source of guesses is: it tells, one token at a time, what may follow a context.

Several sources grow one tree together (``tree.py``), which is why they are asked for children and not for whole drafts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as Items
from typing import Any, NamedTuple, Protocol

from edge_rt.runtime.decode.draft import Accepted, Draft
from edge_rt.runtime.graph.outputs import Outputs
from edge_rt.runtime.graph.prefix import common_prefix

CONTEXT_TOKENS = 4
"""Known tokens before a draft that a source is told with the step's outputs."""


class Guess(NamedTuple):
    """A token that may come next.

    Attributes:
        token_id: the token.
        kind: how good such guesses are, ``0 <= kind < source.num_kinds``; acceptance is learned per kind.
        cursor: what to give to ``children`` for the tokens behind this one.
    """

    token_id: int
    kind: int
    cursor: Any


class Source(Protocol):
    """Guesses tokens, and learns from what is known and what the model computes. It serves many generations.

    Attributes:
        name: as users call it.
        num_kinds: kinds of guesses.
    """

    name: str
    num_kinds: int

    def prior(self, kind: int) -> float:
        """Return how likely a guess of this kind is right, before anything is learned."""

    def begin(self, token_ids: Items[int]) -> None:
        """Take up a generation.

        Args:
            token_ids: all known tokens. What they share with the tokens known so far is not taken in twice; another
                text begins anew, but what was learned stays.
        """

    def extend(self, token_ids: Items[int]) -> None:
        """Take in emitted tokens."""

    def observe(self, draft: Draft, accepted: Accepted, outputs: Outputs, context: tuple[int, ...]) -> None:
        """Learn from a step, before its tokens are taken in.

        Args:
            draft: what was verified.
            accepted: what was emitted.
            outputs: of ``len(draft) + 1`` rows: behind the last known token, and behind every node.
            context: the last known tokens before the draft, at most ``CONTEXT_TOKENS``.
        """

    def root(self) -> Any | None:
        """Return the cursor at the end of the known tokens; None if nothing can be guessed."""

    def children(self, cursor: Any) -> Items[Guess]:
        """Return the tokens that may follow, the most promising first; they differ."""

    @property
    def memory_bytes(self) -> int:
        """Bytes that it holds."""


class TextSource(ABC):
    """The part of a source that learns from texts alone: every token is taken in once."""

    def __init__(self) -> None:
        self._known: list[int] = []

    def begin(self, token_ids: Items[int]) -> None:
        """Take in what is new; what earlier texts taught stays."""
        new = list(token_ids)
        common = common_prefix(self._known, new)
        self._take(new[common:] if common == len(self._known) else self._depart(new, common))
        self._known = new

    def extend(self, token_ids: Items[int]) -> None:
        """Take in emitted tokens."""
        self._known.extend(token_ids)
        self._take(token_ids)

    def observe(self, draft: Draft, accepted: Accepted, outputs: Outputs, context: tuple[int, ...]) -> None:
        """Do nothing: what was emitted is all there is to learn."""
        del draft, accepted, outputs, context

    @abstractmethod
    def _depart(self, new: list[int], common: int) -> list[int]:
        """Turn to a text that departs from the known one behind ``common`` tokens; return what is to be taken in."""

    @abstractmethod
    def _take(self, token_ids: Items[int]) -> None:
        """Learn tokens that follow what was taken in last."""
