"""Operators and models on Mesa's software device for Vulkan, which executes the kernels: `.ci/vulkan` runs these."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.onnxruntime_version import needs_onnxruntime

ROOT = Path(__file__).parents[2]
# Cases of a line share a process, and the kernels that it has made.
WORKERS = {
    "op_worker": ("gather concat split scale",),
    "model_worker": ("placed foreign_code sampled", "passes"),
    "weights_worker": ("in_place",),
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


def test_the_script_that_checks_gpus_measures_and_compares_texts(tmp_path):
    script = [sys.executable, str(ROOT / "benchmarks" / "on_gpu.py")]
    options = ["--device", "vulkan:0", "--shape", "tiny", "--out", str(tmp_path)]
    options += ["--build", str(Path(os.environ["EDGE_RT_TEST_BUILD"]).resolve())]
    kept = {}
    for stage, *limits in (("speed", "--rounds", "1"), ("verify", "--limit", "1", "--tokens", "6")):
        command = [*script, stage, *limits, *options]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, env=os.environ)
        assert done.returncode == 0, f"{done.returncode}\n{done.stdout}{done.stderr}"
        lines = [json.loads(line) for line in (tmp_path / f"{stage}.jsonl").read_text().splitlines()]
        assert all(line["device"] == "vulkan:0" and not line["emulated"] for line in lines)
        kept[stage] = {line["name"]: line for line in lines if "name" in line}
    assert all(min(kept["speed"][name]["seconds"]) > 0 for name in ("copy", "pass of 8 rows", "products of 8 rows"))
    assert {name: line["identical"] for name, line in kept["verify"].items()} == {
        "vulkan:0 off": 1, "vulkan:0 suffix": 1, "vulkan:0 recycling": 1,
    }  # fmt: skip
