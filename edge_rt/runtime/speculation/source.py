"""The interface of draft sources, which say what may follow the known tokens; several grow one tree together."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from bisect import bisect
from collections.abc import Sequence as Items
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from edge_rt.runtime.decode.draft import ROOT, Accepted, Draft
from edge_rt.runtime.forward.outputs import Outputs
from edge_rt.runtime.speculation.statistics import BesideCounts

CONTEXT_TOKENS = 4
"""Known tokens before a draft that a source receives with the step's outputs."""


class Guess(NamedTuple):
    """A token that may come next.

    Attributes:
        kind: how good such guesses are, ``0 <= kind < source.num_kinds``; acceptance is learned per kind.
        cursor: the argument of ``children`` for the tokens after this one.
    """

    token_id: int
    kind: int
    cursor: Any


class DraftSource(Protocol):
    """Guesses tokens, and learns from what is known and what the model computes. It serves many generations."""

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
            outputs: of ``len(draft) + 1`` rows: after the last known token, and after every node.
            context: the last known tokens before the draft, at most ``CONTEXT_TOKENS``.
        """

    @property
    def memory_bytes(self) -> int:
        """Memory in bytes."""


MAX_NODES: Final = 256
"""Most nodes of a forest."""
WALKED_NODES: Final = 40
"""Most nodes that a source is asked for one by one."""

Int32s = npt.NDArray[np.int32]


class Forest(NamedTuple):
    """Guesses; siblings have different tokens.

    Attributes:
        token_ids: int32 ``[nodes]``, one per node.
        parents: int32 ``[nodes]``, the earlier node that a node follows, or ``ROOT``.
        kinds: int32 ``[nodes]``, how good such guesses are; see ``Guess``.
    """

    token_ids: Int32s
    parents: Int32s
    kinds: Int32s

    @classmethod
    def of(cls, token_ids: Items[int], parents: Items[int], kinds: Items[int]) -> Forest:
        """Return the forest of these nodes."""
        return cls(*(np.asarray(values, np.int32) for values in (token_ids, parents, kinds)))


NO_GUESSES: Final = Forest.of((), (), ())


class ForestSource(DraftSource, ABC):
    """Base of sources that compute their guesses.

    Attributes:
        beside: see ``SpecStats.beside``.
    """

    beside: str | None = None

    @property
    def beside_counts(self) -> BesideCounts:
        """What became of passes beside others, in this answer."""
        return BesideCounts()

    @abstractmethod
    def forest(self) -> Forest:
        """Return what may follow the known tokens, at most ``MAX_NODES`` nodes; asked for once a step."""

    def pass_begins(self, draft: Draft, ms: float) -> None:
        """Begin what may be computed beside the pass that verifies a draft.

        Args:
            ms: what the pass is expected to take.
        """

    def pass_ends(self, *, quietly: bool = False) -> None:
        """End what is computed beside a pass; see ``Drafter.pass_ends``."""


class AskedSource(DraftSource, Protocol):
    """One that is asked token by token what may follow, such as a table."""

    def root(self) -> Any | None:
        """Return the cursor at the end of the known tokens; None if nothing can be guessed."""

    def children(self, cursor: Any) -> Items[Guess]:
        """Return the tokens that may follow, the most promising first; they differ."""


AnySource = ForestSource | AskedSource


def forest_of(source: ForestSource | AskedSource) -> Forest:
    """Return a source's guesses for a step; one that is asked gives its ``WALKED_NODES`` likeliest by its priors."""
    if isinstance(source, ForestSource):
        return source.forest()
    token_ids: list[int] = []
    parents: list[int] = []
    kinds: list[int] = []
    # Nodes whose children are to be asked for: (negative value, node, cursor). Siblings stay in the source's order.
    front: list[tuple[float, int, Any]] = []
    root = source.root()
    if root is not None:
        front.append((-1.0, ROOT, root))
    while front and len(token_ids) < WALKED_NODES:
        negative, parent, cursor = heapq.heappop(front)
        for guess in source.children(cursor)[: WALKED_NODES - len(token_ids)]:
            heapq.heappush(front, (negative * source.prior(guess.kind), len(token_ids), guess.cursor))
            token_ids.append(guess.token_id)
            parents.append(parent)
            kinds.append(guess.kind)
    return Forest.of(token_ids, parents, kinds)


MAX_CHAIN: Final = 8
"""Longest chain that is drafted."""
RANKS: Final = 3
"""Further likely tokens of a row that may be drafted beside the first one."""
SURENESS: Final = (0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.92)
"""Bounds of the ranges of probability that a network gives its guess."""
_LEVELS: Final = len(SURENESS) + 1
_SIBLINGS: Final = MAX_CHAIN * _LEVELS
CHAIN_KINDS: Final = _SIBLINGS + RANKS
"""Kinds of guesses: a place of the chain with a range of probability, or a sibling's rank."""
_SIBLING: Final = 0.1


class ChainGuess(NamedTuple):
    """What a network says behind one row of the chain.

    Attributes:
        token_id: the likeliest token, which goes on with the chain.
    """

    token_id: int
    probability: float
    siblings: tuple[int, ...]


def chain_prior(kind: int, first: float) -> float:
    """Return the probability that a guess is right before anything is learned."""
    if kind >= _SIBLINGS:
        return _SIBLING / (1 + kind - _SIBLINGS)
    return first * (0.5 + kind % _LEVELS / (_LEVELS - 1))


def chain_forest(guesses: Items[ChainGuess]) -> Forest:
    """Return a chain with its siblings, behind which there is nothing."""
    tokens: list[int] = []
    parents: list[int] = []
    kinds: list[int] = []
    parent = ROOT
    for place, guess in enumerate(guesses):
        node = len(tokens)
        tokens += [guess.token_id, *guess.siblings]
        parents += [parent] * (1 + len(guess.siblings))
        kinds.append(min(place, MAX_CHAIN - 1) * _LEVELS + bisect(SURENESS, guess.probability))
        kinds += range(_SIBLINGS, _SIBLINGS + len(guess.siblings))
        parent = node
    return Forest.of(tokens, parents, kinds)
