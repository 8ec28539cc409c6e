"""Threads that compute beside another one, which ends them and waits for them."""

from __future__ import annotations

import threading
from collections.abc import Callable


class SideThread(threading.Thread):
    """Computes something once for a thread that waits for it, which may be in the middle of a step.

    What happens to be called here must not wait for that step, such as the end of a stream that is collected as
    garbage; ``Batch`` knows these threads.

    Attributes:
        is_ended: whether the body is to return before long.
        error: what the body has raised; None: nothing.
    """

    def __init__(self, body: Callable[[], None], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._body = body
        self.is_ended = False
        self.error: BaseException | None = None
        self._runs = threading.Lock()

    def begin(self) -> bool:
        """Start; return False where the system gives no thread."""
        try:
            self.start()
        except RuntimeError:
            return False
        return True

    def run(self) -> None:
        """Call the body, unless it has been ended before: an interrupt may come while a thread is started."""
        with self._runs:
            if not self.is_ended:
                try:
                    self._body()
                except BaseException as error:
                    self.error = error

    def end(self) -> None:
        """Tell the body to return, and wait for it; it is not called any more."""
        self.is_ended = True
        # An interrupt of ``join`` lets CPython 3.11 take a thread for ended that still runs.
        with self._runs:
            pass
        if self.is_alive():
            self.join()
