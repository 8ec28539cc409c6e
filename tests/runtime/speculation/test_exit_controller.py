"""Where drafts of the model's own first layers end, how long they are, and what that costs."""

from __future__ import annotations

from itertools import pairwise

from edge_rt.runtime.decode.draft import NullDrafter
from edge_rt.runtime.speculation.cost_model import CostStore
from edge_rt.runtime.speculation.exit_costs import ExitCosts, ExitCurves, ExitMeasurement
from edge_rt.runtime.speculation.exit_source import ExitController, ExitPlan, ExitRates
from tests.helpers.fake_sources import linear_costs
from tests.helpers.segmented import EXITS, PROMPT, CutPasses, answer, whole_passes


def curves_of(draft, *, row=0.1, plain=1.0):
    """Return curves whose exits take these shares of a pass; the head is in them."""
    whole = linear_costs(plain, row)
    drafts = tuple(linear_costs(share, 0.0) for share in draft)
    deep = tuple(linear_costs(plain - share, row) for share in draft)
    return ExitCurves(ExitCosts(whole, drafts, deep), 24)


def taught(curves, rates):
    """Return a controller that has seen guesses stay at these rates."""
    controller = ExitController(curves)
    for index, rate in enumerate(rates):
        for trial in range(400):
            for place in range(4):
                controller.rates.learn(index, place, 0.5, trial % 100 < 100 * rate)
    return controller


class TestController:
    def test_the_exit_that_pays_is_chosen(self):
        controller = taught(curves_of([0.2, 0.5]), [0.8, 0.9])
        plan = controller.plan(100, 20)
        assert plan.exit_index == 0
        assert plan.length > 1
        assert taught(curves_of([0.2, 0.25]), [0.3, 0.95]).plan(100, 20).exit_index == 1

    def test_drafts_grow_with_acceptance(self):
        lengths = [taught(curves_of([0.1]), [rate]).plan(100, 20).length for rate in (0.5, 0.7, 0.95)]
        assert lengths == sorted(lengths)
        assert lengths[0] < lengths[-1]

    def test_nothing_pays(self):
        controller = taught(curves_of([0.5]), [0.2])
        plans = [controller.plan(100, 20) for _ in range(400)]
        probes = [index for index, plan in enumerate(plans) if plan is not None]
        assert all(plans[index] == ExitPlan(0, 1) for index in probes)
        assert 6 <= len(probes) <= 12
        gaps = [b - a for a, b in pairwise(probes)]
        assert gaps == sorted(gaps)
        assert gaps[-1] == 64

    def test_probes_go_to_the_exit_that_is_known_least(self):
        controller = taught(curves_of([0.5, 0.6, 0.7]), [0.2, 0.1])
        plans = [controller.plan(100, 20) for _ in range(20)]
        assert {plan.exit_index for plan in plans if plan is not None} == {2}

    def test_no_room(self):
        controller = taught(curves_of([0.1]), [0.9])
        assert controller.plan(100, 0) is None
        assert controller.plan(100, 2).length <= 2

    def test_a_chain_goes_on_while_it_is_likely(self):
        controller = taught(curves_of([0.2]), [0.9])
        assert controller.goes_on(0, [0.95])
        assert not controller.goes_on(0, [0.05])

    def test_what_was_learned_fades(self):
        controller = taught(curves_of([0.2]), [1.0])
        before = controller.rates.expected(0, 0)
        for _ in range(30):
            controller.begin()
        assert controller.rates.expected(0, 0) < before


class TestRates:
    def test_sure_guesses_are_apart(self):
        rates = ExitRates(2)
        for _ in range(50):
            rates.learn(0, 0, 0.95, True)
            rates.learn(0, 0, 0.05, False)
        assert rates.of_guess(0, 0.99) > 0.9
        assert rates.of_guess(0, 0.01) < 0.1
        assert 0.4 < rates.expected(0, 0) < 0.6
        assert rates.of_guess(1, 0.99) == ExitRates(2).of_guess(1, 0.99)


def test_costs_are_measured_kept_and_leave_nothing(agreeing, tmp_path):
    cut = CutPasses(agreeing.cut)
    store = CostStore(tmp_path)
    measurement = ExitMeasurement({"package_id": "abc"}, cut.interface, cut.cache, store)
    told = []
    measurement.on_measure = lambda: told.append(1)
    costs = measurement.get(cut.runner, linear_costs())
    assert told == [1]
    assert len(costs.drafts) == len(costs.deep) == len(EXITS)
    assert costs.drafts[0].rows == (1,)
    assert costs.deep[0].rows == (1, 2, 4, 8)
    assert len(store.find({"package_id": "abc"})) == 2 * len(EXITS)
    assert len(list(tmp_path.iterdir())) == 1
    assert cut.cache.length == 0
    cut.cache.check()
    cut.append(PROMPT)
    other = linear_costs(9.0)
    assert measurement.get(cut.runner, other) == ExitCosts(other, costs.drafts, costs.deep)
    assert cut.cache.length == len(PROMPT)
    # What another process has measured is read, unless it was measured on a busy machine.
    assert ExitMeasurement({"package_id": "abc"}, cut.interface, cut.cache, store).get(cut.runner, other).drafts
    whole = whole_passes(agreeing.whole)
    assert answer(cut, NullDrafter(), PROMPT, 9, temperature=0.0) == answer(
        whole, NullDrafter(), PROMPT, 9, temperature=0.0
    )
