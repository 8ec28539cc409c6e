"""What every speculative step runs: sources, tree growth, the acceptance model and the ledger, behind one interface.

``NativeCore`` runs it in the native library, ``PythonCore`` anywhere. Both draft the same trees.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence as Items
from typing import Final, Protocol

from edge_rt.runtime.decode.draft import ROOT, Accepted, Draft
from edge_rt.runtime.drafters.forest import ForestSource
from edge_rt.runtime.drafters.source import Source
from edge_rt.runtime.graph.outputs import Outputs
from edge_rt.runtime.speculation.acceptance import AcceptanceModel
from edge_rt.runtime.speculation.arms import Arm, Ledger, arms_of, texts_arm
from edge_rt.runtime.speculation.tree import EMPTY, TreeGrower

_DRAFTING_MS: Final = (0.02, 0.05)
"""Milliseconds of learning alone, and of drafting and learning, before they are measured."""


class DraftCore(Protocol):
    """Drafts trees from sources and learns from what became of them.

    Attributes:
        sources: what guesses.
        arms: the ways of drafting; see ``arms_of``.
        texts: the arm of the sources that look texts up; None if all sources do, or none.
        drafting: milliseconds of drafting and learning, by arm; the caller keeps them up to date.
    """

    sources: tuple[Source, ...]
    arms: tuple[Arm, ...]
    texts: int | None
    drafting: MutableSequence[float]

    def begin(self, token_ids: Items[int]) -> None:
        """Start a generation with these known tokens; what was learned in earlier ones fades a little."""

    def price(self, costs: Items[float]) -> None:
        """Set the costs of passes over 1, 2, ... rows in milliseconds; drafts have one node fewer than there are costs.

        A second call with the same object changes nothing.
        """

    def propose(self, limit: int, arm: int, least: float, *, whole: bool = False) -> Draft:
        """Return the tree that maximises expected tokens over cost.

        Args:
            limit: most nodes.
            arm: which of ``arms`` drafts.
            least: nodes that are less likely to be accepted are left out.
            whole: do not cut the tree to what pays.
        """

    def expected(self, count: int) -> float:
        """Return how many of the first ``count`` nodes of the last draft were expected to be accepted."""

    def observe(
        self, draft: Draft, accepted: Accepted, outputs: Outputs, context: tuple[int, ...], arm: int | None
    ) -> int:
        """Learn from a step.

        Args:
            draft: the last draft of ``propose``, or its first nodes.
            accepted: what was emitted.
            outputs: of the rows of the pass; see ``Source.observe``.
            context: the last known tokens before the draft.
            arm: who drafted, for ``speeds``; None: the step does not count there.

        Returns:
            The number of nodes that were tested: those whose parent was accepted.
        """

    def speeds(self) -> list[float | None]:
        """Return tokens per millisecond of every arm since ``clear``; None for arms without data; see ``Ledger``."""

    def clear(self) -> None:
        """Begin counting for ``speeds`` anew."""


class PythonCore:
    """The reference: it runs on every machine, with sources of every kind.

    Args:
        sources: what guesses, at most 8.
        chain: only the best guess of every position, for models that cannot verify trees.
    """

    def __init__(self, sources: Items[Source], *, chain: bool = False) -> None:
        self.sources = tuple(sources)
        self.arms, self.texts = arms_for(self.sources)
        self.drafting: MutableSequence[float] = first_estimates(self.arms)
        self._grower = TreeGrower(self.sources, AcceptanceModel(self.sources), chain=chain)
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


def arms_for(sources: Items[Source]) -> tuple[tuple[Arm, ...], int | None]:
    """Return the arms of sources, and which of them is that of texts; see ``arms_of`` and ``texts_arm``."""
    names = [source.name for source in sources]
    computing = [source.name for source in sources if isinstance(source, ForestSource)]
    arms = arms_of(names, computing)
    return arms, texts_arm(arms, names, computing)


def first_estimates(arms: Items[Arm]) -> list[float]:
    """Return milliseconds of drafting by arm, before anything is measured."""
    off, drafting = _DRAFTING_MS
    return [off, *[drafting] * (len(arms) - 1)]


def best_size(values: Items[float], costs: Items[float], drafting: float) -> int:
    """Return how many nodes to verify: those that maximise expected tokens over cost; 0 if plain decoding is faster.

    The goodput rule (Liu et al., "TurboSpec") over the values of a best-first tree: the m that maximises ``(1 + v_1 +
    ... + v_m) / (t(1 + m) + drafting)``. The time for drafting is spent however much is verified, so it counts for m =
    0 as well.

    Args:
        values: probability of every node that it is accepted, descending.
        costs: ``t``: costs of passes over 1, 2, ... rows, at least one more than values.
        drafting: cost of drafting, in the same unit.
    """
    best, size, expected = 1.0 / (costs[0] + drafting), 0, 1.0
    for count, value in enumerate(values, start=1):
        expected += value
        speed = expected / (costs[count] + drafting)
        if speed > best:
            best, size = speed, count
    return size
