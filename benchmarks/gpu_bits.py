"""Whether a GPU has the bits of the CPU: golden cases, operators, passes, packages and models."""

from __future__ import annotations

import subprocess
import sys
import time

from gpu_target import ROOT, Results, Target, fail

GOLDEN_BITS = ROOT / "csrc" / "tests" / "golden_bits.txt"
# Together less than ten minutes, whatever hangs.
GOLDEN_SECONDS, WORKER_SECONDS = 150, 70
# Modules of tests.gpu and those of their cases that need no emulated faults or counters.
CASES = (
    ("op_worker", "products embeddings largest gather concat other_types"),
    ("op_worker", "attention layers ring families refused_before_written"),
    ("pass_worker", "replayed replays_checked"),
    ("package_worker", "every_kv_format every_type window recorded"),
    ("model_worker", "every_kv_format sampled drafters draft_model nested window"),
    ("model_worker", "reuse chat passes two_models cancelled verified"),
    ("exit_worker", "placed kv_formats modes"),
    ("exit_worker", "trees window cancelled"),
)


def run_bits(target: Target, only: str) -> None:
    """Run all of it, each part in a process of its own, whatever fails before; exit code 1 if a part has failed.

    Args:
        target: with a build.
        only: a text that the names of parts must hold; empty: all run.
    """
    assert target.build is not None
    kernels = target.kernel_folder
    # Vulkan's program reads the folder.
    images = [kernels] if target.is_vulkan else sorted(kernels.glob("*.cubin"))
    parts = [("golden", [str(target.golden), str(GOLDEN_BITS), *map(str, images)], GOLDEN_SECONDS)]
    libraries = [str(target.library), str(target.build / "libedge_rt_ops.so"), str(kernels)]
    for worker, cases in CASES:
        command = [sys.executable, "-m", f"tests.gpu.{worker}", cases, *libraries]
        parts.append((f"{worker} {cases}", command, WORKER_SECONDS))
    results = Results(target, "bits")
    fail([name for name, command, limit in parts if only in name and not _passes(results, name, command, limit)])


def _passes(results: Results, name: str, command: list[str], limit: int) -> bool:
    started = time.perf_counter()
    try:
        done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=limit)
        code, said = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        code, said = None, f"stopped after {limit} s"
    seconds = time.perf_counter() - started
    results.add(f"{'passed' if code == 0 else 'FAILED'} in {seconds:.0f} s: {name}", code=code, seconds=seconds)
    if code != 0:
        results.add(said[-4000:].rstrip(), name=name)
    return code == 0
