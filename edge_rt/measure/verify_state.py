"""What ``edge-rt verify`` has done, in a file, so that it can be taken up again."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from edge_rt.errors import ConfigError, InputError, StorageError
from edge_rt.measure.verify import Answer
from edge_rt.system.atomic_files import O_BINARY, write_all

STATE_FORMAT: Final = "edge-rt verify"
STATE_VERSION: Final = 1
MAX_STATE_BYTES: Final = 256 << 20


class VerifyState:
    """A file of JSON lines: a header that says what is being verified, then an answer a line, as they come.

    A last line without an end was cut off when a process was killed: it is dropped, and its prompt is answered again.

    Args:
        path: the file; made if it does not exist.
        header: everything that answers depend on, as JSON values.

    Attributes:
        answers: what the file held when it was opened.

    Raises:
        ConfigError: the file is of another verification: another package, other prompts, other options.
        InputError: the file is something else, or damaged.
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
        """Write an answer; it has left this process when this returns.

        Raises:
            StorageError: the disk does not take it.
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
            raise self._strange(f"It has {size} bytes, the limit is {MAX_STATE_BYTES}.")
        data = self._read(size)
        whole, end, cut = data.rpartition(b"\n")
        if not end and not json.dumps(wanted).encode().startswith(cut):
            raise self._strange("Its first line has no end.")
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
                raise self._strange(f"Line {number} is no answer.") from error

    def _read(self, size: int) -> bytes:
        data = bytearray()
        os.lseek(self._descriptor, 0, os.SEEK_SET)  # writing goes to the end all the same
        while part := os.read(self._descriptor, size - len(data)):
            data += part
        return bytes(data)

    def _parsed(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            document = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self._strange(f"Line {number} is no JSON.") from error
        if not isinstance(document, dict):
            raise self._strange(f"Line {number} is no JSON object.")
        return document

    def _check_header(self, found: dict[str, Any], wanted: dict[str, Any]) -> None:
        if found.get("format") != STATE_FORMAT:
            raise self._strange("Its first line is not of this kind.")
        if told := _changes(found, wanted):
            raise ConfigError(
                f"{self._path} is of another verification.",
                f"{'; '.join(told)}.",
                "Give the options it was begun with, or name another file.",
            )

    def _write(self, document: dict[str, Any]) -> None:
        write_all(self._descriptor, json.dumps(document).encode() + b"\n")

    def _strange(self, reason: str) -> InputError:
        return InputError(f"{self._path} is no state of a verification.", reason, "Name another file.")

    def _unusable(self, error: OSError) -> StorageError:
        return StorageError(f"{self._path} cannot be used.", f"{error.strerror}.", "Check path and permissions.")


def _changes(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Return what differs between two headers, one text for each value; options are named one by one."""
    told = []
    for name in sorted({*found, *wanted}):
        old, new = found.get(name), wanted.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            told += _changes(old, new)
        elif old != new:
            told.append(f"{name:.80} was {old!r:.80}, is now {new!r:.80}")
    return told
