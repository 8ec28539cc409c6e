"""What a plan's table says of the cache."""

from __future__ import annotations

import io

import pytest

from edge_rt.cli.plan_speed import Speeds
from edge_rt.cli.render.console import Terminal
from edge_rt.cli.render.plan_report import print_plan
from edge_rt.memory.plan import make_plan
from edge_rt.memory.request import Request
from tests.memory.shapes import DEVICE, make_shape


@pytest.mark.parametrize(
    ("formats", "said"),
    [
        (
            ("f16", "int8", "k8v4", "int4"),
            "in int8, int4x2, k8v4 or int4 is slightly less exact than f16, int4 the most.",
        ),
        (("int8", "f16", "k8v4", "int4"), "in int4x2, k8v4 or int4 is slightly less exact than int8, int4 the most."),
        (("k8v4", "f16", "int4"), "in int4 is slightly less exact than k8v4."),
        (("int4", "f16", "int8"), None),
    ],
)
def test_a_cache_that_is_less_exact_than_the_default_is_called_so(formats, said):
    shape, out = make_shape(kv_formats=formats), io.StringIO()
    made, terminal = make_plan(shape, DEVICE, Request()), Terminal(out, io.StringIO())
    print_plan(terminal, made, Speeds(shape, DEVICE, {}), (), verb=["x"], named=[], is_here=True)
    lines = [line for line in out.getvalue().splitlines() if "less exact" in line]
    assert lines == ([] if said is None else [f"A cache {said}"])
