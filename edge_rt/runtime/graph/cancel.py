"""Stopping a generation from elsewhere."""

from __future__ import annotations

from collections.abc import Callable


class CancelToken:
    """A switch that may be thrown from any thread and from a signal handler; once thrown it stays so."""

    def __init__(self) -> None:
        # A plain flag: a signal handler must not wait for a lock that it interrupted.
        self._cancelled = False
        self._callbacks: list[Callable[[], None]] = []

    @property
    def cancelled(self) -> bool:
        """True once ``cancel`` was called."""
        return self._cancelled

    def cancel(self) -> None:
        """Stop what runs under this token: within one token while decoding, within one graph node while prefilling."""
        self._cancelled = True
        for callback in tuple(self._callbacks):
            callback()

    def on_cancel(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` when the token is thrown, at once if it was; return a function that unsubscribes."""
        self._callbacks.append(callback)
        if self.cancelled:
            callback()
        return lambda: self._callbacks.remove(callback)
