"""Text files that a user names."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from edge_rt.errors import InputError, StorageError

MAX_TEXT_BYTES: Final = 16 << 20


def read_text(path: Path, limit: int = MAX_TEXT_BYTES) -> str:
    """Return the text of a file.

    Raises:
        StorageError: it cannot be read.
        InputError: it is not UTF-8, or longer than ``limit`` bytes.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(limit + 1)
    except OSError as error:
        raise StorageError(f"{path} cannot be read.", f"{error.strerror}.", "Check the path.") from error
    if len(data) > limit:
        raise InputError(f"{path} is too large.", f"The limit is {limit} bytes.", "Choose a part of it.")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not UTF-8 text.", f"Byte {error.start}: {error.reason}.", "Convert it, for example with iconv."
        ) from error


def path_of(argument: str) -> Path:
    """Return the path that an argument of a command means: quotes around it are dropped, ``~`` is expanded.

    Raises:
        StorageError: it names a user that does not exist.
    """
    is_quoted = len(argument) > 1 and argument[0] == argument[-1] and argument[0] in "\"'"
    path = Path(argument[1:-1] if is_quoted else argument)
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise StorageError(f"{path} names an unknown user.", f"{error}.", "Write the path out.") from error
