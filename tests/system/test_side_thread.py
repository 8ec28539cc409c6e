"""Threads that are waited for: none begins behind its end."""

from __future__ import annotations

import os
import signal
import sys
import threading

import pytest

from edge_rt.system.side_thread import SideThread


def test_it_is_waited_for():
    go, seen = threading.Event(), []
    thread = SideThread(lambda: (go.wait(60), seen.append(thread.is_ended)), "test")
    assert thread.begin()
    threading.Timer(0.02, go.set).start()
    thread.end()
    assert seen == [True]
    thread.end()


def test_what_was_ended_before_it_began_computes_nothing():
    """As where an interrupt comes while the thread is started, and the system runs it afterwards."""
    seen = []
    thread = SideThread(lambda: seen.append(1), "test")
    thread.end()
    assert thread.begin()
    thread.join()
    assert seen == []
    assert not thread.begin()


@pytest.mark.skipif(sys.platform == "win32", reason="no signal wakes a thread that waits there")
def test_an_interrupt_of_waiting_leaves_it_one_that_runs():
    go, seen = threading.Event(), []
    thread = SideThread(lambda: (go.wait(60), seen.append(1)), "test")

    def interrupt(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        assert thread.begin()
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with pytest.raises(KeyboardInterrupt):
            thread.end()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == []
    threading.Timer(0.05, go.set).start()
    thread.end()
    assert seen == [1]


def test_what_the_body_raises_is_kept():
    error = AssertionError("mine")

    def fails():
        raise error

    thread = SideThread(fails, "test")
    assert thread.begin()
    thread.end()
    assert thread.error is error
