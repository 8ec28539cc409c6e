"""Creates a package so that its destination is either absent or complete at every moment."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import ClassVar

from edge_rt.package.drafter import DRAFTERS_FOLDER
from edge_rt.package.folder_writer import FolderWriter
from edge_rt.package.manifest import MANIFEST_FILE, Manifest
from edge_rt.package.reader import Package, absolute_path, open_package


class PackageWriter(FolderWriter):
    """Creates a package in a private folder beside its destination and renames it when complete.

    Use as a context manager: write files below ``folder``, then call ``publish``; see ``FolderWriter``. Trained
    drafters in the folder of a package that is replaced are kept.

    Args:
        destination: folder to create.
        force: replace an existing package at the destination.

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
