"""Creates a package so that its destination is either absent or complete at every moment."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import secrets
import shutil
from pathlib import Path
from types import TracebackType
from typing import Self

from edge_rt.errors import StorageError
from edge_rt.package.manifest import MANIFEST_FILE, FileInfo, Manifest
from edge_rt.package.reader import Package, absolute_path, is_file_name, is_package, open_package
from edge_rt.system.atomic_files import occupied, replace, replace_folder, sync
from edge_rt.system.file_hash import sha256_file
from edge_rt.system.machine import is_running


class PackageWriter:
    """Creates a package in a private folder beside its destination and renames it when complete.

    Use as a context manager: write files below ``folder``, then call ``publish``. Leaving the block
    without ``publish`` removes everything, new parent folders too; a killed process leaves only hidden
    folders that the next writer to the same place reclaims. If it was killed while it replaced a package,
    that writer first puts the old package back.

    Args:
        destination: folder to create.
        force: replace an existing package at the destination.

    Raises:
        StorageError: the destination exists (without ``force``, or if it is not a package), or cannot be written.
    """

    def __init__(self, destination: Path, *, force: bool = False) -> None:
        self.destination = absolute_path(destination)
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
            StorageError: it is a package and ``force`` is not set, or it is not a package.
        """
        if not occupied(self.destination):
            return
        if not is_package(self.destination):
            raise StorageError(
                f"{self.destination} exists and is not a package.", "It would be lost.", "Choose another folder."
            )
        if not self.force:
            raise StorageError(
                f"{self.destination} exists already.",
                "Nothing was changed.",
                "Replace it with --force, or choose another folder.",
            )

    def _reclaim(self) -> None:
        """Remove leftovers of writers that no longer run, except packages they moved aside and did not replace."""
        pattern = re.compile(re.escape(self._prefix()) + r"(\d{1,9})-[0-9a-f]{8}(-old)?")
        for left in self.destination.parent.iterdir():
            match = pattern.fullmatch(left.name)
            if match is None or is_running(int(match[1])):
                continue
            if match[2] and not occupied(self.destination) and is_package(left):
                left.rename(self.destination)
            else:
                _remove(left)

    def publish(self, manifest: Manifest) -> Package:
        """Write the manifest last, flush everything to the disk, and put the folder in its place.

        ``manifest.files`` is filled in here from the files in the folder.

        Raises:
            StorageError: the disk is full or the rename failed, and the destination is unchanged; or the last
                flush failed, and the message says that the package is in place.
        """
        try:
            manifest = dataclasses.replace(manifest, files=self._describe_files())
            (self.folder / MANIFEST_FILE).write_bytes(manifest.to_bytes())
            for file in [p for p in self.folder.rglob("*") if p.is_file()]:
                sync(file)
            sync(self.folder)
            self._replace_destination()
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise StorageError(
                f"{self.destination} could not be written.",
                f"{error.strerror}.",
                "Free some space or choose another disk.",
            ) from error
        self._flush_parent()
        return open_package(self.destination)

    def _describe_files(self) -> dict[str, FileInfo]:
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
                "Check the disk, then the package with 'edge-rt inspect --verify'.",
            ) from error


def _remove(path: Path) -> None:
    if path.is_symlink():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)
