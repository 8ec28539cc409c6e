"""Loading a trained drafter: which one is taken, what it is given, and modes that cannot run with a package."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from edge_rt.errors import ConfigError, InvalidDrafter, MemoryBudgetExceeded, ModelNotFound
from edge_rt.package.drafter import DraftTarget
from edge_rt.package.reader import open_package
from edge_rt.package.spec_modes import NO_DRAFTER
from edge_rt.runtime.load.drafters import choose_drafter
from edge_rt.runtime.load.options import LoadOptions
from edge_rt.runtime.load.planning import plan_package
from tests.helpers.models import load_package
from tests.helpers.packages import copied
from tests.helpers.small import FREE_ROWS
from tests.helpers.tiny_drafter import INFO, for_package, write_drafter

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
def nothing(tmp_path):
    """No drafters are installed."""
    return tmp_path / "installed"


class TestChoice:
    @pytest.mark.parametrize("spec", [None, "auto", "head"])
    def test_of_the_package(self, package, packages, spec):
        assert choose_drafter(package, spec, None) == packages[1]

    def test_installed(self, plain, tmp_path):
        drafter = for_package(tmp_path / "installed" / "one", plain.manifest)
        assert choose_drafter(plain, "head", None, installed=tmp_path / "installed") == drafter

    def test_named(self, package, tmp_path):
        drafter = for_package(tmp_path / "named", package.manifest, name="other")
        assert choose_drafter(package, None, drafter.path) == drafter

    @pytest.mark.parametrize("spec", ["off", "suffix", "recycling"])
    def test_other_modes_take_none(self, package, spec):
        assert choose_drafter(package, spec, None) is None
        with pytest.raises(ConfigError, match="is not used with the mode of speculation"):
            choose_drafter(package, spec, package.path)

    def test_auto_does_without_one_that_does_not_fit(self, plain, nothing):
        target = dataclasses.replace(DraftTarget.of(plain.manifest), source_sha256="1" * 64)
        write_drafter(nothing / "other", dataclasses.replace(INFO, target=target))
        assert choose_drafter(plain, None, None, installed=nothing) is None
        with pytest.raises(ConfigError, match=r"other does not fit: it was trained for.*edge-rt train drafter"):
            choose_drafter(plain, "head", None, installed=nothing)
        with pytest.raises(InvalidDrafter, match="trained for another model"):
            choose_drafter(plain, "head", nothing / "other")

    def test_a_package_without_one_says_how_to_get_one(self, plain, nothing):
        assert choose_drafter(plain, "auto", None, installed=nothing) is None
        with pytest.raises(ConfigError, match="Train one: edge-rt train drafter -m MODEL --kind head"):
            choose_drafter(plain, "head", None, installed=nothing)

    def test_a_folder_that_is_none(self, package, tmp_path):
        with pytest.raises(ModelNotFound, match="There is no drafter at"):
            choose_drafter(package, None, tmp_path / "none")

    def test_of_another_kind(self, package, packages):
        with pytest.raises(ConfigError, match="is not used with the mode of speculation 'self'"):
            choose_drafter(package, "self", packages[1].path)

    def test_portable_packages_have_no_hidden_states(self, small_package):
        with pytest.raises(ConfigError, match="needs a native package"):
            choose_drafter(open_package(small_package), "head", None)

    @pytest.mark.parametrize(
        ("spec", "match"),
        [
            ("exit", "no exits at which a draft could end"),
            ("self", "no nested weights to draft with"),
        ],
    )
    def test_modes_that_need_what_the_package_has_not(self, plain, nothing, spec, match):
        with pytest.raises(ConfigError, match=match):
            choose_drafter(plain, spec, None, installed=nothing)


def test_none_is_a_drafter_that_is_not_used(packages, nothing):
    path, drafter = packages
    package = open_package(path)
    assert choose_drafter(package, None, None, installed=nothing) == drafter
    assert choose_drafter(package, "auto", Path(NO_DRAFTER)) is None
    for mode in ("head", "off", "suffix"):
        with pytest.raises(ConfigError, match="'none' is not used with"):
            choose_drafter(package, mode, Path(NO_DRAFTER))
    with load_package(path, drafter=Path(NO_DRAFTER)) as model:
        assert model.drafter is None
        assert model.plan.request.flags[-2:] == ("--drafter", "none")


class TestLoad:
    def load(self, path, **options):
        model = load_package(path, **options)
        model.speculation.costs = FREE_ROWS
        return model

    def test_it_is_loaded_and_seen(self, packages):
        with self.load(packages[0], spec="head", draft_max=5, ctx=128) as model:
            assert model.drafter == packages[1]
            assert model.describe()["drafter"] == "tiny-head"
            assert (model.speculation.mode, model.speculation.draft_max) == ("head", 5)

    def test_auto_asks_it_beside_the_text_drafters(self, packages):
        with self.load(packages[0], ctx=128) as model:
            arms = [arm.name for arm in model.speculation.drafter("auto").arms]
            assert arms == ["off", "texts", "fusion"]
            assert [arm.name for arm in model.speculation.drafter("head").arms] == ["off", "head"]
            assert model.speculation.memory_bytes >= 1000

    @pytest.mark.parametrize("spec", ["off", "suffix"])
    def test_other_modes_do_not_load_it(self, packages, spec):
        with self.load(packages[0], spec=spec, ctx=128) as model:
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

    def test_the_plan_of_a_load_is_carried_out(self, packages):
        package = open_package(packages[0])
        options = LoadOptions(ctx=128)
        plan = plan_package(package, options)
        assert plan.choice.drafter
        assert {"drafter", "drafter_head"} <= {term.name for term in plan.terms}
        with self.load(packages[0], plan=plan) as model:
            assert model.drafter == packages[1]
            assert model.plan is plan

    def test_a_tight_budget_gives_it_up(self, packages):
        package = open_package(packages[0])
        # More than the tests' process ever holds, which grows as it likes.
        held = 4 << 30
        plan = plan_package(package, LoadOptions(ctx=128, base_bytes=held))
        without = plan_package(package, LoadOptions(ctx=128, drafter=Path(NO_DRAFTER), base_bytes=held))
        between = (plan.total_bytes + without.total_bytes) // 2
        with self.load(packages[0], ctx=128, memory=between, base_bytes=held) as model:
            assert model.drafter is None
            assert model.plan.given_up[0].startswith("drafter: none instead of tiny-head")
        with pytest.raises(MemoryBudgetExceeded):
            load_package(packages[0], ctx=128, spec="head", memory=60 << 20, base_bytes=held)

    def test_a_drafter_that_is_gone_when_the_plan_is_carried_out(self, native_package, tmp_path):
        package = open_package(copied(native_package, tmp_path))
        drafter = for_package(tmp_path / "head", package.manifest)
        plan = plan_package(package, LoadOptions(ctx=128, drafter=drafter.path))
        drafter.weights.unlink()
        with pytest.raises(InvalidDrafter, match="is missing"):
            load_package(package.path, plan=plan)

    def test_options_of_a_plan_are_not_given_again(self, packages):
        plan = plan_package(open_package(packages[0]), LoadOptions(ctx=128))
        with pytest.raises(ConfigError, match="drafter"):
            LoadOptions(plan=plan, drafter=Path("x"))
        with pytest.raises(ConfigError, match="hidden"):
            LoadOptions(plan=plan, hidden=True)
