"""Milliseconds of drafts that end at an exit, and of the passes that go on with them: measured like those of passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence as Items
from dataclasses import dataclass
from typing import Any, Final

from edge_rt.runtime.cache.kv_cache import KVCache
from edge_rt.runtime.forward.io_binding_base import IOBinding
from edge_rt.runtime.forward.segmented_runner import SegmentedRunner
from edge_rt.runtime.speculation.cost_model import CostCurve, Costs, CostStore, RowCosts, measure

DEEP_ROWS: Final = (1, 2, 4, 8)
"""Row counts that are measured behind an exit."""
DEPTHS: Final = (64, 320)
_ROUNDS: Final = 8
_BUDGET_SECONDS: Final = 0.4
_DRAFT, _DEEP = "draft", "deep"


@dataclass(frozen=True)
class ExitCosts:
    """Milliseconds at every exit.

    Attributes:
        drafts: by exit: of one node of a draft, the head included (rows: 1 alone).
        deep: by exit: of a pass through the segments behind it and the head, whose rows are drafted already.
    """

    whole: Costs
    drafts: tuple[RowCosts, ...]
    deep: tuple[RowCosts, ...]


class ExitCurves:
    """The costs at the current depth of the context, computed again as a text grows."""

    def __init__(self, costs: ExitCosts, most: int) -> None:
        self._whole = CostCurve(costs.whole, most)
        self._drafts = [CostCurve(one, 1) for one in costs.drafts]
        self._deep = [CostCurve(one, most) for one in costs.deep]
        self._depth = 0
        self.most = most

    @property
    def exits(self) -> int:
        """Number of exits."""
        return len(self._deep)

    def go_to(self, depth: int) -> None:
        """Set the depth of the context."""
        self._depth = depth

    @property
    def plain(self) -> float:
        """Milliseconds of a pass over one row."""
        return self._whole.at(self._depth)[0]

    def draft(self, exit_index: int) -> float:
        """Return the milliseconds of one node of a draft."""
        return self._drafts[exit_index].at(self._depth)[0]

    def verify(self, exit_index: int, rows: int, drafted: int) -> float:
        """Return the milliseconds of a pass over ``rows`` rows, of which ``drafted`` were computed up to the exit."""
        left = rows - drafted
        whole, deep = self._whole.at(self._depth), self._deep[exit_index].at(self._depth)
        # What the first segments take is what is left of a whole pass.
        shallow = max(whole[left - 1] - deep[left - 1], 0.0) if left > 0 else 0.0
        return deep[rows - 1] + shallow


class ExitMeasurement:
    """Measures the costs at a model's exits, once per machine.

    Args:
        store: where measured costs are stored; None stores nothing.
        drafter_id: of the drafter whose adapters guess at the exits; None without one.
    """

    def __init__(
        self,
        key: dict[str, Any],
        io_binding: IOBinding,
        cache: KVCache,
        store: CostStore | None,
        drafter_id: str | None = None,
    ) -> None:
        self._drafter_id = drafter_id
        self._key = key
        self._io_binding = io_binding
        self._cache = cache
        self._store = store
        self._found: tuple[tuple[RowCosts, ...], tuple[RowCosts, ...]] | None = None
        self.on_measure: Callable[[], None] | None = None
        """Called once, when something is measured."""

    def get(self, runner: SegmentedRunner, whole: Costs) -> ExitCosts:
        """Return the costs that are known, or measure them; a measurement empties the cache.

        Raises:
            Cancelled: a pass was stopped; what was not measured is not stored.
        """
        if self._found is not None:
            return ExitCosts(whole, *self._found)
        exits = range(1, runner.num_segments)
        drafts = [self._one(runner, segments, _DRAFT, (1,)) for segments in exits]
        most = min(self._cache.largest_pass, runner.most_ahead, self._io_binding.outputs.most or DEEP_ROWS[-1])
        rows = [count for count in DEEP_ROWS if count <= most]
        deep = [self._one(runner, segments, _DEEP, rows) for segments in exits]
        self._found = tuple(drafts), tuple(deep)
        return ExitCosts(whole, *self._found)

    def _one(self, runner: SegmentedRunner, segments: int, part: str, rows: Items[int]) -> RowCosts:
        key = self._key | {"segments": segments, "part": part, "rows": list(rows)}
        if part == _DRAFT and self._drafter_id is not None:
            key["drafter"] = self._drafter_id
        stored = None if self._store is None else self._store.load(key)
        if stored is not None:
            return stored
        if self.on_measure is not None:
            self.on_measure()
            self.on_measure = None
        cache, filled = self._cache, 0
        cache.truncate(0)

        def run(count: int, depth: int) -> None:
            nonlocal filled
            if depth > filled:
                self._io_binding.fill(depth)
                filled = depth
            if depth != cache.length:
                cache.pretend(depth)
            cache.ahead.begin(depth, segments)
            cache.make_room(count)
            if part == _DRAFT:
                runner.draft(1, -1)
                cache.ahead.clear()
                return
            # Said to be drafted: a pass takes the same time whatever the rows hold.
            for node in range(count):
                cache.ahead.add(1, node - 1)
            with cache.reserve(count) as reserved:
                runner.forward([1] * count, reserved.start, count)

        try:
            found = measure(run, cache.capacity, rows=rows, depths=DEPTHS, rounds=_ROUNDS, budget=_BUDGET_SECONDS)
        finally:
            cache.truncate(0)
            self._io_binding.forget()
        if self._store is not None:
            self._store.save(key, found)
        return found
