"""Files that a description lists: their names, their sizes, their hashes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edge_rt.package.documents import Refusal
from edge_rt.system.file_hash import sha256_file
from edge_rt.system.portable_names import is_portable_path


@dataclass(frozen=True)
class FileInfo:
    """Size in bytes and SHA-256 (lower-case hexadecimal) of one file."""

    size: int
    sha256: str


_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")


def is_file_name(name: str) -> bool:
    """Return whether a listed file may have that name: inside the folder, and valid on every system."""
    return _SAFE_NAME.fullmatch(name) is not None and is_portable_path(name)


def check_files(path: Path, files: Mapping[str, FileInfo], refuse: Refusal, *, noun: str = "package") -> None:
    """Check the names of the listed files, and that each is a regular file of the listed size.

    Args:
        path: the folder.
        files: what is listed.
        refuse: makes the error.
        noun: what the folder is, in errors.

    Raises:
        InputError: a name is not allowed, or a file is missing or different.
    """
    if len({name.lower() for name in files}) < len(files):
        numbers = f"Files: {', '.join(sorted(files))!s:.200}."
        raise refuse("the manifest lists files whose names differ in case alone.", numbers)
    for name, info in files.items():
        if not is_file_name(name):
            what = f"the manifest lists a path that leaves the {noun}, or that is not valid on every system."
            raise refuse(what, f"{name!r:.100} is not allowed.")
        file = path / name
        # Parent folders are checked as well: a link there would lead out of the folder.
        linked = any(part.is_symlink() for part in (file, *file.parents[: name.count("/")]))
        if linked or not file.is_file():
            raise refuse(f"file '{name}' is missing or not a regular file.", f"Expected {info.size} bytes.")
        size = file.stat().st_size
        if size != info.size:
            raise refuse(f"file '{name}' has the wrong size.", f"Found {size} bytes, expected {info.size}.")


def verify_files(path: Path, files: Mapping[str, FileInfo], refuse: Refusal) -> None:
    """Read every listed file and compare its hash.

    Raises:
        InputError: a file differs from the manifest.
        StorageError: a file cannot be read.
    """
    for name, info in files.items():
        found = sha256_file(path / name)
        if found != info.sha256:
            raise refuse(f"file '{name}' is damaged.", f"Its SHA-256 is {found}, the manifest says {info.sha256}.")
