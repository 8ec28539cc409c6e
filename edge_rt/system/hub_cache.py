"""The cache of the hub library, which is read and never written; and names of repositories on the hub.

``models--ORG--NAME/snapshots/REVISION/FILE`` is a link to ``models--ORG--NAME/blobs/HASH``, and ``refs/main`` has the
revision that was fetched last.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_REPOSITORY: Final = re.compile(r"models--(?:.+--)?(?P<name>.+)")
_PART: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_REVISION: Final = re.compile(r"[0-9a-f]{7,64}")


def is_repository(text: str) -> bool:
    """Return whether a text has the form of a repository's name, ``org/name``; a shell takes it as it is."""
    parts = text.split("/")
    return len(parts) == 2 and all(map(_PART.fullmatch, parts))


def _repository(path: Path) -> Path | None:
    """Return the folder of the repository that a snapshot, or a file of one, belongs to."""
    for parent in path.parents:
        if parent.name == "snapshots" and _REPOSITORY.fullmatch(parent.parent.name):
            return parent.parent
    return None


def is_blob_link(path: Path) -> bool:
    """Return whether a link is one of a snapshot and leads to a file of the same repository, and to nothing else."""
    repository = _repository(path.absolute())
    if repository is None:
        return False
    try:
        # Both without links: neither the folder of the files nor a file there may be one that leads elsewhere.
        return path.resolve(strict=True).parent == repository.resolve(strict=True) / "blobs"
    except (OSError, RuntimeError):
        return False


def folder_name(folder: Path) -> str:
    """Return the name of the model in a folder: the folder's own, or that of the repository of a snapshot."""
    path = folder.resolve()
    repository = _repository(path)
    match = None if repository is None or repository != path.parent.parent else _REPOSITORY.fullmatch(repository.name)
    return path.name if match is None else match["name"]


def find_snapshot(cache: Path, repo: str) -> Path | None:
    """Return the snapshot of a repository that was fetched last from its branch ``main``; None if there is none."""
    repository = cache / f"models--{repo.replace('/', '--')}"
    try:
        revision = (repository / "refs" / "main").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    folder = repository / "snapshots" / revision
    return folder if _REVISION.fullmatch(revision) and folder.is_dir() else None
