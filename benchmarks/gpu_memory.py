"""A plan of a GPU's memory beside what a process takes that goes to the plan's limits."""

from __future__ import annotations

import os

from gpu_target import ROOT, Results, Target, fail

from edge_rt.measure.memory_report import MemoryReport
from edge_rt.measure.memory_watch import MeasuredProcess
from edge_rt.memory.advice import require_fit
from edge_rt.memory.device import this_device
from edge_rt.runtime.load.options import LoadOptions
from edge_rt.runtime.load.planning import plan_package

MEASURED = {"tiny": {"ctx": 64, "prefill_chunk": 16, "kv": "int8", "spec": "off"}}
USUAL = {"ctx": 4096}


def run_memory(target: Target, shape: str, mix: str) -> None:
    """Measure one shape; exit code 1 if more is taken than planned.

    Args:
        target: where; without emulation a fresh process measures the installed edge-rt, whatever the build.
        shape: one of ``gpu_target.SHAPES``.
        mix: types of its weights.
    """
    package, worker = target.package(shape, mix), "edge_rt.measure.memory_worker"
    if target.is_emulated:
        worker = "tests.gpu.profile_worker"
        os.environ |= {"PYTHONPATH": str(ROOT), "EDGE_RT_TEST_BUILD": str(target.build)}
    asked = LoadOptions(**MEASURED.get(shape, USUAL), device=str(target.device), gpu_providers=target.providers)
    plan = require_fit(plan_package(package, asked, this_device()))
    with MeasuredProcess(worker) as process:
        measured = MemoryReport(plan, process.run(package.path, plan))
    results, found = Results(target, "memory"), measured.device_json()
    assert found is not None
    planned, taken = found["planned_without_context_bytes"], found["measured_without_context_bytes"]
    text = "not measured: the GPU shares the machine's memory" if taken is None else f"{taken / 2**20:.0f} MiB taken"
    results.add(f"{shape}: {planned / 2**20:.0f} MiB planned without the driver's, {text}", **measured.to_json())
    fail(["more was taken than planned"] if taken is not None and taken > planned else [])
