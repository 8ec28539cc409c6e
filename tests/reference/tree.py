"""Grows one draft tree from the guesses of several sources, best node first, as large as pays off."""

from __future__ import annotations

import heapq
from collections.abc import Sequence as Items
from typing import Any, Final, NamedTuple

from edge_rt.runtime.decode.draft import ROOT, Accepted, Draft
from edge_rt.runtime.speculation.adaptive import LEAST_VALUE
from edge_rt.runtime.speculation.source import DraftSource
from tests.reference.acceptance import AcceptanceModel


class _Node(NamedTuple):
    """A guess that may become a node; sorts by its value, the largest first."""

    negative_value: float
    order: int
    parent: int
    token_id: int
    cell: int
    guesses: list[tuple[int, int]]
    cursors: list[tuple[int, Any]]


class Tree(NamedTuple):
    """A draft tree; its nodes are in the order in which they were found, by descending value.

    Attributes:
        values: for every node the probability that it is accepted.
        evidence: for every node the sources that guessed it, and its cell in the acceptance model.
    """

    draft: Draft
    values: tuple[float, ...]
    evidence: tuple[tuple[list[tuple[int, int]], int], ...]

    def first(self, count: int) -> Tree:
        """Return the tree of the first ``count`` nodes."""
        return (
            self
            if len(self.values) <= count
            else Tree(self.draft.first(count), self.values[:count], self.evidence[:count])
        )


EMPTY: Final = Tree(Draft(), (), ())


class TreeGrower:
    """Merges the guesses of sources into trees (RASD's merging by common prefixes, DySpec's order of growth).

    A node's value is the probability that all its tokens down from the root are right, so the first n nodes from the
    heap are the best tree of n nodes, for every n (OPT-Tree).

    Args:
        chain: only the best guess of every position, for models that cannot verify trees.
    """

    def __init__(self, sources: Items[DraftSource], model: AcceptanceModel, *, chain: bool = False) -> None:
        self.sources = tuple(sources)
        self._model = model
        self._chain = chain
        self._order = 0

    def grow(self, limit: int, use: int = -1, least: float = LEAST_VALUE) -> Tree:
        """Return the best tree of at most ``limit`` nodes.

        Args:
            use: bit i is set if source i may guess; all by default.
        """
        cursors = []
        for index, source in enumerate(self.sources):
            if use >> index & 1 and (cursor := source.root()) is not None:
                cursors.append((index, cursor))
        heap: list[_Node] = []
        if limit > 0:
            self._expand(heap, ROOT, 1.0, cursors, least)
        tokens: list[int] = []
        parents: list[int] = []
        values: list[float] = []
        evidence: list[tuple[list[tuple[int, int]], int]] = []
        while heap:
            negative, _, parent, token, cell, guesses, cursors = heapq.heappop(heap)
            if self._chain:
                heap.clear()
            tokens.append(token)
            parents.append(parent)
            values.append(-negative)
            evidence.append((guesses, cell))
            if len(tokens) == limit:
                break
            self._expand(heap, len(tokens) - 1, -negative, cursors, least)
        return Tree(Draft(tuple(tokens), tuple(parents)), tuple(values), tuple(evidence))

    def _expand(
        self, heap: list[_Node], parent: int, value: float, cursors: list[tuple[int, Any]], least: float
    ) -> None:
        """Add the tokens that may follow a node. This runs many times per step, hence the plain lists."""
        all_odds, probabilities, cell_of = self._model.odds, self._model.probabilities, self._model.cell
        # token -> [mask, sum of odds, guesses, cursors]
        found: dict[int, list[Any]] = {}
        for source, cursor in cursors:
            odds = all_odds[source]
            for token, kind, behind in self.sources[source].children(cursor):
                known = found.get(token)
                if known is None:
                    found[token] = [1 << source, odds[kind], [(source, kind)], [(source, behind)]]
                else:
                    known[0] |= 1 << source
                    known[1] += odds[kind]
                    known[2].append((source, kind))
                    known[3].append((source, behind))
        leader, lead = ROOT, 0.0
        for token, (mask, total, _, _) in found.items():
            share = probabilities[cell_of(mask, total, None)]
            if share > lead:
                leader, lead = token, share
        for token, (mask, total, guesses, behind) in found.items():
            if token == leader:
                cell = cell_of(mask, total, None)
            elif value * (1.0 - lead) < least:
                continue
            else:
                cell = cell_of(mask, total, lead)
            reached = value * probabilities[cell]
            if reached >= least:
                self._order += 1
                heapq.heappush(heap, _Node(-reached, self._order, parent, token, cell, guesses, behind))

    def begin(self) -> None:
        """Start another generation."""
        self._model.relax()

    def learn(self, tree: Tree, accepted: Accepted) -> None:
        """Learn which nodes were right, among those whose parent was reached."""
        following = dict(zip((ROOT, *accepted.path), accepted.token_ids, strict=True))
        for node, parent in enumerate(tree.draft.parents):
            if parent in following:
                guesses, cell = tree.evidence[node]
                # An end token that was drafted is right, although it is not part of the path.
                self._model.learn(guesses, cell, tree.draft.token_ids[node] == following[parent])


def best_size(values: Items[float], costs: Items[float], drafting: float) -> int:
    """Return how many nodes to verify: those that maximise expected tokens over cost; 0 if plain decoding is faster.

    Args:
        costs: of passes over 1, 2, ... rows, at least one more than values.
    """
    best, size, expected = 1.0 / (costs[0] + drafting), 0, 1.0
    for count, value in enumerate(values, start=1):
        expected += value
        speed = expected / (costs[count] + drafting)
        if speed > best:
            best, size = speed, count
    return size
