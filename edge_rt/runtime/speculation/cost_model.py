"""What passes over several rows cost on this machine: measured on the model's own cache, interpolated and stored."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Generator, Mapping, Sequence as Items
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from edge_rt.system.json_files import JsonCache, user_cache
from edge_rt.system.machine import cpu_model
from edge_rt.version import VERSION

if TYPE_CHECKING:
    from edge_rt.runtime.cache.kv_cache import KVCache
    from edge_rt.runtime.forward.io_binding_base import IOBinding
    from edge_rt.runtime.forward.runner import Runner

CURVE_ROWS: Final = (1, 2, 4, 8, 9, 16)
"""Row counts that are measured: both sides of the steps in the kernels' cost (8 rows share one read of a tile of
weights).
"""
CURVE_DEPTHS: Final = (64, 320, 1024)
"""Depths of context that are measured, up to the context's capacity."""
ROUNDS: Final = 4
BUDGET_SECONDS: Final = 1.5
_VERSION: Final = 6
_MOST_MS: Final = 1e6
_DEPTH_STEP: Final = 128
_STEADY: Final = 1.25
_SLOW: Final = 4
"""Times the budget: longer, the first passes of a measurement do not take."""
_STRIDE: Final = 7919
"""From one token that is measured to the next."""
MOST_SETTINGS: Final = 24
"""Settings of a package whose costs are kept: threads, cache formats, contexts, what drafts with it."""
MOST_FILES: Final = 64
"""Packages, versions and CPUs whose costs are kept."""
_FILE_KEY: Final = ("package_id", "edge_rt", "cpu")
_SETTINGS: Final = {"isa", "kv_format", "threads", "capacity", "rows", "onnxruntime"}
"""Parts of a key that change costs by little, or passes of all sizes alike."""


@dataclass(frozen=True)
class RowCosts:
    """Milliseconds of a pass by its number of rows, at some depths of context.

    Attributes:
        rows: row counts, ascending, beginning with 1.
        ms: ``[depths][rows]``; made to rise with both, because a measurement in which a larger pass costs less is
            noise.
        steady: whether repeated passes took the same time; on a busy machine they do not, and guesses are not.
        passes: how many passes they rest on; 0: a guess.
    """

    rows: tuple[int, ...]
    depths: tuple[int, ...]
    ms: tuple[tuple[float, ...], ...]
    steady: bool = True
    passes: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "ms", _rising(self.ms))

    @property
    def changes(self) -> int:
        """0: they stay as they are."""
        return 0

    def curve(self, depth: int, most: int) -> list[float]:
        """Return the milliseconds of passes over 1 to ``most`` rows, interpolated; index 0 is 1 row."""
        at = self._at(depth)
        # Extrapolated lines may cross beyond the last depth.
        return list(accumulate((self._between(at, count) for count in range(1, most + 1)), max))

    def _at(self, depth: int) -> list[float]:
        """Return the milliseconds at a depth for all of ``rows``."""
        low = min(max(bisect_right(self.depths, depth) - 1, 0), max(len(self.depths) - 2, 0))
        high = min(low + 1, len(self.depths) - 1)
        # The cost of attention grows with depth beyond the measured range as well.
        span = self.depths[high] - self.depths[low]
        share = max((depth - self.depths[low]) / span, 0.0) if span else 0.0
        return [a + share * (b - a) for a, b in zip(self.ms[low], self.ms[high], strict=True)]

    def _between(self, at: list[float], count: int) -> float:
        """Return the milliseconds of a number of rows from those of ``rows``."""
        place = bisect_right(self.rows, count) - 1
        if place + 1 < len(self.rows):
            part = (count - self.rows[place]) / (self.rows[place + 1] - self.rows[place])
            return at[place] + part * (at[place + 1] - at[place])
        slope = (at[-1] - at[-2]) / (self.rows[-1] - self.rows[-2]) if len(at) > 1 else at[-1]
        return at[-1] + (count - self.rows[-1]) * slope

    def to_json(self) -> dict[str, Any]:
        """Return the costs as a JSON object."""
        return {
            "version": _VERSION, "rows": self.rows, "depths": self.depths, "ms": self.ms, "steady": self.steady,
            "passes": self.passes,
        }  # fmt: skip

    @classmethod
    def from_json(cls, document: Any) -> RowCosts | None:
        """Return stored costs; None if the document is not one that ``to_json`` writes."""
        try:
            rows, depths, ms = list(document["rows"]), list(document["depths"]), list(document["ms"])
            good = (
                document["version"] == _VERSION
                and all(type(number) is int and number >= 0 for number in (*rows, *depths))
                and rows[:1] == [1]
                and rows == sorted(set(rows))
                and len(depths) > 0
                and depths == sorted(set(depths))
                and len(ms) == len(depths)
                and all(len(line) == len(rows) for line in ms)
                and all(type(value) is float and 0 < value < _MOST_MS for line in ms for value in line)
                and type(document["steady"]) is bool
                and type(document["passes"]) is int
                and document["passes"] >= 0
            )
        except (KeyError, TypeError):
            return None
        if not good:
            return None
        lines = tuple(tuple(line) for line in ms)
        return cls(tuple(rows), tuple(depths), lines, document["steady"], document["passes"])


class Costs(Protocol):
    """Costs of passes that stay as they are (``RowCosts``), or change (``LiveCosts``)."""

    @property
    def changes(self) -> int:
        """Grows when ``curve`` returns something else."""

    def curve(self, depth: int, most: int) -> list[float]:
        """Return the milliseconds of passes over 1 to ``most`` rows; index 0 is 1 row."""


class CostCurve:
    """The costs of passes at the current depth, computed again as a text grows and as they change.

    Attributes:
        cheapest: cost of the cheapest additional row, as a share of a pass over one row; a guess that is less likely
            than this does not pay.
    """

    def __init__(self, costs: Costs, most: int) -> None:
        self._costs = costs
        self._most = most
        self._changes = 0
        self._depth = -_DEPTH_STEP
        self._curve: list[float] = []
        self.cheapest = 0.0

    def at(self, depth: int) -> list[float]:
        """Return the milliseconds of passes over 1 to ``most`` rows; index 0 is 1 row."""
        if abs(depth - self._depth) >= _DEPTH_STEP or self._changes != self._costs.changes:
            self._depth, self._changes = depth, self._costs.changes
            self._curve = self._costs.curve(depth, self._most)
            rows = zip(self._curve, self._curve[1:], strict=False)
            self.cheapest = min((b - a for a, b in rows), default=0.0) / self._curve[0]
        return self._curve


def _rising(ms: Items[Items[float]]) -> tuple[tuple[float, ...], ...]:
    """Return the costs, raised where a larger pass or a longer context would cost less."""
    result: list[tuple[float, ...]] = []
    for line in ms:
        least = result[-1] if result else (0.0,) * len(line)
        result.append(tuple(accumulate((max(a, b) for a, b in zip(line, least, strict=True)), max)))
    return tuple(result)


def measure(
    run: Callable[[int, int], object],
    capacity: int,
    *,
    rows: Items[int] = CURVE_ROWS,
    depths: Items[int] = CURVE_DEPTHS,
    rounds: int = ROUNDS,
    budget: float = BUDGET_SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> RowCosts:
    """Measure passes: all row counts in turn, several times. The lowest time counts, as other work only adds to it.

    Args:
        run: ``run(rows, depth)`` computes a pass over ``rows`` rows after a context of ``depth`` rows.
        capacity: rows of the cache; what does not fit is not measured.
        rows: row counts, ascending from 1.
        budget: most seconds; to keep it, first fewer rounds are measured, at least one, then fewer depths, at least
            one. A device on which passes are very slow is measured with the fewest rows alone.
        clock: seconds.
    """
    wanted = [count for count in rows if count <= capacity]
    reached = [depth for depth in depths if depth + wanted[-1] <= capacity] or [0]
    table: list[tuple[float, ...]] = []
    steady = True
    passes = 0
    begun = clock()
    for depth in reached:
        if table and clock() - begun > budget:
            break
        samples: list[list[float]] = [[] for _ in wanted]
        # The first round warms up: bindings are created, pages are touched.
        for turn in range(rounds + 1):
            if turn > 1 and clock() - begun > budget * (len(table) + 1) / len(reached):
                break
            for place, count in enumerate(wanted):
                if turn == 0 and place > 1 and not table and clock() - begun > _SLOW * budget:
                    del wanted[place:], samples[place:]
                    break
                # Plain decoding runs one-row passes in sequence, which favours the CPU's caches; drafts of all sizes
                # alternate.
                if count == 1:
                    run(count, depth)
                started = clock()
                run(count, depth)
                if turn > 0:
                    samples[place].append(1e3 * (clock() - started))
                    passes += 1
        least = tuple(min(times) for times in samples)
        # On a quiet machine the second-best time is close to the best, and no larger pass was much faster.
        for times in samples:
            steady &= len(times) > 1 and sorted(times)[1] <= _STEADY * min(times)
        steady &= all(a <= _STEADY * b for a, b in pairwise(least))
        table.append(least)
    return RowCosts(tuple(wanted), tuple(reached[: len(table)]), tuple(table), steady, passes)


class CostStore:
    """Known costs on disk: one small file for each package and machine, with the settings that were used last.

    Processes that write at once may lose what one of them learned.

    Args:
        folder: folder of the files; it is created when something is stored.
        on_lost: called when costs cannot be written.
    """

    def __init__(self, folder: Path, on_lost: Callable[[], None] | None = None) -> None:
        self._cache = JsonCache(folder, most_files=MOST_FILES)
        self._on_lost = on_lost

    def load(self, key: Mapping[str, Any]) -> RowCosts | None:
        """Return stored costs for a key, which is everything that they depend on; None: there are none."""
        return next((costs for other, costs, _ in self._entries(_file_key(key)) if other == dict(key)), None)

    def find(self, facts: Mapping[str, Any]) -> list[tuple[dict[str, Any], RowCosts]]:
        """Return all stored costs whose keys contain these facts, with their keys; last used first in each file."""
        return [(key, costs) for key, costs, _ in self.aged(facts)]

    def aged(self, facts: Mapping[str, Any]) -> list[tuple[dict[str, Any], RowCosts, float]]:
        """Return as ``find``, with the time of the last change."""
        files = self._cache.find({name: facts[name] for name in _FILE_KEY if name in facts})
        return [
            entry
            for _, document in files
            for entry in _parsed(document)
            if all(entry[0].get(name) == value for name, value in facts.items())
        ]

    def save(self, key: Mapping[str, Any], costs: RowCosts) -> bool:
        """Store costs; return False if they cannot be written and will have to be learned again."""
        file_key = _file_key(key)
        others = [entry for entry in self._entries(file_key) if entry[0] != dict(key)]
        entries = [(dict(key), costs, time.time()), *others][:MOST_SETTINGS]
        document = {"entries": [{"key": one, "time": when, **known.to_json()} for one, known, when in entries]}
        is_kept = self._cache.save(file_key, document)
        if not is_kept and self._on_lost is not None:
            self._on_lost()
        return is_kept

    def _entries(self, file_key: Mapping[str, Any]) -> list[tuple[dict[str, Any], RowCosts, float]]:
        document = self._cache.load(file_key)
        return [] if document is None else _parsed(document)


def _file_key(key: Mapping[str, Any]) -> dict[str, Any]:
    return {name: key.get(name) for name in _FILE_KEY}


def _parsed(document: Mapping[str, Any]) -> list[tuple[dict[str, Any], RowCosts, float]]:
    """Return the key, the costs and the time of all entries that are as ``save`` writes them."""
    entries, result = document.get("entries"), []
    for entry in entries if isinstance(entries, list) else ():
        costs = RowCosts.from_json(entry)
        if costs is not None and isinstance(entry.get("key"), dict) and type(entry.get("time")) is float:
            result.append((entry["key"], costs, entry["time"]))
    return result


def user_costs(on_lost: Callable[[], None] | None = None) -> CostStore:
    """Return the store of this user's measured costs; ``on_lost`` as of ``CostStore``."""
    return CostStore(user_cache("row-costs"), on_lost)


class MeasuredCosts:
    """Costs of the passes of one loaded model.

    Args:
        facts: what costs depend on besides the machine: package, op profile, instruction set, cache format, threads.
        store: where measured costs are stored; None stores nothing.
        prior: (rows, cost relative to one row), for a model that never ran here; None: as of other models.
        vocabulary: tokens of a model whose rows cost more if they differ: those that are measured do; 0: it has none.

    Attributes:
        is_kept: False if the last measurement could not be written, or there is no store.
        grid: numbers of rows and depths that fit the cache.
        clock: seconds.
    """

    def __init__(
        self,
        facts: dict[str, Any],
        io_binding: IOBinding,
        cache: KVCache,
        store: CostStore | None,
        *,
        prior: Items[tuple[int, float]] | None = None,
        vocabulary: int = 0,
    ) -> None:
        # The measured passes must fit the memory plan as well.
        most = min(io_binding.outputs.most or CURVE_ROWS[-1], cache.largest_pass)
        self._rows = [rows for rows in CURVE_ROWS if rows <= most]
        reach = min(cache.capacity, CURVE_DEPTHS[-1] + CURVE_ROWS[-1])
        self.key = facts | {
            "edge_rt": VERSION, "cpu": cpu_model(), "capacity": reach, "rows": self._rows,
        }  # fmt: skip
        depths = [depth for depth in CURVE_DEPTHS if depth + self._rows[-1] <= cache.capacity]
        self.grid = tuple(self._rows), tuple(depths or [0])
        self._io_binding = io_binding
        self._cache = cache
        self._store = store
        self._vocabulary, self._used = vocabulary, 0
        self.prior = None
        if prior is not None:
            self.prior = RowCosts(
                tuple(rows for rows, _ in prior), (0,), (tuple(cost for _, cost in prior),), steady=False, passes=0
            )
        self.is_kept = True
        self.on_measure: Callable[[], None] | None = None
        self.clock: Callable[[], float] = time.perf_counter

    @property
    def keep(self) -> Callable[[RowCosts], bool] | None:
        """What stores costs, and holds nothing of the model; None: nothing does."""
        return None if self._store is None else partial(self._store.save, self.key)

    def stored(self) -> RowCosts | None:
        """Return the stored costs, if there are any."""
        return None if self._store is None else self._store.load(self.key)

    def similar(self) -> RowCosts | None:
        """Return those of the same graph on this machine in another setting, of the most passes, if there are any."""
        if self._store is None:
            return None
        same = {name: value for name, value in self.key.items() if name not in _SETTINGS}
        others = [costs for key, costs in self._store.find(same) if same.keys() == key.keys() - _SETTINGS]
        # Fewer rows or depths would have to be continued.
        return max(others, key=lambda costs: (len(costs.rows), costs.steady, costs.passes), default=None)

    def _tokens(self, rows: int) -> list[int]:
        """Return tokens for a pass that is measured."""
        if not self._vocabulary:
            return [1] * rows
        self._used += rows
        return [_STRIDE * (self._used + row) % self._vocabulary for row in range(rows)]

    def get(self, runner: Runner) -> RowCosts:
        """Return the stored costs, or measure them; a measurement empties the cache."""
        return self.stored() or self.measure(runner)

    def measure(self, runner: Runner) -> RowCosts:
        """Measure on the emptied cache, and store the costs."""
        if self.on_measure is not None:
            self.on_measure()
        with self.passes(runner) as run:
            costs = measure(run, self._cache.capacity, rows=self._rows, clock=self.clock)
        self.is_kept = self._store is not None and self._store.save(self.key, costs)
        return costs

    @contextmanager
    def passes(self, runner: Runner) -> Generator[Callable[[int, int], object]]:
        """Compute passes that are only timed while a block runs: a function of rows and depth, on the emptied cache."""
        cache, io_binding = self._cache, self._io_binding
        cache.pretend(0)
        filled = 0

        def run(rows: int, depth: int) -> None:
            nonlocal filled
            if depth > filled:
                io_binding.fill(depth)
                filled = depth
            if depth != cache.length:
                cache.pretend(depth)
            # As verified: all but the first are drafts.
            with cache.reserve(rows, certain=max(1, rows - cache.most_drafts)) as reserved:
                runner.forward(self._tokens(rows), reserved.start, rows)

        try:
            yield run
        finally:
            cache.truncate(0)
            io_binding.forget()
