"""Drafting beside verifying: a second model drafts the next step on the CPU while a device verifies this one.

After PEARL (Liu et al. 2024), SpecBranch (Shen et al. 2025) and Mirror-SD (Bhendawade et al. 2025). Nothing is guessed
but rows of the second model's cache: it goes on with its own chain as if the model would accept it. If that was right,
the next draft is there already; if not, the rows are rolled back as any that were drafted in vain. So a draft is the
same whether its rows were computed beside a pass or behind it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence as Items
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from edge_rt.errors import Cancelled, DeviceFailed, MemoryBudgetExceeded, is_out_of_memory
from edge_rt.runtime.speculation.cost_model import CostCurve, Costs, MeasuredCosts, RowCosts
from edge_rt.runtime.speculation.draft_model import DraftModel
from edge_rt.runtime.speculation.source import MAX_CHAIN
from edge_rt.runtime.speculation.statistics import BesideCounts
from edge_rt.system.side_thread import SideThread

if TYPE_CHECKING:
    from edge_rt.runtime.forward.runner import Runner
    from edge_rt.runtime.speculation.cost_model import CostStore

MOST_SHARE: Final = 0.5
"""Most time that a pass beside another one may add, as a share of what it takes alone."""
_ROWS: Final = 8
"""Most known tokens of a pass: the other model does not wait long for one that is not of use."""
_ROUNDS: Final = 8
_BUDGET_SECONDS: Final = 2.0
_DEPTH: Final = 64
_LEAST_MS: Final = 1e-3
_STEADY: Final = 1.25
_KEEP: Final = 0.95
_TAKEN_KEEP: Final = 0.8
_MOST_LOST: Final = 3.0
"""Passes that may be waited for in vain, about, before nothing runs beside others for some steps."""
_REST_STEPS: Final = 48
_NAME: Final = "edge-rt drafts"


class Beside:
    """Lets a model that drafts go on, on a thread of its own, while another one verifies.

    Args:
        model: computes on the CPU, and can go back to any row.
        alone: costs of its passes by themselves.
        share: time that such a pass adds to one of the other model, as a share of that.
        value_of: how likely a token is accepted that the model gives a probability.
        end_ids: nothing follows them.
        clock: seconds.
    """

    def __init__(
        self,
        model: DraftModel,
        alone: Costs,
        share: float,
        value_of: Callable[[float], float],
        *,
        end_ids: Collection[int] = (),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.counts = BesideCounts()
        self._model, self._alone, self._share = model, CostCurve(alone, 1), share
        self._value_of, self._end_ids, self._clock = value_of, frozenset(end_ids), clock
        # Milliseconds of a pass alone, and of those that ran beside others lately.
        self._pass_ms = self._taken_ms = 0.0
        # Milliseconds that were saved by what was ready, less those that were waited for; steps of rest left.
        self._balance, self._rest = 0.0, 0
        # Tokens of the text, and behind it, up to which what was ready is counted.
        self._counted = 0
        self._thread: SideThread | None = None
        self._error: BaseException | None = None

    def is_ready(self, drafted: Items[int]) -> bool:
        """Return whether what the model says behind known and drafted tokens is known; counted, once, as used then."""
        if self._model.ready(drafted) is None:
            return False
        if (end := self._model.depth + len(drafted)) > self._counted:
            self._counted = end
            self.counts.drafted += 1
            self.counts.hidden_ms += self._pass_ms
            self._balance += self._pass_ms
        return True

    def begin_text(self) -> None:
        """Count anew."""
        self.counts, self._counted = BesideCounts(), 0

    def begin(self, guess: Items[int], value: float, depth: int, ms: float, *, pays: bool) -> None:
        """Let the model compute known tokens that it lacks, then a guess, then what follows that.

        Args:
            guess: tokens behind the known ones.
            value: how likely all of them are accepted.
            ms: what the other model's pass is expected to take.
            pays: whether drafts pay that are computed behind passes, too.
        """
        self.end()
        self._pass_ms = self._alone.at(depth)[0]
        self._balance *= _KEEP
        if self._rest:
            self._rest -= 1
            return
        if self._balance < -_MOST_LOST * self._pass_ms:
            # Costs that were measured are wrong for the moment.
            self._balance, self._rest = 0.0, _REST_STEPS
            return
        until = self._clock() + 1e-3 * ms
        # Known before it starts: an interrupt may come meanwhile.
        self._thread = thread = SideThread(lambda: self._run(thread, [*guess], value, until, pays), _NAME)
        if not thread.begin():
            # The draft is computed behind the pass.
            self._thread = None

    def end(self) -> None:
        """Begin no other pass, and wait for the one under way; does nothing where there is none."""
        if self._thread is not None:
            started = self._clock()
            # It is known until it has ended, also if waiting is interrupted.
            self._thread.end()
            if (error := self._thread.error) is not None and not _ends_quietly(error):
                self._error = error
            self._thread = None
            self._balance -= 1e3 * (self._clock() - started)

    def tell(self) -> None:
        """Raise, once, what a run that has ended met and should not have."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, thread: SideThread, drafted: list[int], value: float, until: float, pays: bool) -> None:
        model, counts, most = self._model, self.counts, len(drafted) + 1 + MAX_CHAIN
        while not thread.is_ended and len(drafted) < min(most, model.room()):
            if (top := model.ready(drafted)) is None:
                # Known tokens are needed in any case.
                if not self._is_worth_it(1.0 if model.behind() else value, until, pays=pays):
                    return
                started = self._clock()
                top = model.advance(drafted, _ROWS)
                counts.passes += 1
                if top is None:
                    continue
                taken = 1e3 * (self._clock() - started)
                self._taken_ms += (1.0 - _TAKEN_KEEP) * (taken - self._taken_ms) if self._taken_ms else taken
            token = int(top.ids[0, 0])
            if token >= model.known_tokens or token in self._end_ids:
                return
            value *= self._value_of(float(top.probabilities()[0, 0]))
            drafted.append(token)

    def _is_worth_it(self, likely: float, until: float, *, pays: bool) -> bool:
        """Return whether another pass is, whose result is likely to be of use, beside one that ends at a moment."""
        # What outlasts the other pass is waited for: in vain if the guess is wrong, or where drafts that are computed
        # behind passes do not pay.
        vain = 1.0 - likely if pays else 1.0
        left = 1e3 * (until - self._clock())
        return likely > self._share and left > vain * max(self._pass_ms, self._taken_ms)


def _ends_quietly(error: BaseException) -> bool:
    """Return whether a pass may fail so: what is computed is whole, and who needs the rest computes it and sees why."""
    return isinstance(error, Cancelled | MemoryBudgetExceeded | DeviceFailed) or is_out_of_memory(error)


def told_share(share: float) -> str:
    """Return what is told of a share (``SpecStats.beside``)."""
    if share <= MOST_SHARE:
        return "on"
    return f"off: beside a pass on the device one of the second model adds {100 * share:.0f} % of its time alone"


def added_ms(
    verify: Callable[[], object], draft: Callable[[], object], *, clock: Callable[[], float] = time.perf_counter
) -> tuple[float, bool]:
    """Measure how many milliseconds a pass of one model adds to one of another that runs at the same time.

    Passes alone alternate with passes beside which the second model computes one after the other; the lowest times
    count, as other work only adds to them.

    Args:
        verify, draft: compute a pass of either model, each on a thread of its own.

    Returns:
        The milliseconds, at least a trifle, and whether repeated passes took about the same time.
    """
    alone: list[float] = []
    together: list[tuple[float, float]] = []
    verify()
    draft()
    begun = clock()
    for turn in range(_ROUNDS):
        if turn > 1 and clock() - begun > _BUDGET_SECONDS:
            break
        started = clock()
        verify()
        alone.append(1e3 * (clock() - started))
        worker = _Repeating(draft)
        started = clock()
        try:
            worker.begin()
            verify()
            ms = 1e3 * (clock() - started)
        finally:
            worker.end()
        # The last one has outlasted the other model's pass, which is no cost: an answer waits where it is worth it.
        if worker.count:
            together.append((ms, worker.count * ms / (1e3 * (clock() - started))))
    least = min(alone)
    # Where the system gave no thread in time, that is a pass for each.
    added = min(((ms - least) / count for ms, count in together), default=least)
    pairs = (sorted(times)[:2] for times in (alone, [ms for ms, _ in together]))
    steady = all(len(pair) == 2 and pair[1] <= _STEADY * pair[0] for pair in pairs)
    return max(added, _LEAST_MS), steady


class _Repeating(SideThread):
    """Repeats something until it is ended.

    Attributes:
        count: how often it was done.
    """

    def __init__(self, body: Callable[[], object]) -> None:
        super().__init__(partial(self._repeat, body), _NAME)
        self.count = 0

    def _repeat(self, body: Callable[[], object]) -> None:
        while not self.is_ended or not self.count:
            body()
            self.count += 1

    def end(self) -> None:
        """Wait for the last time; raise what it has raised."""
        super().end()
        if self.error is not None:
            raise self.error


class BesideMeasurement:
    """Measures once per machine what passes of a model that drafts add to those of its model on a device.

    Args:
        verifying, drafting: costs of the passes of both.
        store: where measured costs are stored; None stores nothing.
    """

    def __init__(self, verifying: MeasuredCosts, drafting: MeasuredCosts, store: CostStore | None) -> None:
        self._verifying, self._drafting, self._store = verifying, drafting, store
        self._found: RowCosts | None = None

    def share(self, runner: Runner, drafting: Runner, alone: Costs) -> float:
        """Return the time that is added, as a share of the drafting model's pass alone.

        It is measured unless it is known, which empties both caches.

        Args:
            alone: costs of the drafting model's passes by themselves.
        """
        if self._found is None:
            key = self._key
            stored = None if self._store is None else self._store.load(key)
            # A busy machine is measured again the next time.
            self._found = stored if stored is not None and stored.steady else None
            if self._found is None:
                self._found = self._measured(runner, drafting)
                if self._store is not None:
                    self._store.save(key, self._found)
        return self._found.ms[0][0] / alone.curve(self._found.depths[0], 1)[0]

    @property
    def _key(self) -> dict[str, Any]:
        second = {name: self._drafting.key.get(name) for name in ("package_id", "kv_format", "capacity")}
        return {**self._verifying.key, "part": "beside", "second": second, "rows": [1]}

    def _measured(self, runner: Runner, drafting: Runner) -> RowCosts:
        depth = min(_DEPTH, *(measured.grid[1][0] for measured in (self._verifying, self._drafting)))
        for measured in (self._verifying, self._drafting):
            if measured.on_measure is not None:
                measured.on_measure()
        with self._verifying.passes(runner) as verify, self._drafting.passes(drafting) as draft:
            ms, steady = added_ms(lambda: verify(1, depth), lambda: draft(1, depth))
        return RowCosts((1,), (depth,), ((ms,),), steady)
