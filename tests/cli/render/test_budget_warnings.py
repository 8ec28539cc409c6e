"""Budgets above what a machine has: what is said of them in a plan, and before a load."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from edge_rt.cli.loading import model_of_command, telling_load
from edge_rt.cli.render.console import Terminal
from edge_rt.cli.render.plan_report import budget_warnings
from edge_rt.device.names import ON_CPU, DeviceChoice
from edge_rt.memory.figures import GpuFigures
from edge_rt.memory.plan import make_plan
from edge_rt.memory.request import Request
from edge_rt.runtime.load.load_plan import LoadPlan
from edge_rt.runtime.load.options import LoadOptions
from tests.helpers.models import load_package
from tests.memory.shapes import DEVICE, make_shape

ROOT = Path(__file__).parents[3]
GIB = 1 << 30
GPU = GpuFigures("a GPU", 4 * GIB, 3 * GIB, 100e9, 5e-4, ((1, 1.0), (8, 1.1), (24, 1.3)))
HOST = "The budget is more than this machine has available now, 4.00 GiB."
OF_GPU = "The budget of device memory is more than a GPU has free now, 3.00 GiB of 4.00 GiB."


def warnings(gpu, *, is_here=True, **budgets):
    made = make_plan(make_shape(), replace(DEVICE, gpu=gpu), Request(ctx=2048, **budgets))
    return tuple(budget_warnings(made, is_here=is_here).values())


@pytest.mark.parametrize(
    ("host", "own", "said"),
    [
        (None, None, ()),
        (4 * GIB, 3 * GIB, ()),
        (4 * GIB + 1, None, (HOST,)),
        (None, 3 * GIB + 1, (OF_GPU,)),
        (9 * GIB, 5 * GIB, (HOST, OF_GPU)),
    ],
)
def test_more_than_is_free_here(host, own, said):
    assert warnings(GPU, budget_bytes=host, device_budget_bytes=own) == said


def test_of_another_machine_all_of_its_memory_counts():
    assert warnings(GPU, is_here=False, budget_bytes=8 * GIB, device_budget_bytes=4 * GIB) == ()
    assert warnings(GPU, is_here=False, budget_bytes=8 * GIB + 1, device_budget_bytes=4 * GIB + 1) == (
        "The budget is more than test has, 8.00 GiB.",
        "The budget of device memory is more than a GPU has, 4.00 GiB.",
    )


@pytest.mark.parametrize("gpu", [None, replace(GPU, is_unified=True)])
def test_one_memory_has_one_budget(gpu):
    assert warnings(gpu, budget_bytes=5 * GIB) == (HOST,)


@pytest.mark.parametrize("gpu", [None, GPU, replace(GPU, is_unified=True)])
def test_a_process_with_a_driver_that_took_more_than_its_budget_is_told(gpu):
    asked = []

    def peak(size):
        asked.append(size)
        return size

    plan = make_plan(make_shape(), replace(DEVICE, gpu=gpu), Request(ctx=2048))
    for budget in (GIB, None):
        assert LoadPlan(plan, budget, True, None, None, 1).over_budget(lambda: peak(GIB)) is None
    said = LoadPlan(plan, GIB, True, None, None, 1).over_budget(lambda: peak(2 * GIB))
    assert (said is None) == (gpu is None)
    # Reading it behind each request would take time in a server's event loop.
    assert asked == ([] if gpu is None else [GIB, 2 * GIB])
    assert said is None or "has taken 2.00 of 1.00 GiB: the driver of a GPU lives in it" in said


@pytest.mark.parametrize("said", ["the process has taken too much", None])
def test_a_command_warns_of_it_at_its_end(said):
    terminal = Terminal(io.StringIO(), err := io.StringIO())
    loaded = SimpleNamespace(device_choice=DeviceChoice(ON_CPU), over_budget=said)
    with model_of_command(terminal, None, LoadOptions(), lambda package, options: loaded) as model:
        assert (model, err.getvalue()) == (loaded, "")
    assert err.getvalue() == ("" if said is None else f"warning: {said}\n")


def test_commands_with_one_model_load_it_in_the_same_way():
    """``verify`` loads several, and what ``cache`` keeps is computed on the CPU."""
    texts = {path.stem: path.read_text() for path in (ROOT / "edge_rt" / "cli" / "commands").glob("*.py")}
    found = {name: set(re.findall(r"(model_of_command|load_model)\(", text)) for name, text in texts.items()}
    assert {name for name, calls in found.items() if "load_model" in calls} == {"cache", "verify"}
    assert {name for name, calls in found.items() if "model_of_command" in calls} == {
        "batch", "bench", "embed", "generate", "score",
    }  # fmt: skip


def test_a_load_tells_its_plan_first(small_package):
    told = []
    with load_package(small_package, ctx=64, on_plan=told.append, on_load=told.append) as model:
        assert told[0] is model.plan
        assert told[1] == "tokenizer"


def test_a_command_warns_once_however_often_it_loads():
    """Of another plan the numbers differ: there is a little more or less now."""
    terminal = Terminal(io.StringIO(), err := io.StringIO())
    options = telling_load(terminal, LoadOptions())
    for free in (4 * GIB, 3 * GIB):
        options.on_plan(make_plan(make_shape(), replace(DEVICE, available_bytes=free), Request(budget_bytes=5 * GIB)))
    assert err.getvalue() == f"warning: {HOST}\n"
    gpu = replace(GPU, available_bytes=GIB)
    asked = Request(budget_bytes=5 * GIB, device_budget_bytes=2 * GIB)
    options.on_plan(make_plan(make_shape(), replace(DEVICE, gpu=gpu), asked))
    assert err.getvalue().count("The budget of device memory is more than") == 1
    assert err.getvalue().count(HOST) == 1


def test_commands_warn_before_they_load(inline, native_package):
    arguments = ("-m", native_package, "--memory", "900TiB", "--ctx", "64")
    said = b"warning: The budget is more than this machine has available now, "
    result = inline("generate", *arguments, "-p", "Hello", "-n", "1", "--raw")
    assert (result.returncode, result.stderr.count(said)) == (0, 1)
    notes = json.loads(inline("plan", *arguments, "--json").stdout)["notes"]
    assert sum(note.startswith("The budget is more than this machine has") for note in notes) == 1


def test_who_waits_for_a_compiler_is_told_whether_its_work_is_kept():
    for are_kept, said in (
        (True, "(kept for later; "),
        (False, "(not kept: the user's cache folder cannot be written; "),
    ):
        terminal = Terminal(io.StringIO(), err := io.StringIO())
        telling_load(terminal, LoadOptions()).on_compile(are_kept)
        assert said in err.getvalue()
