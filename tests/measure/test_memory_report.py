"""Measuring a plan: terms out of stages, and a fresh process that is driven to its limits."""

from __future__ import annotations

import io
import mmap
from dataclasses import replace

import psutil
import pytest

from edge_rt.cli.commands.profile import device_lines, print_report
from edge_rt.cli.render.console import Terminal
from edge_rt.errors import ConfigError, InferenceError, InvalidPackage, MemoryBudgetExceeded
from edge_rt.measure.memory_report import MemoryReport, MemoryRun, Moment, Stage, measured_terms
from edge_rt.measure.memory_watch import MeasuredProcess
from edge_rt.memory.device import holding, this_device
from edge_rt.memory.figures import GpuFigures
from edge_rt.memory.plan import Request, make_plan
from edge_rt.memory.shape import shape_of
from edge_rt.package.reader import open_package
from edge_rt.system.byte_size import in_mib
from edge_rt.system.process_memory import ProcessMemory
from tests.helpers.measured import measure_plan

MIB = 1 << 20


def stage(name, *, anon=0, file=0, shmem=0, peak=None, weights=0, cache=0, logits=0):
    sizes = [MIB * size for size in (anon, file, shmem, anon + file + shmem if peak is None else peak)]
    return Stage(name, 0.0, ProcessMemory(*sizes), weights * MIB, cache * MIB, logits * MIB, {})


def plan_of(package, device=None, **request):
    opened = open_package(package)
    return make_plan(shape_of(opened.manifest, opened.id), device or this_device(), Request(**request))


STAGES = (
    stage("runtime", anon=30, file=20),
    stage("tokenizer", anon=40, file=20, peak=90),
    stage("cache", anon=40, file=20, peak=90),
    stage("session", anon=45, file=23, peak=90),
    stage("loaded", anon=45, file=23, peak=90),
    stage("calibration", anon=46, file=83, shmem=2, weights=60, cache=2),
    # A peak of 7 MiB in the midst of the passes, of which 3 were kept.
    stage("prefill", anon=49, file=83, shmem=50, peak=186, weights=60, cache=50),
    stage("tree", anon=49, file=83, shmem=54, peak=187, weights=60, cache=50, logits=4),
    stage("sampling", anon=50, file=83, shmem=54, weights=60, cache=50, logits=4),
    stage("drafters", anon=70, file=83, shmem=54, peak=215, weights=60, cache=50, logits=4),
    stage("end", anon=70, file=83, shmem=54, peak=215, weights=60, cache=50, logits=4),
)


def test_terms_are_mappings_and_what_stages_add():
    terms = {name: size // MIB for name, size in measured_terms(STAGES).items()}
    assert terms == {
        "runtime": 50,
        "tokenizer": 10,
        "weights": 60,
        "session": 8,
        "kv_cache": 50,
        "activations": 1 + 7 + 1,
        "logits": 4,
        "sampling": 1,
        "drafters": 28,
    }


def test_what_no_term_explains_is_said(native_package):
    plan = plan_of(native_package, ctx=64, budget_bytes=220 * MIB)
    profile = MemoryReport(plan, MemoryRun(STAGES, (Moment(0.5, STAGES[-1].memory),)))
    document = profile.to_json()
    assert document["measured_peak_bytes"] == 215 * MIB
    assert document["unaccounted_bytes"] == (215 - 50 - 10 - 60 - 8 - 50 - 9 - 4 - 1 - 28) * MIB
    assert document["private_bytes"] == 124 * MIB
    assert document["file_bytes"] == 83 * MIB
    assert document["exceeded"] is False
    assert document["relative_error"] == pytest.approx(plan.total_bytes / (215 * MIB) - 1)
    assert sum(term["planned"] for term in document["terms"].values()) == plan.total_bytes
    low = MemoryReport(plan_of(native_package, ctx=64, budget_bytes=214 * MIB), profile.run)
    assert low.exceeded


def test_what_was_not_measured_is_not_zero(native_package):
    plan = plan_of(native_package, ctx=64, spec="off")
    terms = (*plan.terms, replace(plan.terms[0], name="states", bytes=MIB))
    choice = replace(plan.choice, expert_bytes=MIB)
    report = MemoryReport(replace(plan, terms=terms, choice=choice), MemoryRun(STAGES, ()))
    found = report.terms()
    assert found["states"] == {"planned": MIB, "measured": None}
    # Copied weights count in other stages.
    assert found["weights"]["measured"] is None
    assert found["runtime"]["measured"] == 50 * MIB
    assert report.unaccounted_bytes == (215 - 50 - 10 - 8 - 50 - 9 - 4 - 1 - 28) * MIB


@pytest.mark.parametrize("spec", ["off", "auto", "ngram"])
def test_a_process_is_driven_to_the_limits_of_its_plan(native_package, spec):
    with MeasuredProcess() as process:
        # Planned for what the process holds, not for what one holds usually.
        plan = plan_of(native_package, holding(process.base_bytes), ctx=256, spec=spec, kv="int8")
        profile = MemoryReport(plan, process.run(native_package, plan, threads=1))
    assert profile.relative_error >= 0
    names = [entry.name for entry in profile.run.stages]
    assert names[:5] == ["runtime", "tokenizer", "cache", "session", "loaded"]
    assert names[-1] == "end"
    assert ("calibration" in names) == (spec != "off")
    terms = profile.terms()
    # Every row of the cache was written, and every row of logits.
    assert terms["kv_cache"]["measured"] == pytest.approx(terms["kv_cache"]["planned"], abs=2 * mmap.PAGESIZE)
    assert terms["logits"]["measured"] == pytest.approx(terms["logits"]["planned"], abs=2 * mmap.PAGESIZE)
    assert terms["weights"]["measured"] == pytest.approx(terms["weights"]["planned"], abs=MIB / 8)
    # A page or two may come from anywhere.
    assert (terms["drafters"]["measured"] > 4 * mmap.PAGESIZE) == (spec != "off")
    peaks = [entry.memory.peak_bytes for entry in profile.run.stages]
    assert peaks == sorted(peaks)
    assert profile.run.peak_bytes >= max(moment.memory.resident_bytes for moment in profile.run.moments) - MIB
    assert abs(profile.unaccounted_bytes) < 0.1 * profile.run.peak_bytes


def test_the_measured_process_counts_the_driver_as_its_plan_does(native_package):
    """Without the driver it would fit the budget, and be another plan."""
    asked = {"ctx": 64, "spec": "off", "driver_bytes": 160 * MIB}
    short = plan_of(native_package, **asked).minimum_bytes - 10 * MIB
    plan = plan_of(native_package, budget_bytes=short, **asked)
    assert not plan.fits
    with pytest.raises(MemoryBudgetExceeded, match="does not fit the memory"):
        measure_plan(native_package, plan, threads=1)


def test_a_portable_package_is_measured_too(small_package):
    plan = plan_of(small_package, ctx=64, spec="off")
    profile = MemoryReport(plan, measure_plan(small_package, plan, threads=1))
    terms = profile.terms()
    assert terms["kv_cache"]["measured"] == pytest.approx(terms["kv_cache"]["planned"], rel=0.1)


def test_a_chat_is_told_turn_by_turn(native_package):
    plan = plan_of(native_package, ctx=128, spec="off")
    told = []
    run = measure_plan(native_package, plan, threads=1, turns=3, on_stage=told.append)
    assert told[-4:] == ["turn 1", "turn 2", "turn 3", "end"]
    turns = [entry for entry in run.stages if entry.name.startswith("turn")]
    assert all(0 < entry.facts["tokens"] <= 128 for entry in turns)


def test_errors_of_the_process_are_raised_here(native_package, tmp_path):
    plan = plan_of(native_package, ctx=64)
    with pytest.raises(ConfigError, match="threads is out of range"):
        measure_plan(native_package, plan, threads=-1)
    with pytest.raises(InvalidPackage):
        measure_plan(tmp_path, plan)


def _end_child(method):
    def at(stage):
        if stage == "loaded":
            for child in psutil.Process().children():
                getattr(child, method)()

    return at


def test_a_process_that_the_kernel_kills_had_too_little_memory(native_package):
    plan = plan_of(native_package, ctx=64)
    with pytest.raises(MemoryBudgetExceeded, match="was killed"):
        measure_plan(native_package, plan, threads=1, on_stage=_end_child("kill"))


def test_a_process_that_ends_without_a_word_is_an_error(native_package):
    plan = plan_of(native_package, ctx=64)
    with pytest.raises(InferenceError, match="exit code was -15; its last output: nothing"):
        measure_plan(native_package, plan, threads=1, on_stage=_end_child("terminate"))


def test_a_process_that_cannot_be_started_leaves_no_file_open():
    process, before = MeasuredProcess("no\0module"), psutil.Process().num_fds()
    with pytest.raises(ValueError, match="null byte"):
        process.__enter__()
    assert psutil.Process().num_fds() == before


def test_no_process_is_left_when_the_caller_stops(native_package):
    plan = plan_of(native_package, ctx=64)
    children = []

    def stop(stage):
        children.extend(psutil.Process().children())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_plan(native_package, plan, threads=1, on_stage=stop)
    assert children
    assert not any(child.is_running() for child in children)


GPU = GpuFigures("a GPU", 4096 * MIB, 3072 * MIB, 100e9, 5e-4, ((1, 1.0), (8, 1.1)))


def on_gpu(package, measured, **figures):
    """Return the report of a process that takes so many bytes of a GPU, within a budget of 700 MiB there."""
    machine = replace(this_device(), gpu=replace(GPU, **figures))
    request = Request(2048 * MIB, ctx=64, spec="off", device_budget_bytes=None if figures else 700 * MIB)
    plan = make_plan(shape_of(open_package(package).manifest, "x"), machine, request)
    facts = {} if measured is None else {"device_bytes": measured}
    stages = [*STAGES[:-1], replace(STAGES[-1], facts=facts)]
    return MemoryReport(plan, MemoryRun(tuple(stages), ()))


def test_what_a_gpu_takes_is_beside_what_was_planned(native_package):
    report = on_gpu(native_package, 100 * MIB)
    found = report.device_json()
    assert found["planned_bytes"] - found["planned_without_context_bytes"] == 512 * MIB
    assert (found["measured_without_context_bytes"], found["budget_bytes"]) == (100 * MIB, 700 * MIB)
    assert not report.exceeded
    # With the context these are 701 MiB.
    assert on_gpu(native_package, 189 * MIB).exceeded
    lines = device_lines(report)
    assert "100.0 MiB measured" in lines[0]
    assert "weights" in lines[1]


def test_what_a_gpu_shares_is_no_part_of_the_process(native_package):
    report = on_gpu(native_package, None, is_unified=True)
    assert report.device_json()["measured_without_context_bytes"] is None
    assert "not measured" in device_lines(report)[0]
    held = {term.name: term.bytes for term in report.plan.terms}
    assert report.plan.process_bytes == sum(held.values()) < report.plan.total_bytes
    assert report.relative_error == pytest.approx(sum(held.values()) / (215 * MIB) - 1)
    assert device_lines(MemoryReport(plan_of(native_package, ctx=64), report.run)) == []


@pytest.mark.parametrize("is_software", [False, True])
def test_of_shared_memory_a_budget_is_compared_with_both(is_software, native_package):
    """What a software device takes lies in the process, and is measured with it."""
    report = on_gpu(native_package, None, is_unified=True, is_software=is_software)
    plan = report.plan
    assert report.planned_bytes == (plan.total_bytes if is_software else plan.process_bytes)
    assert report.unmeasured_bytes == (0 if is_software else plan.device_bytes)
    assert report.to_json()["planned_peak_bytes"] == report.planned_bytes
    # The peak is 215 MiB.
    for room in (0, -1):
        budget = replace(plan.budget, host=215 * MIB + report.unmeasured_bytes + room)
        assert replace(report, plan=replace(plan, budget=budget)).exceeded == (room < 0)
    print_report(Terminal(out := io.StringIO(), io.StringIO()), report)
    table, _, below = out.getvalue().partition("on the GPU without")
    rows = {line.split("  ")[0]: line.split() for line in table.splitlines()}
    planned = f"{report.planned_bytes / MIB:.1f}"
    assert rows["peak"][1] == planned
    assert "gpu_context" not in rows
    assert "  its driver: 512.0 MiB, an estimate\n" in below
    assert ("with the GPU" in rows, "device" in rows) == (not is_software, is_software)
    left = in_mib(plan.budget_bytes - 215 * MIB - report.unmeasured_bytes)
    assert f" {left} left at the peak" in table
