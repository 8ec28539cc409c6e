"""Operators and models on Mesa's software device for Vulkan, which executes the kernels: `.ci/vulkan` runs these."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.onnxruntime_version import needs_onnxruntime

ROOT = Path(__file__).parents[2]
# Cases of a line share a process, and the kernels that it has made.
WORKERS = {
    "op_worker": ("gather concat",),
    "model_worker": ("placed sampled", "passes"),
}

pytestmark = [
    pytest.mark.skipif("EDGE_RT_TEST_SPIRV" not in os.environ, reason="EDGE_RT_TEST_SPIRV names no folder of kernels"),
    needs_onnxruntime(1, 28),
]


@pytest.mark.parametrize(("worker", "case"), [(worker, case) for worker, cases in WORKERS.items() for case in cases])
def test_workers(worker, case):
    build = Path(os.environ["EDGE_RT_TEST_BUILD"]).resolve()
    libraries = [str(build / name) for name in ("libedge_rt_vulkan.so", "libedge_rt_ops.so")]
    command = [sys.executable, "-m", f"tests.gpu.{worker}", case, *libraries, os.environ["EDGE_RT_TEST_SPIRV"]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, env=os.environ)
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout}{done.stderr}"
