"""Drafts of the model's own first layers: always the text of plain decoding, whatever is drafted, and where it ends."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from edge_rt.errors import Cancelled, ConfigError
from edge_rt.package.manifest import KV_FORMATS
from edge_rt.runtime.decode.draft import Draft, NullDrafter
from edge_rt.runtime.decode.sequence import Sequence
from edge_rt.runtime.speculation.cost_model import CostStore
from edge_rt.runtime.speculation.exit_controller import ExitController, ExitRates
from edge_rt.runtime.speculation.exit_costs import ExitCosts, ExitCurves, ExitMeasurement
from edge_rt.runtime.speculation.exit_drafter import ExitDrafter
from edge_rt.runtime.speculation.exit_source import Plan
from tests.helpers.fake_sources import linear_costs
from tests.helpers.models import load_package
from tests.helpers.segmented import EXITS, CutPasses, answer, whole_passes
from tests.helpers.small import GREEDY
from tests.runtime.forward.test_segmented_runner import LateSwitch

PROMPT = [(3 + 17 * i) % 419 for i in range(12)]
FORMATS = KV_FORMATS["native"]


class RandomController:
    """Decides at random, but drafts at most steps."""

    def __init__(self, seed):
        self._random = random.Random(seed)
        self.rates = ExitRates(len(EXITS))

    def begin(self):
        pass

    def plan(self, depth, limit):
        if self._random.random() < 0.2:
            return None
        return Plan(self._random.randrange(len(EXITS)), self._random.randint(1, 8))

    def goes_on(self, exit_index, values):
        return self._random.random() < 0.9

    def size(self, exit_index, values, drafted):
        return self._random.randint(0, len(values))

    def time(self, exit_index, drafted, drafting_ms, rows, verifying_ms):
        assert (exit_index is None) == (drafted == 0)
        assert min(drafting_ms, verifying_ms) > 0
        assert rows >= 1


def drafter_of(passes, controller, **options):
    return ExitDrafter(lambda: passes.runner, passes.cache, controller, EXITS, max_nodes=20, **options)


@pytest.fixture(scope="module", params=["agreeing", "segmented_window"])
def pair(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": 1.0, "seed": 4}], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kv_format", FORMATS)
def test_the_text_is_that_of_plain_decoding(pair, kv_format, options):
    cut, whole = CutPasses(pair.cut, kv_format), whole_passes(pair.whole, kv_format)
    expected = answer(whole, NullDrafter(), PROMPT, 60, **options)
    for seed in range(4):
        assert answer(cut, drafter_of(cut, RandomController(seed)), PROMPT, 60, **options) == expected


def test_tokens_of_chains_and_siblings_stay(agreeing):
    cut = CutPasses(agreeing.cut)
    seen = []
    drafter = drafter_of(cut, RandomController(1), trace=seen.append)
    answer(cut, drafter, PROMPT, 200, temperature=0.1, seed=2)
    stats = drafter.statistics("exit")
    assert stats.draft_n_accepted > 40
    assert stats.accepted_per_position[2] > 0
    assert {record["arm"] for record in seen} == {"off", *(f"exit {layers}" for layers in EXITS)}
    assert sum(stats.choices.values()) == stats.steps
    assert any(record["drafted"] > 8 for record in seen)


def test_the_model_drafts_and_says_so(agreeing):
    options = {**GREEDY, "max_tokens": 80}
    with load_package(agreeing.whole, spec="off") as model:
        expected = model.generate("The little boat", **options).token_ids
    with load_package(agreeing.cut, spec="exit") as model:
        result = model.generate("The little boat", **options)
        assert result.token_ids == expected
        assert result.spec.mode == "exit"
        assert model.generate("The little boat", spec="auto", **options).token_ids == expected
        arms = [arm.name for arm in model.speculation.drafter("auto").arms]
        assert arms == ["off", "suffix", "recycling", "texts", "fusion"]
        assert model.describe()["speculation"] == "exit"


def test_packages_without_exits_refuse_it(native_package):
    with pytest.raises(ConfigError, match="no exits at which a draft could end"):
        load_package(native_package, spec="exit")
    with load_package(native_package) as model, pytest.raises(ConfigError, match="no exits"):
        model.generate("Hello", spec="exit")


@pytest.mark.parametrize("looks", range(0, 40, 3))
def test_stopped_anywhere(agreeing, looks):
    switch = LateSwitch()
    cut, whole = CutPasses(agreeing.cut, switch=switch), whole_passes(agreeing.whole)
    expected = answer(whole, NullDrafter(), PROMPT, 30, temperature=0.0)
    drafter = drafter_of(cut, RandomController(looks))
    assert answer(cut, drafter, PROMPT, 5, temperature=0.0) == expected[:5]
    switch.looks_left = looks
    with pytest.raises(Cancelled):
        answer(cut, drafter, PROMPT, 200, temperature=0.0)
    switch.looks_left = 1 << 30
    cut.cache.check()
    assert set(cut.cache.valid_lengths(len(EXITS) + 1)) == {cut.cache.length}
    assert answer(cut, drafter, PROMPT, 30, temperature=0.0) == expected


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
                controller.rates.learn(index, place, 0.5, (1, 2, 3), 0, 0 if trial % 100 < 100 * rate else 9)
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
        assert all(plans[index] == Plan(0, 1) for index in probes)
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

    def test_how_many_nodes(self):
        controller = taught(curves_of([0.2], row=0.3), [0.9])
        assert controller.size(0, [0.9, 0.8, 0.1, 0.05], 2) == 2
        assert controller.size(0, [0.1, 0.05], 1) == 0
        assert controller.size(0, [], 1) == 0

    def test_a_chain_goes_on_while_it_is_likely(self):
        controller = taught(curves_of([0.2]), [0.9])
        assert controller.goes_on(0, [0.95])
        assert not controller.goes_on(0, [0.05])

    def test_drafts_that_take_longer_than_measured_are_no_longer_made(self):
        controller = taught(curves_of([0.2]), [0.8])
        plan = controller.plan(100, 20)
        assert plan is not None
        for _ in range(60):
            controller.time(0, plan.length, plan.length * 1.2, plan.length + 1, 0.8 + 0.1 * plan.length)
            controller.time(None, 0, 0.0, 1, 1.0)
        plans = [controller.plan(100, 20) for _ in range(40)]
        assert sum(plan is not None for plan in plans) <= 4  # probes

    def test_a_machine_that_is_slower_throughout_changes_nothing(self):
        curves = curves_of([0.2])
        controller = taught(curves, [0.8])
        plan = controller.plan(100, 20)
        for _ in range(60):
            draft, deep, plain = 0.2, 0.8 + 0.1 * plan.length, 1.0
            controller.time(0, plan.length, 3 * plan.length * draft, plan.length + 1, 3 * deep)
            controller.time(None, 0, 0.0, 1, 3 * plain)
        assert controller.plan(100, 20).length == pytest.approx(plan.length, abs=1)
        assert curves.plain == pytest.approx(3.0, rel=0.05)

    def test_what_was_learned_fades(self):
        controller = taught(curves_of([0.2]), [1.0])
        before = controller.rates.expected(0, 0)
        for _ in range(30):
            controller.begin()
        assert controller.rates.expected(0, 0) < before


class TestRates:
    def test_siblings_learn_from_wrong_guesses_alone(self):
        rates = ExitRates(1)
        before = rates.of_sibling(0, 2)
        rates.learn(0, 0, 0.5, (5, 6, 7), 4, 4)
        assert rates.of_sibling(0, 2) == before
        rates.learn(0, 0, 0.5, (5, 6, 7), 4, 6)
        assert rates.of_sibling(0, 2) > before
        assert rates.trials == [2]

    def test_sure_guesses_are_apart(self):
        rates = ExitRates(2)
        for _ in range(50):
            rates.learn(0, 0, 0.95, (), 4, 4)
            rates.learn(0, 0, 0.05, (), 4, 5)
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
    assert len(list(tmp_path.iterdir())) == 2 * len(EXITS)
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


def test_the_prompt_gets_no_draft(agreeing):
    cut = CutPasses(agreeing.cut)
    drafter = drafter_of(cut, RandomController(0))
    sequence = Sequence(PROMPT, capacity=64, max_tokens=8, end_ids=())
    drafter.begin(sequence)
    assert drafter.propose(sequence, 20) == Draft()
