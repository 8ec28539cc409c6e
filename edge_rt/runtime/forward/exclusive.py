"""A runner that one generation at a time may use."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager

from edge_rt.errors import Busy, InferenceError, ModelClosed
from edge_rt.ort.binding import StopSwitch
from edge_rt.runtime.forward.cancel import CancelToken
from edge_rt.runtime.forward.runner import Runner


class ExclusiveRunner:
    """Gives a runner to one user at a time, in the process that opened it, until it is closed."""

    def __init__(self) -> None:
        self.switch = StopSwitch()
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._runner: Runner | None = None

    def open(self, runner: Runner) -> None:
        """Take a runner, whose passes ``switch`` stops."""
        self._runner = runner

    @property
    def is_open(self) -> bool:
        """Whether there is a runner."""
        return self._runner is not None

    def get(self) -> Runner:
        """Return the runner, whoever uses it."""
        if self._runner is None:
            raise closed()
        if os.getpid() != self._pid:
            raise InferenceError(
                "The model cannot be used in a forked process.",
                f"It was loaded by process {self._pid}, this is {os.getpid()}.",
                "Load it after the fork, or start processes with 'spawn'.",
            )
        return self._runner

    def check_free(self) -> None:
        """Raise what ``hold`` would raise now."""
        self.get()
        if self._lock.locked():
            raise _busy()

    @contextmanager
    def hold(self, cancel: CancelToken, outer: CancelToken | None = None) -> Generator[Runner]:
        """Use the runner alone while a block runs.

        Args:
            outer: cancels ``cancel``; the caller's token, which is not cancelled here.
        """
        self.get()
        if not self._lock.acquire(blocking=False):
            raise _busy()
        unsubscribe = []
        try:
            runner = self.get()
            self.switch.reset()
            unsubscribe.append(cancel.on_cancel(self.switch.stop))
            if outer is not None:
                unsubscribe.append(outer.on_cancel(cancel.cancel))
            yield runner
        finally:
            for stop_listening in unsubscribe:
                stop_listening()
            self._lock.release()

    def close(self) -> bool:
        """Stop the pass under way and free the runner; return whether there was one."""
        runner, self._runner = self._runner, None
        if runner is None:
            return False
        self.switch.stop()
        runner.close()
        return True


def _busy() -> Busy:
    return Busy(
        "The model is generating already.", "One generation at a time per model.", "Wait for it, or close its stream."
    )


def closed() -> ModelClosed:
    """Return the error of a model that was closed."""
    return ModelClosed("The model is closed.", "", "Load it again.")
