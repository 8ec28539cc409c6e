"""Drafts: trees of tokens that are guessed before the model computes them, and verified in one pass."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from edge_rt.runtime.forward.outputs import Outputs

if TYPE_CHECKING:
    from edge_rt.runtime.decode.sequence import Sequence
    from edge_rt.runtime.results import SpecStats

ROOT = -1
"""Parent of the tokens that follow the last known one."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens guessed to follow the sequence, as a tree.

    Attributes:
        parents: for every node the earlier node that it follows, or ``ROOT``.
    """

    token_ids: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()

    @classmethod
    def chain(cls, token_ids: Items[int]) -> Draft:
        """Return a draft without branches."""
        return cls(tuple(token_ids), tuple(range(ROOT, len(token_ids) - 1)))

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def is_chain(self) -> bool:
        """True if every node follows the one before it."""
        return self.parents == tuple(range(ROOT, len(self.parents) - 1))

    def first(self, count: int) -> Draft:
        """Return the first ``count`` (at least 0) nodes of the draft; their parents are among them."""
        return self if len(self) <= count else Draft(self.token_ids[:count], self.parents[:count])

    @property
    def first_path(self) -> list[int]:
        """Tokens of the path of first children, which is the likeliest one where the best nodes come first."""
        path, node = [], ROOT
        for index, (token, parent) in enumerate(zip(self.token_ids, self.parents, strict=True)):
            if parent == node:
                path.append(token)
                node = index
        return path

    def check(self) -> None:
        """Assert the invariants: parents come first, siblings differ."""
        assert len(self.token_ids) == len(self.parents), self
        assert all(ROOT <= parent < node for node, parent in enumerate(self.parents)), self
        assert len(set(zip(self.parents, self.token_ids, strict=True))) == len(self), self


@dataclass(frozen=True, slots=True)
class Accepted:
    """Outcome of one step.

    Attributes:
        token_ids: emitted tokens, at least one: those of the path, one that was chosen behind it, and those that a
            grammar forces then.
        path: the nodes of the draft that hold the first tokens.
        unasked: indices of the tokens that a grammar forced.
    """

    token_ids: tuple[int, ...]
    path: tuple[int, ...]
    num_drafted: int
    unasked: tuple[int, ...] = ()

    @property
    def forced(self) -> tuple[int, ...]:
        """The tokens behind the chosen one, which no pass has computed."""
        return self.token_ids[len(self.path) + 1 :]

    @property
    def num_accepted(self) -> int:
        """Number of drafted tokens that were accepted."""
        return len(self.path)


class Drafter(Protocol):
    """Drafts tokens, and learns which of them were accepted. One object serves many generations, one after another."""

    def begin(self, sequence: Sequence) -> None:
        """Start drafting for a sequence; it may continue an earlier one, or be a new one."""

    def propose(self, sequence: Sequence, limit: int) -> Draft:
        """Return at most ``limit`` (at least 0) nodes that may follow the sequence."""

    def pass_begins(self, draft: Draft) -> None:
        """Begin what may be computed beside the pass that verifies a draft; the pass is this sequence's alone."""

    def pass_ends(self, *, quietly: bool = False) -> None:
        """End what is computed beside a pass, and wait for it; does nothing where nothing is.

        Args:
            quietly: raise nothing. What would have been raised is so later, at the latest when another text begins.

        Raises:
            Exception: what the computation met and should not have; the drafter can go on.
        """

    def observe(self, draft: Draft, accepted: Accepted, outputs: Outputs) -> None:
        """Learn from a step.

        Args:
            outputs: of ``len(draft) + 1`` rows: after the last known token, and after every node. They are overwritten
                by the next pass.
        """

    def statistics(self, mode: str, taken_back: int = 0) -> SpecStats | None:
        """Return the statistics since ``begin``; None for a drafter that never drafts.

        Args:
            taken_back: emitted tokens that were removed because they followed a stop text.
        """


class NullDrafter:
    """Proposes nothing: plain decoding, one token per pass."""

    def begin(self, sequence: Sequence) -> None:
        """Do nothing."""
        del sequence

    def propose(self, sequence: Sequence, limit: int) -> Draft:
        """Return an empty draft."""
        del sequence, limit
        return Draft()

    def pass_begins(self, draft: Draft) -> None:
        """Do nothing."""
        del draft

    def pass_ends(self, *, quietly: bool = False) -> None:
        """Do nothing."""
        del quietly

    def observe(self, draft: Draft, accepted: Accepted, outputs: Outputs) -> None:
        """Do nothing."""
        del draft, accepted, outputs

    def statistics(self, mode: str, taken_back: int = 0) -> None:
        """Return None: there was no speculation."""
        del mode, taken_back
