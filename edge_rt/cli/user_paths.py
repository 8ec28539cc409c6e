"""Paths that a user types."""

from __future__ import annotations

from pathlib import Path

from edge_rt.errors import StorageError


def path_of(argument: str) -> Path:
    """Return the path that a command's argument means: quotes around it are removed, ``~`` is expanded.

    Raises:
        StorageError: it names a user that does not exist.
    """
    is_quoted = len(argument) > 1 and argument[0] == argument[-1] and argument[0] in "\"'"
    path = Path(argument[1:-1] if is_quoted else argument)
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise StorageError(f"{path} names an unknown user.", f"{error}.", "Write the path out.") from error
