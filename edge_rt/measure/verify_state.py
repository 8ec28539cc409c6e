"""The file in which ``edge-rt verify`` saves its answers, so that it can resume."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from edge_rt.byte_size import show_size
from edge_rt.errors import ConfigError, InputError, StorageError
from edge_rt.measure.verify import Answer
from edge_rt.system.atomic_files import O_BINARY, write_all

STATE_FORMAT: Final = "edge-rt verify"
STATE_VERSION: Final = 1
MAX_STATE_BYTES: Final = 256 << 20


class VerifyState:
    """A file of JSON lines: a header that describes the verification, then one line per answer.

    A last line without a newline was cut off when the process was killed. It is dropped, and its prompt is answered
    again.

    Args:
        path: the file; created if it does not exist.
        header: everything that answers depend on, as JSON values.

    Attributes:
        answers: the answers in the file when it was opened.

    Raises:
        ConfigError: the file belongs to another verification: another package, other prompts or other options.
        InputError: the file is not a verification state, or is damaged.
        StorageError: it cannot be read or written.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self._path = path.expanduser()
        self.answers: list[Answer] = []
        wanted = {"format": STATE_FORMAT, "version": STATE_VERSION, **header}
        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | O_BINARY, 0o644)
        except OSError as error:
            raise self._unusable(error) from error
        try:
            self._take_up(json.loads(json.dumps(wanted)))
        except OSError as error:
            os.close(self._descriptor)
            raise self._unusable(error) from error
        except BaseException:
            os.close(self._descriptor)
            raise

    def append(self, answer: Answer) -> None:
        """Write an answer; it is passed to the system, not buffered in this process.

        Raises:
            StorageError: it cannot be written.
        """
        try:
            self._write(answer.to_json())
        except OSError as error:
            raise self._unusable(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def _take_up(self, wanted: dict[str, Any]) -> None:
        size = os.fstat(self._descriptor).st_size
        if size > MAX_STATE_BYTES:
            raise self._not_a_state(f"It has {show_size(size)}, the limit is {show_size(MAX_STATE_BYTES)}.")
        data = self._read(size)
        whole, end, cut = data.rpartition(b"\n")
        if not end and not json.dumps(wanted).encode().startswith(cut):
            raise self._not_a_state("Its first line does not end.")
        if cut:
            os.ftruncate(self._descriptor, len(whole) + len(end))
        if not end:
            self._write(wanted)
            return
        header, *lines = whole.split(b"\n")
        self._check_header(self._parsed(1, header), wanted)
        for number, line in enumerate(lines, start=2):
            try:
                self.answers.append(Answer.from_json(self._parsed(number, line)))
            except (KeyError, TypeError, ValueError) as error:
                raise self._not_a_state(f"Line {number} is not an answer.") from error

    def _read(self, size: int) -> bytes:
        data = bytearray()
        os.lseek(self._descriptor, 0, os.SEEK_SET)  # appending still writes at the end
        while part := os.read(self._descriptor, size - len(data)):
            data += part
        return bytes(data)

    def _parsed(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            document = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self._not_a_state(f"Line {number} is not JSON.") from error
        if not isinstance(document, dict):
            raise self._not_a_state(f"Line {number} is not a JSON object.")
        return document

    def _check_header(self, found: dict[str, Any], wanted: dict[str, Any]) -> None:
        if found.get("format") != STATE_FORMAT:
            raise self._not_a_state("Its first line is not the header of one.")
        if changes := _changes(found, wanted):
            raise ConfigError(
                f"{self._path} belongs to another verification.",
                f"{'; '.join(changes)}.",
                "Give the options it was started with, or name another file.",
            )

    def _write(self, document: dict[str, Any]) -> None:
        write_all(self._descriptor, json.dumps(document).encode() + b"\n")

    def _not_a_state(self, reason: str) -> InputError:
        return InputError(f"{self._path} is not the state of a verification.", reason, "Name another file.")

    def _unusable(self, error: OSError) -> StorageError:
        return StorageError(f"{self._path} cannot be used.", f"{error.strerror}.", "Check path and permissions.")


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
