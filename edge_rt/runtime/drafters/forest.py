"""A forest of guesses: everything that a source guesses for a step, as the native core takes it."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Sequence as Items
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from edge_rt.runtime.decode.draft import ROOT
from edge_rt.runtime.drafters.source import Guess, Source

MAX_NODES: Final = 256
"""Most nodes of a forest."""
WALKED_NODES: Final = 64
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


class ForestSource(ABC):
    """Base of sources that make a forest for every step; the other methods of ``Source`` are the subclass's.

    The native core is given the whole forest; elsewhere it is asked node by node.
    """

    _behind: dict[int, list[Guess]]

    @abstractmethod
    def forest(self) -> Forest:
        """Return what may follow the known tokens, at most ``MAX_NODES`` nodes; none if nothing can be guessed."""

    def root(self) -> int | None:
        """Make a forest, and return the cursor at its roots; None if it is empty."""
        self._behind = {}
        forest = self.forest()
        rows = zip(forest.token_ids.tolist(), forest.parents.tolist(), forest.kinds.tolist(), strict=True)
        for node, (token, parent, kind) in enumerate(rows):
            self._behind.setdefault(parent, []).append(Guess(token, kind, node))
        return ROOT if self._behind else None

    def children(self, cursor: int) -> Items[Guess]:
        """Return the guesses that follow a node."""
        return self._behind.get(cursor, ())


def forest_of(source: Source, most: int = WALKED_NODES) -> Forest:
    """Return a source's guesses for a step: all of them if it has few, as sources that compute their guesses do.

    Args:
        source: a source; one that hands over no forest is asked for children, the likeliest nodes by its priors first.
        most: most nodes that it is asked for.
    """
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
    while front and len(token_ids) < most:
        negative, parent, cursor = heapq.heappop(front)
        for guess in source.children(cursor)[: most - len(token_ids)]:
            heapq.heappush(front, (negative * source.prior(guess.kind), len(token_ids), guess.cursor))
            token_ids.append(guess.token_id)
            parents.append(parent)
            kinds.append(guess.kind)
    return Forest.of(token_ids, parents, kinds)
