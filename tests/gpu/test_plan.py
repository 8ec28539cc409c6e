"""A plan measured on the emulated GPU; what lies there beside every plan: ``plan_worker``."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from edge_rt.device.names import DeviceChoice, DeviceName
from edge_rt.measure.memory_report import MemoryReport
from edge_rt.memory.device import this_device, unmeasured_gpu
from edge_rt.package.reader import open_package
from edge_rt.runtime.load.options import LoadOptions
from edge_rt.runtime.load.planning import plan_package
from tests.helpers.measured import measure_plan
from tests.helpers.onnxruntime_version import needs_onnxruntime

ROOT = Path(__file__).parents[2]
GIB = 1 << 30

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
    run = measure_plan(native_package, plan, worker="tests.gpu.profile_worker", threads=1)
    found = MemoryReport(plan, run).device_json()
    gpu = plan.sizes.gpu
    assert found["planned_bytes"] == plan.device_bytes
    assert gpu.weights + gpu.kv_cache < found["measured_without_context_bytes"]
    assert found["measured_without_context_bytes"] <= found["planned_without_context_bytes"]
    assert [stage.facts["device_bytes"] for stage in run.stages if stage.name == "device"] == [0]
