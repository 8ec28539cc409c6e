"""Opens model files without ever blocking, reads their first bytes without trusting their size, and tensors' data."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self

from edge_rt.errors import InvalidModelFile, ModelNotFound, StorageError, UnsupportedModel
from edge_rt.export.sources.gguf_types import FETCH_AGAIN, TensorInfo

MAX_HEADER_BYTES: Final = 32 << 20
"""Bytes before the tensor data, all kept in memory: twice those of the largest header known."""

_READ_BYTES: Final = 1 << 18


def open_model_file(path: Path) -> BinaryIO:
    """Open a regular file for unbuffered reading; never blocks: pipes and devices are refused before and after."""
    flags = os.O_RDONLY
    for name in ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY"):
        flags |= getattr(os, name, 0)
    try:
        # Opening a device can have side effects, hence a check before; the path can change, hence one after.
        _check_regular(path, path.stat())
        file = os.fdopen(os.open(path, flags), "rb", buffering=0)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ModelNotFound(
            f"{_label(path)}: there is no such file.", f"Looked for {path}.", "Check the path for typing errors."
        ) from error
    except OSError as error:
        raise unreadable(path, error.strerror or str(error)) from error
    except ValueError as error:  # a NUL character in the path
        raise unreadable(path, str(error)) from error
    try:
        _check_regular(path, os.fstat(file.fileno()))
    except InvalidModelFile:
        file.close()
        raise
    return file


def unreadable(path: Path, reason: str) -> StorageError:
    """Return the error for a file that the system refuses to read."""
    return StorageError(
        f"{_label(path)}: the file cannot be read.",
        f"{path}: {reason}.",
        "Check the path, its permissions and the disk.",
    )


def _label(path: Path) -> str:
    return path.name or str(path)  # "/" and "." have no name


def _check_regular(path: Path, status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    kind = kinds.get(stat.S_IFMT(status.st_mode), "a device")
    raise InvalidModelFile(
        f"{_label(path)}: this is {kind}, not a model file.",
        f"At {path}: file mode {stat.filemode(status.st_mode)}, wanted a regular file.",
        "Give the path of a GGUF file.",
    )


class HeaderBytes:
    """The first bytes of a file, read as they are asked for."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.buffer = bytearray()
        self.path = path
        self.size = os.fstat(file.fileno()).st_size
        self._file = file

    def require(self, start: int, end: int, field: str) -> None:
        """Read bytes `start` to `end` into the buffer, or raise `InvalidModelFile`."""
        if end <= len(self.buffer):
            return
        if end > self.size:
            raise self.invalid(
                f"the file ends inside {field}",
                start,
                f"{end - start} bytes needed, limit {max(0, self.size - start)}, the rest of {self.size}",
            )
        if end > MAX_HEADER_BYTES:
            raise self.invalid(f"the header is too large, at {field}", start, f"{end} bytes, limit {MAX_HEADER_BYTES}")
        while len(self.buffer) < end:
            try:
                chunk = self._file.read(min(_READ_BYTES, self.size - len(self.buffer)))
            except OSError as error:
                raise unreadable(self.path, error.strerror or str(error)) from error
            if not chunk:
                raise self.invalid(
                    f"the file became shorter while {field} was read",
                    len(self.buffer),
                    f"{len(self.buffer)} bytes left, limit {self.size} when it was opened",
                )
            self.buffer += chunk

    def invalid(self, fault: str, at: int, numbers: str, action: str = FETCH_AGAIN) -> InvalidModelFile:
        """Return the error for a fault of the file at byte `at`."""
        return InvalidModelFile(f"{self.path.name}: {fault}.", f"At byte {at}: {numbers}.", action)

    def unsupported(self, fault: str, at: int, numbers: str, action: str) -> UnsupportedModel:
        """Return the error for something at byte `at` that is valid but not supported."""
        return UnsupportedModel(f"{self.path.name}: {fault}.", f"At byte {at}: {numbers}.", action)


class TensorReader:
    """The files of a checkpoint, as ``TensorInfo.file`` counts, open for reading; close it, or use it in a ``with``."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)
        self._close = ExitStack()
        with ExitStack() as opening:
            self._files = [opening.enter_context(open_model_file(path)) for path in paths]
            self._close = opening.pop_all()

    def read(self, tensor: TensorInfo, begin: int, size: int) -> bytes:
        """Return bytes ``[begin, begin + size)`` of a tensor's data."""
        file, parts, missing = self._files[tensor.file], [], size
        try:
            file.seek(tensor.offset + begin)
            # A read may give less than was asked for, and of a file beyond 2 GiB always does.
            while missing and (part := file.read(missing)):
                parts.append(part)
                missing -= len(part)
        except OSError as error:
            raise unreadable(self._paths[tensor.file], error.strerror or str(error)) from error
        if missing:
            raise StorageError(
                f"The tensor '{tensor.name}' could not be read.",
                f"At byte {tensor.offset}: {begin + size - missing} of {tensor.nbytes} bytes came; the file changed "
                "meanwhile.",
                "Run the command again when the file is complete.",
            )
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Close the files."""
        self._close.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
