"""What every speculative step runs: sources, tree growth, the acceptance model and the ledger, behind one interface.

``NativeCore`` runs it in the native library, ``PythonCore`` anywhere. Both draft the same trees.
"""

from __future__ import annotations

from array import array
from collections.abc import MutableSequence, Sequence as Items
from typing import Final, Protocol

from edge_rt.runtime.decode.draft import ROOT, Accepted, Draft
from edge_rt.runtime.forward.outputs import Outputs, TopTokens
from edge_rt.runtime.speculation.acceptance import KEEP_GENERATION, AcceptanceModel
from edge_rt.runtime.speculation.arms import Arm, Ledger, arms_of, texts_arm
from edge_rt.runtime.speculation.library import DraftLibrary, Handle, checked, int32s
from edge_rt.runtime.speculation.source import ForestSource, Source, forest_of
from edge_rt.runtime.speculation.text_sources import NativeSource, Rows, likely
from edge_rt.runtime.speculation.tree import EMPTY, TreeGrower

_DRAFTING_MS: Final = (0.02, 0.05)
"""Milliseconds of learning alone, and of drafting and learning, before they are measured."""


class DraftCore(Protocol):
    """Drafts trees from sources and learns from what became of them.

    Attributes:
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
    """
    best, size, expected = 1.0 / (costs[0] + drafting), 0, 1.0
    for count, value in enumerate(values, start=1):
        expected += value
        speed = expected / (costs[count] + drafting)
        if speed > best:
            best, size = speed, count
    return size


_NOTHING: Final = Draft()
_FIRST_ROOM: Final = 64
_KEPT_ROWS: Final = 64


class NativeCore:
    """Grows trees from native sources and from forests, with all that it learns in the library.

    Args:
        sources: what guesses, at most 8. Those outside the library hand over a forest for a draft. One that does not
            is asked for up to 64 guesses, which is all of them if it computes its guesses.
        chain: only the best guess of every position, for models that cannot verify trees.
    """

    def __init__(self, library: DraftLibrary, sources: Items[Source], *, chain: bool = False) -> None:
        self.sources = tuple(sources)
        self.arms, self.texts = arms_for(self.sources)
        self._library = library
        self._drafting = array("d", first_estimates(self.arms))
        self.drafting: MutableSequence[float] = self._drafting
        # Sources outside the library, with their places among the sources and the library's copies of their guesses.
        self._outside: list[tuple[int, Source, Handle]] = []
        handles = []
        for index, source in enumerate(self.sources):
            if isinstance(source, NativeSource):
                handles.append(source.handle)
            else:
                handles.append(Handle(library.forest_open(source.num_kinds), library.source_close))
                self._outside.append((index, source, handles[-1]))
        addresses = array("Q", [handle.address for handle in handles])
        num_kinds = array("i", [source.num_kinds for source in self.sources])
        priors = array("d", [source.prior(kind) for source in self.sources for kind in range(source.num_kinds)])
        masks = array("I", [arm.mask for arm in self.arms])
        grower = library.grower_open(
            addresses.buffer_info()[0], len(handles), num_kinds.buffer_info()[0], priors.buffer_info()[0],
            masks.buffer_info()[0], len(masks), int(chain),
        )  # fmt: skip
        self._handle = Handle(grower, library.grower_close, keep=handles)
        self._priced: Items[float] | None = None
        self._rows: dict[int, tuple[TopTokens, object, Rows]] = {}
        self._make_room(_FIRST_ROOM)

    def begin(self, token_ids: Items[int]) -> None:
        """Start a generation."""
        _held, address, count = int32s(token_ids)
        # What passes write to is made anew where they need more rows.
        self._rows.clear()
        checked(self._library.grower_begin(self._handle.address, KEEP_GENERATION, address, count))
        for _, source, _ in self._outside:
            source.begin(token_ids)

    def price(self, costs: Items[float]) -> None:
        """Set the costs of passes."""
        if costs is self._priced:
            return
        held = array("d", costs)
        checked(self._library.grower_price(self._handle.address, held.buffer_info()[0], len(held)))
        self._priced = costs

    def propose(self, limit: int, arm: int, least: float, *, whole: bool = False) -> Draft:
        """Return the tree that pays most."""
        for index, source, forest in self._outside:
            if self.arms[arm].mask >> index & 1:
                self._hand_over(source, forest)
        if limit > len(self._tokens):
            self._make_room(limit)
        count = checked(
            self._library.grower_propose(
                self._handle.address, limit, arm, least, -1.0 if whole else self._drafting[arm],
                self._tokens.buffer_info()[0], self._parents.buffer_info()[0], self._values.buffer_info()[0],
            )
        )  # fmt: skip
        return Draft(tuple(self._tokens[:count]), tuple(self._parents[:count])) if count else _NOTHING

    def _make_room(self, nodes: int) -> None:
        self._tokens, self._parents = array("i", bytes(4 * nodes)), array("i", bytes(4 * nodes))
        self._values = array("d", bytes(8 * nodes))

    def _hand_over(self, source: Source, forest: Handle) -> None:
        tokens, parents, kinds = (array("i", values.astype("i4").tobytes()) for values in forest_of(source))
        checked(
            self._library.forest_set(
                forest.address, len(tokens), tokens.buffer_info()[0], parents.buffer_info()[0], kinds.buffer_info()[0]
            )
        )

    def expected(self, count: int) -> float:
        """Return the expected number of accepted nodes."""
        return sum(self._values[:count])

    def observe(
        self, draft: Draft, accepted: Accepted, outputs: Outputs, context: tuple[int, ...], arm: int | None
    ) -> int:
        """Learn from a step."""
        _emitted, emitted, _ = int32s(accepted.token_ids)
        _path, path, count = int32s(accepted.path)
        _known, known, known_count = int32s(context)
        rows = self._rows_of(outputs)
        tested = checked(
            self._library.grower_observe(
                self._handle.address, len(draft), emitted, path, count, known, known_count, *rows,
                -1 if arm is None else arm, self._drafting.buffer_info()[0],
            )
        )  # fmt: skip
        for _, source, _ in self._outside:
            source.observe(draft, accepted, outputs, context)
            source.extend(accepted.token_ids)
        return tested

    def _rows_of(self, outputs: Outputs) -> Rows:
        """Return ``likely`` of outputs; passes of the same shape have the same ones, and asking arrays takes time."""
        top = outputs.top
        if top is None:
            return likely(outputs)[1]
        found = self._rows.get(id(top))
        if found is None:
            if len(self._rows) >= _KEPT_ROWS:
                self._rows.clear()
            # The first is kept so that its id stays its own.
            found = self._rows[id(top)] = (top, *likely(outputs))
        return found[2]

    def speeds(self) -> list[float | None]:
        """Return the speeds of all arms."""
        tokens, ms = array("q", bytes(8 * len(self.arms))), array("d", bytes(8 * len(self.arms)))
        checked(self._library.grower_ledger(self._handle.address, tokens.buffer_info()[0], ms.buffer_info()[0]))
        return [count / spent if spent else None for count, spent in zip(tokens, ms, strict=True)]

    def clear(self) -> None:
        """Begin counting anew."""
        checked(self._library.grower_clear(self._handle.address))

    @property
    def own_bytes(self) -> int:
        """Bytes of everything in the library but the sources."""
        return checked(self._library.grower_bytes(self._handle.address))


def open_core(sources: Items[Source], library: DraftLibrary | None, *, chain: bool = False) -> DraftCore:
    """Return the native core if there is a library and it has some of these sources, or forests; else that in Python.

    N-grams and suffixes of a corpus are better asked one by one, as far as a tree goes, so they stay in Python.

    Args:
        library: the native library; None: there is none.
    """
    if library is not None and any(isinstance(source, NativeSource | ForestSource) for source in sources):
        return NativeCore(library, sources, chain=chain)
    return PythonCore(sources, chain=chain)
