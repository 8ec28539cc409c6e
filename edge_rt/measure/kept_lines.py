"""Work that is kept in a file part by part, so that a later run goes on where it was stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

from edge_rt.errors import ConfigError, InputError, StorageError
from edge_rt.system.byte_size import show_size
from edge_rt.system.files import O_BINARY, lock, storage_errors, write_all
from edge_rt.system.json_files import parse_object

T = TypeVar("T")

MAX_BYTES: Final = 256 << 20


class LineFile:
    """A file of JSON lines that grows by whole lines, each passed to the system and not buffered in this process.

    A last line without a newline was cut off when the process was killed. No other process can open it meanwhile.

    Attributes:
        cut: that line, once all lines were read; empty if there is none.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.expanduser()
        self.cut = b""
        self._end = 0
        with self._errors():
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | O_BINARY, 0o644)
        if not lock(self._descriptor):
            os.close(self._descriptor)
            raise StorageError(
                f"{self._path} is in use.", "Another process adds lines to it.", "Wait for it, or name another file."
            )

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return os.fstat(self._descriptor).st_size

    def lines(self) -> Generator[bytes]:
        """Yield the whole lines from the first on, without their newlines."""
        self.cut, self._end = b"", 0
        with self._errors():
            os.lseek(self._descriptor, 0, os.SEEK_SET)  # appending still writes at the end
            with open(self._descriptor, "rb", closefd=False) as stream:
                # A longer line is no line of JSON, and its pieces are none either.
                for line in iter(lambda: stream.readline(MAX_BYTES), b""):
                    if not line.endswith(b"\n") and len(line) < MAX_BYTES:
                        self.cut = line
                        return
                    self._end += len(line)
                    yield line.removesuffix(b"\n")

    def drop_cut(self) -> None:
        """Remove the line that was cut off, after all lines were read."""
        if self.cut:
            with self._errors():
                os.ftruncate(self._descriptor, self._end)

    def add(self, document: Mapping[str, Any]) -> None:
        """Write a line, or nothing if not all of it can be written."""
        with self._errors():
            begin = self.size
            try:
                write_all(self._descriptor, json.dumps(document).encode() + b"\n")
            except OSError:
                with suppress(OSError):
                    os.ftruncate(self._descriptor, begin)
                raise

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _errors(self) -> AbstractContextManager[None]:
        return storage_errors(self._path, "cannot be used")


class KeptLines(LineFile, Generic[T]):
    """A file of JSON lines: a header that describes some work, then one line for every part of it that is done.

    The part of a line that was cut off is done again.

    Args:
        header: what the parts depend on; a file with another one is refused.
        form: name of the format, and version of it.
        work: what it is, in a word.
        part: one part, in a word.
        read: makes a part of a JSON object; errors are KeyError, TypeError and ValueError.

    Attributes:
        parts: those in the file when it was opened.
    """

    def __init__(
        self,
        path: Path,
        header: Mapping[str, Any],
        *,
        form: tuple[str, int],
        work: str,
        part: str,
        read: Callable[[dict[str, Any]], T],
    ) -> None:
        self._form, self._work, self._part, self._read_part = form, work, part, read
        self.parts: list[T] = []
        super().__init__(path)
        try:
            self._take_up(json.loads(json.dumps({"format": form[0], "version": form[1], **header})))
        except BaseException:
            self.close()
            raise

    def _take_up(self, wanted: dict[str, Any]) -> None:
        if self.size > MAX_BYTES:
            raise self._not_a_state(f"It has {show_size(self.size)}, the limit is {show_size(MAX_BYTES)}.")
        lines = list(self.lines())
        if not lines and not json.dumps(wanted).encode().startswith(self.cut):
            raise self._not_a_state("Its first line does not end.")
        self.drop_cut()
        if not lines:
            self.add(wanted)
            return
        self._check_header(self._parsed(1, lines[0]), wanted)
        for number, line in enumerate(lines[1:], start=2):
            try:
                self.parts.append(self._read_part(self._parsed(number, line)))
            except (KeyError, TypeError, ValueError) as error:
                raise self._not_a_state(f"Line {number} is not {self._part}.") from error

    def _parsed(self, number: int, line: bytes) -> dict[str, Any]:
        return parse_object(line, lambda reason: self._not_a_state(f"Line {number} is not a JSON object: {reason}"))

    def _check_header(self, found: dict[str, Any], wanted: dict[str, Any]) -> None:
        if found.get("format") != self._form[0]:
            raise self._not_a_state("Its first line is not the header of one.")
        if changes := _changes(found, wanted):
            raise ConfigError(
                f"{self._path} belongs to another {self._work}.",
                f"{'; '.join(changes)}.",
                "Give the options it was started with, or name another file.",
            )

    def _not_a_state(self, reason: str) -> InputError:
        return InputError(f"{self._path} is not the state of a {self._work}.", reason, "Name another file.")


def _changes(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Return the differences between two headers, one text per value; each option is listed separately."""
    changes = []
    for name in sorted({*found, *wanted}):
        old, new = found.get(name), wanted.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            changes += _changes(old, new)
        elif old != new:
            changes.append(f"{name:.80} was {old!r:.80}, is now {new!r:.80}")
    return changes
