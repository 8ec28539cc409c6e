"""Measures this machine: its memory bandwidth, and the memory of an edge-rt process before it loads a model."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from edge_rt.errors import RuntimeUnavailable

if TYPE_CHECKING:
    from edge_rt.memory.figures import Device


_BASE_PROGRAM: Final = """
import contextlib, io
import edge_rt.api, edge_rt.cli.commands.generate, edge_rt.runtime.model, edge_rt.store.resolve
from edge_rt.cli.main import main
import psutil
with contextlib.redirect_stdout(io.StringIO()):
    main(["plan", "--device", "list"])  # the command line imports more where it reads flags
print(psutil.Process().memory_info().rss)
"""
"""A program with the same imports as a command that loads a model."""
_TIMEOUT_S: Final = 60.0

Run = Callable[[Sequence[str]], str]


def run_command(command: Sequence[str]) -> str:
    """Run a program and return its output."""
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_TIMEOUT_S)
    return done.stdout


def measure_device(name: str, *, bandwidth: Callable[[int], float], run: Run = run_command) -> Device:
    """Measure this machine; takes about four seconds."""
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
    """Return the resident memory of a fresh process that has imported what loading a model needs."""
    try:
        return int(run([sys.executable, "-c", _BASE_PROGRAM]))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise RuntimeUnavailable(
            "A process cannot be started to measure its memory.", f"{str(error)[:300]}.", "Check the installation."
        ) from error


BUFFER_BYTES: Final = 256 << 20
"""Many times larger than a core's private caches, and small for a machine that runs models."""
SECONDS: Final = 3.0
REPEATS: Final = 5
LEAST_ROUNDS: Final = 3
STEADY: Final = 0.25
"""Spread of repeats up to which a measurement counts as undisturbed."""


LEAST_SHARE: Final = 0.5
"""Of the threads' time: 0.6 to 0.85 where nothing else computes, as they wait for each other; 0.2 on a busy machine."""


@dataclass(frozen=True)
class Bandwidth:
    """Measured memory bandwidth.

    Attributes:
        bytes_per_second: bandwidth of all threads together, from the best repeat, because other programs only lower it.
        spread: difference of the best and the worst repeat, as a share of the best.
        share: of the threads' time, how much they had a CPU.
    """

    bytes_per_second: float
    spread: float
    share: float

    @property
    def is_disturbed(self) -> bool:
        """Whether other programs have made it a low one."""
        return self.spread > STEADY or self.share < LEAST_SHARE


def measure_bandwidth(
    threads: int,
    *,
    buffer_bytes: int = BUFFER_BYTES,
    seconds: float = SECONDS,
    repeats: int = REPEATS,
    clock: Callable[[], float] = time.perf_counter,
) -> Bandwidth:
    """Measure how fast all threads together read one buffer, over many rounds.

    The speed of a repeat is the upper quartile of the speeds of its rounds.
    """
    part = max(buffer_bytes // 8 // threads, 1)
    # Ones, because untouched pages of zeros all map to the same physical page.
    buffer = np.ones(part * threads, np.int64)
    parts = [buffer[thread * part : (thread + 1) * part] for thread in range(threads)]
    found: list[float] = []
    began, computed = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(repeats):
            rates: list[float] = []
            begun = clock()
            while len(rates) < LEAST_ROUNDS or clock() - begun < seconds / repeats:
                started = clock()
                # Of numpy's loops that only read, this one is limited by memory alone.
                list(pool.map(np.maximum.reduce, parts))
                rates.append(buffer.nbytes / max(clock() - started, 1e-9))
            found.append(statistics.quantiles(rates, n=4)[2])
    share = (time.process_time() - computed) / threads / max(time.perf_counter() - began, 1e-9)
    return Bandwidth(max(found), 1 - min(found) / max(found), share)
