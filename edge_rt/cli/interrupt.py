"""Signals, and work in a background thread that signals can stop."""

from __future__ import annotations

import _thread
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from types import FrameType
from typing import Final, Generic, Protocol, TypeVar

from edge_rt.errors import Cancelled
from edge_rt.runtime.forward.cancel import CancelToken

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
R = TypeVar("R")

POLL_SECONDS: Final = 0.1
IMPORT_POLL_SECONDS: Final = 0.01
"""How often a signal is sent again until an import has ended."""
MOST_IMPORT_SECONDS: Final = 5.0
WORKER_NAME: Final = "edge-rt work"


_NAMES: Final = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")


def stop_signals(of: object = signal) -> dict[str, int]:
    """Return the signals of a system that ask a process to stop, by name.

    These are Ctrl-C on every system; SIGTERM and a lost terminal on all systems but Windows; and Ctrl-Break on Windows,
    the only one that one process can send to another there.
    """
    return {name: int(getattr(of, name)) for name in _NAMES if hasattr(of, name)}


def exit_code_of(signum: int, of: object = signal) -> int:
    """Return the exit code of a process stopped by a signal: 128 plus its number; Ctrl-Break counts as SIGTERM."""
    signals = stop_signals(of)
    return 128 + (signals["SIGTERM"] if signum == signals.get("SIGBREAK") else signum)


class SignalReceived(SystemExit):
    """A signal asks to stop; raised in the main thread, so that ``with`` blocks clean up on the way out.

    A ``SystemExit``, because event loops swallow other exceptions.

    Attributes:
        exit_code: what shells expect: 130 for Ctrl-C, 143 for SIGTERM.
    """

    def __init__(self, signum: int) -> None:
        self.signum = signum
        self.exit_code = exit_code_of(signum)
        super().__init__(self.exit_code)


class _Raiser:
    """The handler that raises ``SignalReceived``; during an import it waits for the import's end, but not for ever.

    An import would lose the exception: modules in C make an ImportError of it, callbacks drop it.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        self._waiting: int | None = None
        self._has_thread = False
        # Of what is sent again and of the block's end, never of the handler, which may interrupt its holder.
        self._lock = threading.Lock()

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if _is_importing(frame) and now - self._since < MOST_IMPORT_SECONDS:
            self._waiting = signum
            if not self._has_thread:
                self._has_thread = True
                # Not a Timer: starting one takes locks that the interrupted code may hold.
                _thread.start_new_thread(self._send_again, (signum,))
            return
        self._since = self._waiting = None
        raise SignalReceived(signum)

    def raise_waiting(self) -> None:
        """Raise for a signal that still waits; it is not sent again then."""
        with self._lock:
            waiting, self._waiting = self._waiting, None
        if waiting is not None:
            raise SignalReceived(waiting)

    def _send_again(self, signum: int) -> None:
        time.sleep(IMPORT_POLL_SECONDS)
        with self._lock:
            self._has_thread = False
            # It waits until it is raised: were it forgotten here, a block that ends now would end without it.
            if self._waiting is None:
                return
            if sys.platform == "win32":
                signal.raise_signal(signum)
            else:
                # To the main thread itself, which may be in a system call that only this ends.
                signal.pthread_kill(threading.main_thread().ident or 0, signum)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


@contextmanager
def signals_as_exceptions() -> Generator[None]:
    """Raise ``SignalReceived`` in the main thread for Ctrl-C, SIGTERM, a lost terminal and Ctrl-Break."""
    previous, handler = {}, _Raiser()
    for signum in stop_signals().values():
        # Signals that the parent process ignored (nohup) stay ignored.
        if signal.getsignal(signum) is not signal.SIG_IGN:
            previous[signum] = signal.signal(signum, handler)
    try:
        yield
        handler.raise_waiting()
    finally:
        for signum, before in previous.items():
            signal.signal(signum, before)


@contextmanager
def signals_held(
    leave: Callable[[SignalReceived], None], again: Callable[[SignalReceived], None] | None = None
) -> Generator[None]:
    """Do not raise in this block for signals that ``signals_as_exceptions`` makes exceptions, but at its end.

    For event loops: an exception from the middle of one loses the step that it was about to take, and the loop, asked
    to end, waits for that step for ever.

    Args:
        leave: called in the main thread for the first signal; makes the block end soon.
        again: called for the second one; makes it end sooner.

    Raises:
        SignalReceived: a signal came. A second one is raised at once, or a third one with ``again``.
    """
    held: list[SignalReceived] = []

    def hold(signum: int, _: FrameType | None) -> None:
        stop = SignalReceived(signum)
        call = (leave, again)[len(held)] if len(held) < 2 else None
        if call is None:
            raise stop
        held.append(stop)
        call(stop)

    handlers = {signum: signal.getsignal(signum) for signum in stop_signals().values()}
    before = {signum: handler for signum, handler in handlers.items() if isinstance(handler, _Raiser)}
    for signum in before:
        signal.signal(signum, hold)
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
        if held:
            raise held[0]


@contextmanager
def cancel_on_interrupt(token: CancelToken) -> Generator[None]:
    """Let the first Ctrl-C cancel the token, and a second one raise."""
    before = signal.getsignal(signal.SIGINT)
    second = before if callable(before) else _Raiser()

    def cancel(signum: int, frame: FrameType | None) -> None:
        if token.cancelled:
            second(signum, frame)
        token.cancel()

    previous = signal.signal(signal.SIGINT, cancel)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def interrupt_as_cancelled() -> Generator[None]:
    """Make Ctrl-C an error like others, one that does not end the program."""
    try:
        yield
    except SignalReceived as stop:
        if stop.signum != signal.SIGINT:
            raise
        raise Cancelled("Stopped on request.", f"Signal {stop.signum}.") from stop


class Closable(Protocol[T_co]):
    """An iterable that can be read once, and closed early."""

    def __iter__(self) -> Iterator[T_co]:
        """Start reading."""

    def close(self) -> None:
        """Stop producing items, if not all were read."""


class Background(Generic[T]):
    """Items produced in a background thread and read in the main thread, which can handle signals meanwhile.

    A call of ONNX Runtime may take seconds, during which Python runs no signal handler in the calling thread.

    Args:
        make: starts the work and returns its items, for example a generator; called in the background thread.
        tend: called in the main thread before every item, and every ``POLL_SECONDS`` while waiting for one.
    """

    def __init__(self, make: Callable[[], Closable[T]], tend: Callable[[], None] | None = None) -> None:
        self._make = make
        self._tend = tend
        self._items: queue.SimpleQueue[tuple[T] | Callable[[], None] | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._is_read = False
        # A daemon thread, so that a second Ctrl-C does not have to wait for it.
        threading.Thread(target=self._run, name=WORKER_NAME, daemon=True).start()

    def _run(self) -> None:
        try:
            with closing(self._make()) as items:
                for item in items:
                    self._items.put((item,))
        except BaseException as error:  # every error is raised in the main thread
            self._error = error
        finally:
            self._items.put(None)

    def call(self, function: Callable[[], None]) -> None:
        """Let the reading thread call a function before the next item; called by the producing thread."""
        self._items.put(function)

    def __iter__(self) -> Iterator[T]:
        """Yield the items as they come; raise the error of the work, if there is one."""
        while not self._is_read:
            if self._tend is not None:
                self._tend()
            try:
                item = self._items.get(timeout=POLL_SECONDS)
            except queue.Empty:
                continue
            if item is None:
                self._is_read = True
            elif isinstance(item, tuple):
                self.before_item()
                yield item[0]
            else:
                item()
        if self._error is not None:
            raise self._error

    def before_item(self) -> None:
        """Run in the reading thread before it gets an item; a subclass may override this, it does nothing here."""


def each_in_background(make: Callable[[CancelToken], Closable[T]]) -> Generator[T]:
    """Yield what is produced in a background thread, whose token is cancelled when no more of it is read."""
    token = CancelToken()
    try:
        yield from Background(lambda: make(token))
    finally:
        token.cancel()


def run_in_background(work: Callable[[], R]) -> R:
    """Run the work in a background thread and wait for it; a signal ends the waiting at once."""

    def results() -> Generator[R]:
        yield work()

    [result] = Background(results)
    return result


def has_unfinished_work() -> bool:
    """Return whether a thread of ``Background`` still runs: the process must then exit without waiting for it."""
    return any(thread.name == WORKER_NAME for thread in threading.enumerate())


def wait_for_unfinished_work() -> None:
    """Wait until no thread of ``Background`` runs any more; a signal ends the waiting."""
    while has_unfinished_work():
        time.sleep(POLL_SECONDS)
