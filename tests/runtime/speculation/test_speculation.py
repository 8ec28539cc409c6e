"""From a mode to a drafter, and a model's options of speculation, with a real graph."""

from __future__ import annotations

import dataclasses
import itertools
from functools import partial

import numpy as np
import pytest

import edge_rt
from edge_rt.errors import Busy, ConfigError, RuntimeUnavailable
from edge_rt.memory.fallbacks import DEFAULT_DRAFT
from edge_rt.package.spec_modes import COMPUTED_MODES, MAX_DRAFT, SPEC_MODES, Drafts
from edge_rt.runtime.config import GenerationConfig
from edge_rt.runtime.decode.draft import NullDrafter
from edge_rt.runtime.load.options import LoadOptions
from edge_rt.runtime.speculation.cost_model import CURVE_ROWS, CostStore, RowCosts
from edge_rt.runtime.speculation.library import draft_library
from edge_rt.runtime.speculation.speculation import Speculation
from tests.helpers.fake_model import FakeTarget, Run
from tests.helpers.fake_sources import RandomSource, linear_costs
from tests.helpers.models import load_package
from tests.helpers.packages import listing
from tests.helpers.small import GREEDY

# So dear a pass, and so cheap a row, that all that is guessed is drafted.
FLAT = RowCosts((1, 64), (0,), ((1000.0, 1000.5),))
DEAR = RowCosts((1, 64), (0,), ((1.0, 6400.0),))
PROMPT = [5, 6, 7]


def speculation(mode="auto", draft_max=DEFAULT_DRAFT, *, exact=True, costs=FLAT, **options):
    return Speculation(
        mode,
        draft_max,
        drafts=Drafts.TREES if exact else Drafts.ASKED_CHAINS,
        costs=costs if callable(costs) else lambda: costs,
        **{"corpus": None, "library": draft_library(), **options},
    )


def names(drafter):
    return [arm.name for arm in drafter.arms]


class TestOptions:
    def test_modes_are_known(self):
        assert SPEC_MODES[:2] == ("off", "auto")
        for mode in (*SPEC_MODES[:-1], "model:package"):
            assert LoadOptions(spec=mode).spec == mode

    @pytest.mark.parametrize("mode", ["", "Auto", "lookahead", "off ", "fusion", "head:x"])
    def test_other_modes_are_refused(self, mode):
        with pytest.raises(ConfigError, match=r"Choose one of off, auto, ngram"):
            LoadOptions(spec=mode)
        with pytest.raises(ConfigError, match="unknown"):
            speculation().resolve(mode)

    @pytest.mark.parametrize("size", [-1, 0, MAX_DRAFT + 1, 10**9])
    def test_sizes_out_of_range_are_refused(self, size):
        with pytest.raises(ConfigError, match=rf"Got {size} tokens"):
            LoadOptions(draft_max=size)

    @pytest.mark.parametrize("size", [1, MAX_DRAFT])
    def test_sizes_in_range(self, size):
        assert LoadOptions(draft_max=size).draft_max == size


class TestLoading:
    """The same options through the public function."""

    def test_defaults(self, small_package):
        with edge_rt.load(small_package) as model:
            assert (model.speculation.asked, model.speculation.draft_max) == ("auto", DEFAULT_DRAFT)

    def test_options_arrive(self, small_package):
        trace = []
        with edge_rt.load(small_package, spec="off", draft_max=5, spec_trace=trace.append) as model:
            assert (model.speculation.asked, model.speculation.draft_max) == ("off", 5)
            assert model.speculation.trace == trace.append

    @pytest.mark.parametrize("size", [0, 64])
    def test_sizes_out_of_range_are_refused(self, small_package, size):
        with pytest.raises(ConfigError, match="largest draft is out of range"):
            edge_rt.load(small_package, draft_max=size)


class TestResolve:
    def test_a_generation_takes_the_models_mode_or_its_own(self):
        assert speculation("suffix").resolve(None) == "suffix"
        assert speculation("suffix").resolve("ngram") == "ngram"
        assert speculation("off").resolve("auto") == "auto"

    def test_auto_is_off_where_rows_depend_on_each_other(self):
        inexact = speculation(exact=False)
        assert inexact.resolve(None) == inexact.resolve("auto") == inexact.resolve("auto", has_reference=True) == "off"
        assert inexact.resolve("suffix") == "suffix"

    @pytest.mark.parametrize("given", ["reference", None])
    def test_a_reference_is_wanted(self, given):
        found = speculation("reference")
        with pytest.raises(ConfigError, match="nothing to copy from"):
            found.resolve(given)
        assert found.resolve(given, has_reference=True) == "reference"


class TestWithoutALibrary:
    @pytest.mark.parametrize("mode", ["ngram", "suffix", "recycling", "reference", "exit"])
    def test_modes_that_draft_are_refused(self, mode):
        with pytest.raises(RuntimeUnavailable, match=f"'{mode}' needs the native library"):
            speculation(mode, library=None)
        with pytest.raises(RuntimeUnavailable, match="needs the native library"):
            speculation(library=None, sources={"exit": None}).resolve(mode, has_reference=mode == "reference")

    def test_auto_is_off(self):
        found = speculation(library=None)
        assert (found.mode, found.resolve(None), found.resolve("off")) == ("off", "off", "off")
        assert isinstance(found.drafter(found.mode), NullDrafter)


class TestDrafters:
    def test_off_measures_nothing(self):
        def unwanted():
            raise AssertionError("costs were asked for")

        found = Speculation(
            "off", DEFAULT_DRAFT, drafts=Drafts.TREES, costs=unwanted, corpus=None, library=draft_library()
        )
        assert isinstance(found.drafter("off"), NullDrafter)
        assert found.memory_bytes == 0

    def test_costs_are_measured_once(self):
        calls = []

        def measured():
            calls.append(1)
            return FLAT

        found = Speculation(
            "auto", DEFAULT_DRAFT, drafts=Drafts.TREES, costs=measured, corpus=None, library=draft_library()
        )
        assert calls == []
        for mode in ("auto", "ngram", "suffix"):
            found.drafter(mode)
        assert found.costs is FLAT
        assert len(calls) == 1

    @pytest.mark.parametrize("mode", ["ngram", "suffix", "recycling"])
    def test_one_source(self, mode):
        assert names(speculation().drafter(mode)) == ["off", mode]

    def test_auto(self):
        found = speculation()
        assert names(found.drafter("auto")) == ["off", "fusion"]
        assert [source.name for source in found.drafter("auto").sources] == ["suffix", "recycling"]
        referring = found.drafter("auto", [1, 2])
        assert [source.name for source in referring.sources] == ["suffix", "recycling", "reference"]
        assert names(found.drafter("reference", [1, 2])) == ["off", "reference"]

    def test_drafters_stay_and_a_text_has_its_own(self):
        found = speculation()
        assert found.drafter("auto") is found.drafter("auto")
        assert found.drafter("auto", [1, 2]) is not found.drafter("auto", [1, 3])
        assert found.drafter("suffix") is not found.drafter("auto")

    def test_what_is_learned_serves_all_modes(self):
        found = speculation()
        Run(PROMPT, drafter=found.drafter("suffix"), max_tokens=60).result()
        after = Run(PROMPT, drafter=found.drafter("auto"), max_tokens=60).result()
        assert after.spec.tokens_per_step > 3
        assert after.token_ids == Run(PROMPT, max_tokens=60).result().token_ids

    def test_what_is_learned_can_be_thrown_away(self):
        found = speculation()
        before = found.drafter("auto")
        Run(PROMPT, drafter=before, max_tokens=60).result()
        learned = found.memory_bytes
        found.forget()
        assert found.memory_bytes == 0
        again = found.drafter("auto")
        assert again is not before
        assert Run(PROMPT, drafter=again, max_tokens=60).result().spec.tokens_per_step < 2
        assert found.memory_bytes == pytest.approx(learned, rel=0.1)

    def test_new_costs_change_what_is_drafted(self):
        found = speculation(costs=DEAR)
        for _ in range(2):
            assert Run(PROMPT, drafter=found.drafter("suffix"), max_tokens=60).result().spec.rows_drafted <= 1
        found.costs = FLAT
        assert found.costs is FLAT
        assert Run(PROMPT, drafter=found.drafter("suffix"), max_tokens=60).result().spec.rows_drafted > 20

    def test_what_decides_by_costs_takes_new_ones(self):
        taken = []

        def source(costs):
            taken.append(costs)
            return RandomSource(0)

        found = Speculation(
            "auto",
            DEFAULT_DRAFT,
            drafts=Drafts.TREES,
            costs=lambda: DEAR,
            corpus=None,
            library=draft_library(),
            sources={"model": source},
        )
        found.drafter("auto")
        found.drafter("auto")
        found.costs = FLAT
        found.drafter("auto")
        assert taken == [DEAR, FLAT]

    @pytest.mark.parametrize("size", [1, 5, 63])
    def test_drafts_have_the_size_that_was_chosen(self, size):
        steps = []
        found = speculation(costs=linear_costs(1000, 0.1), draft_max=size, trace=steps.append)
        for _ in range(2):
            Run(PROMPT, drafter=found.drafter("suffix"), max_tokens=200).result()
        assert max(step["drafted"] for step in steps) == size

    @pytest.mark.parametrize("mode", ["ngram", "suffix", "recycling", "reference"])
    def test_only_chains_where_trees_cannot_be_verified(self, mode):
        class Repeating(FakeTarget):
            def forward(self, token_ids, start, num_logits, *, parents=None):
                assert parents is None
                return super().forward(token_ids, start, num_logits, parents=parents)

            @staticmethod
            def logits(history):
                return FakeTarget.logits(history[-1:])

        found = speculation(exact=False)
        reference = [3, *range(20)] if mode == "reference" else None
        options = {"max_tokens": 150, "temperature": 0.6, "seed": 4}
        drafted = Run(PROMPT, target=Repeating(), drafter=found.drafter(mode, reference), **options).result()
        assert drafted.spec.rows_drafted > 10
        assert drafted.token_ids == Run(PROMPT, target=Repeating(), **options).result().token_ids


TEXT = "The little boat left the harbour at dawn, and the sea was calm. " * 3
SAMPLINGS = [GREEDY, {"temperature": 1.0, "seed": 3}, {"temperature": 0.7, "seed": 4, "top_p": 0.9}]


@pytest.fixture(scope="module")
def shared_native(native_package):
    with load_package(native_package) as model:
        model.speculation.costs = FLAT
        yield model


@pytest.fixture
def native(shared_native):
    """A native model for which rows cost nothing, with an empty cache, and which has learned nothing."""
    shared_native.reset()
    shared_native.speculation.forget()
    return shared_native


@pytest.fixture(scope="module")
def plain(native_package):
    """Answers without speculation, by sampling."""
    with load_package(native_package, spec="off") as model:
        return [model.generate(TEXT, max_tokens=60, **sampling) for sampling in SAMPLINGS]


class TestNativeModel:
    @pytest.mark.parametrize("number", range(len(SAMPLINGS)))
    @pytest.mark.parametrize("mode", [mode for mode in SPEC_MODES if mode not in COMPUTED_MODES])
    def test_the_answer_is_that_of_plain_decoding(self, native, plain, mode, number):
        expected = plain[number]
        options = {"spec": mode, "max_tokens": 60, **SAMPLINGS[number]}
        if mode == "reference":
            options["reference"] = expected.text
        for again in (False, True):
            result = native.generate(TEXT, **options)
            assert (result.token_ids, result.text) == (expected.token_ids, expected.text)
            if mode == "off":
                assert result.spec is None
                continue
            assert result.spec.mode == mode
            assert 1 + result.spec.steps * result.spec.tokens_per_step == pytest.approx(len(expected.token_ids))
            if again and mode in ("auto", "suffix", "ngram"):
                # The answer stands in the text that the drafter remembers.
                assert result.spec.tokens_per_step > 2
                assert result.spec.memory_bytes > 0

    @pytest.mark.parametrize("number", range(len(SAMPLINGS)))
    def test_auto_copies_from_a_reference(self, native, plain, number):
        expected = plain[number]
        options = {"max_tokens": 60, **SAMPLINGS[number]}
        without = native.generate(TEXT, **options)
        native.speculation.forget()
        result = native.generate(TEXT, reference="Before. " + expected.text + " After.", **options)
        assert result.token_ids == without.token_ids == expected.token_ids
        assert result.spec.mode == "auto"

    def test_a_reference_is_wanted(self, native):
        with pytest.raises(ConfigError, match="nothing to copy from"):
            native.generate(TEXT, spec="reference", max_tokens=2)
        with pytest.raises(ConfigError, match="reference"):
            native.generate(TEXT, spec="reference", reference="", max_tokens=2)
        assert native.generate(TEXT, max_tokens=2, **GREEDY).usage.completion_tokens == 2

    def test_unknown_modes(self, native, native_package):
        with pytest.raises(ConfigError, match="Got 'magic'"):
            native.generate(TEXT, spec="magic")
        with pytest.raises(ConfigError, match="Got 'magic'"):
            load_package(native_package, spec="magic")

    def test_options_of_a_generation(self):
        config = GenerationConfig(spec="suffix", reference="text")
        assert (config.spec, config.reference) == ("suffix", "text")
        assert (GenerationConfig().spec, GenerationConfig().reference) == (None, None)
        for options in ({"spec": 5}, {"reference": 5}, {"reference": ["a"]}):
            with pytest.raises(ConfigError, match=next(iter(options))):
                GenerationConfig(**options)

    @pytest.mark.parametrize("size", [1, 3])
    def test_drafts_are_as_large_as_was_asked_for(self, native_package, plain, size):
        steps = []
        with load_package(native_package, spec="suffix", draft_max=size, spec_trace=steps.append) as model:
            model.speculation.costs = FLAT
            for _ in range(2):
                assert model.generate(TEXT, max_tokens=60, **SAMPLINGS[0]).token_ids == plain[0].token_ids
        assert max(step["drafted"] for step in steps) == size

    def test_a_model_says_how_it_speculates(self, native, native_package):
        assert native.describe()["speculation"] == "auto"
        with load_package(native_package, spec="reference") as model:
            assert model.describe()["speculation"] == "reference"

    def test_stopping_early_disturbs_nothing(self, native, plain):
        for count in (1, 2, 3):
            with native.stream(TEXT, max_tokens=60, **SAMPLINGS[0]) as stream:
                events = iter(stream)
                for _ in range(count):
                    next(events, None)
            assert native.generate(TEXT, max_tokens=60, **SAMPLINGS[0]).token_ids == plain[0].token_ids


def ticking(seconds):
    """A clock that goes on by so much whenever it is looked at: a slow machine measures less."""
    return partial(next, itertools.count(0.0, seconds))


class TestCalibration:
    def test_costs_are_measured_kept_and_used(self, native_package, tmp_path, plain):
        store = CostStore(tmp_path / "costs")
        with load_package(native_package, costs=store) as model:
            key = model.measured_costs.key
            model.measured_costs.clock = ticking(1e-3)
            measured = model.calibrate()
            assert model.cached_tokens == 0
            assert store.load(key) == measured == model.speculation.costs.costs
            assert measured.rows == CURVE_ROWS
            assert measured.depths == (64, 320)  # 512 tokens of context, and rows behind them
            assert measured.steady
            model.measured_costs.clock = ticking(2e-3)
            assert model.calibrate() == store.load(key) != measured
            assert model.generate(TEXT, max_tokens=60, **SAMPLINGS[0]).token_ids == plain[0].token_ids
        assert len(listing(tmp_path / "costs")) == 1

    def test_the_first_answer_measures_nothing_and_its_passes_are_kept(self, native_package, tmp_path, plain):
        store, measured = CostStore(tmp_path), []
        with load_package(native_package, costs=store, on_calibrate=measured.append) as model:
            key = model.measured_costs.key
            assert model.generate(TEXT, max_tokens=60, **SAMPLINGS[0]).token_ids == plain[0].token_ids
            # As soon as the answer has ended: a command ends its process without closing its model.
            assert store.load(key) == model.speculation.costs.costs
        assert not measured
        known = store.load(key)
        assert known.passes > 0
        assert not known.steady
        # Another setting begins with these.
        with load_package(native_package, costs=store, kv="int8") as model:
            ratios = [ms / model.speculation.costs.curve(64, 1)[0] for ms in model.speculation.costs.curve(64, 8)]
            assert ratios == pytest.approx([ms / known.curve(64, 1)[0] for ms in known.curve(64, 8)])

    def test_stored_costs_are_taken(self, native_package, tmp_path):
        store = CostStore(tmp_path)
        with load_package(native_package) as model:
            key = model.measured_costs.key
        store.save(key, DEAR)
        with load_package(native_package, costs=store, spec="suffix") as model:
            assert model.speculation.costs.costs == DEAR

    def test_costs_are_of_what_they_depend_on(self, native, native_package):
        facts = native.describe()
        for name in ("package_id", "op_profile", "isa", "kv_format", "threads", "onnxruntime"):
            assert native.measured_costs.key[name] == facts[name]
        assert native.measured_costs.key["cpu"]
        # A short context cannot stand for a longer one.
        with load_package(native_package, ctx=100) as short:
            assert short.measured_costs.key != native.measured_costs.key
        with load_package(native_package, kv="f16") as other:
            assert other.measured_costs.key != native.measured_costs.key

    def test_off_measures_nothing(self, native_package, tmp_path):
        with load_package(native_package, costs=CostStore(tmp_path), spec="off") as model:
            model.generate(TEXT, max_tokens=3)
        assert listing(tmp_path) == []

    def test_an_unwritable_store_stops_nobody(self, native_package, tmp_path):
        (tmp_path / "file").write_text("")
        with load_package(native_package, costs=CostStore(tmp_path / "file")) as model:
            model.generate(TEXT, max_tokens=3)
            assert model.calibrate() == model.speculation.costs.costs
            assert not model.measured_costs.is_kept

    def test_not_while_a_generation_runs(self, native):
        with native.stream(TEXT, max_tokens=60) as stream:
            events = iter(stream)
            next(events)
            with pytest.raises(Busy):
                native.calibrate()
        native.speculation.costs = FLAT

    @pytest.mark.parametrize("kv_format", ["f32", "f16", "int8"])
    def test_the_cache_is_empty_afterwards(self, native_package, kv_format):
        with load_package(native_package, kv=kv_format) as model:
            model.generate(TEXT, max_tokens=20, spec="off", **GREEDY)
            model.calibrate()
            assert not any(np.any(buffer) for buffer in model._runner.get()._io_binding.buffers)

    @pytest.mark.parametrize("context", [2, 20, 40])
    def test_of_a_small_context(self, native_package, context):
        with load_package(native_package, ctx=context) as model:
            costs = model.calibrate()
            assert (costs.depths, costs.rows[-1]) == ((0,), max(rows for rows in CURVE_ROWS if rows <= context))
            result = model.generate([5], **GREEDY)
            assert result.finish_reason in ("context_full", "stop")
            assert result.token_ids == model.generate([5], spec="off", **GREEDY).token_ids


class TestPortableModel:
    def test_auto_is_off(self, model):
        result = model.generate(TEXT, max_tokens=8, **GREEDY)
        assert result.spec is None
        assert model.describe()["speculation"] == "off"
        assert model.generate(TEXT, max_tokens=8, spec="auto", **GREEDY).spec is None

    @pytest.mark.parametrize("mode", ["ngram", "suffix", "recycling"])
    def test_a_drafter_that_is_asked_for_drafts_chains(self, small_package, mode):
        """A tree would be refused by the graph."""
        with load_package(small_package, spec=mode) as model:
            model.speculation.costs = FLAT
            results = [model.generate(TEXT, max_tokens=60, temperature=0.5, seed=1) for _ in range(2)]
            assert model.describe()["speculation"] == mode
        assert all(result.spec.mode == mode for result in results)
        assert all(result.usage.completion_tokens == 60 for result in results)
        if mode != "recycling":
            assert results[1].spec.rows_drafted > 10
        else:
            # Its graph does not look for likely tokens.
            assert results[1].spec.rows_drafted == 0

    def test_calibration(self, small_package):
        with load_package(small_package, spec="suffix") as model:
            model.measured_costs.clock = ticking(1e-3)
            costs = model.calibrate()
            assert (costs.rows, costs.depths) == (CURVE_ROWS, (64, 320))
            assert not any(
                np.any(buffer)
                for buffer in (*model._runner.get()._io_binding.keys, *model._runner.get()._io_binding.values)
            )


def test_results_are_json(native):
    spec = native.generate(TEXT, max_tokens=20, **GREEDY).to_json()["spec"]
    assert spec["mode"] == "auto"
    assert set(spec["choices"]) <= {"off", "suffix", "recycling", "fusion"}
    assert dataclasses.asdict(native.generate(TEXT, max_tokens=20, **GREEDY).spec).keys() == spec.keys()
