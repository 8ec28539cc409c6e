"""Costs of passes: read from disk, or measured on the model's own cache."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from edge_rt.runtime.cache.kv_cache import KVCache
from edge_rt.runtime.forward.io_binding_base import IOBinding
from edge_rt.runtime.forward.runner import Runner
from edge_rt.runtime.speculation.cost_model import CURVE_DEPTHS, CURVE_ROWS, CostStore, RowCosts, measure
from edge_rt.system.machine import cpu_model
from edge_rt.version import VERSION

MAX_TRIES: Final = 3
"""Most measurements on a machine that is never quiet."""


class MeasuredCosts:
    """Costs of the passes of one loaded model.

    Args:
        facts: what costs depend on besides the machine: package, op profile, instruction set, cache format, threads.
        store: where measured costs are stored; None stores nothing.

    Attributes:
        key: everything that the costs depend on.
        is_kept: False if the last measurement could not be written, or there is no store.
        is_earlier: whether the last measurement was of a busy machine, and gave way to a stored one of a quiet machine.
        on_measure: called when a measurement begins.
        clock: seconds.
    """

    def __init__(self, facts: dict[str, Any], io_binding: IOBinding, cache: KVCache, store: CostStore | None) -> None:
        # The measured passes must fit the memory plan as well.
        most = min(io_binding.outputs.most or CURVE_ROWS[-1], cache.largest_pass)
        self._rows = [rows for rows in CURVE_ROWS if rows <= most]
        reach = min(cache.capacity, CURVE_DEPTHS[-1] + CURVE_ROWS[-1])
        self.key = facts | {
            "edge_rt": VERSION, "cpu": cpu_model(), "capacity": reach, "rows": self._rows,
        }  # fmt: skip
        self._io_binding = io_binding
        self._cache = cache
        self._store = store
        self.is_kept, self.is_earlier = True, False
        self.on_measure: Callable[[], None] | None = None
        self.clock: Callable[[], float] = time.perf_counter

    def get(self, runner: Runner) -> RowCosts:
        """Return the stored costs, or measure them; a measurement empties the cache.

        Costs that were measured on a busy machine are measured again in later processes, a few times, and the lowest
        are taken.
        """
        stored = self._store.load(self.key) if self._store is not None else None
        if stored is not None and (stored.steady or stored.tries >= MAX_TRIES):
            return stored
        return self.measure(runner, stored)

    def measure(self, runner: Runner, earlier: RowCosts | None = None) -> RowCosts:
        """Measure on the emptied cache, and store the lower costs of this measurement and ``earlier``.

        Costs of a busy machine replace none that were stored of a quiet one, which are returned then.

        Raises:
            Cancelled: a pass was stopped; nothing is stored.
        """
        cache, io_binding = self._cache, self._io_binding
        if self.on_measure is not None:
            self.on_measure()
        cache.truncate(0)
        filled = 0

        def run(rows: int, depth: int) -> None:
            nonlocal filled
            if depth > filled:
                io_binding.fill(depth)
                filled = depth
            if depth != cache.length:
                cache.pretend(depth)
            with cache.reserve(rows) as reserved:
                runner.forward([1] * rows, reserved.start, rows)

        try:
            costs = measure(run, cache.capacity, rows=self._rows, clock=self.clock)
        finally:
            cache.truncate(0)
            io_binding.forget()
        if earlier is not None:
            costs = earlier.least(costs)
        stored = self._store.load(self.key) if self._store is not None and not costs.steady else None
        self.is_earlier = stored is not None and stored.steady
        if stored is not None and stored.steady:
            self.is_kept = True
            return stored
        self.is_kept = self._store is not None and self._store.save(self.key, costs)
        return costs
