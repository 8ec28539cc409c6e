"""What drafts in packages with exits, made when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from edge_rt.runtime.decode.draft import Drafter
from edge_rt.runtime.drafters.exit import ExitSource
from edge_rt.runtime.drafters.exit_adapters import ExitAdapters
from edge_rt.runtime.drafters.source import Source
from edge_rt.runtime.graph.cache import KVCache
from edge_rt.runtime.graph.io_binding_base import IOBinding
from edge_rt.runtime.graph.runner import Runner
from edge_rt.runtime.graph.segmented_runner import SegmentedRunner
from edge_rt.runtime.speculation.cost_model import CostStore, RowCosts
from edge_rt.runtime.speculation.exit_controller import ExitController
from edge_rt.runtime.speculation.exit_costs import ExitCurves, ExitMeasurement
from edge_rt.runtime.speculation.exit_drafter import ExitDrafter, Trace


class ExitMaker:
    """Makes what drafts at exits from the costs of whole passes, and measures what it needs besides.

    Args:
        exits: of the package.
        runner: returns the runner as long as the model is open.
        cache: its cache.
        io_binding: the cache's memory.
        key: everything that costs depend on.
        store: where measured costs are stored.
        max_nodes: most nodes of a draft.
        end_ids: tokens that end an answer.
        trace: called with every step's decision.
        adapters: trained ones, which guess at the exits in place of the model's head.
        on_measure: called when costs are measured.
    """

    def __init__(
        self,
        exits: Sequence[int],
        runner: Callable[[], Runner],
        cache: KVCache,
        io_binding: IOBinding,
        *,
        key: dict[str, Any],
        store: CostStore | None,
        max_nodes: int,
        end_ids: Sequence[int],
        trace: Trace | None,
        adapters: ExitAdapters | None = None,
        on_measure: Callable[[], None] | None = None,
    ) -> None:
        self._adapters = adapters
        self._exits = tuple(exits)
        self._open_runner = runner
        self._cache = cache
        self._measurement = ExitMeasurement(
            key, io_binding, cache, store, None if adapters is None else adapters.drafter_id
        )
        self._measurement.on_measure = on_measure
        self._max_nodes = max_nodes
        self._end_ids = tuple(end_ids)
        self._trace = trace

    def drafter(self, whole: RowCosts) -> Drafter:
        """Return the drafter of the mode ``exit``, given the costs of passes through all segments."""
        return ExitDrafter(
            self._runner,
            self._cache,
            self._controller(whole),
            self._exits,
            max_nodes=self._max_nodes,
            adapters=self._adapters,
            trace=self._trace,
        )

    def source(self, whole: RowCosts) -> Source:
        """Return a source of guesses, for trees that other sources grow as well."""
        return ExitSource(self._runner, self._cache, self._controller(whole), self._end_ids, self._adapters)

    def _controller(self, whole: RowCosts) -> ExitController:
        costs = self._measurement.get(self._runner(), whole)
        return ExitController(ExitCurves(costs, self._max_nodes + 1))

    def _runner(self) -> SegmentedRunner:
        found = self._open_runner()
        assert isinstance(found, SegmentedRunner), type(found)
        return found
