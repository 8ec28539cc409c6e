from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest

from edge_rt.errors import RuntimeUnavailable
from edge_rt.measure.machine import Bandwidth, base_bytes, measure_bandwidth, measure_device
from edge_rt.memory.device import LIBRARIES_BYTES, with_base
from tests.memory.shapes import DEVICE


def failing(command):
    raise subprocess.CalledProcessError(1, command)


def test_a_profile_is_what_was_measured():
    profile = measure_device("mine", bandwidth=lambda threads: 1e9 * threads, run=lambda command: "77000000\n")
    assert (profile.name, profile.is_measured, profile.base_bytes) == ("mine", True, 77000000)
    assert profile.bandwidth == 1e9 * profile.threads
    assert profile.problem() is None


def test_a_process_that_cannot_be_started_is_told():
    with pytest.raises(RuntimeUnavailable):
        base_bytes(failing)


def test_bandwidth_is_bytes_over_seconds():
    ticks = iter(range(10_000))
    measured = measure_bandwidth(2, buffer_bytes=1 << 16, seconds=20.0, clock=lambda: float(next(ticks)))
    assert (measured.bytes_per_second, measured.spread) == (1 << 16, 0.0)


def test_the_best_repeat_counts_and_the_worst_tells_how_quiet_it_was():
    now, calls = 0.0, 0

    def clock():
        nonlocal now, calls
        calls += 1
        # The first repeat is disturbed: all of it takes twice the time.
        now += 2.0 if calls <= 10 else 1.0
        return now

    measured = measure_bandwidth(1, buffer_bytes=1 << 16, seconds=0.0, repeats=3, clock=clock)
    assert measured.bytes_per_second == 1 << 16
    assert measured.spread == pytest.approx(0.5)


def test_a_measurement_is_disturbed_where_repeats_differ_or_threads_had_no_cpu():
    assert not Bandwidth(60e9, spread=0.1, share=0.7).is_disturbed
    assert Bandwidth(60e9, spread=0.4, share=0.7).is_disturbed
    assert Bandwidth(10e9, spread=0.1, share=0.2).is_disturbed


def test_a_saved_base_makes_no_plan_smaller():
    unprofiled = with_base(DEVICE, 30 << 20).base_bytes
    assert unprofiled == (30 << 20) + LIBRARIES_BYTES
    assert with_base(replace(DEVICE, base_bytes=40 << 20), 30 << 20).base_bytes == unprofiled
    assert with_base(replace(DEVICE, base_bytes=200 << 20), 30 << 20).base_bytes == 200 << 20
