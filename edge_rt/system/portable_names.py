"""Names of files that every system can have: what is written on one machine is copied to another."""

from __future__ import annotations

from typing import Final

MAX_NAME_BYTES: Final = 255
_FORBIDDEN: Final = frozenset('<>:"/\\|?*')
_DEVICES: Final = frozenset(
    ["con", "prn", "aux", "nul", "conin$", "conout$"]
    + [f"{port}{digit}" for port in ("com", "lpt") for digit in "0123456789\u00b9\u00b2\u00b3"]
)
"""Windows opens a device for these names in every folder, whatever follows their first dot."""


def is_device_name(name: str) -> bool:
    """Return whether Windows takes a file's name for a device's: ``nul``, ``NUL.txt`` and ``com1 .gguf`` are some."""
    return name.partition(".")[0].rstrip(" ").lower() in _DEVICES


def is_portable_name(name: str) -> bool:
    """Return whether every system can have a file or folder of that name, which stands for no other place.

    Refused are what is no plain name (empty, ``.``, ``..``, separators, drive letters), control characters and
    ``<>:"|?*``, dots and spaces at the end, which Windows drops, names of its devices, and more than 255 bytes.
    """
    if not name or name[-1] in ". " or not _FORBIDDEN.isdisjoint(name) or not name.isprintable():
        return False
    return not is_device_name(name) and len(name.encode(errors="replace")) <= MAX_NAME_BYTES


def is_portable_path(path: str) -> bool:
    """Return whether a relative path with ``/`` between its parts has portable names only: it stays in its folder."""
    return all(is_portable_name(part) for part in path.split("/"))
