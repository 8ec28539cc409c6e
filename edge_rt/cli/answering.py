"""One answer: generated in a background thread, printed by the main thread, stopped by Ctrl-C; why it ended."""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from edge_rt.cli.interrupt import Background, cancel_on_interrupt
from edge_rt.cli.render.console import Terminal, number
from edge_rt.errors import ConfigError, StorageError
from edge_rt.runtime.forward.cancel import CancelToken
from edge_rt.runtime.results import Event
from edge_rt.system.byte_size import counted

if TYPE_CHECKING:
    from edge_rt.runtime.model import Model
    from edge_rt.runtime.results import Result
    from edge_rt.runtime.speculation.adaptive import Trace
    from edge_rt.runtime.stream import Stream

PATIENCE_SECONDS: Final = 0.7
"""Seconds of prefill after which its progress is shown."""

MakeStream = Callable[[CancelToken, Callable[[int, int], None]], "Stream"]


@contextmanager
def answering(
    make_stream: MakeStream, terminal: Terminal, tend: Callable[[], None] | None = None
) -> Generator[Answering]:
    """Generate an answer; Ctrl-C stops it and keeps the text so far, a second Ctrl-C raises ``SignalReceived``.

    ::

        with answering(make_stream, terminal) as answer:
            for event in answer:
                terminal.answer(event.text)
        print(answer.result().usage)

    Args:
        tend: called in this thread between pieces of the answer, and while waiting for one.
    """
    token = CancelToken()
    with cancel_on_interrupt(token):
        answer = Answering(make_stream, token, terminal, tend)
        try:
            yield answer
        except BaseException:
            answer.hide_progress()
            # The next message starts on a new line, after the incomplete answer.
            terminal.fresh_line()
            raise
        finally:
            answer.hide_progress()
            token.cancel()


class Answering(Background[Event]):
    """Events of an answer, read in the main thread; until the first event a line shows the progress of prefill."""

    def __init__(
        self, make_stream: MakeStream, token: CancelToken, terminal: Terminal, tend: Callable[[], None] | None = None
    ) -> None:
        self._terminal = terminal
        self._since = time.monotonic()
        self._is_shown = False
        self._make_stream = make_stream
        self._token = token
        self._stream: Stream | None = None
        super().__init__(self._begin, tend)

    def result(self) -> Result:
        """Return the result; valid after all events were read."""
        assert self._stream is not None
        return self._stream.result()

    def _begin(self) -> Stream:
        self._stream = self._make_stream(self._token, self._on_prefill)
        return self._stream

    def _on_prefill(self, done: int, total: int) -> None:
        self.call(functools.partial(self._show, done, total))

    def _show(self, done: int, total: int) -> None:
        if time.monotonic() - self._since > PATIENCE_SECONDS and done < total:
            self._terminal.control(f"\r\x1b[Kreading the prompt: {number(done)} of {number(total)} tokens")
            self._is_shown = True

    def hide_progress(self) -> None:
        """Erase the progress line, if there is one."""
        if self._is_shown:
            self._terminal.control("\r\x1b[K")
            self._is_shown = False

    before_item = hide_progress


def tell_end(terminal: Terminal, model: Model, result: Result, *, in_chat: bool = False) -> None:
    """Say why an answer ended that its model did not end, and what can be done; a limit of tokens only in a chat."""
    reason = result.finish_reason
    if reason == "repetition":
        how = "/regen generates a new one, /set repetition_guard off" if in_chat else "--no-repetition-guard"
        terminal.warn(
            f"the answer repeated itself or counted without end, and was stopped; {how} turns this check off."
        )
    elif reason == "context_full":
        used, room = number(result.usage.total_tokens), number(model.context_tokens)
        ways = ways_out(model) if in_chat else _more_context(model, "--ctx N allows") or "give a shorter prompt"
        terminal.warn(f"the context is full ({used} of {room} tokens) and the answer is cut; {ways}.")
    elif in_chat and reason == "cancelled":
        kept, lost = (
            "interrupted; /regen generates a new answer",
            "stopped before the first token: the message is not kept",
        )
        terminal.note(f"[{kept if result.token_ids else lost}]", "dim")
    elif in_chat and reason == "length":
        most = len(result.token_ids)
        terminal.note(f"[stopped after {counted(most, 'token', number(most))}, see /set max_tokens]", "dim")


def ways_out(model: Model, attached: str = "") -> str:
    """Return what can be done in a chat whose context is full; ``attached`` are the names of attached texts."""
    undo = f"forgets the text of {attached}" if attached else "drops the last exchange"
    more = _more_context(model, "or /ctx N for")
    return f"/clear starts over, /undo {undo}{', ' if more else ''}{more}"


def _more_context(model: Model, how: str) -> str:
    trained = model.package.manifest.model.context_length
    return f"{how} more (up to {trained})" if model.context_tokens < trained else ""


class TraceFile:
    """Writes decisions as JSON lines, each one at once; a full disk does not end an answer."""

    def __init__(self, stream: TextIO) -> None:
        self._stream: TextIO | None = stream
        # After a second Ctrl-C the command exits while its background thread still computes.
        self._lock = threading.Lock()
        self.error: OSError | None = None

    def write(self, decision: dict[str, Any]) -> None:
        """Write one decision; does nothing after the file was closed or could not be written."""
        with self._lock:
            if self._stream is None or self.error is not None:
                return
            try:
                self._stream.write(json.dumps(decision, allow_nan=False) + "\n")
                self._stream.flush()
            except OSError as error:
                self.error = error

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        with self._lock:
            stream, self._stream = self._stream, None
            if stream is None:
                return
            try:
                stream.close()
            except OSError as error:
                self.error = self.error or error


@contextmanager
def open_trace(path: Path | None, terminal: Terminal) -> Generator[Trace | None]:
    """Open the file of ``--spec-trace`` for the block, and close it afterwards; yields None without a path.

    A trace of an earlier run is replaced.
    """
    if path is None:
        yield None
        return
    path = path.expanduser()
    try:
        if path.is_file() and not _is_trace(path):
            raise ConfigError(f"{path} exists and is not a trace.", "It would be lost.", "Choose another file.")
        trace = TraceFile(path.open("w", encoding="utf-8"))
    except OSError as error:
        raise StorageError(f"{path} cannot be written.", f"{error.strerror}.", "Check the path.") from error
    try:
        yield trace.write
    finally:
        trace.close()
        if trace.error is not None:
            terminal.warn(f"the trace is not complete: {path}: {trace.error.strerror}")


def _is_trace(path: Path) -> bool:
    """Return whether a file is empty, or starts with a decision."""
    with path.open("rb") as stream:
        line = stream.readline(1 << 16)
    try:
        return not line or "position" in dict(json.loads(line))
    except (ValueError, TypeError, RecursionError):
        return False
