"""JSON of others, read with limits and without doubt about what it says; and small documents that are kept by a key."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from edge_rt.errors import StorageError, kind_of
from edge_rt.system.byte_size import show_size
from edge_rt.system.files import NOT_READ, storage_errors, write_atomically

JsonRefusal = Callable[[str], Exception]
"""Makes the error of a file from a sentence that says what is wrong with its JSON."""


def parse_json(data: bytes | str, refuse: JsonRefusal, *, is_foreign: bool = False) -> Any:
    """Return the value of a JSON text whose fields have one value each, and whose numbers are finite.

    Args:
        is_foreign: as other programs read it: of equal fields the last one counts, and ``NaN`` is a number.
    """
    try:
        if is_foreign:
            return json.loads(data)
        text = data if isinstance(data, str) else str(data, "utf-8")
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_number, parse_float=_finite)
    except RecursionError as error:
        raise refuse("It is nested too deeply.") from error
    except ValueError as error:  # also text that is not UTF-8, and whole numbers of thousands of digits
        raise refuse(f"{str(error)[:200]}.") from error


def parse_object(data: bytes | str, refuse: JsonRefusal, *, is_foreign: bool = False) -> dict[str, Any]:
    """Return the object of a JSON text, as ``parse_json``."""
    document = parse_json(data, refuse, is_foreign=is_foreign)
    if not isinstance(document, dict):
        raise refuse(f"It holds {kind_of(document)}, not an object.")
    return document


def read_bytes(path: Path, limit: int, refuse: JsonRefusal) -> bytes:
    """Return the content of a file of at most ``limit`` bytes."""
    with storage_errors(path, NOT_READ), path.open("rb") as stream:
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise refuse(f"It is larger than {show_size(limit)}.")
    return data


def read_object(path: Path, limit: int, refuse: JsonRefusal, *, is_foreign: bool = False) -> dict[str, Any]:
    """Return the object of a JSON file of at most ``limit`` bytes, as ``parse_json``."""
    return parse_object(read_bytes(path, limit, refuse), refuse, is_foreign=is_foreign)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"An object has the field {twice!r:.80} twice")
    return result


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text:.40} is too large a number")
    return value


MAX_KEPT_BYTES = 1 << 20


class JsonCache:
    """Small documents of this user that can be made again, a file each; what cannot be read is missing.

    Args:
        folder: folder of the files; it is created when something is stored.
        most_bytes: of a document; larger ones are not stored.
        most_files: documents that are kept; a new one replaces the oldest, with the files that share its name but for
            the suffix. None: all are.
    """

    def __init__(self, folder: Path, most_bytes: int = MAX_KEPT_BYTES, most_files: int | None = None) -> None:
        self._folder = folder
        self._most_bytes = most_bytes
        self._most_files = most_files

    def path(self, key: Mapping[str, Any]) -> Path:
        """Return the file for a key, which is everything that the document depends on."""
        # Imported here: hashing is not needed to decode.
        import hashlib

        text = json.dumps(dict(key), sort_keys=True)
        return self._folder / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"

    def load(self, key: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the document of a key; None if there is none."""
        document = self._read(self.path(key))
        return document if document is not None and document.get("key") == dict(key) else None

    def find(self, facts: Mapping[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Return (key, document) of all whose keys contain these facts."""
        entries = []
        try:
            paths = sorted(self._folder.glob("*.json"))
        except OSError:
            return []
        for path in paths:
            document = self._read(path)
            key = None if document is None else document.get("key")
            if document is not None and isinstance(key, dict) and all(key.get(n) == v for n, v in facts.items()):
                entries.append((key, document))
        return entries

    def save(self, key: Mapping[str, Any], document: Mapping[str, Any]) -> bool:
        """Store a document atomically; return False if it cannot be written and will have to be made again."""
        data = json.dumps({"key": dict(key), **document}).encode()
        if len(data) > self._most_bytes:
            return False
        path = self.path(key)
        is_new = not path.exists()
        try:
            # No fsync: it is not worth waiting for the disk.
            write_atomically(path, [data], durable=False, parents=True)
        except StorageError:
            return False
        if is_new and self._most_files is not None:
            # Another process may drop them, too.
            with suppress(OSError):
                newest_first = sorted(self._folder.glob("*.json"), key=lambda file: file.stat().st_mtime, reverse=True)
                for oldest in newest_first[self._most_files :]:
                    for file in self._folder.glob(f"{oldest.stem}.*"):
                        file.unlink(missing_ok=True)
        return True

    def remove(self, key: Mapping[str, Any]) -> None:
        """Forget the document of a key."""
        self.path(key).unlink(missing_ok=True)

    def _read(self, path: Path) -> dict[str, Any] | None:
        try:
            return read_object(path, self._most_bytes, ValueError)
        except (StorageError, ValueError):
            return None


def user_cache(name: str) -> Path:
    """Return a folder of this user for what can be made again, in which no name is anything else's."""
    import platformdirs

    return platformdirs.user_cache_path("edge-rt") / name
