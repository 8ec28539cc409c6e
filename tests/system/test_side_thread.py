"""Threads that are waited for: none begins behind its end."""

from __future__ import annotations

import threading

from edge_rt.system.side_thread import SideThread


def test_it_is_waited_for():
    go, seen = threading.Event(), []
    thread = SideThread(lambda: (go.wait(5), seen.append(thread.is_ended)), "test")
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
