"""How soon a process does what it is told, on a machine that may be busy."""

from __future__ import annotations

import resource
import time

import psutil


class Told:
    """The moment at which a process was told something.

    Args:
        pid: a child.
    """

    def __init__(self, pid):
        self._process = psutil.Process(pid)
        self._at, self._ended = time.monotonic(), _seconds_of_ended_children()
        self._before = self._computed()

    def _computed(self):
        try:
            times = self._process.cpu_times()
        except psutil.NoSuchProcess:
            return _seconds_of_ended_children() - self._ended
        return times.user + times.system

    def must_be_done(self):
        """Fail if it has computed for more than a second, or if sixty have passed, in which others compute too."""
        computed, passed = self._computed() - self._before, time.monotonic() - self._at
        assert computed < 1, f"computed for {computed:.2f} s"
        assert passed < 60, f"took {passed:.2f} s"


def _seconds_of_ended_children():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
