"""Costs that are corrected by passes, on a simulated machine: wrong ones heal, right ones stay, little is explored."""

from __future__ import annotations

import math
import random
from statistics import fmean

import pytest

from edge_rt.runtime.speculation.cost_model import CURVE_DEPTHS, CURVE_ROWS, RowCosts
from edge_rt.runtime.speculation.live_costs import EXPLORED, LiveCosts
from tests.helpers.fake_sources import OracleSource
from tests.reference.tree import best_size
from tests.runtime.speculation.test_adaptive import Trial

TRUE = RowCosts(
    CURVE_ROWS,
    CURVE_DEPTHS,
    ((2.0, 2.05, 2.3, 3.2, 3.8, 5.6), (2.4, 2.45, 2.9, 4.1, 4.7, 6.9), (3.0, 3.2, 4.4, 7.0, 7.8, 11.5)),
    steady=True,
    passes=72,
)


def scaled(costs, factor, *, rows=1, passes=72):
    """The costs, of passes over at least so many rows multiplied."""
    lines = [
        tuple(ms * (factor if count >= rows else 1) for count, ms in zip(costs.rows, line, strict=True))
        for line in costs.ms
    ]
    return RowCosts(costs.rows, costs.depths, tuple(lines), steady=False, passes=passes)


def quiet(step):
    return 1.0


def comes_and_goes(step):
    """Beside another program half of the time: 1.8 times as slow."""
    return 1.8 if step // 150 % 2 else 1.0


class Machine:
    """Runs the passes that pay by what is known of them; drafts are right now and then.

    Attributes:
        spent, wasted: milliseconds of all passes, and those that were only to learn.
    """

    def __init__(self, live, load=quiet, *, seed=1, acceptance=0.75):
        self.live, self._load, self._acceptance = live, load, acceptance
        self._random = random.Random(seed)
        self._step = 0
        self.spent = self.wasted = 0.0

    def answers(self, count, steps=120):
        for _ in range(count):
            for step in range(steps):
                self._pass(60 + 2 * step)

    def _pass(self, depth):
        guess = self._random.uniform(0.1, self._acceptance)
        values = [guess**node for node in range(1, 12)]
        rows = 1 + best_size(values, self.live.curve(depth, 12), 0.05)
        wanted = self.live.wanted(rows, 12)
        true = TRUE.curve(depth, 12)
        slow = self._load(self._step) * math.exp(self._random.gauss(0, 0.05) + self._random.choice((0,) * 30 + (0.7,)))
        ms = slow * true[(wanted or rows) - 1]
        self.spent += ms
        if wanted:
            self.wasted += slow * (true[wanted - 1] - true[rows - 1])
        self.live.observe(wanted or rows, depth, ms, rows if wanted else None)
        self._step += 1

    def errors(self, depth=200, most=9):
        """How far the ratios to one row are off."""
        known, true = self.live.curve(depth, most), TRUE.curve(depth, most)
        return [abs(a / known[0] / (b / true[0]) - 1) for a, b in zip(known, true, strict=True)]


WRONG = {
    "a good curve": TRUE,
    "measured beside other work": scaled(TRUE, 2.5, rows=4),
    "all passes equal": scaled(RowCosts(TRUE.rows, TRUE.depths, tuple((2.0,) * 6 for _ in TRUE.depths)), 1.0),
    "another machine": scaled(TRUE, 6.0),
    "a guess": RowCosts(TRUE.rows, TRUE.depths, tuple((1.0, 1.3, 1.8, 2.6, 3.0, 4.0) for _ in TRUE.depths), passes=0),
}


@pytest.mark.parametrize("load", [quiet, comes_and_goes])
@pytest.mark.parametrize("name", WRONG)
def test_after_ten_answers_ratios_are_right(name, load):
    trials = []
    for seed in range(5):
        machine = Machine(LiveCosts(WRONG[name]), load, seed=seed)
        machine.answers(10)
        trials.append(machine.errors())
        # One pass more than a share of the time.
        assert machine.wasted <= EXPLORED * machine.spent + 2 * TRUE.ms[0][-1]
    assert sorted(map(fmean, trials))[2] < 0.1
    assert sorted(map(max, trials))[2] < 0.22


@pytest.mark.parametrize(("share", "factor"), [(0.3, 2.0), (0.5, 2.0), (0.6, 2.0), (0.5, 3.0), (0.7, 3.0)])
def test_passes_that_lose_their_core_now_and_then_leave_the_ratios(share, factor):
    """Beside a program that takes a core in turns, every second pass may take twice as long."""
    chance = random.Random(3)
    errors = []
    for name in ("a good curve", "a guess"):
        machine = Machine(LiveCosts(WRONG[name]), lambda step: factor if chance.random() < share else 1.0)
        for _ in range(20):
            machine.answers(2)
            errors.append(fmean(machine.errors()))
    assert sorted(errors)[len(errors) // 2] < 0.3
    assert max(errors[2:]) < 0.6


def test_whatever_passes_take_the_costs_stay_numbers_that_rise():
    chance = random.Random(4)
    live = LiveCosts(TRUE)
    for _ in range(20_000):
        rows = chance.choice((1, 1, 1, 2, 3, 5, 8, 12))
        live.observe(rows, chance.randrange(2000), math.exp(chance.gauss(0, 4)) * chance.choice((1.0, 1e-9, 1e9)))
    for line in live.costs.ms:
        assert all(math.isfinite(ms) and ms > 0 for ms in line)
        assert all(ms <= rows * line[0] * 1.001 for rows, ms in zip(live.costs.rows, line, strict=True))
    assert RowCosts.from_json(live.costs.to_json()) is not None


def test_the_cost_of_one_row_is_learned_where_every_step_drafts():
    """More rows may only seem cheap because one row seems dear."""
    live = LiveCosts(scaled(TRUE, 0.6, rows=2))
    machine = Machine(live, acceptance=0.9)
    machine.answers(20)
    assert fmean(machine.errors()) < 0.15


def test_exploring_ends_when_all_sizes_are_known():
    machine = Machine(LiveCosts(TRUE))
    machine.answers(20)
    wasted = machine.wasted
    machine.answers(10)
    assert machine.wasted - wasted < 0.002 * machine.spent


def test_little_is_explored_where_nothing_is_drafted():
    machine = Machine(LiveCosts(TRUE), acceptance=0.1)
    machine.answers(2)
    assert machine.wasted < 0.015 * machine.spent


def test_one_slow_pass_moves_little():
    live = LiveCosts(TRUE)
    for _ in range(20):
        live.observe(1, 64, 2.0)
    before = live.curve(200, 16)
    live.observe(8, 200, 5000.0)
    assert live.curve(200, 16) == pytest.approx(before, rel=0.1)


def test_a_slower_machine_leaves_ratios():
    live = LiveCosts(TRUE)
    for _ in range(200):
        live.observe(1, 64, 3 * TRUE.ms[0][0])
    assert live.curve(64, 8)[7] / live.curve(64, 8)[0] == pytest.approx(1.6, rel=0.25)


def test_the_milliseconds_of_a_guess_follow_from_the_first_passes():
    live = LiveCosts(WRONG["a guess"])
    for _ in range(4):
        live.observe(1, 64, 7.0)
    assert live.curve(64, 1) == pytest.approx([7.0], rel=0.02)


@pytest.mark.parametrize(("rows", "ms"), [(1, 0.0), (24, 3.0), (1, -1.0)])
def test_what_says_nothing_changes_nothing(rows, ms):
    live = LiveCosts(TRUE)
    live.observe(rows, 64, ms)
    assert live.costs == TRUE


def test_it_is_stored_when_it_changed():
    stored = []
    live = LiveCosts(WRONG["measured beside other work"], lambda costs: stored.append(costs) or True)
    live.save()
    assert not stored
    machine = Machine(live)
    machine.answers(5)
    live.save()
    live.save()
    assert len(stored) == 1
    assert stored[0] == live.costs
    assert stored[0].passes > TRUE.passes
    assert stored[0].steady


def test_a_guess_that_no_pass_confirmed_is_not_stored():
    stored = []
    LiveCosts(WRONG["a guess"], lambda costs: stored.append(costs) or True).save()
    assert not stored


@pytest.mark.parametrize("name", ["a good curve", "measured beside other work", "all passes equal"])
def test_learning_costs_little_where_no_draft_is_right(name):
    def wrong(text, clock):
        return [OracleSource(text, lambda position: False, name="wrong")]

    trial = Trial(wrong, costs=TRUE, measured=LiveCosts(WRONG[name]))
    ratios = [trial.plain_ms / trial.ms] + [trial.plain_ms / trial.again().ms for _ in range(2)]
    assert min(ratios) > 0.98
