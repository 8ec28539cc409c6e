"""Reading files in chunks, and hashing them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from edge_rt.errors import StorageError

CHUNK: Final = 1 << 20
"""Bytes per read."""


def read_chunks(path: Path) -> Iterator[bytes]:
    """Yield the content of a file in chunks of 1 MiB.

    Raises:
        StorageError: the file cannot be read.
    """
    try:
        with path.open("rb", buffering=0) as file:
            while chunk := file.read(CHUNK):
                yield chunk
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"{path} cannot be read.", f"{error.strerror or error}.", "Check the path.") from error


def sha256_file(path: Path, on_bytes: Callable[[int], None] | None = None) -> str:
    """Return the SHA-256 of a file in lower-case hexadecimal.

    Args:
        on_bytes: called with the number of bytes read so far.

    Raises:
        StorageError: the file cannot be read.
    """
    return sha256_files([path], on_bytes)


def sha256_files(paths: Sequence[Path], on_bytes: Callable[[int], None] | None = None) -> str:
    """Return the SHA-256 of a file, or that of several, as `combined_sha256` defines it.

    Args:
        on_bytes: called with the number of bytes read so far, of all files together.

    Raises:
        StorageError: a file cannot be read.
    """
    digests = []
    done = 0
    for path in paths:
        digest = hashlib.sha256()
        for chunk in read_chunks(path):
            digest.update(chunk)
            done += len(chunk)
            if on_bytes is not None:
                on_bytes(done)
        digests.append((path.name, digest.hexdigest()))
    return combined_sha256(digests)


def combined_sha256(digests: Sequence[tuple[str, str]]) -> str:
    """Return the SHA-256 of one file; of several that of a line for each, ``HASH  NAME``, as ``sha256sum`` prints them.

    Args:
        digests: name and SHA-256 of every file, in their order.
    """
    if len(digests) == 1:
        return digests[0][1]
    lines = "".join(f"{digest}  {name}\n" for name, digest in digests)
    return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()
