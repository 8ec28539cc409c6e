"""Where the prices of passes come from: the disk, or a measurement on the model's own cache."""

from __future__ import annotations

from typing import Any

from edge_rt.machine import cpu_model
from edge_rt.runtime.cache import KVCache
from edge_rt.runtime.interface import GraphInterface
from edge_rt.runtime.row_cost import CURVE_DEPTHS, CURVE_ROWS, CostStore, RowCosts, measure
from edge_rt.runtime.runner import ModelRunner
from edge_rt.version import VERSION


class PassPrices:
    """What passes of one loaded model cost.

    Args:
        facts: what costs depend on beside the machine: package, op profile, instruction set, cache format, threads.
        interface: the cache's memory.
        cache: its bookkeeping.
        store: where measured costs are kept; None keeps nothing.

    Attributes:
        key: what the costs depend on.
    """

    def __init__(
        self, facts: dict[str, Any], interface: GraphInterface, cache: KVCache, store: CostStore | None
    ) -> None:
        reach = min(cache.capacity, CURVE_DEPTHS[-1] + CURVE_ROWS[-1])
        self.key = facts | {
            "edge_rt": VERSION, "cpu": cpu_model(), "capacity": reach,
        }  # fmt: skip
        self._interface = interface
        self._cache = cache
        self._store = store

    def get(self, runner: ModelRunner) -> RowCosts:
        """Return what is stored, or measure; a measurement empties the cache."""
        stored = self._store.load(self.key) if self._store is not None else None
        return stored or self.measure(runner)

    def measure(self, runner: ModelRunner) -> RowCosts:
        """Measure on the emptied cache, and store.

        Raises:
            Cancelled: a pass was stopped; nothing is stored.
        """
        cache, interface = self._cache, self._interface
        cache.truncate(0)
        filled = 0

        def run(rows: int, depth: int) -> None:
            nonlocal filled
            if depth > filled:
                interface.fill(depth)
                filled = depth
            runner.forward([1] * rows, depth, rows)

        try:
            costs = measure(run, cache.capacity)
        finally:
            interface.forget()
        if self._store is not None:
            self._store.save(self.key, costs)
        return costs
