"""The provider for GPUs through ONNX Runtime, on an emulated driver whose memory nobody else may touch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.native import build_native
from tests.helpers.onnxruntime_version import needs_onnxruntime

ROOT = Path(__file__).parents[2]
TOYS = ("plain", "mixed", "graphs", "checked_before_written", "out_of_memory", "copies_fail", "capture_fails", "lost")
# Cases of a line share a process, whose start takes as long as some of them.
OPERATORS = {
    "op_worker": (
        "products embeddings largest gather concat split scale other_types",
        "attention layers ring",
        "families",
        "refused_before_written",
    ),
    "pass_worker": ("replayed replays_checked", "launches_fail", "recording_fails", "lost"),
    "package_worker": ("every_kv_format every_type window tree_once recorded",),
    "model_worker": (
        "listed placed foreign_code every_kv_format sampled drafters draft_model nested window",
        "reuse chat passes second_gpu two_models cancelled verified",
        "auto",
    ),
    "layers_worker": ("texts modes passes talks cancelled", "nested rotations", "out_of_memory auto refused"),
    "divided_worker": ("texts cancelled exit",),
    "exit_worker": ("placed kv_formats modes", "trees window cancelled", "nothing_is_left full faults"),
    "model_fault_worker": (
        "out_of_memory full_while_it_answers calls_fail",
        "nothing_is_left lost lost_while_memory_is_taken",
    ),
    "takeover_worker": (
        "lost full drafted states kept networks divided served",
        "slots",
        "formats talks nothing_is_left stopped no_room errors hangs",
    ),
    "state_worker": ("texts refused cancelled", "drafts more_drafts", "planned"),
    "slots_worker": ("texts windows served", "states kept", "exits arrivals", "divided"),
    "expert_worker": ("texts", "types planned refused"),
    "family_worker": ("gemma4 planned", "kv_formats gemma4_drafts gemma4_divided", "embeddings ahead"),
    "plan_worker": ("f16 window nested divided second stays", "exits nested_exits"),
}
# They take minutes: for whoever changes kernels or the provider, see `.ci/gpu`.
LONG_OPERATORS = {
    "package_worker": ("out_of_memory",),
    "state_worker": ("drafts more_drafts", "planned"),
    "slots_worker": ("planned",),
    "expert_worker": ("types planned refused",),
    "family_worker": ("every_family",),
    "takeover_worker": ("divided_everywhere divided_slots divided_hangs",),
    "divided_worker": ("planned", "exits exit_modes more_drafts slots", "shared_keys", "every_family"),
}

pytestmark = [
    # Building the provider and its emulation takes minutes; `.ci/sanitize` has them built anyway, and runs these.
    pytest.mark.skipif("EDGE_RT_TEST_BUILD" not in os.environ, reason="EDGE_RT_TEST_BUILD names no built folder"),
    pytest.mark.skipif(sys.platform != "linux", reason="the provider is built for Linux"),
    needs_onnxruntime(1, 28),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    targets = ("edge_rt_gpu_toys", "edge_rt_test_ops", "edge_rt_gpu_emulation", "edge_rt_ops")
    return build_native(tmp_path_factory.mktemp("gpu"), *targets).parent


def run(case, library, ops, worker="worker"):
    command = [sys.executable, "-m", f"tests.gpu.{worker}", case, str(library), str(ops)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200, env=os.environ)
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("case", TOYS)
def test_toys(built, case):
    run(case, built / "libedge_rt_gpu_toys.so", built / "libedge_rt_test_ops.so")


def each(operators):
    return pytest.mark.parametrize(
        ("worker", "case"), [(name, case) for name, own in operators.items() for case in own]
    )


def run_operators(built, worker, case):
    run(case, built / "libedge_rt_gpu_emulation.so", built.parents[1] / "libedge_rt_ops.so", worker)


@each(OPERATORS)
def test_operators(built, worker, case):
    run_operators(built, worker, case)


@pytest.mark.slow
@each(LONG_OPERATORS)
def test_long_operators(built, worker, case):
    run_operators(built, worker, case)
