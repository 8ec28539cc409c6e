"""Runs the graphs of a package that is cut at exits: whole passes, and drafts that end at an exit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from edge_rt.binding import Binding, StopSwitch
from edge_rt.errors import Cancelled
from edge_rt.package.manifest import Segment
from edge_rt.runtime.graph.ahead import Ahead, Ready
from edge_rt.runtime.graph.hidden_rows import HiddenRows
from edge_rt.runtime.graph.io_binding_native import NativeIOBinding
from edge_rt.runtime.graph.outputs import Outputs, TopTokens
from edge_rt.runtime.graph.runner import MAX_KEPT_SHAPES, Runner
from edge_rt.runtime.graph.segments import ExitAdapter, HeadGraph, LayersGraph, PassInputs
from edge_rt.session import Session

K = TypeVar("K")


class SegmentedRunner(Runner):
    """Several graphs over one cache, one pass at a time; results have the bits of a single graph's.

    Args:
        sessions: the opened graphs of the segments, and last that of the head.
        segments: of the manifest.
        io_binding: inputs and outputs, the cache's memory included.
        switch: stops a pass, between two segments as well.
        ahead: the cache's rows that the first segments have computed for a draft.
        largest_pass: rows of the largest pass that is planned.

    Raises:
        InvalidPackage: a graph has other inputs or outputs than the manifest says.
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
        self._ahead = ahead
        self._segments = tuple(segments)
        self._hidden = HiddenRows(len(segments) - 1, io_binding.config.hidden_size, largest_pass)
        self._layers = [
            LayersGraph(session, segment, index, io_binding, self._hidden)
            for index, (session, segment) in enumerate(zip(sessions, segments, strict=False))
        ]
        self._head = HeadGraph(sessions[-1], io_binding)
        self._passes: dict[tuple[int, int, int, int], _Bound] = {}
        self._parts: dict[tuple[int, int, int], _Bound] = {}
        self._drafts: dict[tuple[int, int, int], _Bound] = {}
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
            if done and not ready.leads:
                self._bring_together(ready, token_ids, start, parents)
                done = rows
            key = (rows, num_logits, done, ready.segments)
            found = self._passes.get(key) or self._bind(key)
            # Between two segments nothing is left to be done: what has been computed has taken over the CPU's caches.
            found.inputs.set(token_ids, start, parents, logit_rows)
            switch = self._switch
            for binding in found.bindings:
                binding.run(switch)
            return found.outputs

    def draft(self, token_id: int, parent: int) -> TopTokens:
        """Compute one node more of a draft in its first segments, and what is likely to follow it.

        The draft is the cache's ``ahead``, which was begun, with room for the row (``KVCache.make_room``). It is as
        before if this fails.

        Args:
            token_id: of the node.
            parent: the earlier node that it follows, or -1.

        Returns:
            The most likely tokens, of one row, as the exit's adapter or the model's head finds them; overwritten by any
            later pass.

        Raises:
            Cancelled: the pass was stopped, or the runner was closed.
            InferenceError, MemoryBudgetExceeded: ONNX Runtime failed.
        """
        with self._running:
            self._require_open()
            ahead, node = self._ahead, len(self._ahead)
            assert 0 < ahead.segments < self.num_segments, ahead.segments
            assert node < self.most_ahead, (node, self.most_ahead)
            self._reserve_outputs(1)
            key = (node + 1, node, ahead.segments)
            found = self._drafts.get(key) or self._bind_draft(key)
            found.inputs.set([*ahead.token_ids, token_id], ahead.start, [*ahead.parents, parent])
            for binding in found.bindings:
                binding.run(self._switch)
            top = found.outputs.top
            if (adapter := self._adapters.get(ahead.segments)) is not None:
                top = adapter.likely(self._hidden.view(ahead.segments - 1, node, node + 1, is_few=True), token_id)
            ahead.add(token_id, parent)
            assert top is not None, "the head computes no likely tokens"
            return top

    def _bring_together(
        self, ready: Ready, token_ids: Sequence[int], start: int, parents: Sequence[int] | None
    ) -> None:
        """Compute what a draft has not in its segments, and give all rows the places that the pass's tree asks for.

        The drafted nodes come first in the cache, as they were drafted, and the others follow. Then the maps of rows
        are permuted, and the hidden states with them, as if all nodes had been computed in the order of the tree.
        """
        rows, nodes = len(token_ids), ready.nodes
        order = [*nodes, *sorted(set(range(rows)).difference(nodes))]
        places = np.argsort(order)
        above = range(-1, rows - 1) if parents is None else parents
        if rows > len(nodes):
            key = (rows, len(nodes), ready.segments)
            found = self._parts.get(key) or _keep(self._parts, key, self._bind_part(key))
            behind = [-1 if above[row] < 0 else int(places[above[row]]) for row in order]
            found.inputs.set([token_ids[row] for row in order], start, behind)
            for binding in found.bindings:
                binding.run(self._switch)
        hidden = self._hidden.view(ready.segments - 1, 0, rows, is_few=True)
        hidden[:] = hidden[places]
        window = self._io_binding.window
        for row_map in (self._io_binding.row_map, None if window is None else window.row_map):
            if row_map is not None:
                mapped = row_map[start : start + rows]
                mapped[:] = mapped[places]

    def adapt(self, segments: int, adapter: ExitAdapter | None) -> None:
        """Put an adapter behind an exit, in place of the head; it changes drafts, never what is verified.

        Args:
            segments: segments before the exit.
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

    def _bind(self, key: tuple[int, int, int, int]) -> _Bound:
        rows, num_logits, done, segments = key
        self._reserve_outputs(num_logits)
        is_few = rows <= self._hidden.few_rows
        inputs, outputs = PassInputs(rows, num_logits), self._io_binding.outputs.first(num_logits)
        bindings = []
        for index, layers in enumerate(self._layers):
            before = done if index < segments else 0
            if before < rows:
                bindings.append(layers.bind(inputs, before, outputs, is_few=is_few))
        return _keep(self._passes, key, _Bound(inputs, bindings, outputs))

    def _bind_part(self, key: tuple[int, int, int]) -> _Bound:
        """Bind a pass through the first segments alone: of ``rows`` nodes, ``done`` of which were computed before."""
        rows, done, segments = key
        inputs, outputs = PassInputs(rows, 0), self._io_binding.outputs.first(1)
        bindings = [layers.bind(inputs, done, outputs, is_few=True) for layers in self._layers[:segments]]
        return _Bound(inputs, bindings, outputs)

    def _bind_draft(self, key: tuple[int, int, int]) -> _Bound:
        """Bind the same, of one node more, and then the head unless there is an adapter."""
        (_, node, segments), part = key, self._bind_part(key)
        bindings = list(part.bindings)
        if segments not in self._adapters:
            hidden = self._hidden.view(segments - 1, node, node + 1, is_few=True)
            bindings.append(self._head.bind(hidden, part.outputs))
        return _keep(self._drafts, key, _Bound(part.inputs, bindings, part.outputs))

    def _forget(self) -> None:
        self._passes.clear()
        self._parts.clear()
        self._drafts.clear()


@dataclass(frozen=True)
class _Bound:
    """A pass of one shape: its inputs, the bindings that run one after another, and its results."""

    inputs: PassInputs
    bindings: list[Binding]
    outputs: Outputs


def _keep(passes: dict[K, _Bound], key: K, bound: _Bound) -> _Bound:
    """Keep a pass for later ones of the same shape, instead of the oldest one if there are many."""
    if len(passes) >= MAX_KEPT_SHAPES:
        del passes[next(iter(passes))]
    passes[key] = bound
    return bound
