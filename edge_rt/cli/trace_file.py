"""The file of ``--spec-trace``: the decision of every decoding step as JSON lines."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from edge_rt.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from edge_rt.cli.render.console import Terminal
    from edge_rt.runtime.speculation.adaptive import Trace


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

    Raises:
        ConfigError: the file exists and holds something else.
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
