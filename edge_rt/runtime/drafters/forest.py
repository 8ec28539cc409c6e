"""Sources that guess everything for a step at once, such as models: a forest of guesses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as Items
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from edge_rt.runtime.decode.draft import ROOT
from edge_rt.runtime.drafters.source import Guess

MAX_NODES: Final = 256
"""Most nodes of a forest."""

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
