"""Measures this machine: its memory bandwidth, and the memory of an edge-rt process before it loads a model."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from edge_rt.errors import RuntimeUnavailable

if TYPE_CHECKING:
    from edge_rt.memory.figures import Device

_BASE_PROGRAM: Final = """
import contextlib, io
import edge_rt.api, edge_rt.runtime.engine, edge_rt.store
from edge_rt.cli.main import main
import psutil
with contextlib.redirect_stdout(io.StringIO()):
    main(["plan", "--device", "list"])  # the command line imports more where it reads flags
print(psutil.Process().memory_info().rss)
"""
"""A program with the same imports as a command that loads a model."""
_GPU_QUERY: Final = ("--query-gpu=name,memory.total,memory.free", "--format=csv,noheader,nounits")
_TIMEOUT_S: Final = 60.0

Run = Callable[[Sequence[str]], str]


def run_command(command: Sequence[str]) -> str:
    """Run a program and return its output.

    Raises:
        OSError, subprocess.SubprocessError: it cannot be run, fails, or takes longer than a minute.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_TIMEOUT_S)
    return done.stdout


def measure_device(name: str, *, bandwidth: Callable[[int], float], run: Run = run_command) -> Device:
    """Measure this machine; takes about four seconds.

    Args:
        name: name of the device description.
        bandwidth: measures bytes per second for a number of threads.
        run: runs a program and returns its output.

    Raises:
        RuntimeUnavailable: a process cannot be started.
    """
    from edge_rt.memory.device import GENERIC, preset, this_device

    generic = preset(GENERIC)
    here = this_device()
    return replace(
        generic,
        name=name,
        total_bytes=here.total_bytes,
        available_bytes=here.available_bytes,
        bandwidth=bandwidth(here.threads),
        base_bytes=base_bytes(run),
        is_measured=True,
        threads=here.threads,
    )


def base_bytes(run: Run = run_command) -> int:
    """Return the resident memory of a fresh process that has imported what loading a model needs.

    Raises:
        RuntimeUnavailable: it cannot be started.
    """
    try:
        return int(run([sys.executable, "-c", _BASE_PROGRAM]))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise RuntimeUnavailable(
            "A process cannot be started to measure its memory.", f"{str(error)[:300]}.", "Check the installation."
        ) from error


def gpus(run: Run = run_command, which: Callable[[str], str | None] = shutil.which) -> list[dict[str, Any]]:
    """Return name and memory of NVIDIA GPUs, as reported by ``nvidia-smi``; an empty list without that tool.

    They are reported only: edge-rt computes on the CPU.
    """
    tool = which("nvidia-smi")
    if tool is None:
        return []
    try:
        lines = run([tool, *_GPU_QUERY]).splitlines()
        found = [[field.strip() for field in line.rsplit(",", 2)] for line in lines if line.strip()]
        return [
            {"name": name, "memory_bytes": int(total) << 20, "memory_free_bytes": int(free) << 20}
            for name, total, free in found
        ]
    except (OSError, subprocess.SubprocessError, ValueError):
        return []
