"""Memory bandwidth of this machine, which limits the speed of plain decoding of a large model."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np

BUFFER_BYTES: Final = 256 << 20
"""Many times larger than a core's private caches, and small for a machine that runs models."""
SECONDS: Final = 3.0
REPEATS: Final = 5
LEAST_ROUNDS: Final = 3
STEADY: Final = 0.25
"""Spread of repeats up to which a measurement counts as undisturbed."""


@dataclass(frozen=True)
class Bandwidth:
    """Measured memory bandwidth.

    Attributes:
        bytes_per_second: bandwidth of all threads together, from the best repeat, because other programs only lower it.
        spread: difference of the best and the worst repeat, as a share of the best.
    """

    bytes_per_second: float
    spread: float


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

    Args:
        threads: reading threads, each with a separate part of the buffer.
        buffer_bytes: size of the buffer; rounded down to whole parts.
        seconds: total duration of the measurement.
        repeats: number of repeats that share the time.
        clock: returns the time in seconds.
    """
    part = max(buffer_bytes // 8 // threads, 1)
    # Ones, because untouched pages of zeros all map to the same physical page.
    buffer = np.ones(part * threads, np.int64)
    parts = [buffer[thread * part : (thread + 1) * part] for thread in range(threads)]
    found: list[float] = []
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
    return Bandwidth(max(found), 1 - min(found) / max(found))
