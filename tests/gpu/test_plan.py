"""A plan measured on the emulated GPU; what lies there beside every plan: ``plan_worker``."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from edge_rt.device.names import DeviceChoice, DeviceName
from edge_rt.export import export_model
from edge_rt.measure.memory_report import MemoryReport
from edge_rt.measure.memory_watch import MeasuredProcess
from edge_rt.memory.device import holding, this_device, unmeasured_gpu
from edge_rt.memory.sizes import sizes_of
from edge_rt.package.reader import open_package
from edge_rt.runtime.load.options import LoadOptions
from edge_rt.runtime.load.planning import plan_package
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.measured import measure_plan
from tests.helpers.onnxruntime_version import needs_onnxruntime

ROOT = Path(__file__).parents[2]
GIB, MIB = 1 << 30, 1 << 20
WORKER = "tests.gpu.profile_worker"
EMULATED = 4 * MIB
"""What the emulated GPU takes of the process besides its memory: stacks of its threads, and the code of kernels."""

pytestmark = [
    pytest.mark.skipif("EDGE_RT_TEST_BUILD" not in os.environ, reason="EDGE_RT_TEST_BUILD names no built folder"),
    pytest.mark.skipif(sys.platform != "linux", reason="the provider is built for Linux"),
    needs_onnxruntime(1, 28),
]


def test_memory_of_the_gpu_is_measured_beside_its_plan(native_package, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    machine = replace(this_device(), gpu=unmeasured_gpu("emulated", GIB, GIB, is_unified=False))
    asked = LoadOptions(ctx=32, kv="int8", spec="off", prefill_chunk=8, memory=GIB, device_memory=GIB)
    plan = plan_package(open_package(native_package), asked, machine)
    plan = replace(plan, device_choice=DeviceChoice(DeviceName("cuda"), is_named=True))
    run = measure_plan(native_package, plan, worker=WORKER, threads=1)
    found = MemoryReport(plan, run).device_json()
    gpu = plan.sizes.gpu
    assert found["planned_bytes"] == plan.device_bytes
    assert gpu.weights + gpu.kv_cache < found["measured_without_context_bytes"]
    assert found["measured_without_context_bytes"] <= found["planned_without_context_bytes"]
    assert [stage.facts["device_bytes"] for stage in run.stages if stage.name == "device"] == [0]


def test_memory_of_a_process_that_computes_some_layers_is_within_its_plan(tmp_path, monkeypatch):
    """Its two tables of rotations, which both sides read, are larger than all else."""
    table = 16 * MIB
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    write_llama_gguf(tmp_path / "m.gguf", layers=3, head_dim=32, context=1 << 18)
    export_model(tmp_path / "m.gguf", tmp_path / "p", profile="native", calibration=None)
    package = open_package(tmp_path / "p")
    asked = LoadOptions(ctx=32, kv="int8", spec="off", prefill_chunk=8, memory=GIB, device_memory=GIB)
    with MeasuredProcess(WORKER) as process:
        machine = replace(
            holding(process.base_bytes), gpu=unmeasured_gpu("emulated", GIB, GIB, is_unified=False), threads=1
        )
        whole = plan_package(package, asked, machine)
        room = sizes_of(whole.shape, whole.device, replace(whole.choice, gpu_layers=1), whole.request).needs.gpu
        plan = plan_package(package, asked.but(device_memory=room), machine)
        assert plan.choice.gpu_layers == 1
        plan = replace(plan, device_choice=DeviceChoice(DeviceName("cuda"), is_named=True))
        run = process.run(package.path, plan, threads=1)
    planned = plan.process_bytes - plan.sizes.driver
    stages = [stage for stage in run.stages if "device_bytes" in stage.facts]
    # No more than the most that it took: what lies on the GPU, in this process, is never less than before.
    taken = max(stage.memory.peak_bytes - stage.facts["device_bytes"] for stage in stages)
    assert planned - table < taken <= planned + EMULATED, (planned, taken)
    # Nothing of what was copied is left.
    loaded = next(stage for stage in stages if stage.name == "loaded")
    left = loaded.memory.resident_bytes - loaded.facts["device_bytes"]
    assert left <= plan.base_bytes + plan.sizes.tokenizer + plan.sizes.session + EMULATED, (left, plan.sizes)
