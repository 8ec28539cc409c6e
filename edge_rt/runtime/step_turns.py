"""Who computes the next step: one thread at a time, while others wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

from edge_rt.errors import Busy
from edge_rt.system.side_thread import SideThread


class StepTurns:
    """Lets one thread at a time compute a step, or passes of its own.

    A turn that an interrupt ends is given back, also where a second one comes meanwhile.

    Attributes:
        lock: guards what those who wait look at.
    """

    def __init__(self) -> None:
        # Entered itself, not through the condition: no interrupt comes between taking it and the block.
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        # The thread whose turn it is; 0: nobody's.
        self._owner = 0

    def take_or_leave(self, step: Callable[[], None]) -> bool:
        """Compute a step, unless it is somebody's turn; return whether it was nobody's."""
        me, is_mine = threading.get_ident(), False
        try:
            with self.lock:
                if self._owner:
                    return False
                self._owner = me
                is_mine = True
            step()
        finally:
            # Twice in this file: an interrupt may come where a function that is called for it begins.
            if is_mine:
                try:
                    self._give_back(me)
                except KeyboardInterrupt:
                    self._give_back(me)
                    raise
        return True

    @contextmanager
    def take(self) -> Generator[None]:
        """Keep others from computing steps while a block runs; waits for the one under way."""
        me, is_mine = threading.get_ident(), False
        try:
            with self.lock:
                while self._owner:
                    self._wait()
                self._owner = me
                is_mine = True
            yield
        finally:
            if is_mine:
                try:
                    self._give_back(me)
                except KeyboardInterrupt:
                    self._give_back(me)
                    raise

    def wait(self, is_reached: Callable[[], bool], is_held: Callable[[], bool]) -> bool:
        """Wait until nobody computes, or something is so; return whether it is.

        Args:
            is_held: whether somebody's passes are to come before the next step.
        """
        with self.lock:
            while not (is_done := is_reached()) and (self._owner or is_held()):
                self._wait()
        return is_done

    def tell(self) -> None:
        """Let those who wait look again."""
        with self.lock:
            self._changed.notify_all()

    @property
    def is_inside(self) -> bool:
        """Whether a step, or passes of nobody's, have called what asks, or wait for it."""
        owner = self._owner
        is_own = owner == threading.get_ident() or isinstance(threading.current_thread(), SideThread)
        return bool(owner) and is_own

    def _wait(self) -> None:
        """Wait for the step under way, or for passes of nobody's."""
        if self.is_inside:
            raise Busy("The model is computing.", "It was called by what a step has called.", "Call it afterwards.")
        self._changed.wait()

    def _give_back(self, owner: int) -> None:
        with self.lock:
            # It may be somebody else's turn already, if this is called again.
            if self._owner == owner:
                self._owner = 0
            self._changed.notify_all()
