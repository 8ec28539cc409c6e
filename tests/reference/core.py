"""The drafting core in Python: the oracle of the one in the native library, and asked where a test looks on."""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence as Items
from typing import Any

from edge_rt.runtime.decode.draft import ROOT, Accepted, Draft
from edge_rt.runtime.forward.outputs import Outputs
from edge_rt.runtime.speculation.arms import OFF, Arm
from edge_rt.runtime.speculation.core import arms_for, first_estimates
from edge_rt.runtime.speculation.source import DraftSource, Guess
from tests.reference.acceptance import AcceptanceModel
from tests.reference.tree import EMPTY, Tree, TreeGrower, best_size


class Asked:
    """A source that hands over a forest, asked for it node by node."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self._behind: dict[int, list[Guess]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def root(self) -> int | None:
        """Return the cursor at the roots; None if there are no guesses."""
        self._behind = {}
        forest = self._source.forest()
        rows = zip(forest.token_ids.tolist(), forest.parents.tolist(), forest.kinds.tolist(), strict=True)
        for node, (token, parent, kind) in enumerate(rows):
            self._behind.setdefault(parent, []).append(Guess(token, kind, node))
        return ROOT if self._behind else None

    def children(self, cursor: int) -> Items[Guess]:
        """Return the guesses that follow a node."""
        return self._behind.get(cursor, ())


class Ledger:
    """Counts tokens and milliseconds of every arm over some steps.

    A step in which all sources drafted together shows what each alone would have reached: its draft would have been the
    nodes of the tree that it guessed, its accepted tokens the part of the accepted path that it guessed without a gap.
    So arms are compared on the same text, which is far more reliable than comparing them on different texts. A step in
    which one arm drafted alone counts for that arm and for drafting nothing.

    Args:
        arms: as ``arms_of`` returns them.
    """

    def __init__(self, arms: Items[Arm]) -> None:
        self._arms = tuple(arms)
        self.steps = 0
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self.steps = 0
        self._tokens = [0] * len(self._arms)
        self._ms = [0.0] * len(self._arms)

    def add(self, played: int, tree: Tree, accepted: Accepted, costs: Items[float], drafting: Items[float]) -> None:
        """Add a step.

        Args:
            played: the arm that drafted.
            accepted: which nodes were accepted.
            costs: milliseconds of passes over 1, 2, ... rows.
            drafting: milliseconds of drafting, by arm.
        """
        self.steps += 1
        whole = self._arms[played].mask
        masks = [0] * len(tree.values)
        for node, parent in enumerate(tree.draft.parents):
            mask = whole if parent == ROOT else masks[parent]
            guessed = 0
            for source, _ in tree.evidence[node][0]:
                guessed |= 1 << source
            masks[node] = mask & guessed
        for index, arm in enumerate(self._arms):
            if index != OFF and arm.mask & ~whole:
                continue
            nodes = tokens = 0
            for mask in masks:
                nodes += mask & arm.mask != 0
            for node in accepted.path:
                if not masks[node] & arm.mask:
                    break
                tokens += 1
            self._tokens[index] += 1 + tokens
            self._ms[index] += costs[nodes] + drafting[index]

    def speeds(self) -> list[float | None]:
        """Return tokens per millisecond of every arm; None for arms without data."""
        return [tokens / ms if ms else None for tokens, ms in zip(self._tokens, self._ms, strict=True)]


class PythonCore:
    """``DraftCore``, with sources of every kind.

    Args:
        sources: what guesses, at most 8.
        chain: only the best guess of every position, for models that cannot verify trees.
    """

    def __init__(self, sources: Items[DraftSource], *, chain: bool = False) -> None:
        self.sources = tuple(sources)
        self.arms, self.texts = arms_for(self.sources)
        self.drafting: MutableSequence[float] = first_estimates(self.arms)
        asked = [source if hasattr(source, "root") else Asked(source) for source in self.sources]
        self._grower = TreeGrower(asked, AcceptanceModel(self.sources), chain=chain)
        self._ledger = Ledger(self.arms)
        self._costs: Items[float] = ()
        self._tree = EMPTY

    def begin(self, token_ids: Items[int]) -> None:
        """Start a generation."""
        self._grower.begin()
        for source in self.sources:
            source.begin(token_ids)

    def price(self, costs: Items[float]) -> None:
        """Set the costs of passes."""
        self._costs = costs

    def propose(self, limit: int, arm: int, least: float, *, whole: bool = False) -> Draft:
        """Return the tree that pays most."""
        tree = self._grower.grow(limit, self.arms[arm].mask, least)
        self._tree = tree if whole else tree.first(best_size(tree.values, self._costs, self.drafting[arm]))
        return self._tree.draft

    def expected(self, count: int) -> float:
        """Return the expected number of accepted nodes."""
        return sum(self._tree.values[:count])

    def observe(
        self, draft: Draft, accepted: Accepted, outputs: Outputs, context: tuple[int, ...], arm: int | None
    ) -> int:
        """Learn from a step."""
        tree = self._tree.first(len(draft))
        self._grower.learn(tree, accepted)
        for source in self.sources:
            source.observe(draft, accepted, outputs, context)
            source.extend(accepted.token_ids)
        if arm is not None:
            self._ledger.add(arm, tree, accepted, self._costs, self.drafting)
        reached = {ROOT, *accepted.path}
        return sum(parent in reached for parent in draft.parents)

    def speeds(self) -> list[float | None]:
        """Return the speeds of all arms."""
        return self._ledger.speeds()

    def clear(self) -> None:
        """Begin counting anew."""
        self._ledger.clear()
