"""Which signals are heard on a system, and what a process that they stop returns."""

from __future__ import annotations

import signal
from types import SimpleNamespace

import pytest

from edge_rt.cli.interrupt import SignalReceived, exit_code_of, stop_signals

LINUX = SimpleNamespace(SIGINT=2, SIGTERM=15, SIGHUP=1)
WINDOWS = SimpleNamespace(SIGINT=2, SIGTERM=15, SIGBREAK=21)


@pytest.mark.parametrize(
    ("system", "codes"),
    [
        (LINUX, {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}),
        (WINDOWS, {"SIGINT": 130, "SIGTERM": 143, "SIGBREAK": 143}),
    ],
    ids=["linux", "windows"],
)
def test_signals_and_exit_codes(system, codes):
    assert {name: exit_code_of(signum, system) for name, signum in stop_signals(system).items()} == codes


def test_a_number_means_another_signal_elsewhere():
    assert exit_code_of(21, LINUX) == 149


def test_what_is_raised_has_the_code():
    stop = SignalReceived(signal.SIGINT)
    assert (stop.signum, stop.exit_code, stop.code) == (2, 130, 130)
