"""Creates a package so that its destination is either absent or complete at every moment."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from edge_rt.package.drafter import DRAFTER_FILE, DRAFTERS_FOLDER, WEIGHTS_FILE, Drafter, DrafterInfo
from edge_rt.package.drafter_reader import open_drafter
from edge_rt.package.drafter_tensors import head_tensors, placed
from edge_rt.package.folder_writer import FolderWriter
from edge_rt.package.manifest import MANIFEST_FILE, Manifest
from edge_rt.package.reader import Package, absolute_path, open_package

Buffer = bytes | bytearray | memoryview


class DrafterWriter(FolderWriter):
    """Creates a drafter in a private folder beside its destination and renames it when complete.

    Use as a context manager: write further files below ``folder`` if there are any, then call ``publish``; see
    ``FolderWriter``.

    Args:
        force: replace an existing drafter at the destination.

    Raises:
        StorageError: the destination exists (without ``force``, or if it is not a drafter), or cannot be written.
    """

    noun: ClassVar[str] = "drafter"
    description: ClassVar[str] = DRAFTER_FILE

    def __init__(self, destination: Path, *, force: bool = False) -> None:
        super().__init__(absolute_path(destination), force=force)

    def publish(self, info: DrafterInfo, tensors: Mapping[str, Buffer]) -> Drafter:
        """Write the tensors and the description, flush everything to the disk, and put the folder in its place.

        The same arguments give the same bytes. ``info.files`` and ``info.head.tensors`` are filled in here.

        Args:
            tensors: name -> its bytes, in C order, little-endian: those of ``head_tensors``.

        Raises:
            ValueError: the head contradicts itself, or a tensor is missing, unknown or of another length.
            InvalidDrafter: what was written is no drafter, such as one that names a token twice.
            StorageError: the disk is full or the rename failed, and the destination is unchanged; or the last
                flush failed, and the message says that the folder is in place.
        """
        places, size = placed(head_tensors(info.head, info.target.hidden_size, info.layers))
        if set(tensors) != set(places):
            raise ValueError(f"tensors {sorted(tensors)}, wanted {sorted(places)}")
        parts = {name: memoryview(data).cast("B") for name, data in tensors.items()}
        for name, part in parts.items():
            if len(part) != places[name].length:
                raise ValueError(f"{name} has {len(part)} bytes, wanted {places[name].length}")
        info = dataclasses.replace(info, head=dataclasses.replace(info.head, tensors=places))
        with self._telling(), (self.folder / WEIGHTS_FILE).open("wb") as stream:
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

    Use as a context manager: write files below ``folder``, then call ``publish``; see ``FolderWriter``. Trained
    drafters in the folder of a package that is replaced are kept.

    Raises:
        StorageError: the destination exists (without ``force``, or if it is not a package), or cannot be written.
    """

    noun: ClassVar[str] = "package"
    description: ClassVar[str] = MANIFEST_FILE
    # Drafters take hours to train, and the new package may well be the same model.
    kept: ClassVar[tuple[str, ...]] = (DRAFTERS_FOLDER,)

    def __init__(self, destination: Path, *, force: bool = False) -> None:
        super().__init__(absolute_path(destination), force=force)

    def publish(self, manifest: Manifest) -> Package:
        """Write the manifest last, flush everything to the disk, and put the folder in its place.

        ``manifest.files`` is filled in here from the files in the folder.

        Raises:
            StorageError: the disk is full or the rename failed, and the destination is unchanged; or the last
                flush failed, and the message says that the package is in place.
        """
        self._write_description(lambda files: dataclasses.replace(manifest, files=files).to_bytes())
        self._put_in_place()
        return open_package(self.destination)
