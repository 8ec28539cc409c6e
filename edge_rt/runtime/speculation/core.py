"""What every speculative step runs in the native library: tree growth, the acceptance model and the ledger."""

from __future__ import annotations

from array import array
from collections.abc import MutableSequence, Sequence as Items
from typing import Final, NamedTuple

from edge_rt.runtime.decode.draft import ROOT, Accepted, Draft
from edge_rt.runtime.forward.outputs import Outputs, TopTokens
from edge_rt.runtime.speculation.arms import Arm, arms_of, texts_arm
from edge_rt.runtime.speculation.library import DraftLibrary, Handle, checked, int32s
from edge_rt.runtime.speculation.source import AnySource, DraftSource, ForestSource, forest_of
from edge_rt.runtime.speculation.text_sources import NativeSource, Rows, likely

KEEP_GENERATION: Final = 0.95
"""Factor on all counts from one generation to the next."""
_DRAFTING_MS: Final = (0.02, 0.05)
"""Milliseconds of learning alone, and of drafting and learning, before they are measured."""


def arms_for(sources: Items[DraftSource]) -> tuple[tuple[Arm, ...], int | None]:
    """Return the arms of sources, and which of them is that of texts; see ``arms_of`` and ``texts_arm``."""
    names = [source.name for source in sources]
    computing = [source.name for source in sources if isinstance(source, ForestSource)]
    arms = arms_of(names, computing)
    return arms, texts_arm(arms)


def first_estimates(arms: Items[Arm]) -> list[float]:
    """Return milliseconds of drafting by arm, before anything is measured."""
    off, drafting = _DRAFTING_MS
    return [off, *[drafting] * (len(arms) - 1)]


_AGREEMENT: Final = 1.4
"""Added to the sum of log odds for every further source that guesses the same token."""
_JOINT: Final = {
    frozenset({"suffix"}): (-0.75, 1.0),
    frozenset({"recycling"}): (-1.6, 0.25),
    frozenset({"head"}): (-0.5, 1.0),
    frozenset({"suffix", "recycling"}): (-0.95, 1.0),
    frozenset({"suffix", "head"}): (1.1, 0.87),
    frozenset({"recycling", "head"}): (0.0, 0.3),
    frozenset({"suffix", "recycling", "head"}): (0.9, 0.4),
}
"""Where these three draft together: fits to the guesses of 109 answers of SmolLM2-135M. What recycling says alone is
seldom true, as the others have said something else.
"""


def joint_priors(names: Items[str]) -> list[tuple[float, float]]:
    """Return, for every set of sources, start and slope of the log odds of their common guess by the sum of theirs."""
    are_measured = {"suffix", "recycling", "head"} <= set(names)
    lines = []
    for mask in range(1 << len(names)):
        guessing = frozenset(name for index, name in enumerate(names) if mask >> index & 1)
        usual = (_AGREEMENT * max(0, mask.bit_count() - 1), 1.0)
        lines.append(_JOINT.get(guessing, usual) if are_measured else usual)
    return lines


class Tree(NamedTuple):
    """A tree that shares a pass with others.

    Attributes:
        nodes: how many it has.
        values: address of what they are worth, float64, the most valuable first.
        known: rows that its sequence computes in any case, at least 1.
        attention: milliseconds that 1, 2, ... rows take at its depth beyond those of the costs; None: none.
    """

    nodes: int
    values: int
    known: int = 1
    attention: array[float] | None = None


def divide(
    library: DraftLibrary,
    trees: Items[Tree],
    costs: array[float],
    *,
    most: int,
    tokens: float,
    drafting: float,
    least: int = 0,
) -> list[int]:
    """Return how many of the first nodes of every tree are to be verified in a pass.

    The goodput rule (Liu et al., "TurboSpec") over the nodes of all trees by falling value: the m that maximises
    ``(tokens + v_1 + ... + v_m) / (t + drafting)``. No node is worth more than its parent, so these m are trees as
    well. ``t`` has a part by all rows, and the attention of every sequence by its own. The time for drafting is spent
    however much is verified, so it counts for m = 0 as well.

    Args:
        costs: milliseconds of passes over 1, 2, ... rows; those of attention are as many.
        most: nodes of all trees together, at most.
        tokens: what the pass gives without drafts.
        least: the same, at least, if the trees have so many.
    """
    nodes, known = array("i", (tree.nodes for tree in trees)), array("i", (tree.known for tree in trees))
    values = array("Q", (tree.values for tree in trees))
    own = array("Q", (0 if tree.attention is None else tree.attention.buffer_info()[0] for tree in trees))
    sizes = array("i", bytes(4 * len(trees)))
    checked(
        library.divide(
            len(trees), nodes.buffer_info()[0], values.buffer_info()[0], known.buffer_info()[0], own.buffer_info()[0],
            costs.buffer_info()[0], len(costs), least, most, tokens, drafting, sizes.buffer_info()[0],
        )
    )  # fmt: skip
    return sizes.tolist()


_NOTHING: Final = Draft()
_FIRST_ROOM: Final = 64
_KEPT_ROWS: Final = 64


class DraftCore:
    """Drafts trees from sources and learns from what became of them.

    A node's value is the probability that all its tokens down from the root are right (RASD merges guesses by common
    prefixes, DySpec and OPT-Tree grow the best node first).

    Args:
        sources: what guesses, at most 8. Those outside the library hand over a forest for a step; see ``forest_of``.
        chain: only the best guess of every position, for models that cannot verify trees.

    Attributes:
        texts: the arm of the sources that look texts up; None if all sources do, or none.
        drafting: milliseconds of drafting and learning, by arm; the caller keeps them up to date.
    """

    def __init__(self, library: DraftLibrary, sources: Items[AnySource], *, chain: bool = False) -> None:
        self.sources = tuple(sources)
        self.arms, self.texts = arms_for(self.sources)
        self._library = library
        self._drafting = array("d", first_estimates(self.arms))
        self.drafting: MutableSequence[float] = self._drafting
        # Sources outside the library, each with its index and the library's copy of its guesses, and the indices of
        # those whose guesses the library has for this step.
        self._outside: list[tuple[int, AnySource, Handle]] = []
        self._handed_over: set[int] = set()
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
        joint = array(
            "d", (number for line in joint_priors([source.name for source in self.sources]) for number in line)
        )
        masks = array("I", [arm.mask for arm in self.arms])
        grower = library.grower_open(
            addresses.buffer_info()[0], len(handles), num_kinds.buffer_info()[0], priors.buffer_info()[0],
            joint.buffer_info()[0], masks.buffer_info()[0], len(masks), int(chain),
        )  # fmt: skip
        self._handle = Handle(grower, library.grower_close, keep=handles)
        self._priced: Items[float] | None = None
        self._proposed = 0
        self._rows: dict[int, tuple[TopTokens, object, Rows]] = {}
        self._make_room(_FIRST_ROOM)

    def begin(self, token_ids: Items[int]) -> None:
        """Start a generation with these known tokens; what was learned in earlier ones fades a little."""
        _held, address, count = int32s(token_ids)
        # What passes write to is made anew where they need more rows.
        self._rows.clear()
        self._handed_over.clear()
        checked(self._library.grower_begin(self._handle.address, KEEP_GENERATION, address, count))
        for _, source, _ in self._outside:
            source.begin(token_ids)

    def price(self, costs: Items[float]) -> None:
        """Set the costs of passes over 1, 2, ... rows in milliseconds; drafts have one node fewer than there are costs.

        A second call with the same object changes nothing.
        """
        if costs is self._priced:
            return
        held = array("d", costs)
        checked(self._library.grower_price(self._handle.address, held.buffer_info()[0], len(held)))
        self._priced = costs

    def propose(self, limit: int, arm: int, least: float, *, whole: bool = False) -> Draft:
        """Return the tree that maximises expected tokens over cost.

        Args:
            least: nodes that are less likely to be accepted are left out.
            whole: return all nodes, whatever they cost.
        """
        return self.first(self.grow(limit, arm, least, whole=whole))

    def grow(self, limit: int, arm: int, least: float, *, whole: bool = False) -> int:
        """Grow a tree as ``propose`` does; return the number of its nodes, which ``first`` returns."""
        for index, source, forest in self._outside:
            if self.arms[arm].mask >> index & 1 and index not in self._handed_over:
                self._hand_over(source, forest)
                self._handed_over.add(index)
        if limit > len(self._tokens):
            self._make_room(limit)
        count = checked(
            self._library.grower_propose(
                self._handle.address, limit, arm, least, -1.0 if whole else self._drafting[arm],
                self._tokens.buffer_info()[0], self._parents.buffer_info()[0], self._values.buffer_info()[0],
            )
        )  # fmt: skip
        self._proposed = count
        return count

    def first(self, count: int) -> Draft:
        """Return the first nodes of the last tree."""
        return Draft(tuple(self._tokens[:count]), tuple(self._parents[:count])) if count else _NOTHING

    @property
    def values_address(self) -> int:
        """Address of the values of the last tree's nodes, float64, until the next one."""
        return self._values.buffer_info()[0]

    def _make_room(self, nodes: int) -> None:
        self._tokens, self._parents = array("i", bytes(4 * nodes)), array("i", bytes(4 * nodes))
        self._values = array("d", bytes(8 * nodes))

    def _hand_over(self, source: AnySource, forest: Handle) -> None:
        tokens, parents, kinds = (array("i", values.astype("i4").tobytes()) for values in forest_of(source))
        checked(
            self._library.forest_set(
                forest.address, len(tokens), tokens.buffer_info()[0], parents.buffer_info()[0], kinds.buffer_info()[0]
            )
        )

    def expected(self, count: int) -> float:
        """Return how many of the first ``count`` nodes of the last draft were expected to be accepted."""
        return sum(self._values[:count])

    def observe(
        self, draft: Draft, accepted: Accepted, outputs: Outputs, context: tuple[int, ...], arm: int | None
    ) -> int:
        """Learn from a step.

        Args:
            arm: who drafted, for ``speeds``; None: the step does not count there.

        Returns:
            The number of nodes that were tested: those whose parent was accepted.
        """
        self._handed_over.clear()
        whole, accepted = accepted, Accepted(accepted.token_ids[: 1 + len(accepted.path)], accepted.path, len(draft))
        tested = self._learn(draft, accepted, outputs, context, arm)
        for _, source, _ in self._outside:
            source.observe(draft, accepted, outputs, context)
            source.extend(accepted.token_ids)
        if whole.forced:
            for source in self.sources:
                source.extend(whole.forced)
        return tested

    def _learn(
        self, draft: Draft, accepted: Accepted, outputs: Outputs, context: tuple[int, ...], arm: int | None
    ) -> int:
        """Let the library learn from a step; return the number of nodes that were tested."""
        count = len(draft)
        if 0 < count < self._proposed and not self._is_proposed(draft):
            # A grammar has taken nodes out: their rows do not exist, so the sources alone learn.
            for source in self.sources:
                if isinstance(source, NativeSource):
                    source.observe(draft, accepted, outputs, context)
                    source.extend(accepted.token_ids)
            reached = {ROOT, *accepted.path}
            return sum(parent in reached for parent in draft.parents)
        _emitted, emitted, _ = int32s(accepted.token_ids)
        _path, path, length = int32s(accepted.path)
        _known, known, known_count = int32s(context)
        rows = self._rows_of(outputs)
        return checked(
            self._library.grower_observe(
                self._handle.address, count, emitted, path, length, known, known_count, *rows,
                -1 if arm is None else arm, self._drafting.buffer_info()[0],
            )
        )  # fmt: skip

    def _is_proposed(self, draft: Draft) -> bool:
        """Return whether a draft is the first nodes of the last one proposed."""
        count = len(draft)
        same = self._tokens[:count].tolist() == list(draft.token_ids)
        return same and self._parents[:count].tolist() == list(draft.parents)

    def _rows_of(self, outputs: Outputs) -> Rows:
        """Return ``likely`` of outputs; passes of the same shape have the same ones, and asking arrays takes time."""
        top, begin = outputs.place
        if top is None:
            return likely(top)[1]
        known = self._rows.get(id(top))
        if known is None:
            if len(self._rows) >= _KEPT_ROWS:
                self._rows.clear()
            # The first is kept so that no other object gets its id.
            known = self._rows[id(top)] = (top, *likely(top))
        ids, logits, sums, width = known[2]
        if not begin or ids is None or logits is None or sums is None:
            return known[2]
        return ids + 4 * width * begin, logits + 4 * width * begin, sums + 4 * begin, width

    def speeds(self) -> list[float | None]:
        """Return tokens per millisecond of every arm since ``clear``; None for arms without data.

        A step in which all sources drafted shows what each alone would have reached: its draft would have been the
        nodes of the tree that it guessed, its accepted tokens the part of the path that it guessed without a gap. So
        arms are compared on the same text, which is far more reliable than on different texts. A step in which one arm
        drafted alone counts for that arm and for drafting nothing.
        """
        tokens, ms = array("q", bytes(8 * len(self.arms))), array("d", bytes(8 * len(self.arms)))
        checked(self._library.grower_ledger(self._handle.address, tokens.buffer_info()[0], ms.buffer_info()[0]))
        return [count / spent if spent else None for count, spent in zip(tokens, ms, strict=True)]

    def clear(self) -> None:
        """Begin counting for ``speeds`` anew."""
        checked(self._library.grower_clear(self._handle.address))

    @property
    def memory_bytes(self) -> int:
        """Bytes of everything in the library but the sources."""
        return checked(self._library.grower_bytes(self._handle.address))
