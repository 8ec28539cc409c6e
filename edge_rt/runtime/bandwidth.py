"""How fast this machine reads memory: the speed that plain decoding of a large model comes down to."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np

BUFFER_BYTES: Final = 256 << 20
"""More than the last-level caches of the machines that models run on."""
SECONDS: Final = 3.0
LEAST_ROUNDS: Final = 3


def measure_bandwidth(
    threads: int,
    *,
    buffer_bytes: int = BUFFER_BYTES,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return bytes per second that all threads read together, over many rounds through one buffer.

    It is what three rounds of four stay below: other programs only slow a round down.

    Args:
        threads: that read, each its own part.
        buffer_bytes: of the buffer; rounded down to whole parts.
        seconds: to measure for.
        clock: seconds.
    """
    part = max(buffer_bytes // 8 // threads, 1)
    # Ones, because pages of zeros that nobody wrote are all the same page.
    buffer = np.ones(part * threads, np.int64)
    parts = [buffer[thread * part : (thread + 1) * part] for thread in range(threads)]
    rates: list[float] = []
    with ThreadPoolExecutor(threads) as pool:
        begun = clock()
        while len(rates) < LEAST_ROUNDS or clock() - begun < seconds:
            started = clock()
            # Of numpy's loops that write nothing this one waits for memory alone.
            list(pool.map(np.maximum.reduce, parts))
            rates.append(buffer.nbytes / max(clock() - started, 1e-9))
    return statistics.quantiles(rates, n=4)[2]
