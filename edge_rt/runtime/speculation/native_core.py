"""The drafting core in the native library: one call to draft, one call to learn."""

from __future__ import annotations

from array import array
from collections.abc import MutableSequence, Sequence as Items
from typing import Final

from edge_rt.runtime.decode.draft import Accepted, Draft
from edge_rt.runtime.drafters.forest import ForestSource, forest_of
from edge_rt.runtime.drafters.library import DraftLibrary, Handle, checked, int32s
from edge_rt.runtime.drafters.native import NativeSource, Rows, likely
from edge_rt.runtime.drafters.source import Source
from edge_rt.runtime.graph.outputs import Outputs, TopTokens
from edge_rt.runtime.speculation.acceptance import KEEP_GENERATION
from edge_rt.runtime.speculation.core import DraftCore, PythonCore, arms_for, first_estimates

_NOTHING: Final = Draft()
_FIRST_ROOM: Final = 64
_KEPT_ROWS: Final = 64


class NativeCore:
    """Grows trees from native sources and from forests, with all that it learns in the library.

    Args:
        library: the library.
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
        sources: what guesses.
        library: the native library; None: there is none.
        chain: see ``PythonCore``.
    """
    if library is not None and any(isinstance(source, NativeSource | ForestSource) for source in sources):
        return NativeCore(library, sources, chain=chain)
    return PythonCore(sources, chain=chain)
