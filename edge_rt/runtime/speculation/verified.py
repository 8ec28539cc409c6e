"""Where speculation was verified on a device: which packages gave the same answers there with and without it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from edge_rt.errors import StorageError
from edge_rt.system.atomic_files import write_atomically
from edge_rt.version import VERSION

_VERSION: Final = 1


def verification_key(*, package_id: str, device: Mapping[str, Any], kv_format: str, onnxruntime: str) -> dict[str, Any]:
    """Return what the bits of a package's passes on a device depend on.

    Args:
        package_id: identity of the package.
        device: ``ComputeDevice.facts``.
        kv_format: format of the cache.
        onnxruntime: version of ONNX Runtime.
    """
    return {
        "package_id": package_id, "device": dict(device), "kv_format": kv_format, "onnxruntime": onnxruntime,
        "edge_rt": VERSION,
    }  # fmt: skip


class VerifiedStore:
    """Verifications that passed, one small file each.

    Args:
        folder: folder of the files; it is created when something is stored.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, key: Mapping[str, Any]) -> Path:
        """Return the file for a key."""
        import hashlib

        text = json.dumps(dict(key), sort_keys=True)
        return self._folder / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"

    def has(self, key: Mapping[str, Any]) -> bool:
        """Return whether a verification passed; an unreadable file counts as none."""
        try:
            document = json.loads(self.path(key).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return False
        return isinstance(document, dict) and (document.get("version"), document.get("key")) == (_VERSION, dict(key))

    def add(self, key: Mapping[str, Any], drafted: int) -> bool:
        """Store that answers with a number of drafted tokens were the same; return False if it cannot be written."""
        text = json.dumps({"version": _VERSION, "key": dict(key), "drafted": drafted})
        try:
            write_atomically(self.path(key), [text.encode()], durable=False, parents=True)
        except StorageError:
            return False
        return True

    def remove(self, key: Mapping[str, Any]) -> None:
        """Forget a verification: answers were found that differ."""
        self.path(key).unlink(missing_ok=True)


def user_verified() -> VerifiedStore:
    """Return the store of this user's verifications, beside that of measured costs."""
    import platformdirs

    return VerifiedStore(platformdirs.user_cache_path("edge-rt") / "verified-devices")
