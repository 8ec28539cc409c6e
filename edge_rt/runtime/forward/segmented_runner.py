"""Runs the graphs of a package that is cut at exits: whole passes, and drafts that end at an exit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from edge_rt.errors import Cancelled
from edge_rt.ort.binding import Binding, StopSwitch
from edge_rt.ort.session import Session
from edge_rt.package.manifest import Segment
from edge_rt.runtime.cache.ahead import Ahead, Ready
from edge_rt.runtime.forward.io_binding_base import Part
from edge_rt.runtime.forward.io_binding_native import MOST_RECORDED, NativeIOBinding
from edge_rt.runtime.forward.outputs import BoundResults, Outputs, TopTokens
from edge_rt.runtime.forward.row_order import in_order, put_back
from edge_rt.runtime.forward.runner import MAX_KEPT_SHAPES, Runner
from edge_rt.runtime.forward.segments import Array, ExitAdapter, HeadGraph, LayersGraph, ManyInputs, PassInputs

K = TypeVar("K")
V = TypeVar("V")


class SegmentedRunner(Runner):
    """Several graphs over one cache, one pass at a time; results have the bits of a single graph's.

    Args:
        sessions: the opened graphs of the segments, and last that of the head.
        ahead: the cache's rows that the first segments have computed for a draft.
    """

    def __init__(
        self,
        sessions: Sequence[Session],
        segments: Sequence[Segment],
        io_binding: NativeIOBinding,
        switch: StopSwitch,
        ahead: Ahead,
        largest_pass: int,
    ) -> None:
        super().__init__(io_binding, switch)
        self._ahead, self._maps_of = ahead, io_binding.maps_of
        self._segments = tuple(segments)
        self._hidden = io_binding.hidden_rows([segment.end_layer for segment in segments[:-1]], largest_pass)
        self._layers = [
            LayersGraph(session, segment, index, io_binding, self._hidden)
            for index, (session, segment) in enumerate(zip(sessions, segments, strict=False))
        ]
        self._head = HeadGraph(sessions[-1], io_binding, self._hidden)
        self._passes: dict[tuple[int, int, int, int], _Pass] = {}
        self._many: dict[tuple[int, int, int], _ManyPass] = {}
        self._drafts: dict[tuple[int, int], _Draft] = {}
        self._adapters: dict[int, ExitAdapter] = {}

    @property
    def num_segments(self) -> int:
        """Segments of the package."""
        return len(self._segments)

    @property
    def most_ahead(self) -> int:
        """Most nodes of a draft that a pass goes on with."""
        return self._hidden.few_rows

    def forward(
        self,
        token_ids: Sequence[int],
        start: int,
        num_logits: int,
        *,
        parents: Sequence[int] | None = None,
        logit_rows: Sequence[int] | None = None,
    ) -> Outputs:
        """Compute tokens into cache rows; see ``Runner.forward``.

        Nodes that a draft has computed in the first segments are not computed again there, wherever they are in the
        tree.
        """
        with self._running:
            self._require_open()
            rows = len(token_ids)
            ready = self._ahead.take(start, token_ids, parents)
            if self._hidden.reserve(rows):
                self._forget()
                ready = Ready()
            if rows > self._hidden.few_rows:
                ready = Ready()
            done = len(ready.nodes)
            key = (rows, num_logits, done, ready.segments)
            found = self._passes.get(key) or _keep(self._passes, key, self._bind(key))
            # Between two segments nothing is left to be done: what has been computed has taken over the CPU's caches.
            if ready.leads:
                found.inputs.set(token_ids, start, parents, logit_rows)
                found.bound.run(self._switch)
            else:
                wanted = range(rows - num_logits, rows) if logit_rows is None else logit_rows
                self._run_in_order(found, ready.nodes, token_ids, start, parents, wanted)
            return found.results.collect()

    def forward_many(self, parts: Sequence[Part]) -> list[Outputs]:
        """Compute tokens of several sequences; see ``Runner.forward_many``.

        Drafts in the first segments are of the first sequence, and gone on with where it is computed alone.
        """
        one, slots = parts[0], self._io_binding.slots
        if one.row_map is None or not slots or (len(parts) == 1 and one.row_map is slots[0].row_map):
            alone = [part._replace(row_map=None, window_map=None) for part in parts]
            return super().forward_many(alone)
        assert len(parts) <= self._io_binding.most_sequences, (len(parts), self._io_binding.most_sequences)
        rows, counts = sum(len(part.token_ids) for part in parts), [part.num_logits for part in parts]
        with self._running:
            self._require_open()
            if self._hidden.reserve(rows):
                self._forget()
            key = (rows, sum(counts), len(parts))
            found = self._many.get(key) or _keep(self._many, key, self._bind_many(key))
            found.inputs.set(parts)
            found.bound.run(self._switch)
            return found.results.collect().split(counts)

    def draft(self, token_id: int, parent: int) -> TopTokens:
        """Compute one node more of a draft in its first segments, and what is likely to follow it.

        The draft is the cache's ``ahead``, which was begun, with room for the row (``KVCache.make_room``). It is as
        before if this fails.

        Args:
            parent: the earlier node that it follows, or -1.

        Returns:
            The most likely tokens, of one row, as the exit's adapter or the model's head finds them; overwritten by any
            later pass.
        """
        with self._running:
            self._require_open()
            ahead, node = self._ahead, len(self._ahead)
            assert 0 < ahead.segments < self.num_segments, ahead.segments
            assert node < self.most_ahead, (node, self.most_ahead)
            self._reserve_outputs(1)
            key = (node, ahead.segments)
            found = self._drafts.get(key) or _keep(self._drafts, key, self._bind_draft(key))
            found.inputs.set([*ahead.token_ids, token_id], ahead.start, [*ahead.parents, parent])
            found.bound.run(self._switch)
            top = found.likely(token_id)
            ahead.add(token_id, parent)
            return top

    def _run_in_order(
        self,
        found: _Pass,
        nodes: Sequence[int],
        token_ids: Sequence[int],
        start: int,
        parents: Sequence[int] | None,
        logit_rows: Sequence[int],
    ) -> None:
        """Run a pass whose first rows are nodes of its tree that were drafted; the others follow in the tree's order.

        Its results have the places that are asked for, and the maps of rows are permuted behind it, as if all nodes had
        been computed in the order of the tree. They stay as they are if it fails.
        """
        order = [*nodes, *sorted(set(range(len(token_ids))).difference(nodes))]
        part, places = in_order(Part(token_ids, start, len(logit_rows), parents, logit_rows), order)
        assert part.parents is not None
        found.inputs.set(part.token_ids, start, part.parents, part.logit_rows)
        found.bound.run(self._switch)
        window = self._io_binding.window
        put_back((self._io_binding.row_map, None if window is None else window.row_map), start, places)

    def adapt(self, segments: int, adapter: ExitAdapter | None) -> None:
        """Put an adapter behind an exit, in place of the head; it changes drafts, never what is verified.

        Args:
            adapter: guesses there; None takes it away.
        """
        with self._running:
            self._require_open()
            assert 0 < segments < self.num_segments, segments
            self._drafts.clear()
            self._adapters.pop(segments, None)
            if adapter is not None:
                self._adapters[segments] = adapter

    def close(self) -> None:
        """Wait for the running pass, then release graphs and cache; later passes raise ``Cancelled``."""
        with self._running:
            self._forget()
            self._layers.clear()
            self._adapters.clear()
            self._head.close()
            self._hidden.release()
            self._io_binding.release()

    def _require_open(self) -> None:
        if not self._layers:
            raise Cancelled("The model was closed.")

    def _reserve_outputs(self, num_logits: int) -> None:
        if self._io_binding.outputs.reserve(num_logits):
            # Old bindings would write to the old memory, and keep it alive.
            self._forget()

    def _bind(self, key: tuple[int, int, int, int]) -> _Pass:
        """Bind a pass of some rows and logits, whose first nodes the first segments have computed."""
        rows, num_logits, done, segments = key
        self._reserve_outputs(num_logits)
        is_few = rows <= self._hidden.few_rows
        inputs, bindings = PassInputs(rows, num_logits), []
        for index, layers in enumerate(self._layers):
            before = done if index < segments else 0
            if before < rows:
                goes_on = index + 1 < self.num_segments
                bindings.append(layers.bind(inputs, before, is_few=is_few, goes_on=goes_on))
        return _Pass(inputs, _Bound(inputs, bindings), self._io_binding.bind_results(bindings[-1], num_logits))

    def _bind_many(self, key: tuple[int, int, int]) -> _ManyPass:
        """Bind a pass of several sequences, of so many rows and logits together."""
        rows, num_logits, sequences = key
        self._reserve_outputs(num_logits)
        inputs = ManyInputs(rows, num_logits, self._maps_of(sequences))
        is_few = rows <= self._hidden.few_rows
        bindings = [
            layers.bind(inputs, 0, is_few=is_few, goes_on=index + 1 < self.num_segments)
            for index, layers in enumerate(self._layers)
        ]
        results = self._io_binding.bind_results(bindings[-1], num_logits)
        return _ManyPass(inputs, _Bound(inputs, bindings), results)

    def _bind_draft(self, key: tuple[int, int]) -> _Draft:
        """Bind a pass of one node more through the first segments, and then the head unless there is an adapter."""
        node, segments = key
        adapter = self._adapters.get(segments)
        inputs, bindings = PassInputs(node + 1, 0), []
        for index, layers in enumerate(self._layers[:segments]):
            goes_on = adapter is None or index + 1 < segments
            bindings.append(layers.bind(inputs, node, is_few=True, goes_on=goes_on))
        if adapter is not None:
            read = self._hidden.bind_read(bindings[-1], segments - 1, node)
            return _Draft(inputs, _Bound(inputs, bindings), _by_adapter(adapter, read))
        bindings.append(self._head.bind(segments - 1, node))
        results = self._io_binding.bind_results(bindings[-1], 1, hidden=False)
        return _Draft(inputs, _Bound(inputs, bindings), _by_head(results))

    def _forget(self) -> None:
        self._passes.clear()
        self._many.clear()
        self._drafts.clear()


class _Bound:
    """What runs of one shape are bound to: their inputs, and the bindings that run one after another."""

    def __init__(self, inputs: PassInputs | ManyInputs, bindings: Sequence[Binding]) -> None:
        self._bindings = bindings
        # The first run of a shape may be the last one. Several sequences share the rows in another way every time.
        self._is_small, self._has_run = len(inputs.ids) <= MOST_RECORDED and not inputs.sequences, False

    def run(self, switch: StopSwitch) -> None:
        """Run the graphs on what was set; see ``Binding.run`` for what is raised."""
        for binding in self._bindings:
            binding.run(switch, record=self._is_small and self._has_run)
        self._has_run = True


@dataclass(frozen=True)
class _Pass:
    """A pass through all segments, and its results."""

    inputs: PassInputs
    bound: _Bound
    results: BoundResults


@dataclass(frozen=True)
class _ManyPass:
    """The same of several sequences."""

    inputs: ManyInputs
    bound: _Bound
    results: BoundResults


@dataclass(frozen=True)
class _Draft:
    """A pass through the first segments, and what tells the tokens that are likely behind the one that it computed."""

    inputs: PassInputs
    bound: _Bound
    likely: Callable[[int], TopTokens]


def _by_adapter(adapter: ExitAdapter, read: Callable[[], Array]) -> Callable[[int], TopTokens]:
    """Return what an adapter tells of the token whose row is read."""
    return lambda token_id: adapter.likely(read(), token_id)


def _by_head(results: BoundResults) -> Callable[[int], TopTokens]:
    """Return what the model's head tells, whatever the token is."""

    def likely(token_id: int) -> TopTokens:
        del token_id
        top = results.collect().top
        assert top is not None, "the head computes no likely tokens"
        return top

    return likely


def _keep(kept: dict[K, V], key: K, bound: V) -> V:
    """Keep what was bound for later passes of the same shape, instead of the oldest one if there are many."""
    if len(kept) >= MAX_KEPT_SHAPES:
        del kept[next(iter(kept))]
    kept[key] = bound
    return bound
