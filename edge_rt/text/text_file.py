"""Reading text files that a user names."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from edge_rt.errors import InputError, StorageError
from edge_rt.system.byte_size import show_size

MAX_TEXT_BYTES: Final = 16 << 20


def read_text(path: Path, limit: int = MAX_TEXT_BYTES, *, called: str = "") -> str:
    """Return the text of a file.

    Args:
        limit: bytes.
        called: what errors call it before its path, such as ``"The calibration text "``.

    Raises:
        InputError: it is not UTF-8, or longer than ``limit`` bytes.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(limit + 1)
    except OSError as error:
        raise StorageError(f"{called}{path} cannot be read.", f"{error.strerror}.", "Check the path.") from error
    if len(data) > limit:
        raise InputError(f"{called}{path} is too large.", f"The limit is {show_size(limit)}.", "Choose a part of it.")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{called}{path} is not UTF-8 text.",
            f"Byte {error.start}: {error.reason}.",
            "Convert it, for example with iconv.",
        ) from error
