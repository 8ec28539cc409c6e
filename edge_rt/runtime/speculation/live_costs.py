"""Costs of passes, corrected by the passes that run anyway; at first those of a similar setting, or a guess.

All is in logarithms, because drafts depend on ratios. A pass is compared with those around it, of all sizes: heat and
other programs slow them alike. The median of what passes of a size took longer than the others is that size's ratio.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from edge_rt.runtime.speculation.cost_model import CURVE_DEPTHS, CURVE_ROWS, CostCurve, RowCosts

if TYPE_CHECKING:
    from edge_rt.runtime.forward.runner import Runner
    from edge_rt.runtime.speculation.cost_model import MeasuredCosts

_GUESS: Final = RowCosts(
    CURVE_ROWS,
    CURVE_DEPTHS,
    ((1.0, 1.05, 1.15, 1.55, 1.8, 2.6), (1.15, 1.2, 1.4, 1.95, 2.25, 3.3), (1.5, 1.6, 2.1, 3.3, 3.8, 5.7)),
    steady=False,
    passes=0,
)
"""Relative costs, rounded up, of SmolLM2-135M on two cores of a Xeon with AVX-512 VNNI and of a Zen 4: for a model that
never ran on a machine. Its milliseconds follow from the first passes.
"""
EXPLORED: Final = 0.01
"""Most of the time that is spent on rows which do not seem to pay."""
_SURE: Final = 8
"""Passes of a size in this process after which it is known."""
_KEPT: Final = 24
"""Passes of a size whose median counts: one alone, or a moment of load, moves little."""
_RECENT: Final = 9
_LONG: Final = 64
"""Passes of all sizes whose median says how slow the machine is at the moment, and how slow it is."""
_INHERITED: Final = 0.5
"""What a size that never ran takes over of what is known of the next smaller one."""
_PLAIN_STEPS: Final = 64
_REFRESH: Final = 8
_CHANGED: Final = 0.03
_STEADY_PASSES: Final = 256
_STEADY_SPREAD: Final = 0.2


class LiveCosts:
    """The costs of a model's passes.

    Args:
        save: stores what was learned; None: nobody does.
    """

    def __init__(self, costs: RowCosts, save: Callable[[RowCosts], bool] | None = None) -> None:
        self.changes = 0
        self.costs = self._saved = self._before = costs
        self._save = save
        self._observed = 0
        # By size: logarithms of how much longer passes took than was known before, compared with passes of all sizes
        # around them. So a slow machine is nobody's fault, and what is learned is bounded by what was seen.
        self._offs: list[deque[float]] = [deque(maxlen=_KEPT) for _ in costs.rows]
        self._seen = [0] * len(costs.rows)
        self._ratios = [0.0] * len(costs.rows)
        self._level = 0.0
        self._levels: deque[float] = deque(maxlen=_LONG)
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._spread = 0.0
        self._total = self._extra = 0.0
        # What every step asks is looked up: behind a pass the caches are cold.
        self._usual = [_GUESS.curve(0, count)[-1] - 1.0 for count in costs.rows]
        self._nearest = [_nearest(costs.rows, count) for count in range(1, costs.rows[-1] + 1)]
        self._curve = CostCurve(self, costs.rows[-1])

    def curve(self, depth: int, most: int) -> list[float]:
        """Return the milliseconds of passes over 1 to ``most`` rows; index 0 is 1 row."""
        return self.costs.curve(depth, most)

    def wanted(self, rows: int, most: int) -> int:
        """Return another number of rows, at most ``most``, whose costs are worth knowing now; 0: there is none."""
        if rows > 1 and self._seen[0] < _SURE and self._observed % _PLAIN_STEPS == _PLAIN_STEPS - 1:
            return 1
        first, line = self.costs.ms[0][0], self.costs.ms[0]
        for index, count in enumerate(self.costs.rows):
            if count > most:
                return 0
            if count <= rows or self._seen[index] >= _SURE:
                continue
            # What is said to be dear may be wrong: not more than usual is taken into account before it is known.
            extra = min(line[index] - first, first * self._usual[index])
            return count if self._extra + extra <= EXPLORED * self._total else 0
        return 0

    def observe(self, rows: int, depth: int, ms: float, instead: int | None = None) -> None:
        """Learn from a pass over ``rows`` rows after ``depth``.

        Args:
            instead: rows that seemed to pay, if the pass has others to learn from them.
        """
        # Against the curve of now, not of before: between two sizes it depends on what is known of both.
        less = None if instead is None else self.costs.curve(depth, instead)[-1]
        self.compare(rows, self._curve.at(depth)[min(rows, self.costs.rows[-1]) - 1], ms, less)

    def compare(self, rows: int, usual: float, ms: float, less: float | None = None) -> None:
        """Learn from a pass that was expected to take ``usual`` milliseconds.

        Args:
            less: milliseconds that the pass was expected to take with the rows that seemed to pay, if it has others.
        """
        if ms <= 0.0:
            return
        self._total += ms
        if less is not None:
            self._extra += max(ms - less, 0.0)
        if rows > self.costs.rows[-1]:
            return
        self._observed += 1
        off = self._level + math.log(ms / usual)
        index = self._nearest[rows - 1]
        if self._levels:
            rest = off - _median(self._recent)
            self._offs[index].append(self._ratios[index] + rest)
            self._spread += 0.02 * (abs(rest) - self._spread)
        self._seen[index] += 1
        self._levels.append(off)
        self._recent.append(off)
        if self._observed < 4 * _REFRESH or self._observed % _REFRESH == 0:
            self._refresh()

    def save(self) -> None:
        """Store what was learned, if that is much."""
        if self._save is None or not self._observed:
            return
        self._refresh()
        pairs = [
            (math.log(a / self.costs.ms[0][0]), math.log(b / self._saved.ms[0][0]))
            for one, two in zip(self.costs.ms, self._saved.ms, strict=True)
            for a, b in zip(one, two, strict=True)
        ]
        changed = max(abs(a - b) for a, b in pairs) > _CHANGED or self.costs.passes >= 2 * self._saved.passes
        if changed or self.costs.steady != self._saved.steady:
            self._save(self.costs)
            self._saved = self.costs

    def _refresh(self) -> None:
        """Compute the curve anew: what was known before, moved by what was seen of every size."""
        known = self._before
        ratios: list[float] = []
        for offs in self._offs:
            if offs:
                # A single pass says nothing.
                ratios.append(_median(offs) * (len(offs) - 1) / (len(offs) - 0.5))
            else:
                ratios.append(_INHERITED * ratios[-1] if ratios else 0.0)
        # One size stays where it is, as ratios have no level of their own: one row, or what runs most.
        fixed = 0 if self._offs[0] else max(range(len(ratios)), key=lambda index: len(self._offs[index]))
        self._ratios = [ratio - ratios[fixed] for ratio in ratios]
        self._level = level = _median(self._levels)
        ms = tuple(
            tuple(
                min(value * math.exp(level + ratio), count * line[0] * math.exp(level + self._ratios[0]))
                for count, value, ratio in zip(known.rows, line, self._ratios, strict=True)
            )
            for line in known.ms
        )
        # Many passes that took as long as expected are as good as a measurement.
        steady = known.steady or (self._observed >= _STEADY_PASSES and self._spread < _STEADY_SPREAD)
        self.costs = RowCosts(known.rows, known.depths, ms, steady, known.passes + self._observed)
        self.changes += 1


def open_costs(measured: MeasuredCosts, runner: Runner, *, are_compared: bool = False) -> LiveCosts:
    """Return the costs of a model's passes: stored ones, those of a similar setting, or a guess.

    On a GPU, of which none of these says anything, they are measured.

    Args:
        are_compared: with the milliseconds of a network that drafts; they are measured then, as those are.
    """
    costs = measured.stored()
    if costs is None and (are_compared or "device" in measured.key):
        costs = measured.measure(runner)
    if costs is None:
        shape = measured.similar() or measured.prior or _GUESS
        rows, depths = measured.grid
        lines = [shape.curve(depth, rows[-1]) for depth in depths]
        ms = tuple(tuple(line[count - 1] for count in rows) for line in lines)
        costs = RowCosts(rows, depths, ms, steady=False, passes=0)
    return LiveCosts(costs, measured.keep)


def _nearest(points: tuple[int, ...], value: int) -> int:
    """Return the index of the point that is nearest by ratio."""
    return min(range(len(points)), key=lambda index: abs(math.log(points[index] / value)))


def _median(values: deque[float]) -> float:
    """Return the median, of an even number the lower one: what disturbs a pass makes it longer."""
    return sorted(values)[(len(values) - 1) // 2]
