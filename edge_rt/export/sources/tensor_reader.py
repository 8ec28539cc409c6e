"""Reads the data of tensors, whichever of a checkpoint's files they lie in."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from edge_rt.errors import StorageError
from edge_rt.export.sources.gguf_types import TensorInfo
from edge_rt.export.sources.model_file import open_model_file, unreadable


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
