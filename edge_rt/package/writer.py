"""Creates a package or a drafter so that its destination is either absent or complete at every moment."""

from __future__ import annotations

import dataclasses
import os
import re
import secrets
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from edge_rt.errors import StorageError
from edge_rt.package.documents import FileInfo, is_file_name
from edge_rt.package.drafter import DRAFTER_FILE, DRAFTERS_FOLDER, WEIGHTS_FILE, DrafterInfo, TrainedDrafter
from edge_rt.package.drafter_reader import open_drafter
from edge_rt.package.drafter_tensors import head_tensors, placed
from edge_rt.package.manifest import MANIFEST_FILE, PROMPTS_FOLDER, Manifest
from edge_rt.package.reader import Package, absolute_path, open_package
from edge_rt.system.files import occupied, replace, replace_folder, sha256_file, storage_errors, sync
from edge_rt.system.machine import is_running

Buffer = bytes | bytearray | memoryview


class FolderWriter:
    """Creates a described folder in a private one beside its destination and renames it when complete.

    Use as a context manager: write files below ``folder``, then publish. Leaving the block without publishing removes
    everything, new parent folders too; a killed process leaves only hidden folders that the next writer to the same
    place reclaims. If it was killed while it replaced a folder, that writer first puts the old one back.

    Args:
        force: replace an existing folder of the same kind at the destination.
    """

    noun: ClassVar[str]
    """What such a folder is, in errors."""
    description: ClassVar[str]
    """Its file that lists all others; written last."""
    kept: ClassVar[tuple[str, ...]] = ()
    """Names of folders inside that are no part of it; those of a folder that is replaced are copied to the new one."""

    def __init__(self, destination: Path, *, force: bool = False) -> None:
        self.destination = absolute_path(destination)
        self.force = force
        self.folder = self.destination.parent / f"{self._prefix()}{os.getpid()}-{secrets.token_hex(4)}"
        self._new_parents: tuple[Path, ...] = ()

    def _prefix(self) -> str:
        return f".{self.destination.name}.part-"

    def __enter__(self) -> Self:
        try:
            with storage_errors(self.destination, "cannot be written"):
                parents = self.destination.parents
                self._new_parents = tuple(parent for parent in parents if not parent.exists())
                self.destination.parent.mkdir(parents=True, exist_ok=True)
                self._reclaim()
                self.check_destination()
                self.folder.mkdir(mode=0o755)
        except BaseException:
            self._remove_new_parents()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self._remove_new_parents()

    def _remove_new_parents(self) -> None:
        for parent in self._new_parents:
            # A folder that holds something, such as the published package, is kept.
            with suppress(OSError):
                parent.rmdir()

    def check_destination(self) -> None:
        """Refuse a destination of another kind, and without ``force`` one of the same kind."""
        if not occupied(self.destination):
            return
        if not self._is_of_this_kind(self.destination):
            raise StorageError(
                f"{self.destination} exists and is not a {self.noun}.", "It would be lost.", "Choose another folder."
            )
        if not self.force:
            raise StorageError(
                f"{self.destination} exists already.",
                "Nothing was changed.",
                "Replace it (--force, force=True), or choose another folder.",
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
            if match[2] and not occupied(self.destination) and self._is_of_this_kind(left):
                left.rename(self.destination)
            else:
                _remove(left)

    def _is_of_this_kind(self, folder: Path) -> bool:
        """Return whether a folder has the description of this kind; False if it cannot be read."""
        try:
            return (folder / self.description).is_file()
        except OSError:
            return False

    def _write_description(self, describe: Callable[[Mapping[str, FileInfo]], bytes]) -> None:
        """Write the description of a folder with these files, behind all other files."""
        with self._errors():
            (self.folder / self.description).write_bytes(describe(self._listed()))

    def _put_in_place(self) -> None:
        """Take over what is kept, flush everything to the disk, and put the folder in its place."""
        with self._errors():
            for name in self.kept:
                if _is_folder(self.destination / name) and not occupied(self.folder / name):
                    shutil.copytree(self.destination / name, self.folder / name, symlinks=True)
            for file in [p for p in self.folder.rglob("*") if p.is_file()]:
                sync(file)
            sync(self.folder)
            self._replace_destination()
        self._flush_parent()

    def _errors(self) -> AbstractContextManager[None]:
        return storage_errors(self.destination, "could not be written")

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


class DrafterWriter(FolderWriter):
    """Creates a drafter in a private folder beside its destination and renames it when complete.

    Use as a context manager: write further files below ``folder`` if there are any, then call ``publish``.
    """

    noun: ClassVar[str] = "drafter"
    description: ClassVar[str] = DRAFTER_FILE

    def publish(self, info: DrafterInfo, tensors: Mapping[str, Buffer]) -> TrainedDrafter:
        """Write the tensors and the description, flush everything to the disk, and put the folder in its place.

        The same arguments give the same bytes. ``info.files`` and ``info.head.tensors`` are filled in here.

        Args:
            tensors: name -> its bytes, in C order, little-endian: those of ``head_tensors``.
        """
        places, size = placed(head_tensors(info.head, info.target.hidden_size, info.layers))
        if set(tensors) != set(places):
            raise ValueError(f"tensors {sorted(tensors)}, wanted {sorted(places)}")
        parts = {name: memoryview(data).cast("B") for name, data in tensors.items()}
        for name, part in parts.items():
            if len(part) != places[name].length:
                raise ValueError(f"{name} has {len(part)} bytes, wanted {places[name].length}")
        info = dataclasses.replace(info, head=dataclasses.replace(info.head, tensors=places))
        with self._errors(), (self.folder / WEIGHTS_FILE).open("wb") as stream:
            for name, place in places.items():
                stream.write(bytes(place.offset - stream.tell()))
                stream.write(parts[name])
            assert stream.tell() == size
        # Whatever a reader would refuse is refused before anything is replaced.
        self._write_description(lambda files: dataclasses.replace(info, files=files).to_bytes())
        open_drafter(self.folder)
        self._put_in_place()
        return open_drafter(self.destination)


class PackageWriter(FolderWriter):
    """Creates a package in a private folder beside its destination and renames it when complete.

    Use as a context manager: write files below ``folder``, then call ``publish``. Trained drafters and computed
    prompts in the folder of a package that is replaced are kept.
    """

    noun: ClassVar[str] = "package"
    description: ClassVar[str] = MANIFEST_FILE
    # Drafters take hours to train, and the new package may well be the same model; prompts of another are not read.
    kept: ClassVar[tuple[str, ...]] = (DRAFTERS_FOLDER, PROMPTS_FOLDER)

    def publish(self, manifest: Manifest) -> Package:
        """Write the manifest last, flush everything to the disk, and put the folder in its place.

        ``manifest.files`` is filled in here from the files in the folder.
        """
        self._write_description(lambda files: dataclasses.replace(manifest, files=files).to_bytes())
        self._put_in_place()
        return open_package(self.destination)
