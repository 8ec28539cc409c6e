from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import psutil
import pytest

from edge_rt.machine import available_memory_bytes, peak_rss_bytes, usable_cpus


def test_usable_cpus_are_at_most_those_of_the_process():
    assert 1 <= usable_cpus() <= len(os.sched_getaffinity(0))


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs affinity")
def test_affinity_counts():
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert usable_cpus() == 1
    finally:
        os.sched_setaffinity(0, before)


def test_the_peak_does_not_fall():
    before = peak_rss_bytes()
    np.ones(1 << 22, np.uint8)
    assert peak_rss_bytes() >= before > 1 << 20
    assert peak_rss_bytes() >= psutil.Process().memory_info().rss - (1 << 20)


def test_the_peak_is_not_that_of_the_parent():
    ballast = np.ones(200 << 20, np.uint8)
    program = "from edge_rt.machine import peak_rss_bytes; print(peak_rss_bytes())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) < ballast.nbytes


def test_available_memory_is_less_than_there_is():
    assert 0 < available_memory_bytes() <= psutil.virtual_memory().total
