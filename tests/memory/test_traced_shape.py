"""Plans of packages with a traced graph."""

from __future__ import annotations

import dataclasses

import pytest

from edge_rt.errors import ConfigError
from edge_rt.memory.activations import allocated_bytes, thread_bytes
from edge_rt.memory.plan import Request, make_plan
from edge_rt.memory.terms import kv_bytes, packed_bytes, packing_bytes, session_bytes, weights_bytes
from edge_rt.package.spec_modes import Drafts
from edge_rt.package.weights_info import PassBytes, TracedInfo
from tests.memory.shapes import DEVICE, MIB, make_shape

INFO = TracedInfo(
    exporter="a tracer", exact_rows=0, packed_bytes=300 * MIB, mapped_bytes=100 * MIB, nodes=1000,
    passes=(PassBytes(4096, 100_000, 0, 0, 0), PassBytes(0, 1000, 10_000, 36, 400_000)),
)  # fmt: skip


def shape(**changes):
    info = dataclasses.replace(INFO, **changes)
    return make_shape(op_profile="traced", kv_formats=("f32",), activations="float", traced=info)


def test_a_pass_needs_what_its_largest_point_does():
    assert INFO.pass_bytes(1, 1) == 4096 + 100_000 or INFO.pass_bytes(1, 1) == 1000 + 10_000 + 36 + 400_000
    assert INFO.pass_bytes(64, 100) == 4096 + 6_400_000
    assert INFO.pass_bytes(64, 8192) == 64_000 + 81_920_000 + 36 * 64 * 8192 + 400_000
    exact = dataclasses.replace(INFO, exact_rows=24)
    assert exact.pass_bytes(24, 8192) - INFO.pass_bytes(24, 8192) == 23 * 400_000
    assert allocated_bytes(shape(), 64, 8192) > INFO.pass_bytes(64, 8192)


def test_the_other_terms():
    found = shape()
    assert (packed_bytes(found), packing_bytes(found), weights_bytes(found, 512)) == (300 * MIB, 400 * MIB, 100 * MIB)
    assert thread_bytes(found, 8) == 0
    assert session_bytes(found, 512) - session_bytes(shape(nodes=0), 512) == 1000 * 12 * 1024
    plan = make_plan(found, DEVICE, Request(ctx=512))
    assert kv_bytes(found, plan.choice) == 512 * 30 * 2 * 3 * 64 * 4
    assert plan.total_bytes == sum(term.bytes for term in plan.terms)
    assert {term.name: term.text for term in plan.terms}["kv_cache"].endswith("(f32)")


@pytest.mark.parametrize("spec", [None, "auto", "ngram", "recycling"])
def test_nothing_is_drafted_unless_rows_are_exact(spec):
    request = Request(ctx=512, spec=spec, draft_max=8 if spec else None)
    plan = make_plan(shape(), DEVICE, request)
    assert shape().drafts is Drafts.NOTHING
    assert (plan.choice.draft_max, plan.choice.spec, plan.speculation_bytes) == (0, "off", None)
    assert plan.unused == (() if spec is None else ("--draft-max",))


def test_drafts_are_no_longer_than_what_was_checked():
    plan = make_plan(shape(exact_rows=8), DEVICE, Request(ctx=512))
    assert shape(exact_rows=8).drafts is Drafts.CHAINS
    assert (plan.choice.spec, plan.choice.draft_max, plan.choice.logit_rows) == ("auto", 7, 8)
    longer = make_plan(shape(exact_rows=8), DEVICE, Request(ctx=512, draft_max=20))
    assert longer.choice.draft_max == 7


def test_other_cache_formats_are_refused():
    with pytest.raises(ConfigError, match="formats of the op profile traced: f32"):
        make_plan(shape(), DEVICE, Request(kv="f16"))
