"""Loading a trained drafter: which one is taken, what it is given, and modes that cannot run with a package."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from edge_rt.errors import ConfigError, InvalidDrafter, MemoryBudgetExceeded, ModelNotFound, RuntimeUnavailable
from edge_rt.package.drafter import DraftTarget
from edge_rt.package.reader import open_package
from edge_rt.package.spec_modes import NO_DRAFTER
from edge_rt.runtime.load.drafters import choose_drafter
from edge_rt.runtime.load.options import LoadOptions
from edge_rt.runtime.load.planning import plan_package
from edge_rt.runtime.speculation.cost_model import RowCosts
from tests.helpers.fake_drafters import FakeMakers
from tests.helpers.models import load_package
from tests.helpers.packages import copied
from tests.helpers.small import GREEDY
from tests.helpers.tiny_drafter import INFO, for_package, write_drafter

FREE_ROWS = RowCosts((1, 64), (0,), ((1.0, 1.001),))
PROMPT = [5, 6, 7, 8]


@pytest.fixture(scope="module")
def packages(native_package, tmp_path_factory):
    """A package with a drafter in its folder, and the drafter."""
    package = copied(native_package, tmp_path_factory.mktemp("drafting"))
    manifest = open_package(package).manifest
    return package, for_package(package / "drafters" / "tiny", manifest)


@pytest.fixture
def package(packages):
    return open_package(packages[0])


@pytest.fixture
def plain(native_package):
    """The same package without a drafter."""
    return open_package(native_package)


@pytest.fixture
def makers():
    return FakeMakers()


@pytest.fixture
def nothing(tmp_path):
    """No drafters are installed."""
    return tmp_path / "installed"


class TestChoice:
    @pytest.mark.parametrize("spec", [None, "auto", "head"])
    def test_of_the_package(self, package, packages, makers, spec):
        assert choose_drafter(package, spec, None, makers) == packages[1]

    def test_installed(self, plain, makers, tmp_path):
        drafter = for_package(tmp_path / "installed" / "one", plain.manifest)
        assert choose_drafter(plain, "head", None, makers, installed=tmp_path / "installed") == drafter

    def test_named(self, package, makers, tmp_path):
        drafter = for_package(tmp_path / "named", package.manifest, name="other")
        assert choose_drafter(package, None, drafter.path, makers) == drafter

    @pytest.mark.parametrize("spec", ["off", "suffix", "recycling"])
    def test_other_modes_take_none(self, package, makers, spec):
        assert choose_drafter(package, spec, None, makers) is None
        with pytest.raises(ConfigError, match="is not used with the mode of speculation"):
            choose_drafter(package, spec, package.path, makers)

    def test_auto_does_without_one_that_does_not_fit(self, plain, makers, nothing):
        target = dataclasses.replace(DraftTarget.of(plain.manifest), source_sha256="1" * 64)
        write_drafter(nothing / "other", dataclasses.replace(INFO, target=target))
        assert choose_drafter(plain, None, None, makers, installed=nothing) is None
        with pytest.raises(ConfigError, match=r"other does not fit: it was trained for.*edge-rt train drafter"):
            choose_drafter(plain, "head", None, makers, installed=nothing)
        with pytest.raises(InvalidDrafter, match="trained for another model"):
            choose_drafter(plain, "head", nothing / "other", makers)

    def test_a_package_without_one_says_how_to_get_one(self, plain, makers, nothing):
        assert choose_drafter(plain, "auto", None, makers, installed=nothing) is None
        with pytest.raises(ConfigError, match="Train one: edge-rt train drafter -m MODEL --kind head"):
            choose_drafter(plain, "head", None, makers, installed=nothing)

    def test_a_folder_that_is_none(self, package, makers, tmp_path):
        with pytest.raises(ModelNotFound, match="There is no drafter at"):
            choose_drafter(package, None, tmp_path / "none", makers)

    def test_of_another_kind(self, package, packages, makers):
        with pytest.raises(ConfigError, match="is not used with the mode of speculation 'self'"):
            choose_drafter(package, "self", packages[1].path, makers)

    def test_a_build_that_cannot_run_it(self, package, packages):
        assert choose_drafter(package, None, None, {}) is None
        for spec, given in (("head", None), (None, packages[1].path)):
            with pytest.raises(RuntimeUnavailable, match="cannot run with this build"):
                choose_drafter(package, spec, given, {})

    def test_portable_packages_have_no_hidden_states(self, small_package, makers):
        with pytest.raises(ConfigError, match="needs a native package"):
            choose_drafter(open_package(small_package), "head", None, makers)

    @pytest.mark.parametrize(
        ("spec", "match"),
        [
            ("exit", "no exits at which a draft could end"),
            ("self", "no nested weights to draft with"),
        ],
    )
    def test_modes_that_need_what_the_package_has_not(self, plain, makers, nothing, spec, match):
        with pytest.raises(ConfigError, match=match):
            choose_drafter(plain, spec, None, makers, installed=nothing)


def test_none_is_a_drafter_that_is_not_used(packages, makers, nothing):
    path, drafter = packages
    package = open_package(path)
    assert choose_drafter(package, None, None, makers, installed=nothing) == drafter
    assert choose_drafter(package, "auto", Path(NO_DRAFTER), makers) is None
    for mode in ("head", "off", "suffix"):
        with pytest.raises(ConfigError, match="'none' is not used with"):
            choose_drafter(package, mode, Path(NO_DRAFTER), makers)
    with load_package(path, makers=makers, drafter=Path(NO_DRAFTER)) as model:
        assert model.drafter is None
        assert model.plan.request.flags[-2:] == ("--drafter", "none")


class TestLoad:
    def load(self, path, makers, **options):
        model = load_package(path, makers=makers, **options)
        model.speculation.costs = FREE_ROWS
        return model

    def answer(self, model, **options):
        return model.generate(PROMPT, max_tokens=40, **GREEDY, **options).token_ids

    def test_what_the_drafter_is_loaded_for(self, packages, makers):
        with self.load(packages[0], makers, spec="head", draft_max=5, ctx=128) as model:
            (provider,) = makers.made
            assert provider.job.drafter == packages[1] == model.drafter
            assert (provider.job.draft_max, provider.job.prompt_rows) == (5, 128)
            assert provider.job.isa == model.describe()["isa"]
            assert model.describe()["drafter"] == "tiny-head"
            assert model.speculation.mode == "head"

    def test_it_sees_hidden_states_and_changes_no_text(self, packages, native_package, makers):
        with load_package(native_package, ctx=128) as model:
            expected = self.answer(model, spec="off")
        with self.load(packages[0], makers, ctx=128) as model:
            for spec in ("head", None, "off"):
                assert self.answer(model, spec=spec) == expected
            (provider,) = makers.made
            states = [state for source in provider.sources for state in source.states]
            assert len(states) > 10
            assert len({state.tobytes() for state in states}) > 10
            assert all(state.shape == (64,) and np.isfinite(state).all() for state in states)

    def test_auto_asks_it_beside_the_text_drafters(self, packages, makers):
        with self.load(packages[0], makers, ctx=128) as model:
            arms = [arm.name for arm in model.speculation.drafter("auto").arms]
            assert arms == ["off", "suffix", "recycling", "head", "fusion"]
            assert [arm.name for arm in model.speculation.drafter("head").arms] == ["off", "head"]
            assert model.speculation.memory_bytes >= 1000
            model.speculation.forget()
            assert self.answer(model, spec="head")

    @pytest.mark.parametrize("spec", ["off", "suffix"])
    def test_other_modes_do_not_load_it(self, packages, makers, spec):
        with self.load(packages[0], makers, spec=spec, ctx=128) as model:
            assert makers.made == []
            assert model.drafter is None
            with model.passes() as (runner, _):
                assert runner.forward([1], 0, 1).hidden is None
            with pytest.raises(ConfigError, match="loaded without the drafter 'head'"):
                model.generate(PROMPT, spec="head")

    def test_hidden_states_without_a_drafter(self, native_package):
        with load_package(native_package, hidden=True, ctx=128, spec="off") as model:
            with model.passes() as (runner, _):
                assert runner.forward([1, 2], 0, 2).hidden.shape == (2, 64)
            assert model.plan.request.hidden

    def test_the_plan_of_a_load_is_carried_out(self, packages, makers):
        package = open_package(packages[0])
        options = LoadOptions(ctx=128, makers=makers)
        plan = plan_package(package, options)
        assert plan.choice.drafter
        assert {"drafter", "drafter_head"} <= {term.name for term in plan.terms}
        with self.load(packages[0], makers, plan=plan) as model:
            assert model.drafter == packages[1]
            assert model.plan is plan

    def test_a_tight_budget_gives_it_up(self, packages, makers):
        package = open_package(packages[0])
        plan = plan_package(package, LoadOptions(ctx=128, makers=makers))
        without = plan_package(package, LoadOptions(ctx=128, makers={}))
        between = (plan.total_bytes + without.total_bytes) // 2
        with self.load(packages[0], makers, ctx=128, memory=between, base_bytes=plan.runtime_bytes) as model:
            assert model.drafter is None
            assert model.plan.given_up[0].startswith("drafter: none instead of tiny-head")
        with pytest.raises(MemoryBudgetExceeded):
            load_package(
                packages[0], makers=makers, ctx=128, spec="head", memory=60 << 20, base_bytes=plan.runtime_bytes
            )

    def test_a_drafter_that_is_gone_when_the_plan_is_carried_out(self, native_package, makers, tmp_path):
        package = open_package(copied(native_package, tmp_path))
        drafter = for_package(tmp_path / "head", package.manifest)
        plan = plan_package(package, LoadOptions(ctx=128, makers=makers, drafter=drafter.path))
        drafter.weights.unlink()
        with pytest.raises(InvalidDrafter, match="is missing"):
            load_package(package.path, makers=makers, plan=plan)

    def test_options_of_a_plan_are_not_given_again(self, packages, makers):
        plan = plan_package(open_package(packages[0]), LoadOptions(ctx=128, makers=makers))
        with pytest.raises(ConfigError, match="drafter"):
            LoadOptions(plan=plan, drafter=Path("x"))
        with pytest.raises(ConfigError, match="hidden"):
            LoadOptions(plan=plan, hidden=True)
