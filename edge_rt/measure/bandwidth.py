"""How fast this machine reads memory: the speed that plain decoding of a large model comes down to."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np

BUFFER_BYTES: Final = 256 << 20
"""Many times what a core's own caches hold, and not much for a machine that runs models."""
SECONDS: Final = 3.0
REPEATS: Final = 5
LEAST_ROUNDS: Final = 3
STEADY: Final = 0.25
"""Spread of repeats up to which a measurement is taken as undisturbed."""


@dataclass(frozen=True)
class Bandwidth:
    """How fast memory was read.

    Attributes:
        bytes_per_second: by all threads together, in the best of several repeats: other programs only take of it.
        spread: what the worst repeat has less, as a share of the best.
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
    """Return how fast all threads together read, over many rounds through one buffer.

    A repeat's speed is what three of four of its rounds stay below.

    Args:
        threads: that read, each its own part.
        buffer_bytes: of the buffer; rounded down to whole parts.
        seconds: to measure for, in all.
        repeats: that share the time.
        clock: seconds.
    """
    part = max(buffer_bytes // 8 // threads, 1)
    # Ones, because pages of zeros that nobody wrote are all the same page.
    buffer = np.ones(part * threads, np.int64)
    parts = [buffer[thread * part : (thread + 1) * part] for thread in range(threads)]
    found: list[float] = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(repeats):
            rates: list[float] = []
            begun = clock()
            while len(rates) < LEAST_ROUNDS or clock() - begun < seconds / repeats:
                started = clock()
                # Of numpy's loops that write nothing this one waits for memory alone.
                list(pool.map(np.maximum.reduce, parts))
                rates.append(buffer.nbytes / max(clock() - started, 1e-9))
            found.append(statistics.quantiles(rates, n=4)[2])
    return Bandwidth(max(found), 1 - min(found) / max(found))
