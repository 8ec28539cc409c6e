"""A plan with a trained drafter, as it is shown."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest

from edge_rt.cli.plan_speed import Speeds
from edge_rt.cli.render.console import Terminal
from edge_rt.cli.render.plan_report import plan_json, print_plan
from edge_rt.memory.drafter_shapes import DrafterShape
from edge_rt.memory.plan import make_plan
from edge_rt.memory.request import Request
from tests.memory.shapes import DEVICE, MIB, make_shape

HEAD = DrafterShape(
    "small-head", "head", "/drafters/small-head", 3 * MIB, 4096, 1536, 576, 49152, 612, 20 * MIB, (0.6, 0.4, 0.3)
)
SHAPE = make_shape()


@pytest.mark.parametrize(("missing", "name"), [(0, "small-head"), (4 * MIB, None)])
def test_the_drafter_is_named_where_it_is_loaded(missing, name):
    asked = Request(ctx=2048, kv="f16", drafter=HEAD)
    whole = make_plan(SHAPE, DEVICE, asked).total_bytes
    made = make_plan(SHAPE, DEVICE, replace(asked, budget_bytes=whole - missing))
    speeds = Speeds(SHAPE, DEVICE, {})
    assert json.loads(json.dumps(plan_json(made, speeds)))["drafter"] == name
    out = io.StringIO()
    print_plan(Terminal(out, io.StringIO()), made, speeds, (), verb=["edge-rt", "generate"], named=[], is_here=True)
    assert ("drafter small-head" in out.getvalue()) == (name is not None)
    assert ("drafter_head" in out.getvalue()) == (name is not None)
    assert ("drafter: none instead of small-head" in out.getvalue()) == (name is None)


def test_a_head_alone_has_no_tables_to_show():
    made = make_plan(SHAPE, DEVICE, Request(ctx=2048, spec="head", drafter=HEAD))
    out = io.StringIO()
    print_plan(Terminal(out, io.StringIO()), made, Speeds(SHAPE, DEVICE, {}), (), verb=["x"], named=[], is_here=True)
    assert "head, drafts of up to 23, drafter small-head" in out.getvalue()
