"""Packages on disk, and changing them so that the manifest still agrees, or does not."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path


def listing(folder: Path) -> list[str]:
    """Return the names in a folder, sorted, hidden ones too."""
    return sorted(path.name for path in folder.iterdir())


def copied(package: Path, folder: Path) -> Path:
    """Return a copy of a package below ``folder``."""
    return Path(shutil.copytree(package, folder / "copy"))


def edit_manifest(package: Path, change, name: str = "manifest.json") -> None:
    """Rewrite ``manifest.json`` after ``change(document)``, which may also return another document."""
    path = package / name
    document = json.loads(path.read_text())
    path.write_text(json.dumps(change(document) or document))


def replace_file(package: Path, name: str, data: bytes, listed_in: str = "manifest.json") -> None:
    """Write a file and list its new size and hash."""
    (package / name).write_bytes(data)

    def change(document):
        document["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    edit_manifest(package, change, listed_in)


def manifest_setter(path, value):
    """Return a change of the manifest that sets a field, named by its path; ``KeyError`` removes it."""

    def change(document):
        *parents, last = (int(part) if part.isdigit() else part for part in path.split("."))
        for part in parents:
            document = document[part]
        if value is KeyError:
            del document[last]
        else:
            document[last] = value

    return change
