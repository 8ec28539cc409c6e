from __future__ import annotations

from dataclasses import replace

import pytest

from edge_rt.cli.plan_speed import Rate, Speeds, measured_here
from edge_rt.memory.drafter_shapes import DrafterShape
from edge_rt.memory.plan import Request, make_plan
from edge_rt.memory.speed import DRAFTING_S, plain_tokens_per_second
from edge_rt.runtime.speculation.cost_model import CostStore, RowCosts
from edge_rt.runtime.speculation.stored_costs import ANSWER_MS
from edge_rt.system.machine import cpu_model
from edge_rt.version import VERSION
from tests.memory.shapes import DEVICE, make_shape

SHAPE = make_shape()
KEY = {"package_id": "x", "threads": 2, "edge_rt": VERSION, "cpu": cpu_model(), "isa": None, "kv_format": "f16"}


def costs(first: float, *, steady: bool = True) -> RowCosts:
    """Passes that cost ``first`` ms in a context of 100 tokens, and twice as much in one of 200."""
    return RowCosts((1, 8), (100, 200), ((first, 2 * first), (2 * first, 4 * first)), steady)


def choice_of(**request):
    return make_plan(SHAPE, DEVICE, Request(**request)).choice


def test_without_a_measurement_the_device_tells_the_speed():
    choice = choice_of(ctx=200, kv="f16", spec="off")
    rate = Speeds(SHAPE, DEVICE, {}).rate(choice)
    assert rate.tokens_per_second == rate.plain == plain_tokens_per_second(SHAPE, DEVICE, choice)
    assert not rate.is_measured


def test_passes_that_were_measured_tell_the_speed_at_half_the_context():
    speeds = Speeds(SHAPE, DEVICE, {"f16": costs(2.0)})
    assert speeds.rate(choice_of(ctx=200, kv="f16", spec="off")).plain == pytest.approx(500)
    assert speeds.rate(choice_of(ctx=400, kv="f16", spec="off")).plain == pytest.approx(250)
    assert speeds.rate(choice_of(ctx=200, kv="f16", spec="off")).is_measured


def test_speculation_is_priced_by_the_rows_that_were_measured():
    choice = choice_of(ctx=200, kv="f16", draft_max=2)
    rate = Speeds(SHAPE, DEVICE, {"f16": costs(2.0)}).rate(choice)
    assert rate.tokens_per_second > rate.plain
    dear = RowCosts((1, 8), (100,), ((2.0, 200.0),))
    assert Speeds(SHAPE, DEVICE, {"f16": dear}).rate(choice).tokens_per_second == rate.plain


def test_a_trained_head_is_priced_by_the_rows_that_were_measured():
    head = DrafterShape("small-head", "head", "/head", 1 << 20, 4096, 1536, 576, 49152, 612, 20 << 20, (0.9, 0.9, 0.9))
    choice = choice_of(ctx=200, kv="f16", spec="head", drafter=head)
    rate = Speeds(SHAPE, DEVICE, {"f16": costs(2.0)}, head).rate(choice)
    # A row more costs a seventh of a pass.
    guess = head.read_bytes(200) / DEVICE.bandwidth
    seconds = 2e-3 * (1 + 3 / 7) + 3 * guess + DRAFTING_S
    assert (rate.plain, rate.is_measured) == (pytest.approx(500), True)
    assert rate.tokens_per_second == pytest.approx((1 + 0.9 + 0.81 + 0.729) / seconds)
    assert Speeds(SHAPE, DEVICE, {"f16": costs(2.0)}).rate(choice).tokens_per_second == rate.plain


def test_a_cache_that_was_not_measured_is_priced_by_a_larger_one():
    speeds = Speeds(SHAPE, DEVICE, {"f16": costs(2.0), "int4": costs(1.0)})
    rate = speeds.rate(choice_of(ctx=200, kv="int8", spec="off"))
    assert (rate.plain, rate.is_measured, rate.is_derived) == (pytest.approx(500), False, True)


def test_the_largest_cache_is_priced_by_what_the_device_reads():
    rate = Speeds(SHAPE, DEVICE, {"f16": costs(2.0)}).rate(choice_of(ctx=200, kv="f32", spec="off"))
    read = 100 * SHAPE.model.num_layers * SHAPE.token_bytes("f32") / DEVICE.bandwidth
    assert 1 / rate.plain == pytest.approx(2e-3 + read)
    assert not rate.is_measured


def test_several_answers_share_what_a_pass_reads_of_weights():
    measured = RowCosts((1, 4), (100, 200), ((2.0, 3.0), (2.5, 4.5)))
    choice = choice_of(ctx=400, kv="f16", spec="off", slots=4)
    rate = Speeds(SHAPE, DEVICE, {"f16": measured}).rate(choice)
    assert rate == Rate(*2 * [pytest.approx(4000 / (3.0 + 4 * (0.5 + ANSWER_MS)))], is_measured=True)
    for others in ({}, {"f32": measured}):
        assert Speeds(SHAPE, DEVICE, others).rate(choice) == Rate(None, None, is_measured=False)


def test_what_was_measured_here_for_this_package_is_found(tmp_path):
    store = CostStore(tmp_path)
    store.save(KEY, costs(2.0))
    store.save({**KEY, "capacity": 9}, costs(1.5))
    store.save({**KEY, "kv_format": "int8"}, costs(1.0, steady=False))
    for other in ({"package_id": "y"}, {"threads": 3}, {"cpu": "abacus"}, {"isa": "slow"}, {"edge_rt": "0"}):
        store.save({**KEY, **other}, costs(0.1))
    # What drafts with a part of the model, or with all of it as a second model, has costs of its own.
    for other in ({"part": "draft"}, {"graph": "draft.onnx", "reads": "whole cache"}):
        store.save({**KEY, **other}, costs(0.1))
    store.save({**KEY, "rows": [1]}, RowCosts((1,), (100, 200), ((0.1,), (0.2,))))
    (tmp_path / "damaged.json").write_text("{")
    (tmp_path / "list.json").write_text("[]")
    found = measured_here(SHAPE, DEVICE, store)
    assert found == {"f16": costs(1.5)}
    assert measured_here(replace(SHAPE, package_id=None), DEVICE, store) == {}
    assert measured_here(SHAPE, DEVICE, CostStore(tmp_path / "none")) == {}
