"""Stopping a generation from elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable


class CancelToken:
    """A switch that may be thrown from any thread and from a signal handler; once thrown it stays so."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._callbacks: list[Callable[[], None]] = []

    @property
    def cancelled(self) -> bool:
        """True once ``cancel`` was called."""
        return self._event.is_set()

    def cancel(self) -> None:
        """Stop what runs under this token: within one token while decoding, within one graph node while prefilling."""
        self._event.set()
        for callback in tuple(self._callbacks):
            callback()

    def on_cancel(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` when the token is thrown, at once if it was; return a function that unsubscribes."""
        self._callbacks.append(callback)
        if self.cancelled:
            callback()
        return lambda: self._callbacks.remove(callback)
