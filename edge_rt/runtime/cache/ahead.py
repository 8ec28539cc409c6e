"""Rows that the first segments of a package have computed for a draft, and what of a pass they spare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ready:
    """What of a pass is computed already.

    Attributes:
        nodes: rows of the pass that the first segments have computed, in the order in which they did.
    """

    nodes: tuple[int, ...] = ()
    segments: int = 0

    @property
    def leads(self) -> bool:
        """Whether these are the first rows of the pass."""
        return self.nodes == tuple(range(len(self.nodes)))


class Ahead:
    """A draft that ends behind some segment: tokens behind the committed ones, as a tree.

    Keys and values of these rows lie in the cache, in the layers of these segments alone. Whatever changes the
    committed rows clears it (``KVCache``).

    Attributes:
        segments: segments that have computed it; 0 if it is empty.
        parents: for every node the earlier one that it follows, or -1 for the committed rows.
    """

    def __init__(self) -> None:
        self.start = 0
        self.segments = 0
        self.token_ids: list[int] = []
        self.parents: list[int] = []

    def __len__(self) -> int:
        return len(self.token_ids)

    def begin(self, start: int, segments: int) -> None:
        """Begin a draft behind ``start`` committed rows, in the first ``segments`` (at least 1) segments."""
        assert segments > 0, segments
        self.clear()
        self.start, self.segments = start, segments

    def add(self, token_id: int, parent: int) -> None:
        """Add a node that was computed."""
        assert self.segments > 0, "begin was not called"
        assert -1 <= parent < len(self.token_ids), (parent, len(self.token_ids))
        self.token_ids.append(token_id)
        self.parents.append(parent)

    def clear(self) -> None:
        """Forget the draft: its rows are free."""
        self.segments = 0
        self.token_ids.clear()
        self.parents.clear()

    def take(self, start: int, token_ids: Sequence[int], parents: Sequence[int] | None) -> Ready:
        """Return what of a pass is computed already, and forget the draft.

        Nodes of the draft are found wherever they are in the pass's tree; those behind one that is missing are not.
        """
        nodes: list[int] = []
        if self.segments and start == self.start:
            above = range(-1, len(token_ids) - 1) if parents is None else parents
            rows = {edge: row for row, edge in enumerate(zip(above, token_ids, strict=True))}
            for token, parent in zip(self.token_ids, self.parents, strict=True):
                row = rows.get((-1 if parent < 0 else nodes[parent], token))
                if row is None:
                    break
                nodes.append(row)
        ready = Ready(tuple(nodes), self.segments) if nodes else Ready()
        self.clear()
        return ready
