"""Trained adapters of early exits: the text of plain decoding, whatever they guess."""

from __future__ import annotations

import json

import pytest

from edge_rt.errors import ConfigError, InvalidDrafter
from edge_rt.package.manifest import KV_FORMATS
from edge_rt.package.reader import open_package
from edge_rt.runtime.decode.draft import NullDrafter
from edge_rt.runtime.load.drafters import choose_drafter
from edge_rt.runtime.load.options import LoadOptions
from edge_rt.runtime.load.planning import plan_package
from edge_rt.runtime.speculation.arms import Arm
from edge_rt.runtime.speculation.cost_model import CostStore
from edge_rt.runtime.speculation.exit_costs import ExitMeasurement
from tests.helpers.fake_sources import linear_costs
from tests.helpers.models import load_package
from tests.helpers.segmented import EXITS, PROMPT, CutPasses, answer, drafter_of, exit_source, whole_passes
from tests.helpers.small import FREE_ROWS, GREEDY
from tests.helpers.tiny_adapters import adapters_of, load_adapters
from tests.runtime.test_head_model import head_of

SAMPLED = {"temperature": 1.0, "seed": 3}
SAMPLING = pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
TOKENS = 40


@pytest.fixture(scope="module")
def drafter(agreeing, tmp_path_factory):
    """Adapters that guess what the model's head does at the exits."""
    return adapters_of(agreeing.cut, tmp_path_factory.mktemp("right") / "exits")


@pytest.fixture(scope="module")
def wrong(agreeing, tmp_path_factory):
    """Adapters that guess something else."""
    return adapters_of(agreeing.cut, tmp_path_factory.mktemp("wrong") / "exits", moved=1)


def adapted(agreeing, drafter, kv_format="f16", prompt_rows=0):
    """Return passes with adapters at the exits, and the adapters."""
    cut, adapters = CutPasses(agreeing.cut, kv_format), load_adapters(agreeing.cut, drafter, prompt_rows)
    for segments, layer in enumerate(EXITS, start=1):
        if layer in adapters.by_layer:
            cut.runner.adapt(segments, adapters.by_layer[layer])
    return cut, adapters


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": 0.1, "seed": 3}], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kv_format", KV_FORMATS["native"])
def test_the_text_is_that_of_plain_decoding(agreeing, drafter, wrong, kv_format, options):
    expected = answer(whole_passes(agreeing.whole, kv_format), NullDrafter(), PROMPT, 60, **options)
    accepted = []
    for adapters in (drafter, wrong):
        cut, loaded = adapted(agreeing, adapters, kv_format)
        accepted.append(0)
        for seed in range(3):
            drafting = drafter_of(exit_source(cut, seed, adapters=loaded))
            assert answer(cut, drafting, PROMPT, 60, **options) == expected
            accepted[-1] += drafting.statistics("exit").draft_n_accepted
    assert accepted[0] > 5
    assert accepted[0] > 2 * accepted[1]


def test_guesses_are_those_of_the_adapter(agreeing, drafter, wrong):
    """Adapters that copy the state say what the model's head says; its products are rounded in another way."""
    tokens = [7, 9, 11, 13, 15, 17]
    found = {}
    for name, adapters in (("right", drafter), ("wrong", wrong), ("none", None)):
        cut = CutPasses(agreeing.cut) if adapters is None else adapted(agreeing, adapters)[0]
        cut.append(PROMPT)
        found[name] = []
        for segments in range(1, len(EXITS) + 1):
            found[name] += cut.draft(tokens, segments)
            cut.cache.ahead.clear()
    same = sum(one == other for one, other in zip(found["right"], found["none"], strict=True))
    assert same >= len(found["none"]) - 2
    assert sum(one == other for one, other in zip(found["wrong"], found["none"], strict=True)) < same / 2


def test_an_exit_without_an_adapter_drafts_with_the_models_head(agreeing, tmp_path):
    moved = adapters_of(agreeing.cut, tmp_path / "one", EXITS[1:2], moved=1)
    plain, (cut, adapters) = CutPasses(agreeing.cut), adapted(agreeing, moved)
    assert list(adapters.by_layer) == [EXITS[1]]
    for passes in (plain, cut):
        passes.append(PROMPT)
    drafts = []
    for segments in (1, 2, 3):
        drafts.append([passes.draft([7, 9, 11], segments) for passes in (plain, cut)])
        for passes in (plain, cut):
            passes.cache.ahead.clear()
    assert [one == other for one, other in drafts] == [True, False, True]
    cut.runner.adapt(2, None)
    assert cut.draft([7, 9, 11], 2) == drafts[1][0]


def test_tokens_of_the_prompt_can_be_guessed(agreeing, tmp_path):
    """A vocabulary of few tokens, and those of the prompt, at every exit."""
    few = adapters_of(agreeing.cut, tmp_path / "few", vocabulary=5)
    cut, adapters = adapted(agreeing, few, prompt_rows=32)
    cut.append(PROMPT)

    def likely():
        found = set()
        for segments in range(1, len(EXITS) + 1):
            cut.cache.ahead.begin(cut.cache.length, segments)
            cut.cache.make_room(1)
            found |= set(cut.runner.draft(7, -1).ids[0].tolist())
            cut.cache.ahead.clear()
        return found

    assert likely() <= set(range(5))
    adapters.add_tokens(PROMPT)
    assert likely() <= {*range(5), *PROMPT}
    assert likely() - set(range(5))
    adapters.add_tokens([])
    assert likely() <= set(range(5))


@SAMPLING
@pytest.mark.parametrize("mode", ["exit", "auto"])
def test_a_model_with_adapters(agreeing, drafter, mode, sampling):
    with load_package(agreeing.whole, spec="off") as model:
        expected = model.generate("The little boat", max_tokens=TOKENS, **sampling).token_ids
    with load_package(agreeing.cut, spec=mode, drafter=drafter.path) as model:
        model.speculation.costs = FREE_ROWS
        if mode == "auto":
            assert model.speculation.drafter(mode).arms[-1] == Arm("fusion", 0b111)
        result = model.generate("The little boat", max_tokens=TOKENS, **sampling)
        assert result.token_ids == expected
        assert model.generate("The little boat", max_tokens=TOKENS, **sampling).token_ids == expected
        assert result.spec.memory_bytes > 0
        assert model.describe()["drafter"] == "tiny-exits"


class TestChoice:
    def test_with_exits_a_drafter_is_taken_if_there_is_one(self, agreeing, tmp_path):
        package, nothing = open_package(agreeing.cut), tmp_path / "none"
        found = adapters_of(agreeing.cut, tmp_path / "installed" / "exits")
        for spec in ("exit", "auto", None):
            assert choose_drafter(package, spec, None, installed=nothing) is None
            assert choose_drafter(package, spec, None, installed=tmp_path / "installed") == found
            assert choose_drafter(package, spec, found.path) == found
        for spec in ("off", "suffix"):
            assert choose_drafter(package, spec, None, installed=tmp_path / "installed") is None

    def test_auto_prefers_a_head(self, agreeing, tmp_path):
        package, installed = open_package(agreeing.cut), tmp_path / "installed"
        exits = adapters_of(agreeing.cut, installed / "a")
        head = head_of(agreeing.cut, installed / "b")
        assert choose_drafter(package, None, None, installed=installed) == head
        assert choose_drafter(package, "exit", None, installed=installed) == exits
        with pytest.raises(ConfigError, match="is of the kind head"):
            choose_drafter(package, "exit", head.path)

    def test_a_package_in_one_piece_has_no_use_for_them(self, agreeing, drafter, tmp_path):
        package = open_package(agreeing.whole)
        with pytest.raises(InvalidDrafter, match="nothing to draft with in this package"):
            choose_drafter(package, "auto", drafter.path)
        with pytest.raises(ConfigError, match="no exits at which a draft could end"):
            choose_drafter(package, "exit", drafter.path)


def test_memory_is_planned(agreeing, drafter):
    package = open_package(agreeing.cut)
    without = plan_package(package, LoadOptions(spec="exit"))
    with_it = plan_package(package, LoadOptions(spec="exit", drafter=drafter.path))
    terms, before = ({term.name: term.bytes for term in made.terms} for made in (with_it, without))
    assert terms["drafter"] == drafter.weights_bytes
    adapters = load_adapters(agreeing.cut, drafter, with_it.request.drafter.prompt_rows(with_it.choice.ctx))
    assert terms["drafter_head"] + terms["drafter"] >= adapters.memory_bytes
    # They begin at exits: no hidden states behind the last layer are asked for.
    assert terms["logits"] == before["logits"]
    assert with_it.choice.drafter
    assert not without.choice.drafter


def test_costs_of_drafts_belong_to_the_adapters(agreeing, drafter, tmp_path):
    cut, adapters = adapted(agreeing, drafter)
    store = CostStore(tmp_path)

    def measure(drafter_id):
        measurement = ExitMeasurement({"package_id": "x"}, cut.interface, cut.cache, store, drafter_id)
        found = measurement.get(cut.runner, linear_costs(4.0, 0.1))
        assert len(found.drafts) == len(found.deep) == len(EXITS)
        return {json.dumps(key) for key, _ in store.find({})}

    plain = measure(None)
    more = measure(adapters.drafter_id)
    # Passes behind an exit do not depend on what drafts there.
    assert len(plain) == 2 * len(EXITS)
    assert len(more - plain) == len(EXITS)
