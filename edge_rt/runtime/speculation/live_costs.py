"""Costs of passes, corrected by the passes that run anyway; at first those of a similar setting, or a guess.

All is in logarithms, because drafts depend on ratios. A pass that took longer than expected first counts as a slower
machine (heat, other programs), which slows passes of all sizes alike; what stays different between sizes moves the
curve.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from edge_rt.runtime.speculation.cost_model import CURVE_DEPTHS, CURVE_ROWS, RowCosts

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
"""Passes of a size in this process after which it is known, if they took as long as expected."""
_RIGHT: Final = 0.08
_WRONG: Final = 0.15
_FASTER: Final = -1.0
_SLOWER: Final = 0.3
"""Bounds of what one pass says: one that took much longer was disturbed, one that took much less was not."""
_RECENT: Final = 9
"""Passes whose median says how slow the machine is now: of all sizes, so that one that is wrong does not decide."""
_LEAK: Final = 0.01
_LEAST_GAIN: Final = 0.03
_DOUBTFUL_GAIN: Final = 0.3
_REFRESH: Final = 16
_CHANGED: Final = 0.03
_STEADY_PASSES: Final = 256
_STEADY_ERROR: Final = 0.2


class LiveCosts:
    """The costs of a model's passes.

    Args:
        save: stores what was learned; None: nobody does.
    """

    def __init__(self, costs: RowCosts, save: Callable[[RowCosts], bool] | None = None) -> None:
        self.changes = 0
        self.costs = self._saved = costs
        self._save = save
        self._log = [[math.log(value) for value in line] for line in costs.ms]
        self._passes = costs.passes
        self._steady = costs.steady
        # Passes of a size and depth: those of this process count more than what is stored.
        self._seen = [[2.0 if costs.passes else 0.0] * len(costs.rows) for _ in costs.depths]
        # Passes of a size at any depth in this process, and how far off the expectation was.
        self._size_seen = [0] * len(costs.rows)
        self._size_error = [0.0] * len(costs.rows)
        # Passes that scaled the curve: whatever is stored, the first ones say how fast the machine is now.
        self._scaled = 0
        self._recent: deque[float] = deque((0.0,) * _RECENT, _RECENT)
        self._level = self._error = 0.0
        self._observed = 0
        self._total = self._extra = 0.0

    def curve(self, depth: int, most: int) -> list[float]:
        """Return the milliseconds of passes over 1 to ``most`` rows; index 0 is 1 row."""
        return self.costs.curve(depth, most)

    def wanted(self, rows: int, most: int) -> int:
        """Return a larger number of rows, at most ``most``, whose costs are worth knowing now; 0: there is none."""
        first, line = self.costs.ms[0][0], self.costs.ms[0]
        for index, count in enumerate(self.costs.rows):
            if count > most:
                return 0
            is_known = self._size_seen[index] >= _SURE and abs(self._size_error[index]) < _RIGHT
            if count <= rows or is_known:
                continue
            # What is said to be dear may be wrong: not more than usual is taken into account before it is known.
            extra = min(line[index] - first, first * (_GUESS.curve(0, count)[-1] - 1.0))
            return count if self._extra + extra <= EXPLORED * self._total else 0
        return 0

    def observe(self, rows: int, depth: int, ms: float, instead: int | None = None) -> None:
        """Learn from a pass over ``rows`` rows after ``depth``.

        Args:
            instead: rows that seemed to pay, if the pass has more to learn from it.
        """
        if ms <= 0.0:
            return
        self._total += ms
        if instead is not None:
            self._extra += max(ms - self._expected(self._near(instead, depth)) * math.exp(self._level), 0.0)
        if rows > self.costs.rows[-1]:
            return
        near = self._near(rows, depth)
        off = math.log(ms / self._expected(near))
        if self._scaled < 4:
            self._scaled += 1
            self._move_all(off / self._scaled)
            off = 0.0
        self._passes += 1
        self._observed += 1
        rest = max(_FASTER, min(_SLOWER, off - self._level))
        self._recent.append(off)
        self._level = sorted(self._recent)[len(self._recent) // 2]
        self._error += 0.02 * (abs(rest) - self._error)
        self._learn(near, rest)
        # In the end a machine that stays slow is what it is.
        self._move_all(_LEAK * self._level)
        if self._observed < 2 * _REFRESH or self._observed % _REFRESH == 0:
            self._refresh()

    def save(self) -> None:
        """Store what was learned, if that is much."""
        if self._save is None or self._scaled < 4:
            return
        self._refresh()
        pairs = [
            (math.log(a / self.costs.ms[0][0]), math.log(b / self._saved.ms[0][0]))
            for one, two in zip(self.costs.ms, self._saved.ms, strict=True)
            for a, b in zip(one, two, strict=True)
        ]
        changed = max(abs(a - b) for a, b in pairs) > _CHANGED or self._passes >= 2 * self._saved.passes
        if changed or self.costs.steady != self._saved.steady:
            self._save(self.costs)
            self._saved = self.costs

    def _near(self, rows: int, depth: int) -> list[tuple[int, int, float]]:
        """Return (index of a depth, index of a number of rows, weight) of the known points around."""
        return [
            (at, index, share * part)
            for at, share in _around(self.costs.depths, depth)
            for index, part in _around(self.costs.rows, rows)
            if share * part > 0.0
        ]

    def _expected(self, near: list[tuple[int, int, float]]) -> float:
        return sum(weight * math.exp(self._log[at][index]) for at, index, weight in near)

    def _learn(self, near: list[tuple[int, int, float]], rest: float) -> None:
        """Move the points around a pass, and with them those of other depths and more rows that are less known."""
        at, index, _ = max(near, key=lambda point: point[2])
        error = self._size_error[index] = 0.7 * self._size_error[index] + 0.3 * max(rest, -_SLOWER)
        self._size_seen[index] += 1
        if error < -_WRONG:
            self._seen[at][index] = min(self._seen[at][index], 1.0)
        gain = max(_LEAST_GAIN, 1.0 / (1.5 + self._seen[at][index]))
        # A slower pass may be the first ones beside other work: what is too cheap is drafted, and seen again soon.
        move = rest * (min(gain, _DOUBTFUL_GAIN) if rest > 0.0 else gain)
        weights = {(d, r): weight for d, r, weight in near}
        for d, line in enumerate(self._log):
            for r in range(len(line)):
                weight = weights.get((d, r))
                if weight is None:
                    is_known = self._seen[d][r] >= _SURE or (r > index and self._size_seen[r] >= _SURE)
                    shares = (r == index or r > index > 0) and not is_known
                    weight = (0.5 if shares else 0.0) * (0.5 if r > index and d != at else 1.0)
                else:
                    self._seen[d][r] += weight
                line[r] += weight * move
        # A point that was seen is right; those that would contradict it are not.
        value = self._log[at][index]
        for d, line in enumerate(self._log):
            for r in range(len(line)):
                if d <= at and r <= index:
                    line[r] = min(line[r], value)
                elif d >= at and r >= index:
                    line[r] = max(line[r], value)

    def _move_all(self, move: float) -> None:
        for line in self._log:
            for index in range(len(line)):
                line[index] += move

    def _refresh(self) -> None:
        known = self.costs
        # Many passes that took as long as expected are as good as a measurement.
        if self._passes >= _STEADY_PASSES and self._observed >= _STEADY_PASSES and self._error < _STEADY_ERROR:
            self._steady = True
        ms = tuple(tuple(min(max(math.exp(value), 1e-6), 9e5) for value in line) for line in self._log)
        self.costs = RowCosts(known.rows, known.depths, ms, self._steady, self._passes)
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
        similar = measured.similar()
        shape = similar or _GUESS
        rows, depths = measured.grid
        lines = [shape.curve(depth, rows[-1]) for depth in depths]
        ms = tuple(tuple(line[count - 1] for count in rows) for line in lines)
        costs = RowCosts(rows, depths, ms, steady=False, passes=0)
    return LiveCosts(costs, measured.keep)


def _around(points: tuple[int, ...], value: int) -> tuple[tuple[int, float], ...]:
    """Return the indexes of the two points around a value, and their weights."""
    for high, point in enumerate(points):
        if value <= point:
            if high == 0 or value == point:
                return ((high, 1.0),)
            part = (value - points[high - 1]) / (point - points[high - 1])
            return ((high - 1, 1.0 - part), (high, part))
    return ((len(points) - 1, 1.0),)
