from __future__ import annotations

import functools
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from edge_rt.errors import ConfigError, MemoryBudgetExceeded
from edge_rt.memory.advice import require_fit
from edge_rt.memory.fallbacks import CHUNKS
from edge_rt.memory.plan import Plan, make_plan
from edge_rt.memory.request import Request
from edge_rt.memory.speed import tokens_per_second
from edge_rt.system.byte_size import show_size
from tests.helpers.examples import share_of
from tests.memory.shapes import DEVICE, MIB, NATIVE_FORMATS, make_shape, request_of, requests, shapes, windows_of

BUDGETS = st.integers(1, 20 << 10).map(lambda count: count * MIB // 2)


def with_budget(request: Request, budget: int) -> Request:
    return replace(request, budget_bytes=budget)


def rank(plan: Plan) -> tuple:
    """Return what a plan kept, the last to be given up first: larger is better."""
    shape, choice = plan.shape, plan.choice
    return choice.ctx, choice.prefill_chunk, shape.token_bytes(choice.kv_format), choice.draft_max > 0


@given(st.data(), shapes(), BUDGETS)
@settings(max_examples=share_of(60))
def test_the_total_is_the_sum_of_its_terms_and_decides_what_fits(data, shape, budget):
    plan = make_plan(shape, DEVICE, with_budget(data.draw(requests(shape)), budget))
    assert plan.total_bytes == sum(term.bytes for term in plan.terms)
    assert all(term.bytes >= 0 and term.text for term in plan.terms)
    assert plan.fits == (plan.total_bytes <= budget)
    assert plan.total_bytes == max(plan.regimes.load, plan.regimes.prefill, plan.regimes.decode)


@given(st.data(), shapes())
@settings(max_examples=share_of(40))
def test_the_minimum_fits_and_one_byte_less_does_not(data, shape):
    request = data.draw(requests(shape))
    minimum = make_plan(shape, DEVICE, with_budget(request, 1)).minimum_bytes
    enough = make_plan(shape, DEVICE, with_budget(request, minimum))
    assert enough.fits
    assert enough.total_bytes == enough.minimum_bytes == minimum
    assert not make_plan(shape, DEVICE, with_budget(request, minimum - 1)).fits


@given(st.data(), shapes(), BUDGETS, BUDGETS)
@settings(max_examples=share_of(60))
def test_a_larger_budget_never_keeps_less(data, shape, one, two):
    request = data.draw(requests(shape))
    small, large = (make_plan(shape, DEVICE, with_budget(request, budget)) for budget in sorted((one, two)))
    assert large.fits >= small.fits
    assert small.minimum_bytes == large.minimum_bytes
    if small.fits:
        assert rank(large) >= rank(small)


@given(st.data(), shapes(), BUDGETS)
@settings(max_examples=share_of(40))
def test_every_alternative_fits_when_it_is_typed(data, shape, budget):
    plan = make_plan(shape, DEVICE, with_budget(data.draw(requests(shape)), budget))
    assert plan.alternatives or plan.fits
    for other in plan.alternatives:
        again = make_plan(shape, DEVICE, request_of(other.flags, plan.request))
        assert again.fits
        assert (again.choice, again.total_bytes) == (other.choice, other.total_bytes)


@given(st.data(), shapes(), BUDGETS)
@settings(max_examples=share_of(40))
def test_what_is_pinned_is_kept(data, shape, budget):
    request = with_budget(data.draw(requests(shape)), budget)
    choice = make_plan(shape, DEVICE, request).choice
    assert request.ctx in (None, choice.ctx)
    assert request.kv in (None, "auto", choice.kv_format)
    if request.spec not in (None, "auto"):
        assert choice.spec == request.spec
    drafts = shape.op_profile == "native" or request.spec not in (None, "auto")
    if request.draft_max is not None and drafts:
        assert choice.draft_max == max(1, min(request.draft_max, choice.ctx - 2))
    if request.corpus is not None and drafts:
        assert choice.suffix_tokens > 0
    assert choice.prefill_chunk in ((request.prefill_chunk,) if request.prefill_chunk else CHUNKS[shape.op_profile])
    assert choice.logit_rows == choice.draft_max + 1


@given(st.data(), shapes())
@settings(max_examples=share_of(40))
def test_speculation_keeps_its_speed_at_its_lower_bound(data, shape):
    request = data.draw(requests(shape))
    free = make_plan(shape, DEVICE, with_budget(request, 1 << 50))
    if free.speculation_bytes is None:
        assert free.choice.draft_max == 0
        return
    pinned = replace(with_budget(request, free.speculation_bytes), ctx=free.choice.ctx, kv=free.choice.kv_format)
    tight = make_plan(shape, DEVICE, pinned)
    assert tight.fits
    assert tight.tokens_per_second >= 0.96 * free.tokens_per_second - 1e-9


@functools.cache
def shrinking_plans() -> tuple[Plan, ...]:
    shape = make_shape()
    return tuple(make_plan(shape, DEVICE, Request(size)) for size in range(430 * MIB + MIB // 2, 190 * MIB, -MIB // 2))


class TestLadder:
    """What SmolLM2's shape gives up as the budget shrinks."""

    @pytest.fixture
    def plans(self):
        return shrinking_plans()

    def test_nothing_is_given_up_without_need(self, plans):
        assert plans[0].given_up == ()
        assert plans[0].choice.spec == "auto"
        assert (plans[0].choice.ctx, plans[0].choice.kv_format) == (8192, "f16")

    def test_speculation_goes_before_precision_and_precision_before_context(self, plans):
        fitting = [plan for plan in plans if plan.fits]
        for plan in fitting:
            if plan.choice.kv_format == "f16":
                assert plan.choice.ctx == 8192
            if plan.choice.ctx < 8192:
                assert (plan.choice.kv_format, plan.choice.prefill_chunk) == ("int4", 64)
        kept = {(plan.choice.kv_format, plan.choice.draft_max > 0) for plan in fitting}
        assert {("f16", True), ("f16", False), ("int8", True)} <= kept
        assert {plan.choice.ctx for plan in fitting} >= {8192}
        assert min(plan.choice.ctx for plan in fitting) < 1024

    def test_every_step_is_told_with_numbers(self, plans):
        told = " ".join(step for plan in plans for step in plan.given_up)
        for word in (
            "speculation: ",
            "precision of the KV cache: int8 instead of f16",
            "prefill chunk: 64",
            "context: ",
            "MiB",
        ):
            assert word in told

    def test_smaller_tables_and_trees_come_before_none(self, plans):
        drafts = [plan.choice for plan in plans if plan.choice.kv_format == "f16" and plan.fits]
        assert {choice.recycling_contexts for choice in drafts} >= {8192, 1024}
        assert len({choice.draft_max for choice in drafts} - {0, 2, 23}) > 2  # none, the smallest, the default


def test_slots_are_given_up_before_the_precision_of_the_cache():
    sizes = range(1600 * MIB, 190 * MIB, -6 * MIB)
    plans = [make_plan(make_shape(), DEVICE, Request(size, slots=6)) for size in sizes]
    assert plans[0].given_up == ()
    kept = [(plan.choice.slots, plan.choice.kv_format) for plan in plans if plan.fits]
    assert list(dict.fromkeys(kept))[:4] == [(6, "f16"), (3, "f16"), (1, "f16"), (1, "int8")]
    assert all("slots: " in " ".join(plan.given_up) for plan in plans[1:] if plan.choice.slots < 6)


def test_rows_that_slots_share_are_given_up_before_slots_down_to_those_of_a_context():
    sizes = range(1600 * MIB, 190 * MIB, -16 * MIB)
    plans = [make_plan(make_shape(), DEVICE, Request(size, ctx=2048, spec="off", slots=4)) for size in sizes]
    shared = [plan.choice for plan in plans if plan.fits and plan.choice.slots > 1]
    rows = [choice.kv_rows for choice in shared]
    assert (rows[0], sorted(rows, reverse=True)) == (4 * 2048, rows)
    assert len(set(rows)) > 3
    assert all(choice.kv_rows >= choice.ctx == 2048 for choice in shared)
    assert {choice.slots for choice in shared if choice.kv_rows > 2112} == {4}
    reduced = next(plan for plan in plans if plan.choice.kv_rows not in (0, 4 * 2048))
    assert f"rows of the KV cache: {reduced.choice.kv_rows} instead of 8192" in " ".join(reduced.given_up)


def test_rows_that_are_asked_for_are_kept_in_whole_blocks():
    plan = make_plan(make_shape(), DEVICE, Request(spec="off", slots=4, kv_rows=1001))
    assert (plan.choice.ctx, plan.choice.kv_rows, plan.choice.slots) == (1001, 1008, 4)
    one = make_plan(make_shape(), DEVICE, Request(spec="off", ctx=1008))
    assert plan.sizes.kv_cache == one.sizes.kv_cache
    assert "1008 rows that 4 slots share" in next(term.text for term in plan.terms if term.name == "kv_cache")
    assert plan.request.flags[-4:] == ("--slots", "4", "--kv-rows", "1001")
    with pytest.raises(ConfigError, match="fewer than a context"):
        make_plan(make_shape(), DEVICE, Request(ctx=512, slots=4, kv_rows=511))


def test_slots_have_a_cache_each_and_rows_of_logits():
    one, four = (make_plan(make_shape(), DEVICE, Request(spec="off", ctx=1024, slots=slots)) for slots in (1, 4))
    assert four.sizes.kv_cache == 4 * one.sizes.kv_cache
    assert four.sizes.logits == 4 * one.sizes.logits
    assert four.sizes.activations >= one.sizes.activations
    assert (one.sizes.slots, "slots" in {term.name for term in four.terms}) == (0, True)
    assert four.request.flags[-2:] == ("--slots", "4")


def test_what_computes_one_sequence_at_a_time_has_one_slot():
    plan = make_plan(make_shape(op_profile="portable", kv_formats=("f32",)), DEVICE, Request(slots=4))
    assert plan.choice.slots == 1
    assert any("slots: 1 instead of 4" in step and "portable" in step for step in plan.given_up)
    assert make_plan(make_shape(segments=2), DEVICE, Request(slots=4)).choice.slots == 4


def test_precision_is_given_up_from_the_package_s_default_on():
    shape = make_shape(kv_formats=("int8", *(name for name in NATIVE_FORMATS if name != "int8")))
    plans = [make_plan(shape, DEVICE, Request(size)) for size in range(350 * MIB, 190 * MIB, -8 * MIB)]
    assert plans[0].given_up == ()
    assert list(dict.fromkeys(plan.choice.kv_format for plan in plans)) == ["int8", "k8v4", "int4"]
    assert make_plan(shape, DEVICE, Request(kv="f16")).choice.kv_format == "f16"


@pytest.mark.parametrize("pinned", [{"draft_max": 63}, {"corpus": "texts.idx", "corpus_bytes": 30 * MIB}])
def test_what_asks_for_drafts_is_not_dropped_with_speculation(pinned):
    least, free = (make_plan(make_shape(), DEVICE, Request(1, **asked)).minimum_bytes for asked in (pinned, {}))
    assert least > free + 10 * MIB
    tight = make_plan(make_shape(), DEVICE, Request(least, **pinned))
    assert tight.fits
    assert tight.choice.draft_max == pinned.get("draft_max", tight.choice.draft_max) > 0
    refused = make_plan(make_shape(), DEVICE, Request(least - 1, **pinned))
    assert not refused.fits
    # Without it less is enough, which is then said.
    assert any("--draft-max" not in way.flags and "--corpus" not in way.flags for way in refused.alternatives)


def test_auto_takes_a_less_precise_cache_only_where_it_is_faster():
    short = make_plan(make_shape(), DEVICE, Request(ctx=64, kv="auto"))
    long = make_plan(make_shape(), DEVICE, Request(ctx=8192, kv="auto"))
    assert short.choice.kv_format == "f16"
    assert long.choice.kv_format != "f16"
    assert long.tokens_per_second > make_plan(make_shape(), DEVICE, Request(ctx=8192)).tokens_per_second


@pytest.mark.parametrize("spec", [None, "auto"])
def test_what_a_portable_package_does_not_use_is_named_and_no_setting_has_it(spec):
    shape = make_shape(op_profile="portable", kv_formats=("f32",))
    asked = Request(spec=spec, draft_max=5, corpus="texts.idx", corpus_bytes=MIB)
    for budget in (None, MIB):
        plan = make_plan(shape, DEVICE, replace(asked, budget_bytes=budget))
        assert plan.unused == ("--draft-max", "--corpus")
        assert plan.request.draft_max == 5
        assert plan.alternatives
        assert not any({"--draft-max", "--corpus"} & set(other.flags) for other in plan.alternatives)
    for used in (replace(asked, spec="suffix"), Request(spec="off"), Request()):
        assert make_plan(shape, DEVICE, used).unused == ()
    assert make_plan(make_shape(), DEVICE, asked).unused == ()


def test_portable_packages_do_not_speculate_unless_asked():
    shape = make_shape(op_profile="portable", kv_formats=("f32",))
    assert make_plan(shape, DEVICE, Request()).choice.spec == "off"
    assert make_plan(shape, DEVICE, Request(spec="suffix")).choice.spec == "suffix"


def test_a_window_bounds_the_cache():
    whole = make_plan(make_shape(), DEVICE, Request(spec="off"))
    windowed = make_plan(make_shape(layer_windows=windows_of(512, 30)), DEVICE, Request(spec="off"))
    sizes = [next(term.bytes for term in plan.terms if term.name == "kv_cache") for plan in (whole, windowed)]
    assert sizes == [8192 * 30 * 768, 768 * 30 * 768]


def test_another_model_of_the_process_has_paid_for_the_runtime():
    alone, second = (make_plan(make_shape(), DEVICE, Request(resident_bytes=held)) for held in (None, 0))
    assert alone.total_bytes - second.total_bytes == next(t.bytes for t in alone.terms if t.name == "runtime")


def test_a_plan_that_does_not_fit_says_what_does():
    plan = make_plan(make_shape(), DEVICE, Request(budget_bytes=100 * MIB, ctx=8192, kv="f32"))
    with pytest.raises(MemoryBudgetExceeded) as raised:
        require_fit(plan)
    assert raised.value.exit_code == 4
    assert "100.0 MiB" in raised.value.numbers
    assert "kv_cache 360.0 MiB" in raised.value.numbers
    assert f"--memory {-(-(plan.minimum_bytes + MIB // 2) // MIB)}MiB" in raised.value.action


@pytest.mark.parametrize("asked", [{}, {"ctx": 512, "kv": "int4"}, {"kv": "int4"}, {"spec": "ngram"}], ids=repr)
def test_what_fits_names_all_that_it_gives_up_and_is_said_once(asked):
    plan = make_plan(make_shape(), DEVICE, Request(budget_bytes=10 * MIB, **asked))
    with pytest.raises(MemoryBudgetExceeded) as raised:
        require_fit(plan)
    ways = re.findall(r"(--memory [^()]+) \(needs [0-9.]+ MiB(?:; )?([^)]*)\)", raised.value.action)
    assert len({(*flags.split()[2:], less) for flags, less in ways}) == len(ways) > 0
    best = plan.decision.best
    for flags, less in ways:
        given = dict(zip(flags.split()[::2], flags.split()[1::2], strict=True))
        made = make_plan(make_shape(), DEVICE, request_of(tuple(flags.split()), Request()))
        assert made.fits
        choice, said = made.choice, f"{flags}, {less}"
        assert given.get("--spec") == "off" or (choice.draft_max == best.draft_max) == ("drafts" not in less)
        for is_kept, name in (
            (choice.kv_format == best.kv_format, choice.kv_format),
            (choice.ctx == best.ctx, str(choice.ctx)),
            (choice.prefill_chunk == best.prefill_chunk, f"prefill chunk {choice.prefill_chunk}"),
        ):
            assert is_kept or name in said


def test_what_loading_takes_for_a_moment_is_not_blamed_on_the_tokenizer():
    shape = make_shape(vocab_size=151000, tokenizer_bytes=11 * MIB, weights_bytes=40 * MIB, read_bytes=40 * MIB)
    plan = make_plan(shape, DEVICE, Request(budget_bytes=100 * MIB, ctx=64, spec="off"))
    with pytest.raises(MemoryBudgetExceeded) as raised:
        require_fit(plan)
    parts = dict(re.findall(r"(load peak|[a-z_]+) ([0-9.]+) MiB", raised.value.numbers.partition(" (")[2]))
    assert float(parts["tokenizer"]) < 90
    assert float(parts["load peak"]) > 10
    listed = raised.value.numbers.rpartition("(")[2]
    sizes = re.findall(r"([0-9.]+) (MiB|KiB)", listed)
    total = sum(float(size) * (MIB if unit == "MiB" else 1024) for size, unit in sizes)
    assert total == pytest.approx(plan.total_bytes, abs=MIB)


def test_a_plan_that_fits_is_returned():
    plan = make_plan(make_shape(), DEVICE, Request())
    assert require_fit(plan) is plan


@pytest.mark.parametrize(
    "request_", [Request(ctx=1), Request(ctx=8193), Request(kv="int3"), Request(draft_max=0), Request(prefill_chunk=0)]
)
def test_what_cannot_be_is_refused(request_):
    with pytest.raises(ConfigError):
        make_plan(make_shape(), DEVICE, request_)


def test_speculation_that_does_not_pay_is_not_expected_to():
    dear = replace(DEVICE, row_cost=((1, 1.0), (2, 2.0), (24, 24.0)))
    plan = make_plan(make_shape(), dear, Request())
    assert tokens_per_second(plan.shape, dear, plan.choice) == plan.plain_tokens_per_second


def test_settings_instead_of_a_mode_that_is_too_large_name_another():
    """They are added to the command that named it."""
    shape = make_shape()
    asked = Request(1, spec="suffix", draft_max=63)
    refused = make_plan(shape, DEVICE, with_budget(asked, make_plan(shape, DEVICE, asked).minimum_bytes - 1))
    assert len(refused.alternatives) > 1
    assert all("--spec" in other.flags for other in refused.alternatives)


def test_a_plan_is_shown_in_a_line():
    fits, tight = (make_plan(make_shape(), DEVICE, Request(budget_bytes=size)) for size in (4 << 30, 10 * MIB))
    assert repr(fits) == (
        f"<edge_rt.Plan for 'small' on {DEVICE.name}: {fits.choice.in_words()}; "
        f"{show_size(fits.total_bytes)} of 4.00 GiB, fits>"
    )
    assert repr(tight).endswith(" of 10.0 MiB, does not fit>")
    assert len(repr(tight)) < 200
