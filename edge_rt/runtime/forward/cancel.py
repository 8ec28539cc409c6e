"""Cancelling a generation from another thread or a signal handler."""

from __future__ import annotations

from collections.abc import Callable


class CancelToken:
    """Cancels generations. It may be cancelled from any thread and from a signal handler, and stays cancelled."""

    def __init__(self) -> None:
        # A plain flag: a signal handler must not wait for a lock that it interrupted.
        self._cancelled = False
        self._callbacks: list[Callable[[], None]] = []

    @property
    def cancelled(self) -> bool:
        """True once ``cancel`` was called."""
        return self._cancelled

    def cancel(self) -> None:
        """Cancel: decoding stops within one token, prefill within one graph node."""
        self._cancelled = True
        for callback in tuple(self._callbacks):
            callback()

    def on_cancel(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` on cancel, at once if already cancelled; return a function that unsubscribes it."""
        self._callbacks.append(callback)
        if self.cancelled:
            callback()
        return lambda: self._callbacks.remove(callback)
