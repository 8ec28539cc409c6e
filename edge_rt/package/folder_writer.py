"""Creates a folder so that its destination is either absent or complete at every moment."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from edge_rt.errors import StorageError
from edge_rt.package.documents import Refusal
from edge_rt.system.atomic_files import occupied, replace, replace_folder, sync
from edge_rt.system.checkpoint_names import is_portable_path
from edge_rt.system.file_hash import sha256_file
from edge_rt.system.machine import is_running


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


class FolderWriter:
    """Creates a described folder in a private one beside its destination and renames it when complete.

    Use as a context manager: write files below ``folder``, then publish. Leaving the block without publishing removes
    everything, new parent folders too; a killed process leaves only hidden folders that the next writer to the same
    place reclaims. If it was killed while it replaced a folder, that writer first puts the old one back.

    Args:
        force: replace an existing folder of the same kind at the destination.

    Attributes:
        folder: where files are written.

    Raises:
        StorageError: the destination exists (without ``force``, or if it is of another kind), or cannot be written.
    """

    noun: ClassVar[str]
    """What such a folder is, in errors."""
    description: ClassVar[str]
    """Its file that lists all others; written last."""
    kept: ClassVar[tuple[str, ...]] = ()
    """Names of folders inside that are no part of it; those of a folder that is replaced are copied to the new one."""

    def __init__(self, destination: Path, *, force: bool = False) -> None:
        self.destination = destination
        self.force = force
        self.folder = self.destination.parent / f"{self._prefix()}{os.getpid()}-{secrets.token_hex(4)}"
        self._new_parents: tuple[Path, ...] = ()

    def _prefix(self) -> str:
        return f".{self.destination.name}.part-"

    def __enter__(self) -> Self:
        try:
            parents = self.destination.parents
            self._new_parents = tuple(parent for parent in parents if not parent.exists())
            self.destination.parent.mkdir(parents=True, exist_ok=True)
            self._reclaim()
            self.check_destination()
            self.folder.mkdir(mode=0o755)
        except BaseException as error:
            self._remove_new_parents()
            if not isinstance(error, OSError) or isinstance(error, StorageError):
                raise
            raise StorageError(
                f"{self.destination} cannot be written.",
                f"{error.strerror}.",
                "Choose another place with --out.",
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self._remove_new_parents()

    def _remove_new_parents(self) -> None:
        for parent in self._new_parents:
            # A folder that holds something, such as the published package, is kept.
            with contextlib.suppress(OSError):
                parent.rmdir()

    def check_destination(self) -> None:
        """Refuse a destination that must not be replaced.

        Raises:
            StorageError: it is of the kind and ``force`` is not set, or of another kind.
        """
        if not occupied(self.destination):
            return
        if not self._is_own(self.destination):
            raise StorageError(
                f"{self.destination} exists and is not a {self.noun}.", "It would be lost.", "Choose another folder."
            )
        if not self.force:
            raise StorageError(
                f"{self.destination} exists already.",
                "Nothing was changed.",
                "Replace it with --force, or choose another folder.",
            )

    def _reclaim(self) -> None:
        """Remove leftovers of writers that no longer run, except folders they moved aside and did not replace.

        What a writer moved aside and did replace is removed though it runs: the system refused to remove it then.
        """
        pattern = re.compile(re.escape(self._prefix()) + r"(\d{1,9})-[0-9a-f]{8}(-old)?")
        for left in self.destination.parent.iterdir():
            match = pattern.fullmatch(left.name)
            if match is None:
                continue
            is_replaced = match[2] and occupied(self.destination)
            if is_running(int(match[1])) and not is_replaced:
                continue
            if match[2] and not occupied(self.destination) and self._is_own(left):
                left.rename(self.destination)
            else:
                _remove(left)

    def _is_own(self, folder: Path) -> bool:
        """Return whether a folder has the description of this kind; False if it cannot be read."""
        try:
            return (folder / self.description).is_file()
        except OSError:
            return False

    def _write_description(self, describe: Callable[[Mapping[str, FileInfo]], bytes]) -> None:
        """Write the description, behind all other files.

        Args:
            describe: returns the description of a folder with these files.

        Raises:
            StorageError: the disk is full; the destination is unchanged.
        """
        with self._telling():
            (self.folder / self.description).write_bytes(describe(self._listed()))

    def _put_in_place(self) -> None:
        """Take over what is kept, flush everything to the disk, and put the folder in its place.

        Raises:
            StorageError: the disk is full or the rename failed, and the destination is unchanged; or the last flush
                failed, and the message says that the folder is in place.
        """
        with self._telling():
            for name in self.kept:
                if _is_folder(self.destination / name) and not occupied(self.folder / name):
                    shutil.copytree(self.destination / name, self.folder / name, symlinks=True)
            for file in [p for p in self.folder.rglob("*") if p.is_file()]:
                sync(file)
            sync(self.folder)
            self._replace_destination()
        self._flush_parent()

    @contextlib.contextmanager
    def _telling(self) -> Generator[None]:
        """Context manager: an error of the system becomes a ``StorageError``."""
        try:
            yield
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise StorageError(
                f"{self.destination} could not be written.",
                f"{error.strerror}.",
                "Free some space or choose another disk.",
            ) from error

    def _listed(self) -> dict[str, FileInfo]:
        files = sorted(p for p in self.folder.rglob("*") if p.is_file())
        assert all(is_file_name(p.relative_to(self.folder).as_posix()) for p in files), files
        return {
            p.relative_to(self.folder).as_posix(): FileInfo(size=p.stat().st_size, sha256=sha256_file(p)) for p in files
        }

    def _replace_destination(self) -> None:
        if not self.destination.exists():
            replace(self.folder, self.destination)
            return
        self.check_destination()
        old = self.folder.with_name(self.folder.name + "-old")
        replace_folder(self.folder, self.destination, old)
        _remove(old)

    def _flush_parent(self) -> None:
        try:
            sync(self.destination.parent)
        except OSError as error:
            raise StorageError(
                f"{self.destination} is in place, but may not survive a power failure.",
                f"Flushing {self.destination.parent} failed: {error.strerror}.",
                f"Check the disk, then the {self.noun} with 'edge-rt inspect --verify'.",
            ) from error


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _remove(path: Path) -> None:
    if path.is_symlink():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)
