"""Which signals are heard on a system, and what a process that they stop returns."""

from __future__ import annotations

import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from edge_rt.cli import interrupt
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


IMPORTS = """
import sys
sys.path.insert(0, sys.argv[1])
from edge_rt.cli.interrupt import signals_as_exceptions
with signals_as_exceptions():
    try:
        import swallows
        if sys.argv[2] == "goes on":
            sys.stdin.read()
    except ImportError:
        print("the import failed")
"""
SWALLOWS = """
import time
print("importing", flush=True)
try:
    time.sleep(0.5)
except BaseException as error:
    raise ImportError from error
# Its last line: the signal may be raised as soon as the import has ended.
print("imported", flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="a process cannot send these signals there")
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("then", ["goes on", "ends"])
def test_a_signal_during_an_import_waits_for_its_end(signum, then, tmp_path):
    """A module in C that is interrupted says that it could not be imported: ONNX Runtime seemed not installed."""
    (tmp_path / "swallows.py").write_text(SWALLOWS)
    command = [sys.executable, "-c", IMPORTS, str(tmp_path), then]
    # What is read from standard input never comes.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signum)
        assert process.stdout.readline() == "imported\n"
        assert process.wait() == 128 + signum


def test_an_import_that_hangs_can_be_interrupted(monkeypatch):
    monkeypatch.setattr(interrupt, "MOST_IMPORT_SECONDS", 0.0)
    frame = SimpleNamespace(f_code=SimpleNamespace(co_filename="<frozen importlib._bootstrap>"), f_back=None)
    with pytest.raises(SignalReceived):
        interrupt._Raiser()(signal.SIGINT, frame)
